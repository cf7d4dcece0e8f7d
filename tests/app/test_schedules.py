"""`every` and `cron`: agents that are enqueued by themselves while a supervisor runs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rota import Rota
from rota.clock import ManualClock
from rota.errors import InvalidInput
from rota.testing import InMemoryRota

HOUR_S = 3600.0


def test_an_interval_fires_at_each_instant_and_a_cron_expression_in_its_zone(rota: InMemoryRota) -> None:
    ran: list[tuple[str, float]] = []

    @rota.agent(every=timedelta(minutes=20))
    def often() -> None:
        ran.append(("often", rota.clock.now()))

    @rota.agent(cron="30 1 * * *", zone="Europe/Berlin")
    def nightly(ctx: Any, kind: str = "all") -> None:
        ran.append((f"{ctx.trigger} {kind}", rota.clock.now()))

    start = rota.clock.now()  # midnight in UTC, one o'clock in Berlin
    rota.run_until_idle()
    for _ in range(3):
        rota.advance(HOUR_S / 3)
        rota.run_until_idle()
    assert [(name, (at - start) / 60) for name, at in ran] == [
        ("often", 20.0), ("often", 40.0), ("cron all", 40.0), ("often", 60.0),
    ]  # fmt: skip
    rota.advance(HOUR_S)
    rota.assert_enqueued(often, count=6)


def test_a_restart_neither_repeats_nor_loses_an_instant(tmp_path: Path) -> None:
    clock, path, ran = ManualClock(277_777 * HOUR_S), tmp_path / "rota.db", [0]

    def program() -> None:
        with Rota(path, clock=clock) as rota:

            @rota.agent(every="1h", project="lab")
            def hourly() -> None:
                ran[0] += 1

            rota.run(until_idle=True)

    program()
    for wanted in (1, 1, 2):
        clock.advance(HOUR_S / 2 if wanted == ran[0] else HOUR_S)
        program()
        assert ran == [wanted]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"every": 0.5}, "every must be at least 1 s, not 0.5"),
        ({"every": "often"}, "every must be a duration"),
        ({"cron": "* * *"}, "it has 3 fields, not 5"),
        ({"cron": "0 9 * * *", "zone": "Mars"}, "unknown time zone 'Mars'"),
        ({"zone": "Europe/Berlin"}, "zone is the time zone of cron"),
        ({"every": 60, "cron": "0 9 * * *"}, "either every or cron"),
    ],
)
def test_a_schedule_that_cannot_work_is_refused(rota: InMemoryRota, options: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        rota.agent(**options)(lambda: None)
    assert rota.api.agents.list()[1] == 0


def test_a_schedule_for_a_function_that_needs_arguments_is_refused(rota: InMemoryRota) -> None:
    def needs(ctx: Any, url: str, words: int = 3) -> str:
        return f"{ctx.agent} {url} {words}"

    with pytest.raises(InvalidInput, match="a schedule cannot run needs: it needs url"):
        rota.agent(every=60)(needs)
    handle = rota.agent(every=60, payload={"url": "u"})(needs)
    rota.advance(60)
    rota.run_until_idle()
    (job,) = rota.assert_enqueued(handle, count=1)
    assert job.result() == "needs u 3"


def test_schedules_fire_in_a_running_supervisor_behind_every_door(anywhere: Rota) -> None:
    @anywhere.agent(every=1)
    def ticks() -> None:
        anywhere.stop()

    anywhere.run()
    entries, _ = anywhere.api.queue.list(trigger="interval")
    assert entries[0].exit_kind == "completed"
