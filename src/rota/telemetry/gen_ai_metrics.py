"""Two histograms of the conventions for generative AI, made of the spans of runs: tokens used, and how long it took.

The conventions count the tokens of one operation, rota those of one run, which may make many calls to a model. So these
are coarser than an agent's own, and need nothing of the agent. This module needs the extra `otel`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

from opentelemetry.sdk.metrics.export import AggregationTemporality, Histogram, HistogramDataPoint, Metric

from rota.observe.metric_labels import Labels
from rota.telemetry.span_records import SpanRecord

__all__ = ["GenAiMetrics"]

# the boundaries that the conventions ask for
TOKENS = tuple(4.0**power for power in range(14))
SECONDS = tuple(0.01 * 2**power for power in range(14))
_UNKNOWN: Any = None  # the extremes are not kept; the encoder leaves them out
_NS = 1_000_000_000


class _Series:
    """The values of one set of attributes."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def point(self, attributes: tuple[tuple[str, str], ...], since_ns: int, now_ns: int) -> HistogramDataPoint:
        return HistogramDataPoint(
            attributes=dict(attributes),
            start_time_unix_nano=since_ns,
            time_unix_nano=now_ns,
            count=sum(self._counts),
            sum=self._sum,
            bucket_counts=list(self._counts),
            explicit_bounds=list(self._bounds),
            min=_UNKNOWN,
            max=_UNKNOWN,
        )


class GenAiMetrics:
    """Counts runs that have ended."""

    def __init__(self) -> None:
        self._labels = Labels()
        self._tokens: dict[tuple[tuple[str, str], ...], _Series] = {}
        self._seconds: dict[tuple[tuple[str, str], ...], _Series] = {}

    def add(self, spans: Iterable[SpanRecord]) -> None:
        """Count the runs among some spans."""
        for span in spans:
            if span.attributes.get("gen_ai.operation.name") != "invoke_agent":
                continue
            of_run = (("gen_ai.operation.name", "invoke_agent"), *self._model(span))
            for kind in ("input", "output"):
                used = span.attributes.get(f"gen_ai.usage.{kind}_tokens")
                if isinstance(used, int):
                    key = (("gen_ai.token.type", kind), *of_run)
                    self._tokens.setdefault(key, _Series(TOKENS)).add(used)
            failed = str(span.attributes.get("error.type", ""))
            key = (*of_run, ("error.type", self._labels.value("error", failed))) if failed else of_run
            self._seconds.setdefault(key, _Series(SECONDS)).add((span.end_ns - span.start_ns) / _NS)

    def _model(self, span: SpanRecord) -> tuple[tuple[str, str], ...]:
        model = span.attributes.get("gen_ai.request.model")
        return () if model is None else (("gen_ai.request.model", self._labels.value("model", str(model))),)

    def points(self, since_ns: int, now_ns: int) -> list[Metric]:
        """Return the values so far."""
        return [
            Metric(name, text, unit, Histogram(points, AggregationTemporality.CUMULATIVE))
            for name, text, unit, series in (
                ("gen_ai.client.token.usage", "Tokens used by a run.", "{token}", self._tokens),
                ("gen_ai.client.operation.duration", "From the start of a run to its end.", "s", self._seconds),
            )
            if (points := [each.point(key, since_ns, now_ns) for key, each in series.items()])
        ]
