"""The lifecycle of components: start in order, end in reverse, restored state."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from rota.errors import ComponentInvalid, GraphRunFailed
from rota.graph.components import component
from rota.graph.run_options import SchedulerStopReason
from tests.graph.parts import log
from tests.graph.worlds import node, run


class Living:
    """A class component that records its lifecycle calls."""

    name = "?"

    def configure(self) -> None:
        log.append(f"configure {self.name}")

    def activate(self) -> None:
        log.append(f"activate {self.name}")

    def deactivate(self) -> None:
        log.append(f"deactivate {self.name}")

    def execute(self) -> None:
        log.append(f"execute {self.name}")


def living(name: str, **methods: Any) -> Any:
    return component(name)(type(name, (Living,), {"name": name, "execute": _execute(name), **methods}))


def _execute(name: str) -> Any:
    def execute(self: Any) -> None:
        log.append(f"execute {name}")

    return execute


def fail(message: str) -> Any:
    def method(self: Any) -> None:
        raise RuntimeError(message)

    return method


class TestLifecycle:
    def test_components_start_in_lifecycle_order_and_end_in_reverse(self) -> None:
        nodes = [node(living("b"), after=["a"]), node(living("a"))]
        assert run(nodes).ok
        assert [each for each in log if not each.startswith("execute")] == [
            "configure a",
            "activate a",
            "configure b",
            "activate b",
            "deactivate b",
            "deactivate a",
        ]

    @pytest.mark.parametrize("phase", ["configure", "activate"])
    def test_a_failed_start_deactivates_those_that_were_started_and_runs_nothing(self, phase: str) -> None:
        nodes = [node(living("a")), node(living("b", **{phase: fail("no power")}))]
        result = run(nodes)
        assert [each for each in log if "deactivate" in each] == ["deactivate a"]
        assert not any(each.startswith("execute") for each in log)
        error = result.runtime_errors[0]
        assert (result.epochs, result.scheduler_stop_reason) == (0, SchedulerStopReason.ERROR)
        assert (error.phase, error.code, error.component_id, error.fatal) == (phase, f"component_{phase}", "b", True)
        assert result.errors == (f"component b failed to {phase}: RuntimeError: no power",)

    def test_a_failed_deactivate_does_not_stop_the_others_and_makes_the_result_not_ok(self) -> None:
        nodes = [node(living("a")), node(living("b", deactivate=fail("stuck")))]
        result = run(nodes)
        assert "deactivate a" in log
        assert result.scheduler_stop_reason == SchedulerStopReason.TICK_BOUND
        assert (result.ok, result.runtime_errors[0].fatal) == (False, False)
        assert result.errors == ("component b failed to deactivate: RuntimeError: stuck",)

    @pytest.mark.parametrize("hook", ["configure", "reset", "activate", "deactivate", "snapshot"])
    def test_sys_exit_in_a_hook_is_a_failure_of_the_component(self, hook: str) -> None:
        def leave(self: Any) -> None:
            sys.exit(3)

        result = run([node(living("a")), node(living("b", **{hook: leave}))])
        assert "deactivate a" in log
        assert "SystemExit: 3" in result.errors[0]
        assert result.runtime_errors[0].component_id == "b"

    def test_sys_exit_in_a_constructor_is_refused_like_any_failure(self) -> None:
        @component
        class Leaves:
            def __init__(self) -> None:
                sys.exit(3)

            def execute(self) -> None:
                """It is never called."""

        with pytest.raises(ComponentInvalid, match="cannot be created: SystemExit: 3"):
            run([node(Leaves)])

    def test_a_component_error_stops_the_run_and_all_components_are_deactivated(self) -> None:
        nodes = [node(living("a")), node(living("b", execute=fail("broken")))]
        result = run(nodes, steps=5)
        assert log[-2:] == ["deactivate b", "deactivate a"]
        assert (result.epochs, result.scheduler_stop_reason) == (1, SchedulerStopReason.ERROR)
        assert result.errors == ("component b failed to execute: RuntimeError: broken",)
        with pytest.raises(GraphRunFailed, match="broken"):
            result.raise_if_failed()

    def test_hooks_may_be_async(self) -> None:
        async def activate(self: Any) -> None:
            log.append("activated")

        assert run([node(living("a", activate=activate))]).ok
        assert "activated" in log

    def test_state_is_snapshotted_after_a_run_and_restored_before_the_next(self) -> None:
        @component
        class Tally:
            def __init__(self) -> None:
                self.total = 0

            def reset(self) -> None:
                self.total = 0
                log.append("reset")

            def restore(self, state: int) -> None:
                self.total = state
                log.append(f"restore {state}")

            def snapshot(self) -> int:
                return self.total

            def execute(self) -> None:
                self.total += 1

        first = run([node(Tally)], steps=3)
        assert first.snapshots == {"Tally": 3}
        second = run([node(Tally)], steps=2, restore=first.snapshots)
        assert second.snapshots == {"Tally": 5}
        assert log == ["reset", "restore 3"]

    def test_an_interrupt_ends_what_was_started_and_is_raised(self) -> None:
        def execute(self: Any) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run([node(living("a")), node(living("b", execute=execute))])
        assert log[-2:] == ["deactivate b", "deactivate a"]
