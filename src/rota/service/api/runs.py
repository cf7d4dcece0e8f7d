"""The methods for workers and supervisors: claims, and what happens to a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rota import errors as e
from rota.kernel import Completion, RunReport
from rota.kernel.limit_grants import LimitGrant, Settlement
from rota.kernel.turn import CLAIM_TIMEOUT_S, TurnResult
from rota.model.work import Agent, ReadyEntry, ScheduleSpec
from rota.service.api.declaration import REFUSED, method

__all__ = ["ClaimApi", "SupervisionApi"]

_RUN = (e.SchedUnknownId, e.StaleClaim, e.SchedInvalidPayload)
_CLAIM = (e.SchedInvalidPayload, e.UnknownPolicy)
_CLAIM_OVERRIDES = ("now", "admission_check")


class ClaimApi(Protocol):
    """Claims by a policy."""

    @method(
        "kernel.sched.claim",
        scope="work",
        execution="claim",
        bound=REFUSED,
        run="refused",
        result="entries",
        operate_fields=_CLAIM_OVERRIDES,
        errors=_CLAIM,
    )
    def claim(
        self,
        worker_id: str,
        max_n: int = 1,
        *,
        policy: str | None = None,
        wait_s: float = 0.0,
        now: float | None = None,
        admission_check: bool = True,
        claim_timeout_s: float = CLAIM_TIMEOUT_S,
        incarnation: str = "",
        kinds: tuple[str, ...] = (),
        except_agents: tuple[int, ...] = (),
    ) -> list[ReadyEntry]:
        """Claim ready entries for a worker; while there are none, wait up to wait_s."""
        ...

    @method(
        "kernel.sched.complete_and_claim",
        scope="work",
        execution="claim",
        bound=REFUSED,
        run="refused",
        operate_fields=_CLAIM_OVERRIDES,
        errors=_CLAIM,
    )
    def complete_and_claim(
        self,
        completions: Sequence[Completion],
        worker_id: str,
        max_n: int = 1,
        *,
        policy: str | None = None,
        wait_s: float = 0.0,
        now: float | None = None,
        admission_check: bool = True,
        claim_timeout_s: float = CLAIM_TIMEOUT_S,
        incarnation: str = "",
        kinds: tuple[str, ...] = (),
        except_agents: tuple[int, ...] = (),
    ) -> TurnResult:
        """Complete runs and claim the next entries in one commit."""
        ...

    @method(
        "kernel.run.turn",
        scope="work",
        execution="claim",
        bound=REFUSED,
        run="refused",
        operate_fields=_CLAIM_OVERRIDES,
        errors=_CLAIM,
    )
    def turn(
        self,
        reports: Sequence[RunReport],
        worker_id: str,
        max_n: int = 1,
        *,
        policy: str | None = None,
        wait_s: float = 0.0,
        now: float | None = None,
        admission_check: bool = True,
        claim_timeout_s: float = CLAIM_TIMEOUT_S,
        incarnation: str = "",
        kinds: tuple[str, ...] = (),
        except_agents: tuple[int, ...] = (),
    ) -> TurnResult:
        """For supervisors: complete runs, claim the next entries and move the agents of both, in one commit."""
        ...


class SupervisionApi(Protocol):
    """State changes of runs together with their agents."""

    @method(
        "kernel.run.began", scope="work", execution="write", bound=REFUSED, run="refused", retry_safe=True, errors=_RUN
    )
    def began(
        self,
        sched_id: int,
        token: int,
        *,
        slot: str,
        runner: str,
        os_pid: int | None = None,
        advisories: Sequence[str] = (),
        enforced: Sequence[str] = (),
        node: str | None = None,
    ) -> None:
        """Record that a runner started an entry, and what of its settings is enforced and what is not as it reads."""
        ...

    @method(
        "kernel.run.settings_changed",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=_RUN,
    )
    def settings_changed(
        self, sched_id: int, token: int, *, advisories: Sequence[str] = (), enforced: Sequence[str] = ()
    ) -> None:
        """Record what of a run's settings is enforced from now on and what is not as it reads."""
        ...

    @method(
        "kernel.run.access_token",
        scope="work",
        execution="read",
        bound=REFUSED,
        run="refused",
        result="access_token",
        errors=_RUN,
    )
    def access_token(self, sched_id: int, token: int) -> str:
        """Return a run's own access token: with it the run's program may act for its run while the claim lives."""
        ...

    @method(
        "kernel.run.checkpoint", scope="work", execution="write", bound=REFUSED, run="own", retry_safe=True, errors=_RUN
    )
    def checkpoint(self, sched_id: int, token: int, state: dict[str, Any]) -> None:
        """Save a run's checkpoint for its next attempt."""
        ...

    @method(
        "kernel.run.progress",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="own",
        result="event_id",
        retry_safe=True,
        errors=_RUN,
    )
    def progress(self, sched_id: int, token: int, fraction: float, text: str = "") -> int:
        """Record how far a run is: a fraction from 0 to 1, and a text for people."""
        ...

    @method("kernel.run.rest", scope="work", execution="write", bound=REFUSED, run="own", result="amounts", errors=_RUN)
    def rest(self, sched_id: int, token: int, *, waiting: bool, awaits: Sequence[int] = ()) -> dict[str, int]:
        """Record that a run waits for its children, or continues with what is left of the budget lent to them.

        `awaits` names the entries; it is refused if one of them is behind the wall of another project.
        """
        ...

    @method(
        "kernel.run.agent_to_spawn",
        scope="work",
        execution="read",
        bound=REFUSED,
        run="own",
        errors=(e.UnknownAgent, e.AmbiguousAgent, *_RUN),
    )
    def agent_to_spawn(self, sched_id: int, token: int, name: str) -> Agent:
        """Return the agent that a name means to a run, among those that its project may reach."""
        ...

    @method(
        "kernel.run.throttle",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="own",
        result="until_at",
        errors=_RUN,
    )
    def throttle(self, sched_id: int, token: int, retry_after_s: float, name: str | None = None) -> dict[str, float]:
        """Pause a limit that a run draws on, or all of them, because the provider asked for it: at most one day."""
        ...

    @method(
        "kernel.run.spawn",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="children",
        result="sched_id",
        errors=(e.LedgerInvalidAmount, e.UnknownPid, e.SchedUnknownId, e.SchedInvalidPayload, *_RUN),
    )
    def spawn(self, spec: ScheduleSpec, token: int, lent: Mapping[str, int] | None = None) -> int:
        """Enqueue a child of a run, with a part of the run's budget."""
        ...

    @method(
        "kernel.run.acquire",
        scope="work",
        execution="park",
        bound=REFUSED,
        run="own",
        retry_safe=True,
        errors=(e.ContextUnknown, e.ContextInvalid, e.AskExceedsLimit, *_RUN),
    )
    def acquire(
        self, sched_id: int, token: int, name: str, amounts: Mapping[str, int], *, key: str, wait_s: float = 0.0
    ) -> LimitGrant:
        """Ask a limit for amounts on behalf of a run, and wait up to wait_s until it has them."""
        ...

    @method(
        "kernel.run.settle",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="own",
        retry_safe=True,
        errors=(e.ContextInvalid, *_RUN),
    )
    def settle(
        self, sched_id: int, token: int, key: str, used: Mapping[str, int] | None = None, *, node: str | None = None
    ) -> Settlement:
        """Record what a run used of what it acquired; the limit gets the rest back."""
        ...

    @method(
        "kernel.run.quarantine",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        audited=False,
        retry_safe=True,
        errors=(e.UnknownPid, e.InvalidPayload, e.SchedInvalidPayload),
    )
    def quarantine(
        self,
        pid: int,
        failures: int = 0,
        until_at: float | None = None,
        *,
        for_s: float | None = None,
        reason: str | None = None,
    ) -> None:
        """Pause an agent that keeps failing for a time, or one with unusable settings until they change."""
        ...

    @method(
        "kernel.run.moved",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        audited=False,
        errors=(e.SchedInvalidPayload,),
    )
    def moved(self, worker_id: str, incarnation: str, verb: str) -> None:
        """Record that a supervisor started, drains, stopped or took over."""
        ...

    @method(
        "kernel.run.recover",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        audited=False,
        result="pids",
        retry_safe=True,
    )
    def recover(self) -> list[int]:
        """At a supervisor's start: move agents whose runs have no live claim out of their running state."""
        ...
