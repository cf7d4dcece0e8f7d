"""The `rota graph` commands that do not run the graph: validate, plan, render, explain, lint, diff-plan, schema."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from rota.cli import app, main
from rota.cli.exit_codes import code_of
from rota.cli.graph import LIMITS
from rota.errors import GraphInvalid
from rota.graph.document import InputLimits
from rota.graph.schema import graph_schema
from tests.graph.drafts import draft

EXAMPLES = Path(__file__).parents[2] / "examples" / "graphs"
GRAPHS = sorted(path for path in EXAMPLES.glob("*.yaml") if "agent: " not in path.read_text())  # run by one process
PARTS = str(EXAMPLES / "parts.py")
STEPS = EXAMPLES / "report_steps.py"  # of the graph with agents


def rota_graph(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["graph", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


def json_output(*arguments: str | Path, code: int = 0) -> Any:
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
def test_every_example_is_valid_with_its_components_and_without_warnings(path: Path) -> None:
    output = json_output("validate", path, "-c", PARTS, "-c", STEPS, "--strict-diagnostics")
    assert output["ok"]
    assert {each["severity"] for each in output["diagnostics"]} <= {"advisory"}


# --- validate ------------------------------------------------------------------------------------


def test_the_json_output_of_validate_has_its_documented_keys(warned: Path) -> None:
    output = json_output("validate", warned)
    assert list(output) == ["ok", "errors", "diagnostics_schema_version", "diagnostics", "region_order"]
    assert (output["ok"], output["errors"], output["diagnostics_schema_version"]) == (True, [], "1")
    assert output["region_order"] == ["a", "b"]
    assert list(output["diagnostics"][0]) == [
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
    output = json_output("validate", warned, "--strict-diagnostics", code=1)
    assert not output["ok"]
    assert len(output["errors"]) == 2
    rota_graph("validate", warned)


def test_errors_fail_with_exit_code_1(broken: Path) -> None:
    assert "refused: 1 error" in rota_graph("validate", broken, code=1)
    assert json_output("validate", broken, code=1)["errors"][0].startswith(
        "immediate cycle detected among components a,b;"
    )


def test_schema_only_checks_the_fields_and_not_the_rules(broken: Path) -> None:
    assert rota_graph("validate", broken, "--schema-only") == "ok\n"
    rota_graph("validate", broken, "--semantic", code=1)


def test_schema_only_and_semantic_cannot_be_combined(broken: Path) -> None:
    rota_graph("validate", broken, "--schema-only", "--semantic", code=2)


def test_a_file_that_cannot_be_parsed_is_reported_as_a_diagnostic(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text("a: [1,\n")
    output = json_output("validate", path, code=1)
    assert output["diagnostics"][0]["line"] == 2
    assert "not YAML" in output["errors"][0]


def test_an_option_lowers_a_limit(warned: Path) -> None:
    assert "count exceeds limit 1" in json_output("validate", warned, "--max-components", "1", code=1)["errors"][0]
    assert (
        "size exceeds limit 10" in json_output("validate", warned, "--max-graph-input-bytes", "10", code=1)["errors"][0]
    )


def test_the_help_of_each_limit_has_its_default() -> None:
    assert {name: default for name, (_, default) in LIMITS.items()} == {
        name: getattr(InputLimits(), name) for name in LIMITS
    }


def test_types_are_checked_only_when_components_are_given(warned: Path) -> None:
    assert json_output("validate", warned)["ok"]
    output = json_output("validate", warned, "-c", PARTS, code=1)
    assert {each["code"] for each in output["diagnostics"] if each["severity"] == "error"} == {"unknown_component"}


def test_components_may_be_a_module_or_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    assert json_output("validate", EXAMPLES / "pipeline.yaml", "--components", "parts")["ok"]
    assert json_output("validate", EXAMPLES / "pipeline.yaml", "--components", PARTS)["ok"]


# --- plan, explain, lint -------------------------------------------------------------------------


def test_plan_as_json_and_as_text() -> None:
    output = json_output("plan", EXAMPLES / "control_loop.yaml")
    assert output["region_order"] == ["room", "agreement", "show"]
    assert output["scheduler_contract_version"] == "0.2"
    text = rota_graph("plan", EXAMPLES / "control_loop.yaml")
    assert "2. agreement: after room; priority high; loop of controller, estimator" in text
    assert "control: fixed_rate, every 20 ms, 4 components" in text


def test_plan_refuses_an_invalid_graph_and_suggests_validate(broken: Path) -> None:
    with pytest.raises(GraphInvalid) as caught:
        rota_graph("plan", broken)
    assert f"rota graph validate {broken}" in str(caught.value)


def test_explain_groups_the_diagnostics(warned: Path) -> None:
    assert "\nChannels:\n" in rota_graph("explain", warned)
    output = json_output("explain", warned)
    assert list(output["diagnostic_groups"]) == ["graph_structure", "scheduler", "channel", "payload", "trigger"]


def test_explain_fails_for_a_graph_with_errors(broken: Path) -> None:
    assert "\nStructure:\n" in rota_graph("explain", broken, code=1)


def test_lint_adds_notes_and_succeeds(tmp_path: Path) -> None:
    path = saved(tmp_path, draft(["a", "b"], [{"from": "a.out", "to": "b.in", "kind": "async"}]))
    output = json_output("lint", path)
    assert output["ok"]
    assert {each["code"] for each in output["diagnostics"]} == {"diagnostic_note"}


# --- render, diff-plan, schema -------------------------------------------------------------------


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
def test_every_example_can_be_drawn(path: Path, tmp_path: Path) -> None:
    assert rota_graph("render", path).startswith("flowchart LR\n")
    drawing = tmp_path / "graph.svg"
    rota_graph("render", path, "--format", "svg", "-o", drawing)
    assert ET.parse(drawing).getroot().tag.endswith("svg")


def test_diff_plan_prints_the_changes(tmp_path: Path) -> None:
    before = saved(tmp_path, draft(["b", "a"], ["a.out ~> b.in"]), "before.json")
    after = saved(tmp_path, draft(["b", "a"], ["a.out -> b.in"]), "after.json")
    assert rota_graph("diff-plan", before, before) == "the plans are the same\n"
    text = rota_graph("diff-plan", before, after)
    assert '~ edges.e0.kind: "delay" → "immediate"' in text
    assert "order after:  a, b" in text
    assert json_output("diff-plan", before, after, "--exit-code", code=1)["order_changed"]
    assert json_output("diff-plan", before, before, "--exit-code")["same"]


@pytest.mark.parametrize("version", [1, 2])
def test_schema_prints_the_schema(version: Any, tmp_path: Path) -> None:
    assert json.loads(rota_graph("schema", "--schema-version", str(version))) == json.loads(
        json.dumps(graph_schema(version))
    )
    rota_graph("schema", "-o", tmp_path / "schema.json")
    assert (tmp_path / "schema.json").read_text() == rota_graph("schema")


# --- errors --------------------------------------------------------------------------------------


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
    (tmp_path / "json.py").write_text("")  # the name of another module
    names = {"broken": broken, "folder": tmp_path, "pipeline": EXAMPLES / "pipeline.yaml"}
    monkeypatch.setattr(sys, "argv", ["rota", "graph", *(each.format(**names) for each in arguments)])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == code_of(GraphInvalid(""))
    printed = capsys.readouterr().err
    assert printed.startswith("rota: ")
    assert printed.count("\n") == 1
