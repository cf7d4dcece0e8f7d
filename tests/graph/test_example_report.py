"""The example report: its graph in Python and its file are the same, and it runs without keys."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from rota import Rota

FOLDER = Path(__file__).parents[2] / "examples" / "graphs"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example as a module."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("report")


def test_the_file_is_what_the_program_prints(report: Any) -> None:
    with Rota() as rota:
        assert report.build(rota).to_yaml() == (FOLDER / "report.yaml").read_text()


def test_the_file_runs_as_the_program_does(report: Any) -> None:
    with Rota() as rota:
        report.build(rota)
        run = rota.run_graph(FOLDER / "report.yaml", {"topic": "tides"})
        assert run.result(60) == "Tides: the history of tides, the present of tides, the outlook of tides."
        assert {node.node: node.usage for node in run.nodes()}["researcher"] == {"tokens": 24}
