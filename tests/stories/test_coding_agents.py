"""S2: coding agents.

Three command-line agents work like coding programs: they print their usage as JSON, start children and forget them,
and work in git worktrees. One hangs, one fails twice and then succeeds, one exceeds its token ceiling; all ask one
provider's limit inside their runs. The supervisor is killed with -9 in the middle and started again.

Nothing is lost or runs twice within a claim, a retried entry continues in its own worktree, budgets are exact, `why`,
`show` and `logs` explain every state, and no process, lock or socket is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rota.cli import app
from rota.cli.connection import open_api
from rota.fleet import load_fleet, settings_of, spec_for
from rota.fleet.config.apply import apply_fleet
from rota.model.events import LimitAcquired
from rota.model.work import ReadyEntry
from tests.fleet.test_workspaces import git
from tests.stories.processes import PATIENCE_S, ROTA

PER_RUN = {"tokens": 100, "cost_micro": 2_000}  # what a run of the steady agent prints
CEILING, STEP = 1_000, 400  # of the spender: it charges in steps, and is over after three of them
REQUESTS, PERIOD_S = 2, 1.0  # the provider's limit

FLEET = f"""
store = "rota.db"
worker_id = "box"
slots = 2
[limits.model]
requests = {{budget = {REQUESTS}, period_s = {PERIOD_S}}}
[projects.coding]
workspaces = {{worktrees_of = "repo", per = "entry", setup = ["sh", "-c", "echo set up"], keep_on = "failed"}}
[agents.hangs]
project = "coding"
workspace = "exclusive"
priority = 9
command = ["sh", "-c", "echo thinking; sleep 600 & sleep 600"]
limits = {{wall_s = "2s"}}
stop_grace_s = "100ms"
restart = {{attempts = 1}}
[agents.spender]
project = "coding"
workspace = "exclusive"
priority = 9
ndjson = ["{sys.executable}", "{{folder}}/spender.py"]
ceiling = {{tokens = {CEILING}}}
stop_grace_s = "100ms"
budget = {{tokens = 1_000_000}}
restart = {{attempts = 1}}
[agents.steady]
project = "coding"
workspace = "exclusive"
command = ["sh", "{{folder}}/steady.sh"]
env = {{FOLDER = "{{folder}}"}}
usage = "claude"
budget = {{tokens = 1_000_000, cost_micro = 1_000_000}}
restart = {{attempts = 9, backoff_s = "10ms", quarantine_after = 99}}
"""
STEADY = f"""
set -eu
echo "$ROTA_SCHED_ID $ROTA_TOKEN $ROTA_ATTEMPT" >> "$FOLDER/claims"
sleep 600 &
echo "$ROTA_ATTEMPT" >> notes
print_usage() {{
  echo '{{"type": "result", "total_cost_usd": 0.002, "usage": {{"input_tokens": 60, "output_tokens": 40}}}}'
}}
case $(wc -l < notes) in
1) echo "cannot compile"; print_usage; exit 1;;
2) touch "$FOLDER/reached-$ROTA_SCHED_ID"
   while test ! -e "$FOLDER/go"; do sleep 0.02; done
   echo "still cannot compile"; print_usage; exit 1;;
esac
{" ".join(ROTA)} acquire model requests=1 > /dev/null
git add notes
git -c user.name=a -c user.email=a@b commit -q -m "done by $ROTA_SCHED_ID"
print_usage
"""
SPENDER = f"""
import time
from rota.agent import connect

with connect() as run:
    run.acquire("model", requests=1).settle()
    while run.charge(tokens={STEP})["tokens"] >= 0:
        pass
    time.sleep(600)  # it does not look whether it should stop
"""


class Office:
    """The folder of the fleet, its processes, and what the commands say about it."""

    def __init__(self, folder: Path, temporary: Path) -> None:
        self.folder = folder
        self.temporary = temporary
        self.store = str(folder / "rota.db")
        (folder / "repo").mkdir()
        git(folder / "repo", "init", "-q", "-b", "main")
        git(folder / "repo", "commit", "-q", "--allow-empty", "-m", "begin")
        (folder / "fleet.toml").write_text(FLEET.replace("{folder}", str(folder)))
        (folder / "steady.sh").write_text(STEADY)
        (folder / "spender.py").write_text(SPENDER)

    @contextlib.contextmanager
    def supervisor(self) -> Iterator[subprocess.Popen[str]]:
        """`rota run`, until nothing is left to do."""
        argv = [*ROTA, "run", "fleet.toml", "--plain", "--until-idle"]
        env = {**os.environ, "TMPDIR": str(self.temporary)}
        env.pop("XDG_RUNTIME_DIR", None)
        with (self.folder / "printed").open("a") as printed:
            process = subprocess.Popen(argv, cwd=self.folder, env=env, stdout=printed, stderr=printed, text=True)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def command(self, *words: str, code: int = 0) -> str:
        """Run a `rota` command in this process."""
        done = CliRunner().invoke(app, [*words, "--store", self.store])
        assert done.exit_code == code, f"rota {' '.join(words)}: {done.output}{done.exception!r}"
        return done.output

    def sockets(self) -> list[Path]:
        return list(self.temporary.glob("rota-runs-*"))

    def processes(self) -> list[str]:
        """The processes that work in the fleet's folder."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str((process / "cwd").readlink()).startswith(str(self.folder)):
                    found.append((process / "cmdline").read_text())
        return found


