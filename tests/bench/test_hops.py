"""The hops of a call are counted, not estimated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import hops
from rota import store
from rota.kernel import Kernel


def test_only_calls_and_statements_of_rota_are_counted(tmp_path: Path) -> None:
    kernel = Kernel(store.open(str(tmp_path / "rota.db")))
    kernel.agents.create("reader")
    nothing = hops.measure("nothing", "-", lambda: sorted([2, 1]))
    assert nothing == hops.Hops("nothing", "-", calls=0, files=0, depth=0, sql=0)
    found = hops.measure("get", "-", lambda: kernel.agents.get(1))
    assert found.sql == 1
    assert found.calls >= found.depth >= 2
    assert found.files >= 2
    kernel.store.close()


def test_every_verb_is_measured_under_every_policy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hops, "names", lambda: ["strict", "eevdf"])
    monkeypatch.setattr("sys.argv", ["hops", "--json"])
    assert hops.main() == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    verbs = ("claim", "complete", "complete_and_claim", "turn")
    assert [(row["verb"], row["policy"]) for row in rows] == [
        ("enqueue", "strict"),
        *((verb, policy) for policy in ("strict", "eevdf") for verb in verbs),
    ]
    assert all(list(row) == ["verb", "policy", "calls", "files", "depth", "sql"] for row in rows)
    assert all(row["calls"] > row["files"] > 0 and row["sql"] > 0 for row in rows)


# (verb, policy): files, depth, statements at most. A call that a reader can follow is also the faster one.
LIMITS = {
    ("enqueue", "strict"): (9, 10, 3),
    ("claim", "strict"): (12, 10, 5),
    ("claim", "eevdf"): (16, 12, 10),
    ("claim", "fair_share"): (16, 12, 10),
    ("complete", "strict"): (12, 11, 7),
}


def test_a_call_travels_no_further_than_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hops, "names", lambda: ["strict", "eevdf", "fair_share"])
    found = {(each.verb, each.policy): each for each in hops.report()}
    for key, limits in LIMITS.items():
        measured = found[key].files, found[key].depth, found[key].sql
        assert all(one <= limit for one, limit in zip(measured, limits, strict=True)), (key, measured)
