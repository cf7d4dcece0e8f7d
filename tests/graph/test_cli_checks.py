"""`rota graph` without running anything: validate, plan, render, explain, lint, diff-plan, schema."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from rota.cli import app, main
from rota.cli.exits import code_of
from rota.errors import GraphInvalid
from rota.graph.schema import graph_schema
from tests.graph.drafts import draft

EXAMPLES = Path(__file__).parents[2] / "examples" / "graphs"
GRAPHS = sorted(EXAMPLES.glob("*.yaml"))
PARTS = str(EXAMPLES / "parts.py")


def rota_graph(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["graph", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


def answer(*arguments: str | Path, code: int = 0) -> Any:
    return json.loads(rota_graph(*arguments, "--format", "json", code=code))


def saved(folder: Path, document: dict[str, Any], name: str = "graph.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def warned(tmp_path: Path) -> Path:
    policy = {"mode": "queue", "capacity": 512, "overflow": "block"}
    return saved(tmp_path, draft(["a", "b"], [{"id": "deep", "from": "a.out", "to": "b.in", "policy": policy}]))


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return saved(tmp_path, draft(["a", "b"], ["a.out -> b.in", "b.out -> a.in"]))


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
def test_every_example_is_valid_down_to_its_ports_and_clean_of_warnings(path: Path) -> None:
    shape = answer("validate", path, "-c", PARTS, "--strict-diagnostics")
    assert shape["ok"]
    assert {each["severity"] for each in shape["diagnostics"]} <= {"advisory"}


# --- validate ------------------------------------------------------------------------------------


def test_validate_answers_with_the_shape_that_scripts_read(warned: Path) -> None:
    shape = answer("validate", warned)
    assert list(shape) == ["ok", "errors", "diagnostics_schema_version", "diagnostics", "region_order"]
    assert (shape["ok"], shape["errors"], shape["diagnostics_schema_version"]) == (True, [], "1")
    assert shape["region_order"] == ["a", "b"]
    assert list(shape["diagnostics"][0]) == [
        "code",
        "severity",
        "category",
        "message",
        "graph_path",
        "involved_components",
        "involved_edges",
        "suggested_fix",
        "line",
    ]


def test_strict_diagnostics_turn_warnings_into_failure(warned: Path) -> None:
    shape = answer("validate", warned, "--strict-diagnostics", code=1)
    assert not shape["ok"]
    assert len(shape["errors"]) == 2
    rota_graph("validate", warned)


def test_errors_fail_with_exit_code_1(broken: Path) -> None:
    assert "refused: 1 error" in rota_graph("validate", broken, code=1)
    assert answer("validate", broken, code=1)["errors"][0].startswith("immediate cycle detected among components a,b;")


def test_schema_only_looks_at_the_form_and_not_at_the_sense(broken: Path) -> None:
    assert rota_graph("validate", broken, "--schema-only") == "ok\n"
    rota_graph("validate", broken, "--semantic", code=1)


def test_schema_only_and_semantic_exclude_each_other(broken: Path) -> None:
    rota_graph("validate", broken, "--schema-only", "--semantic", code=2)


def test_a_file_that_cannot_be_parsed_is_an_answer_too(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text("a: [1,\n")
    shape = answer("validate", path, code=1)
    assert shape["diagnostics"][0]["line"] == 2
    assert "not YAML" in shape["errors"][0]


def test_a_limit_can_be_tightened_for_one_call(warned: Path) -> None:
    assert "count exceeds limit 1" in answer("validate", warned, "--max-components", "1", code=1)["errors"][0]
    assert "size exceeds limit 10" in answer("validate", warned, "--max-graph-input-bytes", "10", code=1)["errors"][0]


def test_types_are_checked_only_when_components_are_given(warned: Path) -> None:
    assert answer("validate", warned)["ok"]
    shape = answer("validate", warned, "-c", PARTS, code=1)
    assert {each["code"] for each in shape["diagnostics"] if each["severity"] == "error"} == {"unknown_component"}


def test_components_may_be_a_module_or_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    assert answer("validate", EXAMPLES / "pipeline.yaml", "--components", "parts")["ok"]
    assert answer("validate", EXAMPLES / "pipeline.yaml", "--components", PARTS)["ok"]


# --- plan, explain, lint -------------------------------------------------------------------------


def test_plan_as_json_and_for_people() -> None:
    shape = answer("plan", EXAMPLES / "control_loop.yaml")
    assert shape["region_order"] == ["room", "agreement", "show"]
    assert shape["scheduler_contract_version"] == "0.2"
    text = rota_graph("plan", EXAMPLES / "control_loop.yaml")
    assert "2. agreement: after room; priority high; loop of controller, estimator" in text
    assert "control: fixed_rate, every 20 ms, 4 components" in text


def test_plan_refuses_a_broken_graph_and_says_where_to_look(broken: Path) -> None:
    with pytest.raises(GraphInvalid) as caught:
        rota_graph("plan", broken)
    assert f"rota graph validate {broken}" in str(caught.value)


def test_explain_groups_what_there_is_to_say(warned: Path) -> None:
    assert "\nChannels:\n" in rota_graph("explain", warned)
    shape = answer("explain", warned)
    assert list(shape["diagnostic_groups"]) == ["graph_structure", "scheduler", "channel", "payload", "trigger"]


def test_explain_fails_when_the_graph_does(broken: Path) -> None:
    assert "\nStructure:\n" in rota_graph("explain", broken, code=1)


def test_lint_adds_notes_and_succeeds(tmp_path: Path) -> None:
    path = saved(tmp_path, draft(["a", "b"], [{"from": "a.out", "to": "b.in", "kind": "async"}]))
    shape = answer("lint", path)
    assert shape["ok"]
    assert {each["code"] for each in shape["diagnostics"]} == {"diagnostic_note"}


# --- render, diff-plan, schema -------------------------------------------------------------------


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
def test_every_example_can_be_drawn(path: Path, tmp_path: Path) -> None:
    assert rota_graph("render", path).startswith("flowchart LR\n")
    drawing = tmp_path / "graph.svg"
    rota_graph("render", path, "--format", "svg", "-o", drawing)
    assert ET.parse(drawing).getroot().tag.endswith("svg")


def test_diff_plan_says_what_changed(tmp_path: Path) -> None:
    before = saved(tmp_path, draft(["b", "a"], ["a.out ~> b.in"]), "before.json")
    after = saved(tmp_path, draft(["b", "a"], ["a.out -> b.in"]), "after.json")
    assert rota_graph("diff-plan", before, before) == "the plans are the same\n"
    text = rota_graph("diff-plan", before, after)
    assert '~ edges.e0.kind: "delay" → "immediate"' in text
    assert "order after:  a, b" in text
    assert answer("diff-plan", before, after, "--exit-code", code=1)["order_changed"]
    assert answer("diff-plan", before, before, "--exit-code")["same"]


@pytest.mark.parametrize("version", [1, 2])
def test_schema_prints_the_schema(version: Any, tmp_path: Path) -> None:
    assert json.loads(rota_graph("schema", "--schema-version", str(version))) == json.loads(
        json.dumps(graph_schema(version))
    )
    rota_graph("schema", "-o", tmp_path / "schema.json")
    assert (tmp_path / "schema.json").read_text() == rota_graph("schema")


# --- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "{broken}"],
        ["plan", "{folder}/nowhere.yaml"],
        ["plan", "{pipeline}", "-c", "no.such.module"],
        ["plan", "{pipeline}", "-c", "{folder}/nowhere.py"],
        ["plan", "{pipeline}", "-c", "{folder}/faulty_parts.py"],
        ["plan", "{pipeline}", "-c", "{folder}/json.py"],
        ["render", "{pipeline}", "-o", "{folder}/no/such.svg"],
    ],
    ids=lambda arguments: arguments[-1],
)
def test_an_error_is_one_sentence_and_never_a_traceback(
    arguments: list[str],
    broken: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "faulty_parts.py").write_text("1 / 0\n")
    (tmp_path / "json.py").write_text("")  # a name that is taken
    names = {"broken": broken, "folder": tmp_path, "pipeline": EXAMPLES / "pipeline.yaml"}
    monkeypatch.setattr(sys, "argv", ["rota", "graph", *(each.format(**names) for each in arguments)])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == code_of(GraphInvalid(""))
    said = capsys.readouterr().err
    assert said.startswith("rota: ")
    assert said.count("\n") == 1
