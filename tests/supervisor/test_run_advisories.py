"""A warning of a run is shown to a person: in the log when it first comes, and in the summary."""

from __future__ import annotations

import logging

import pytest

from rota import Rota
from rota.cli.run import print_summary
from rota.fleet.run_advisories import ADVISORIES_MAX, RunAdvisories


def test_a_preset_that_finds_nothing_is_logged_once_and_in_the_summary(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.WARNING, "rota.fleet"), Rota() as rota:
        coder = rota.command("coder", ["echo", "done"], usage="claude")
        first = coder.enqueue()
        coder.enqueue()
        summary = rota.run(until_idle=True, echo=False)
        assert first.result(9)["advisories"][0].startswith("no usage found")
    (advisory,) = summary.advisories
    assert (advisory.agent, advisory.count, advisory.sched_id, summary.ok) == ("coder", 2, 1, True)
    assert "run `claude --print --output-format json`" in advisory.text
    assert [record.getMessage() for record in caplog.records] == [f"coder #1: {advisory.text}"]
    print_summary(summary, as_json=False)
    assert f"warning: coder, 2 runs from #1 on: {advisory.text}" in capsys.readouterr().err


@pytest.mark.parametrize("result", [None, 5, {"advisories": "text"}, {"advisories": [3]}, {"advisories": {"a": 1}}])
def test_whatever_a_function_returns_is_no_defect(result: object) -> None:
    advisories = RunAdvisories()
    advisories.add("coder", 1, result)
    assert advisories.found() == ()


def test_the_number_of_different_warnings_is_bounded() -> None:
    advisories = RunAdvisories()
    for number in range(ADVISORIES_MAX + 1):
        advisories.add("coder", number, {"advisories": [f"text {number}", "text 0"]})
    found = advisories.found()
    assert len(found) == ADVISORIES_MAX
    assert found[0].count == ADVISORIES_MAX + 2
