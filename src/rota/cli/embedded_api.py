"""The whole scheduler API of a file that this process opened. `connection.py` loads it when a command needs it."""

from __future__ import annotations

from rota.kernel import Kernel
from rota.model import EntryReport, Explanation, ExplanationSummary, ScheduleSpec
from rota.service import Dispatcher, entry_report, estimate, explain, explain_many

__all__ = ["EmbeddedApi"]


class EmbeddedApi(Dispatcher):
    """The scheduler API of a file that this process opened."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.terminate, self.info = kernel.terminate, kernel.info

    def explain(
        self,
        sched_id: int,
        *,
        worker_id: str = "any-worker",
        max_n: int = 1,
        policy: str | None = None,
        kinds: tuple[str, ...] = (),
        now: float | None = None,
    ) -> Explanation:
        """Explain why an entry is not running."""
        return explain(
            self,
            sched_id,
            worker_id=worker_id,
            max_n=max_n,
            policy=policy,
            kinds=kinds,
            now=now,
            policy_from_store=True,
        )

    def estimate(self, spec: ScheduleSpec) -> Explanation:
        """Explain what would happen to an entry if it were enqueued now."""
        return estimate(self, spec, policy_from_store=True)

    def explain_many(self, *, pid: int | None = None, project_id: str | None = None) -> ExplanationSummary:
        """Count why queued entries wait."""
        return explain_many(self, pid=pid, project_id=project_id)

    def show(self, sched_id: int) -> EntryReport:
        """Return everything about one entry."""
        return entry_report(self.kernel.store, self.kernel.clock, sched_id)

    def __enter__(self) -> EmbeddedApi:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
