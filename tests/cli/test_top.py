"""`rota top` shows the same facts beside a running fleet, at a daemon and to a token of one project."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live

from rota import store
from rota.cli.view import LiveView
from rota.clock import ManualClock
from rota.errors import StoreUnavailable
from rota.kernel import Kernel, ScheduleSpec
from rota.model.workers import SlotPool
from rota.observe import overview as overviews
from rota.observe.overview import read_overview, recent_state, report_of
from rota.observe.run_chart import WINDOW_S
from rota.rpc import connect
from rota.service.dispatcher import Dispatcher
from tests.cli.shell import Shell
from tests.daemon.harness import make_token, serving

START = 1_000_000.0


def furnish(kernel: Kernel) -> None:
    """Two projects of weights 3 and 1; a worker with three slots runs two entries, one has failed, two wait."""
    api = Dispatcher(kernel)
    api.policies.set("wfq", by="ann")
    for name, weight in (("lab", 3_000), ("shop", 1_000)):
        kernel.projects.create(name, weight=weight)
    coder = kernel.agents.create("coder", project_id="lab", weight=2_000)
    tester = kernel.agents.create("tester", project_id="lab")
    writer = kernel.agents.create("writer", project_id="shop")
    kernel.ledger.set_budget("project", "lab", "tokens", 1_000)
    kernel.contexts.create(bound_to="name", bound_id="model-api", budget=600, period_s=60.0, unit="requests")
    kernel.workers.register(
        "box", "i1", kind="supervisor", host="host-a", os_pid=42, pools=(SlotPool(worker_id="box", slots=3),)
    )
    kernel.queue.enqueue_many([ScheduleSpec(pid) for pid in (coder, tester, writer)])
    runs = {entry.pid: entry for entry in kernel.queue.claim(worker_id="box", incarnation="i1", max_n=3)}
    for pid, tokens in ((coder, 600), (tester, 200), (writer, 200)):
        kernel.queue.charge(runs[pid].sched_id, {"tokens": tokens}, token=runs[pid].token)
    error = {"error": "exited with code 3"}
    kernel.queue.complete(runs[tester].sched_id, "failed", token=runs[tester].token, result=error)
    kernel.queue.enqueue_many([ScheduleSpec(writer), ScheduleSpec(coder, delay_s=3_600.0)])


@pytest.fixture
def busy(path: Path) -> None:
    kernel = Kernel(store.open(str(path)))
    furnish(kernel)
    kernel.store.close()


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("words", [("top",), ("top", "--once")])
def test_without_a_terminal_it_prints_one_plain_snapshot(rota: Shell, words: tuple[str, ...]) -> None:
    answer = rota(*words)
    assert (answer.code, answer.err) == (0, "")
    assert "\x1b" not in answer.out
    text = re.sub(r"\d+(\.\d)? s(?= ago|$| ·|  on)", "N s", answer.out, flags=re.MULTILINE)
    lines = [re.sub(r" +", " ", line).strip() for line in text.splitlines()]
    assert lines[0].startswith("rota wfq(priority_first=False) · 3 slots · 1 worker ·")
    assert "queue 1 waiting · 1 ready · 2 running · 1 failed" in lines
    assert "waits writer #4 has waited longest: N s · mean of the last 3 starts: N s" in lines
    assert "box 2 of 3 slots busy supervisor · on host-a" in lines
    assert "coder #1 for N s on box" in lines
    lab, shop = (line for line in lines if re.match(r"[ls] (lab|shop) ", line))
    assert "80% of 75% weight 3 · 800 · 1 runs" in lab
    assert "20% of 25% weight 1 · 200 · 0 runs" in shop
    (coder,) = (line for line in lines if line.startswith("coder █"))
    assert "75% of 67% lab weight 2 · 1 running · 0 runs" in coder
    assert any(line.startswith("lab tokens") and "200 left of 1,000" in line for line in lines)
    assert any(line.startswith("model-api requests") and "600 of 600 per" in line for line in lines)
    failed = r"tester #2 failed after [\d.]+ s: exited with code 3 \(attempt 1 of 3\)$"
    assert any(re.search(failed, line) for line in lines)


@pytest.mark.usefixtures("busy")
def test_json_has_the_same_facts_typed(rota: Shell) -> None:
    seen = rota("top", "--json").json
    assert (seen["policy"]["name"], seen["policy"]["set_by"]) == ("wfq", "ann")
    assert seen["slots"] == {"total": 3, "busy": 2}
    assert [(each["worker_id"], each["slots"], each["running"]) for each in seen["workers"]] == [("box", 3, 2)]
    assert seen["statuses"] == {"waiting": 1, "ready": 1, "running": 2, "failed": 1}
    assert [(run["agent"], run["sched_id"]) for run in seen["running"]] == [("coder", 1), ("writer", 3)]
    assert (seen["waits"]["oldest"], seen["waits"]["starts"]) == (4, 3)
    shares = {each["project_id"]: (each["share"], each["target"], each["ready"]) for each in seen["shares"]["projects"]}
    assert shares == {"lab": (0.8, 0.75, 0), "shop": (0.2, 0.25, 1)}
    agents = {each["name"]: (each["share"], round(each["target"], 3)) for each in seen["shares"]["agents"]}
    assert agents == {"coder": (0.75, 0.667), "tester": (0.25, 0.333), "writer": (1.0, 1.0)}
    assert [(line["owner"], line["used"], line["limit"]) for line in seen["budgets"]] == [("lab", 800, 1_000)]
    assert [limit["bound_id"] for limit in seen["limits"]] == ["model-api"]
    assert seen["events"][-1]["text"] == "2 entries queued"


@pytest.mark.usefixtures("busy")
def test_a_token_of_one_project_sees_that_project(
    rota: Shell, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(path) as served:
        file = tmp_path / "token"
        file.write_text(make_token(served.path, "read", projects=("shop",)))
        file.chmod(0o600)
        monkeypatch.setenv("ROTA_STORE", served.url)
        whole = rota("--token-file", file, "top")
        seen = rota("--token-file", file, "top", "--json").json
    assert (whole.code, whole.err) == (0, "")
    assert "wfq" in whole.out.splitlines()[0]
    assert "slots" not in whole.out.splitlines()[0]
    assert seen["statuses"] == {"ready": 1, "running": 1}
    assert (seen["workers"], seen["slots"]) == (None, None)
    assert [(each["project_id"], each["target"]) for each in seen["shares"]["projects"]] == [("shop", 1.0)]
    for stranger in ("lab", "coder", "tester"):
        assert stranger not in whole.out
        assert stranger not in str(seen)


# --- the last minutes ----------------------------------------------------------------------------


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def api(clock: ManualClock) -> Iterator[Dispatcher]:
    kernel = Kernel(store.open(":memory:", clock=clock))
    yield Dispatcher(kernel)
    kernel.store.close()


def test_shares_forget_what_is_older_than_the_window(api: Dispatcher, clock: ManualClock) -> None:
    for name in ("lab", "shop"):
        api.projects.create(name)
    pids = [api.agents.create(f"{name}-agent", project_id=name) for name in ("lab", "shop")]
    api.queue.enqueue_many([ScheduleSpec(pid) for pid in pids])
    first, second = api.queue.claim(worker_id="w", max_n=2)
    api.queue.charge(first.sched_id, {"tokens": 900}, token=first.token)
    clock.advance(WINDOW_S + 60.0)
    api.queue.heartbeat(second.sched_id, second.token or 0)
    api.queue.charge(second.sched_id, {"tokens": 100}, token=second.token)
    shares = recent_state(api).recent_shares(api.clock.now())
    assert (shares.measure, shares.window_s) == ("tokens", WINDOW_S)
    assert [(each.project_id, each.share) for each in shares.projects] == [("lab", 0.0), ("shop", 1.0)]


def test_runs_that_began_before_the_window_are_shown(api: Dispatcher, clock: ManualClock) -> None:
    pid = api.agents.create("thinker")
    api.queue.enqueue(ScheduleSpec(pid))
    clock.advance(4.0)
    (entry,) = api.queue.claim(worker_id="box", claim_timeout_s=10 * WINDOW_S)
    clock.advance(2 * WINDOW_S)
    state = recent_state(api)
    assert state.runs_of("box") == [entry.sched_id]
    assert state.run(entry.sched_id) == "thinker #1"
    assert state.recent_wait_s() == (4.0, 1)
    (agent,) = state.recent_shares(api.clock.now()).agents
    assert (agent.name, agent.running, agent.used) == ("thinker", 1, WINDOW_S)


def test_a_project_that_waits_without_running_is_shown_with_its_target(api: Dispatcher) -> None:
    for name in ("lab", "shop", "idle"):
        api.projects.create(name)
    pids = [api.agents.create(f"{name}-agent", project_id=name) for name in ("lab", "shop")]
    api.queue.enqueue_many([ScheduleSpec(pid) for pid in pids])
    (entry,) = api.queue.claim(worker_id="w")
    api.queue.charge(entry.sched_id, {"tokens": 10}, token=entry.token)
    report = report_of(read_overview(api), recent_state(api))
    shares = {each["project_id"]: (each["share"], each["target"], each["ready"]) for each in report.shares["projects"]}
    assert shares == {"lab": (1.0, 0.5, 0), "shop": (0.0, 0.5, 1)}


def test_at_most_so_many_events_are_read(api: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overviews, "HISTORY_EVENTS_MAX", 20)
    monkeypatch.setattr(overviews, "HISTORY_PAGE", 10)
    pid = api.agents.create("thinker")
    for _ in range(40):
        api.queue.enqueue(ScheduleSpec(pid))
    state = recent_state(api)
    assert len(state.texts) == 20
    assert (state.queued, state.running) == (40, 0)
    assert state.through_id == api.journal.cursor()


def test_the_live_view_shows_the_tables_and_goes_on_when_the_daemon_is_restarted(path: Path) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=240, height=50, color_system=None)
    kernel = Kernel(store.open(str(path)))
    furnish(kernel)
    kernel.store.close()
    with serving(path) as served:
        client = connect(served.unix, retry_s=0.0)
        view = LiveView(client, console=console, state=recent_state(client), overview=read_overview(client))
        view._live = Live(console=console, auto_refresh=False)
        view._live.start()
        assert view.look() is True
    shown = file.getvalue()
    assert "rota wfq(priority_first=False) · 3 slots · 1 worker" in shown
    assert "queue 1 waiting · 1 ready · 2 running · 1 failed" in shown
    assert re.search(r"coder #1 +for", shown)
    with pytest.raises(StoreUnavailable) as away:
        view.look()
    view.show_problem(away.value.message)
    assert "cannot be reached" in file.getvalue()[len(shown) :]
    with serving(path):
        before = len(file.getvalue())
        assert view.look() is True
        client.close()
    assert "cannot be reached" not in file.getvalue()[before:]
    view._live.stop()
