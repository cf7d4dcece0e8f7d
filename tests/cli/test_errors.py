"""What goes wrong is one sentence with what to do, never a traceback, and a number that scripts can rely on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rota import errors
from rota.cli.exit_codes import EXITS, code_of
from tests.cli.shell import Shell


@pytest.fixture
def pid(rota: Shell) -> int:
    return int(rota("agents", "create", "bob").out)


MISTAKES = {
    "an unknown entry": (("why", 99), 3),
    "an unknown agent": (("enqueue", "nobody"), 3),
    "an unknown pid": (("enqueue", 99), 3),
    "an unknown project": (("projects", "show", "acme"), 3),
    "a payload that is no JSON": (("enqueue", "bob", "--payload", "{"), 2),
    "a payload that is no object": (("enqueue", "bob", "--payload", "[]"), 2),
    "a duration that is none": (("enqueue", "bob", "--in", "soon"), 2),
    "a date that is none": (("enqueue", "bob", "--at", "tomorrow"), 2),
    "two times at once": (("enqueue", "bob", "--at", "0", "--in", "5m"), 2),
    "an amount that is none": (("enqueue", "bob", "--expect", "tokens"), 2),
    "a negative amount": (("ledger", "grant", "bob", "tokens", "--", "-5"), 2),
    "nothing to cancel": (("cancel",), 2),
    "numbers and a tag": (("cancel", 1, "--tag", "x"), 2),
    "an unknown word": (("queue", "--state", "bogus"), 2),
    "an unknown command": (("fly",), 2),
    "a daemon that is not there": (("ps", "--store", "unix:/nowhere/rota.sock"), 5),
    "a store that is a folder": (("ps", "--store", "/"), 5),
    "a store beside a fleet file": (("run", "--store", "postgresql://host/db"), 2),
    "a store that is not there": (("ps", "--store", "/nowhere/rota.db"), 5),
}


@pytest.mark.parametrize(("words", "code"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_told_in_a_sentence(rota: Shell, pid: int, words: tuple[object, ...], code: int) -> None:
    answer = rota(*words)
    assert (answer.code, answer.out) == (code, "")
    assert "Traceback" not in answer.err
    assert answer.err.strip()
    assert pid == 1


def test_where_json_was_asked_for_the_error_is_json_too(rota: Shell, pid: int) -> None:
    answer = rota("why", 99, "--json")
    error = json.loads(answer.err)["error"]
    assert (error["code"], error["name"], error["sched_id"]) == (-32132, "kernel_sched_unknown_id", 99)
    assert error["hint"]
    assert (answer.code, answer.out, pid) == (3, "", 1)


def test_a_file_that_is_not_ours_is_refused_and_left_alone(rota: Shell, path: Path) -> None:
    path.write_text("My diary, not a database. " * 100)
    before = path.read_bytes()
    assert rota("ps").code == 5
    assert rota("db", "check").code == 5
    assert path.read_bytes() == before


def test_looking_does_not_make_a_store(rota: Shell, path: Path) -> None:
    for words in (("ps",), ("queue",), ("why", 1), ("events",), ("db", "check"), ("doctor",), ("pause", "fleet")):
        rota(*words)
    assert not path.exists()


def test_every_error_ends_with_a_number_that_is_documented() -> None:
    kinds = [code.raised_by for code in errors.CODES.values() if code.raised_by is not None]
    for kind in kinds:
        assert code_of(kind.__new__(kind)) in EXITS
    assert len({code_of(kind.__new__(kind)) for kind in kinds}) >= 6
