"""`rota tail`: events as sentences, filtered, followed, and across a restart of the daemon."""

from __future__ import annotations

import datetime as dt
import random
import re
import threading
from pathlib import Path

import pytest

from rota import store
from rota.cli import outages
from rota.cli.tail import _follow
from rota.clock import ManualClock
from rota.kernel import Kernel, ScheduleSpec
from rota.model.work import Backoff
from rota.observe import SentenceReader, TextFilter
from rota.rpc import connect
from rota.service.dispatcher import Dispatcher
from tests.cli.shell import Shell
from tests.daemon.harness import PATIENCE_S, make_token, serving

START = 1_000_000.0
EVERYTHING = TextFilter(everything=True)


@pytest.fixture
def story(path: Path) -> None:
    """A coder of one project fails and is retried, a writer of another one succeeds."""
    kernel = Kernel(store.open(str(path)), rng=random.Random(1))  # a back-off that is never almost nothing
    for name in ("lab", "shop"):
        kernel.projects.create(name)
    coder = kernel.agents.create("coder", project_id="lab")
    writer = kernel.agents.create("writer", project_id="shop")
    slow = Backoff(base_s=60.0, factor=1.0, cap_s=60.0)
    kernel.queue.enqueue(ScheduleSpec(coder, retry_on=("failed",), backoff=slow))
    kernel.queue.enqueue(ScheduleSpec(writer))
    first, second = kernel.queue.claim(worker_id="box", max_n=2)
    kernel.queue.charge(second.sched_id, {"tokens": 7}, token=second.token)
    kernel.queue.complete(first.sched_id, "failed", token=first.token, result={"error": "exited with code 3"})
    kernel.queue.complete(second.sched_id, "completed", token=second.token)
    kernel.journal.append(writer, "review.done", {"score": 9})
    kernel.store.close()


def sentences(out: str) -> list[str]:
    """The sentences without their times."""
    found = [re.fullmatch(r"\d\d:\d\d:\d\d  (.*)", line) for line in out.splitlines()]
    return [re.sub(r"(after|in) [\d.]+ s", r"\1 N s", match[1]) for match in found if match]


@pytest.mark.usefixtures("story")
def test_what_happened_is_said_with_names_and_local_times(rota: Shell) -> None:
    answer = rota("tail", "-n", "7")
    assert sentences(answer.out) == [
        "coder #1 queued",
        "writer #2 queued",
        "coder #1 started on box",
        "writer #2 started on box",
        "coder #1 failed after N s: exited with code 3 (attempt 1 of 3; next in N s)",
        "writer #2 completed after N s",
        'review.done of writer: {"score":9}',
    ]
    at = rota("tail", "-n", "1", "--json").json["at"]
    assert answer.out.splitlines()[-1].startswith(f"{dt.datetime.fromtimestamp(at).astimezone():%H:%M:%S}  ")


@pytest.mark.usefixtures("story")
def test_sentences_are_filtered_by_agent_project_and_kind(rota: Shell) -> None:
    writer = ["agent writer was created in project shop by N", "writer #2 queued", "writer #2 started on box"]
    writer += ["writer #2 completed after N s", 'review.done of writer: {"score":9}']
    assert [re.sub(r"by user:\w+", "by N", each) for each in sentences(rota("tail", "--agent", "writer").out)] == writer
    shop = [re.sub(r"by user:\w+", "by N", each) for each in sentences(rota("tail", "--project", "shop").out)]
    assert shop == ["project shop was created with weight 1 by N", *writer]
    assert sentences(rota("tail", "--kind", "kernel.ledger.*").out) == ["writer #2 used 7 tokens"]
    assert "writer #2 used 7 tokens" in sentences(rota("tail", "--all").out)
    assert "writer #2 used 7 tokens" not in sentences(rota("tail").out)


@pytest.mark.usefixtures("story")
def test_json_keeps_the_numbers(rota: Shell) -> None:
    (line,) = rota("tail", "--kind", "kernel.sched.returned", "--json").out.splitlines()
    seen = rota("tail", "--kind", "kernel.sched.returned", "--json").json
    assert line.startswith("{")
    assert isinstance(seen["at"], float)
    assert (seen["agent"], seen["project_id"], seen["sched_id"], seen["tone"]) == ("coder", "lab", 1, "warn")


@pytest.mark.usefixtures("story")
def test_following_ends_after_an_idle_time(rota: Shell) -> None:
    answer = rota("tail", "-n", "0", "-f", "--idle", "0.1s")
    assert (answer.code, answer.out) == (0, "")


@pytest.mark.usefixtures("story")
def test_events_are_shown_with_local_times_and_kept_as_numbers_in_json(rota: Shell) -> None:
    line = rota("events", "--kind", "review.*").out.strip()
    event = rota("events", "--kind", "review.*", "--json").json
    at = dt.datetime.fromtimestamp(event["ts"]).astimezone()
    assert line.startswith(f"{event['event_id']} {at:%H:%M:%S} review.done")


@pytest.mark.usefixtures("story")
def test_a_token_of_one_project_hears_of_that_project(
    rota: Shell, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(path) as served:
        file = tmp_path / "token"
        file.write_text(make_token(served.path, "read", projects=("shop",)))
        file.chmod(0o600)
        monkeypatch.setenv("ROTA_STORE", served.url)
        answer = rota("--token-file", file, "tail")
    assert answer.code == 0
    assert "writer #2 completed after" in answer.out
    assert "coder" not in answer.out
    assert "lab" not in answer.out


def test_since_begins_that_long_ago_and_knows_the_runs_of_before() -> None:
    clock = ManualClock(START)
    kernel = Kernel(store.open(":memory:", clock=clock))
    pid = kernel.agents.create("coder")
    kernel.queue.enqueue(ScheduleSpec(pid))
    (entry,) = kernel.queue.claim(worker_id="box")
    clock.advance(700.0)
    kernel.queue.complete(entry.sched_id, "completed", token=entry.token)
    reader = SentenceReader(Dispatcher(kernel), EVERYTHING)
    said = [text.text for _, text in reader.history(20, 600.0)]
    assert said[0] == "coder #1 completed after 700.0 s"
    assert reader.history(20, 1_000.0)[0][1].text.startswith("agent coder was created")
    kernel.store.close()


def test_it_goes_on_when_the_daemon_is_restarted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(outages, "say", lambda text, **_: log.append(str(text)))
    heard: list[str] = []
    changed = threading.Condition()
    with serving(path) as served:
        client = connect(served.unix, retry_s=0.0)
        pid = client.agents.create("coder")
        reader = SentenceReader(client, EVERYTHING)

        def follow() -> None:
            for _, text in _follow(client, reader):
                with changed:
                    heard.append(text.text)
                    changed.notify_all()
                if text.text == "coder #2 queued":
                    return

        thread = threading.Thread(target=follow)
        thread.start()
        client.queue.enqueue(ScheduleSpec(pid))
        with changed:
            assert changed.wait_for(lambda: "coder #1 queued" in heard, PATIENCE_S)
    with serving(path) as served, connect(served.unix) as other:
        other.queue.enqueue(ScheduleSpec(pid))
        thread.join(PATIENCE_S)
    client.close()
    assert not thread.is_alive()
    assert heard.count("coder #1 queued") == heard.count("coder #2 queued") == 1
    assert [text.rpartition("; ")[2] for text in log] == ["waiting for it", "connected again"]
