# rota in a container: a small image, a user without rights, and a check whether the daemon can read and write its store.
#
#   docker build -t rota .
#   docker run --init --network host --volume rota:/data rota                  # the daemon
#   docker run --rm --volume rota:/data rota token create laptop --scope read  # any other command
#
# The store is /data/rota.db. The daemon listens on loopback only: an address that others can reach needs TLS
# (--tls-cert, --tls-key), so the container shares the network of its host. compose.yaml has a fleet on PostgreSQL and
# the dashboard.

FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY docs docs
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
ARG EXTRAS=fast,postgres,web,mcp,otel
COPY constraints.txt /tmp/constraints.txt
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt "$(ls /wheels/*.whl)[$EXTRAS]" \
 && rm -r /wheels /tmp/constraints.txt \
 && groupadd --gid 10001 rota \
 && useradd --uid 10001 --gid rota --home-dir /data --create-home rota

USER rota
WORKDIR /data
VOLUME /data
ENV ROTA_STORE=/data/rota.db
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=15s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7682/readyz', timeout=8)"]
ENTRYPOINT ["rota"]
CMD ["serve", "--listen", "127.0.0.1:7682"]
