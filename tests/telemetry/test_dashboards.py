"""The page, the dashboard and the alert rules use the names and labels that the metrics have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import yaml

from rota import store
from rota.cli import COMMANDS
from rota.kernel import Kernel
from rota.observe.metrics import Metrics
from tests.docs.pages import ROOT

DASHBOARD = ROOT / "docs" / "grafana" / "rota-dashboard.json"
ALERTS = ROOT / "docs" / "grafana" / "rota-alerts.yaml"
GUIDE = ROOT / "docs" / "telemetry.md"
OPTIONS = (ROOT / "docs" / "reference" / "cli.md").read_text()
GRAFANA = {"$__rate_interval", "$project", "$datasource", "$__all"}
SERIES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


class Known(NamedTuple):
    type: str
    labels: tuple[str, ...]


@pytest.fixture(scope="module")
def metrics() -> dict[str, Known]:
    """Every metric by its name without a suffix."""
    kernel = Kernel(store.open(":memory:"))
    found = Metrics(kernel)
    owners = [vars(found), vars(found.tables)]
    made = [each for owner in owners for each in owner.values() if hasattr(each, "_labelnames")]
    known = {each._name: Known(each._type, tuple(each._labelnames)) for each in made}
    assert set(known) == {family.name for family in found.collect()}
    kernel.store.close()
    return known


def series(metrics: dict[str, Known]) -> dict[str, Known]:
    """Every name that a query may use, with the labels that it may name."""
    return {
        f"{name}{suffix}": known._replace(labels=(*known.labels, "le")) if suffix == "_bucket" else known
        for name, known in metrics.items()
        for suffix in SERIES[known.type]
    }


def queries(found: Any) -> Iterator[tuple[str, str]]:
    """Every query of the dashboard, with the text that names its series."""
    for panel in found["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"], target["legendFormat"]


def labels_in(text: str) -> set[str]:
    named = {name for group in re.findall(r"by \(([^)]*)\)", text) for name in re.findall(r"\w+", group)}
    selected = {name for group in re.findall(r"\{([^{}]*)\}", text) for name in re.findall(r"(\w+)\s*=", group)}
    return named | selected | set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text))


def check(text: str, metrics: dict[str, Known], shown: str = "") -> set[str]:
    known = series(metrics)
    used = set(re.findall(r"\brota_\w+", text))
    assert used, text
    strangers = used - known.keys()
    assert not strangers, f"{text}: there is no {strangers}"
    allowed = {label for name in used for label in known[name].labels}
    assert labels_in(text) | labels_in(shown) <= allowed, text
    assert text.count("(") == text.count(")")
    assert set(re.findall(r"\$\w+", text)) <= GRAFANA
    return used


def test_the_dashboard_shows_every_metric_and_no_other(metrics: dict[str, Known]) -> None:
    board = json.loads(DASHBOARD.read_text())
    used = {name for query, legend in queries(board) for name in check(query, metrics, legend)}
    assert {name for name in metrics if not any(each.startswith(name) for each in used)} == set()
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert panel["type"] == "row" or panel["description"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            check(variable["query"]["query"], metrics)


def test_counters_are_shown_as_rates_and_seconds_as_seconds(metrics: dict[str, Known]) -> None:
    board = json.loads(DASHBOARD.read_text())
    counted = {name for name in series(metrics) if name.endswith(("_total", "_bucket"))}
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            for name in set(re.findall(r"\brota_\w+", target["expr"])) & counted:
                assert re.search(rf"(rate|increase)\({name}", target["expr"]), target["expr"]
            if "_seconds" in target["expr"]:
                assert panel["fieldConfig"]["defaults"]["unit"] == "s"


def test_alerts_use_the_metrics_and_say_what_to_do(metrics: dict[str, Known]) -> None:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names) >= 8
    for rule in group["rules"]:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        said = rule["annotations"]
        check(rule["expr"], metrics, said["summary"] + said["action"])
        for command in re.findall(r"rota ([a-z]+)((?: --[a-z-]+)*)", said["action"]):
            assert command[0] in COMMANDS, said["action"]
            assert all(f"`{option}`" in OPTIONS for option in command[1].split()), said["action"]


def test_the_page_has_every_name_with_its_type_its_unit_and_its_labels(metrics: dict[str, Known]) -> None:
    rows = re.findall(r"^\| `(rota_\w+)` \| (\w+) \| ([^|]+) \| ([^|]+) \|", GUIDE.read_text(), re.MULTILINE)
    expected = {
        (f"{name}_total" if known.type == "counter" else name): (known.type, known.labels)
        for name, known in metrics.items()
    }
    found = {name: (kind, () if labels == "–" else tuple(labels.split(", "))) for name, kind, _unit, labels in rows}
    assert found == expected
    assert all(unit == "seconds" for name, _, unit, _ in rows if name.endswith("_seconds"))
    assert all(unit.strip() for _, _, unit, _ in rows)
