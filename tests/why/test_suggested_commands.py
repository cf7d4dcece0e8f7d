"""Every command that `rota why` suggests works as it is printed: it is run, and then the entry can start.

The situations are made with the kernel, on a file; everything else is done by the command line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rota import store
from rota.cli.options import STORE
from rota.cli.suggested_commands import command_of
from rota.kernel import Kernel, ScheduleSpec
from rota.model import Suggestion
from rota.model.graph_budgets import GraphAccount
from rota.model.work import ProjectConstraint
from rota.service.suggestions import DEADLINE_S
from tests.cli.shell import Shell, make_shell
from tests.stores import address_of

SOURCE = Path(__file__).parents[2] / "src" / "rota" / "service"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return address_of(tmp_path / "a store.db")  # a name that a shell would split


@pytest.fixture
def rota(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.delenv("ROTA_STORE", raising=False)
    monkeypatch.setenv("COLUMNS", "60")  # a command is printed in one piece all the same
    return make_shell(monkeypatch, capsys)


@pytest.fixture
def kernel(path: str) -> Iterator[Kernel]:
    made = Kernel(store.open(path))
    made.projects.create("lab")
    yield made
    made.store.close()


def coder(kernel: Kernel) -> int:
    return kernel.agents.create("coder", project_id="lab")


# --- situations: each makes an entry that waits, and returns its id --------------------------------


def later(kernel: Kernel) -> int:
    return kernel.queue.enqueue(ScheduleSpec(coder(kernel), runnable_at=kernel.clock.now() + 3_600))


def backing_off(kernel: Kernel) -> int:
    sched_id = kernel.queue.enqueue(ScheduleSpec(coder(kernel)))
    (run,) = kernel.queue.claim(worker_id="w")
    kernel.queue.put_back(sched_id, token=run.token or 0, runnable_at=kernel.clock.now() + 600)
    return sched_id


def outranked(kernel: Kernel) -> int:
    pid = coder(kernel)
    kernel.queue.enqueue(ScheduleSpec(pid, 7))
    return kernel.queue.enqueue(ScheduleSpec(pid))


def held_after_failure(kernel: Kernel) -> int:
    pid = coder(kernel)
    first = kernel.queue.enqueue(ScheduleSpec(pid))
    held = kernel.queue.enqueue(ScheduleSpec(pid, after=(first,), on_failed="hold"))
    kernel.queue.claim(worker_id="w")
    kernel.queue.complete(first, "failed")
    return held


def held_for_worker(kernel: Kernel) -> int:
    pid = coder(kernel)
    kernel.queue.enqueue(ScheduleSpec(pid))
    kernel.queue.claim(worker_id="box")
    return kernel.queue.enqueue(ScheduleSpec(pid, affinity="box"))


def failed(kernel: Kernel) -> int:
    sched_id = kernel.queue.enqueue(ScheduleSpec(coder(kernel), max_attempts=1))
    kernel.queue.claim(worker_id="w")
    kernel.queue.complete(sched_id, "failed")
    return sched_id


def past_deadline(kernel: Kernel) -> int:
    return kernel.queue.enqueue(ScheduleSpec(coder(kernel), deadline=1.0))


def expired(kernel: Kernel) -> int:
    sched_id = past_deadline(kernel)
    kernel.queue.upkeep()
    return sched_id


def agent_over_grant(kernel: Kernel) -> int:
    pid = coder(kernel)
    kernel.ledger.create(pid, {"tokens": 100})
    kernel.ledger.charge(pid, "tokens", 150)
    return kernel.queue.enqueue(ScheduleSpec(pid))


def project_over_budget(kernel: Kernel) -> int:
    pid = coder(kernel)
    kernel.ledger.create(pid, {"tokens": 1_000})
    kernel.ledger.set_budget("project", "lab", "tokens", 100, window_s=5_400)
    kernel.ledger.charge(pid, "tokens", 150)
    return kernel.queue.enqueue(ScheduleSpec(pid))


def store_over_budget(kernel: Kernel) -> int:
    pid = coder(kernel)
    kernel.ledger.create(pid, {"cost_micro": 1_000})
    kernel.ledger.set_budget("global", "*", "cost_micro", 100, window_s=86_400)
    kernel.ledger.charge(pid, "cost_micro", 150)
    return kernel.queue.enqueue(ScheduleSpec(pid))


def agent_cap(kernel: Kernel) -> int:
    pid = kernel.agents.create("coder", max_concurrent=1)
    kernel.queue.enqueue(ScheduleSpec(pid))
    kernel.queue.claim(worker_id="w")
    return kernel.queue.enqueue(ScheduleSpec(pid))


def project_cap(kernel: Kernel) -> int:
    pid = coder(kernel)
    kernel.queue.enqueue(ScheduleSpec(pid))
    kernel.queue.claim(worker_id="w")
    kernel.projects.update("lab", max_concurrent=1)
    return kernel.queue.enqueue(ScheduleSpec(pid))


def project_constraint(kernel: Kernel) -> int:
    pid = coder(kernel)
    kernel.queue.enqueue(ScheduleSpec(pid, kind="gpu"))
    kernel.queue.claim(worker_id="w", kinds=("gpu",))
    kernel.projects.constrain("lab", ProjectConstraint(max_by_kind={"gpu": 1, "big cpu": 3}))
    return kernel.queue.enqueue(ScheduleSpec(pid, kind="gpu"))


def project_paused_by_constraint(kernel: Kernel) -> int:
    kernel.projects.constrain("lab", ProjectConstraint(pause_scheduling=True, exclusive=True))
    return kernel.queue.enqueue(ScheduleSpec(coder(kernel)))


def agent_paused(kernel: Kernel) -> int:
    pid = coder(kernel)
    kernel.agents.pause(pid, "ann")
    return kernel.queue.enqueue(ScheduleSpec(pid))


def project_paused(kernel: Kernel) -> int:
    kernel.projects.move("lab", "pause", by="ann")
    return kernel.queue.enqueue(ScheduleSpec(coder(kernel)))


def project_archived(kernel: Kernel) -> int:
    sched_id = kernel.queue.enqueue(ScheduleSpec(coder(kernel)))
    kernel.projects.move("lab", "archive", by="ann")
    return sched_id


def fleet_paused(kernel: Kernel) -> int:
    kernel.projects.pause_fleet("ann")
    return kernel.queue.enqueue(ScheduleSpec(coder(kernel)))


def same_names(kernel: Kernel) -> int:
    pid = coder(kernel)
    kernel.agents.create("coder", project_id=None)
    kernel.agents.pause(pid, "ann")
    return kernel.queue.enqueue(ScheduleSpec(pid))


def node_over_budget(kernel: Kernel) -> int:
    pid = coder(kernel)
    kernel.graphs.take("report-1", "report", pid)
    kernel.ledger.open_graph_budgets("report-1", {"": {"tokens": 900}, "writer": {"tokens": 40}})
    first, second = (kernel.queue.enqueue(ScheduleSpec(pid, account=GraphAccount("report-1", "writer"))) for _ in "ab")
    (run,) = kernel.queue.claim(worker_id="w")
    kernel.queue.charge(first, {"tokens": 40}, token=run.token)
    kernel.queue.complete(first, "completed", token=run.token)
    return second


class Expected(NamedTuple):
    verbs: list[str]
    commands: list[str]  # without the store; {id} is the entry


SITUATIONS: dict[Callable[[Kernel], int], Expected] = {
    later: Expected(["queue.change"], ["rota change {id} --at now"]),
    backing_off: Expected(["queue.change"], ["rota change {id} --at now"]),
    outranked: Expected(["queue.change"], ["rota change {id} --priority 8"]),
    held_after_failure: Expected(["queue.release"], ["rota release {id}"]),
    held_for_worker: Expected(["queue.release"], ["rota release {id}"]),
    failed: Expected(["queue.retry"], ["rota retry {id}"]),
    past_deadline: Expected(["queue.change"], ["rota change {id} --deadline +1h"]),
    expired: Expected(["queue.retry"], ["rota retry {id}"]),
    agent_over_grant: Expected(["ledger.update_grant"], ["rota ledger grant coder tokens 150"]),
    project_over_budget: Expected(
        ["ledger.set_budget"], ["rota ledger budget project tokens 151 --project lab --window 90m"]
    ),
    store_over_budget: Expected(["ledger.set_budget"], ["rota ledger budget global cost_micro 151 --window 1d"]),
    node_over_budget: Expected(["ledger.set_graph_budget"], ["rota graph budget report-1 tokens=41 --node writer"]),
    agent_cap: Expected(["agents.update"], ["rota agents set coder --max-concurrent 2"]),
    project_cap: Expected(["projects.update"], ["rota projects set lab --max-concurrent 2"]),
    project_constraint: Expected(
        ["projects.constrain"], ["rota projects constrain lab --kind gpu=2 --kind 'big cpu=3'"]
    ),
    project_paused_by_constraint: Expected(["projects.constrain"], ["rota projects constrain lab --exclusive"]),
    agent_paused: Expected(["agents.resume"], ["rota resume agent coder"]),
    project_paused: Expected(["projects.move"], ["rota resume project lab"]),
    project_archived: Expected(
        ["projects.move", "projects.move"], ["rota projects restore lab", "rota resume project lab"]
    ),
    fleet_paused: Expected(["projects.resume_fleet"], ["rota resume fleet"]),
    same_names: Expected(["agents.resume"], ["rota resume agent 1"]),
}


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.__name__)
def test_what_is_printed_can_be_pasted_and_then_the_entry_can_start(
    situation: Callable[[Kernel], int], kernel: Kernel, path: str, rota: Shell
) -> None:
    expected, sched_id = SITUATIONS[situation], situation(kernel)
    asked = ("--store", path, "--policy", "strict")
    told = rota("why", sched_id, *asked, "--json").json
    assert told["blocking"] or told["ordering"]
    assert [change["verb"] for change in told["changes"]] == expected.verbs
    at_store = f" --store {shlex.quote(path)}"
    commands = [f"{command.format(id=sched_id)}{at_store}" for command in expected.commands]
    assert [change["command"] for change in told["changes"]] == commands
    lines = [line.strip() for line in rota("why", sched_id, *asked).out.splitlines()]
    assert [line for line in lines if line.startswith("rota ")] == commands
    for command in commands:
        done = rota(*shlex.split(command)[1:])
        assert done.code == 0, done.err
    again = kernel.queue.list()[0][-1].sched_id if expected.verbs == ["queue.retry"] else sched_id
    after = rota("why", again, *asked, "--json").json
    assert (after["blocking"], after["ordering"], after["changes"]) == ([], [], [])


def test_every_method_that_is_suggested_has_a_situation() -> None:
    text = (SOURCE / "suggestions.py").read_text() + (SOURCE / "explanation.py").read_text()
    suggested = set(re.findall(r'"((?:queue|agents|projects|ledger|contexts)\.\w+)"', text))
    assert suggested == {verb for expected in SITUATIONS.values() for verb in expected.verbs} | {"queue.force_claim"}


def test_a_claim_is_not_forced_by_a_command(kernel: Kernel, path: str, rota: Shell) -> None:
    """Nothing on the command line runs an entry out of turn where projects share; the text says what remains."""
    kernel.projects.create("other")
    mine, other = coder(kernel), kernel.agents.create("writer", project_id="other")
    kernel.queue.enqueue_many([ScheduleSpec(other), ScheduleSpec(mine)])
    second = 1 if rota("why", 2, "--store", path, "--policy", "eevdf", "--json").json["position"] == 1 else 2
    told = rota("why", second, "--store", path, "--policy", "eevdf", "--json").json
    assert [(change["verb"], change["command"]) for change in told["changes"]] == [("queue.force_claim", None)]
    words = rota("why", second, "--store", path, "--policy", "eevdf").out
    assert "wait for its turn" in words
    assert "force" not in words


@pytest.mark.parametrize(
    ("verb", "arguments", "command"),
    [
        ("queue.change", {"sched_id": 9, "deadline": 1_000.0 + DEADLINE_S}, "rota change 9 --deadline +1h"),
        ("queue.change", {"sched_id": 9, "priority": -3}, "rota change 9 --priority -3"),
        (None, {}, None),
    ],
)
def test_the_default_store_is_not_named(verb: str | None, arguments: dict[str, Any], command: str | None) -> None:
    assert command_of(Suggestion("words", verb, arguments), agent="coder", store=STORE) == command


def test_no_sentence_has_epoch_seconds(kernel: Kernel, path: str, rota: Shell) -> None:
    pid = coder(kernel)
    kernel.contexts.create(bound_to="name", bound_id="openai", budget=10, period_s=60)
    kernel.contexts.throttle("openai", 600.0)
    for sched_id in (later(kernel), kernel.queue.enqueue(ScheduleSpec(pid, draws_on=("openai",)))):
        assert re.search(r"\d{9}", rota("why", sched_id, "--store", path).out) is None


@pytest.mark.parametrize("policy", ["strict", "edf", "round_robin", "fair_share"])
def test_the_words_of_a_policy_have_no_epoch_seconds_either(
    policy: str, kernel: Kernel, path: str, rota: Shell
) -> None:
    pid, now = coder(kernel), kernel.clock.now()
    kernel.queue.enqueue(ScheduleSpec(pid))
    kernel.queue.claim(worker_id="w")  # the agent has run before
    ids = kernel.queue.enqueue_many([ScheduleSpec(pid, 9 - n, deadline=now + 900 + n) for n in range(3)])
    told = rota("why", ids[-1], "--store", path, "--policy", policy)
    assert "outranked" in told.out
    assert re.search(r"\d{9}", told.out) is None
