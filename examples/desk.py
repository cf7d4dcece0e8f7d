"""A desk that reads pages and writes a digest: retries, an order, progress, results. Start: python examples/desk.py"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from rota import Rota
from rota.model import Backoff, RestartPolicy

rota = Rota()  # in memory; Rota("desk.db") keeps it


class Paywall(Exception):
    """No retry helps."""


@rota.agent(project="desk", non_retryable=[Paywall], restart=RestartPolicy(backoff=Backoff(base_s=0.1)))
def read(ctx: Any, url: str) -> int:
    ctx.progress(0.5, f"reading {url}")
    if url == "paywall":
        raise Paywall("pay first")
    if url == "flaky" and ctx.attempt < 3:
        raise OSError("no network")
    return len(url)


@rota.agent(project="desk", every=timedelta(hours=1))
def digest(pages: list[int] | None = None) -> str:
    words = sum(rota.job(sched_id).result() for sched_id in pages or [])
    return f"{words} letters in {len(pages or [])} pages"


def main() -> None:
    jobs = read.map(["front page", "flaky", "paywall"], tags="morning")
    written = digest.enqueue(pages=[job.sched_id for job in jobs[:2]], after=jobs[:2])
    print(rota.run(slots=2, until_idle=True))
    for job in rota.as_completed([*jobs, written]):
        errors = [error.error for error in job.errors()]
        print(job.sched_id, job.status, job.entry().result if job.status == "succeeded" else "", *errors)


if __name__ == "__main__":
    main()