@pytest.fixture
def office(tmp_path: Path, socket_folder: Path) -> Office:
    return Office(tmp_path, socket_folder)


def wait_for(happened: Callable[[], bool], office: Office) -> None:
    """Wait for an event outside of this process."""
    until = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < until, (office.folder / "printed").read_text()
        time.sleep(0.02)


def test_coding_agents(office: Office) -> None:
    with open_api(office.store, create=True) as api:
        apply_fleet(api, load_fleet(office.folder / "fleet.toml"))
        pids = {name: api.agents.find(name)[0].pid for name in ("hangs", "spender", "steady")}
        ids = []
        for name in ("hangs", "spender", "steady", "steady", "steady"):
            agent = api.agents.get(pids[name])
            ids.append(api.queue.enqueue(spec_for(agent, settings_of(agent), {})))
        hangs, spends, *steady = ids
        assert "no worker is running" in office.command("why", str(hangs))

        with office.supervisor() as first:
            wait_for(lambda: len(list(office.folder.glob("reached-*"))) == 2, office)
            running = [each for each in steady if (office.folder / f"reached-{each}").exists()]
            (waiting,) = set(steady) - set(running)
            assert all(f"coding/entry-{each}" in office.command("ps") for each in running), "the workspaces held"
            assert "slot" in office.command("why", str(waiting))
            for ended, outcome in ((hangs, "timed_out"), (spends, "over_budget")):
                api.queue.wait(ended, PATIENCE_S)
                assert api.queue.get(ended).outcome == outcome, api.queue.get(ended).result
            first.send_signal(signal.SIGKILL)
            first.wait()
        wait_for(lambda: not office.processes(), office)
        assert [api.queue.get(each).state for each in running] == ["dispatched"] * 2, "nobody has noticed"
        assert len(office.sockets()) == 1, "killed: it could not remove its socket"

        (office.folder / "go").touch()
        with office.supervisor() as second:
            assert second.wait(PATIENCE_S) == 0, (office.folder / "printed").read_text()
        entries = {each: api.queue.get(each) for each in ids}
        used = {name: {line.dim: line.used for line in api.ledger.get(pids[name])} for name in ("spender", "steady")}
        granted = [event.ts for event in api.journal.tail(kinds=(LimitAcquired.kind,))]

    check_runs(office, steady, running, entries)
    runs = len(claims(office)) - len(running)  # the killed ones printed nothing
    assert used["steady"].items() >= {dim: amount * runs for dim, amount in PER_RUN.items()}.items()
    assert used["spender"]["tokens"] == 3 * STEP, "one step over its ceiling, and not one more"
    assert len(granted) == len(steady) + 1
    assert all(sum(at <= other < at + PERIOD_S for other in granted) <= REQUESTS for at in granted)
    check_explanations(office, hangs, spends, steady)
    check_remains(office, hangs, spends)


def claims(office: Office) -> list[tuple[int, int, int]]:
    """Each start of the steady agent: its entry, claim and attempt."""
    lines = (office.folder / "claims").read_text().splitlines()
    return [tuple(map(int, line.split())) for line in lines]  # type: ignore[misc]  # three numbers


def check_runs(office: Office, steady: list[int], running: list[int], entries: dict[int, ReadyEntry]) -> None:
    """Nothing is lost, no claim ran twice, and each entry continued in its own worktree."""
    started = claims(office)
    assert max(Counter((sched_id, token) for sched_id, token, _ in started).values()) == 1
    assert {each: entries[each].exit_kind for each in steady} == dict.fromkeys(steady, "completed")
    for each in steady:
        attempts = [str(attempt) for sched_id, _, attempt in started if sched_id == each]
        assert len(attempts) == 3
        notes = git(office.folder / "repo", "show", f"rota/steady-{each}:notes").split()
        assert notes == attempts, "every attempt, also the killed one, wrote into the same worktree"
    assert len(running) == 2


def check_explanations(office: Office, hangs: int, spends: int, steady: list[int]) -> None:
    assert "timed_out" in office.command("why", str(hangs))
    assert "over_budget" in office.command("why", str(spends))
    shown = office.command("show", str(hangs))
    assert "timed_out" in shown
    assert f"coding/entry-{hangs}" in shown
    last = steady[-1]
    assert "completed" in office.command("why", str(last))
    assert "cannot compile" in office.command("logs", str(last), "--attempt", "1")
    assert "set up" in office.command("logs", str(last), "--attempt", "1")
    assert '"total_cost_usd"' in office.command("logs", str(last), "-f"), "follows to the end, which is there"


def check_remains(office: Office, hangs: int, spends: int) -> None:
    """No process, socket or lock is left, and of the worktrees only those of failed entries."""
    assert office.processes() == []
    assert office.sockets() == []
    listed = git(office.folder / "repo", "worktree", "list", "--porcelain").splitlines()
    trees = {Path(line.removeprefix("worktree ")).name for line in listed if line.startswith("worktree ")}
    assert trees == {"repo", f"entry-{hangs}", f"entry-{spends}"}
    assert not list((office.folder / "repo" / ".git").rglob("*.lock"))
    kept = office.command("projects", "workspaces", "list", "coding")
    assert kept.count("the entry ended failed") == 2
