"""How a run is stopped: steps that it does not support are skipped, and the last one is repeated until it has ended."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pytest

from rota.clock import ManualClock
from rota.fleet.runners.contract import StopStep
from rota.fleet.stop_escalation import KILL_AGAIN_S, StopEscalation
from rota.host.watchdog import Watchdog
from tests.host.support import until

GRACE_S = 5.0


class Stopped:
    """A run that ends at none of the steps, and supports some of them."""

    def __init__(self, clock: ManualClock, supported: Collection[StopStep]) -> None:
        self.clock = clock
        self.supported = supported
        self.steps: list[StopStep] = []
        self.watchdog = Watchdog(clock, "test-watchdog")
        self.escalation = StopEscalation(self.watchdog, GRACE_S)
        self.escalation.start(self)

    def _take(self, step: StopStep) -> bool:
        if step in self.supported:
            self.steps.append(step)
        return step in self.supported

    def request_stop(self, _reason: str) -> bool:
        return self._take("request")

    def terminate(self) -> bool:
        return self._take("terminate")

    def kill(self) -> bool:
        return self._take("kill")

    def after(self, passed_s: float, steps: int) -> list[StopStep]:
        """Let time pass, and return what was done when there are so many steps."""
        self.clock.advance(passed_s)
        until(lambda: len(self.steps) >= steps)
        return self.steps


@pytest.fixture
def runs() -> Iterator[list[Stopped]]:
    found: list[Stopped] = []
    yield found
    for each in found:
        each.watchdog.close()


def stopped(runs: list[Stopped], *supported: StopStep) -> Stopped:
    runs.append(Stopped(ManualClock(), supported))
    return runs[-1]


def test_each_step_has_its_grace_and_the_last_one_is_repeated(runs: list[Stopped]) -> None:
    run = stopped(runs, "request", "terminate", "kill")
    assert run.escalation.stop("cancelled")
    assert run.steps == ["request"]
    assert run.after(GRACE_S, 2) == ["request", "terminate"]
    assert run.after(GRACE_S, 3) == ["request", "terminate", "kill"]
    for count in (4, 5):
        assert run.after(KILL_AGAIN_S, count)[3:] == ["kill"] * (count - 3)
    assert run.escalation.stopped_by == "KILL"
    run.escalation.end()
    run.clock.advance(KILL_AGAIN_S)
    run.watchdog.close()
    assert len(run.steps) == 5, "it has ended"


def test_what_a_runner_does_not_support_is_skipped_and_not_repeated(runs: list[Stopped]) -> None:
    run = stopped(runs, "request")
    run.escalation.stop("cancelled")
    run.clock.advance(GRACE_S)
    run.clock.advance(KILL_AGAIN_S)
    run.watchdog.close()
    assert run.steps == ["request"]
    assert run.escalation.stopped_by == "message"


def test_a_kill_skips_to_the_last_step(runs: list[Stopped]) -> None:
    run = stopped(runs, "request", "terminate", "kill")
    run.escalation.stop("cancelled")
    run.escalation.kill("draining")
    assert run.steps == ["request", "kill"]
    assert run.after(KILL_AGAIN_S, 3) == ["request", "kill", "kill"]
    assert run.escalation.reason == "cancelled"
