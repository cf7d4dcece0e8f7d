"""The documentation of the fleet file agrees with the loader."""

from __future__ import annotations

import re
from pathlib import Path

from rota.fleet.config.plan import plan_fleet
from rota.fleet.config.tables import fleet_schema
from tests.docs.pages import FLEET_TABLES
from tests.fleet.support import START, FleetHarness

ROOT = Path(__file__).parents[2]
REPORT = """
schema_version: 2
graph: {name: report}
lanes: {main: {type: event_loop}}
components:
  - {id: topic, type: rota.input, execution: {lane: main}}
  - {id: found, execution: {agent: reader}}
edges:
  - {id: ask, kind: async, from: topic.out, to: found.topic}
"""


def test_the_toml_blocks_of_the_guide_form_one_valid_fleet_without_warnings(harness: FleetHarness) -> None:
    guide = (ROOT / "docs" / "fleet.md").read_text()
    blocks = re.findall(r"^```toml\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    package = harness.folder / "mypackage"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "jobs.py").write_text("def index(ctx): ...\n")
    (harness.folder / "report.yaml").write_text(REPORT)
    fleet = harness.fleet("\n".join(blocks))
    assert set(fleet.graph_agents) == {"report"}
    assert set(fleet.hooks) == {"pager", "notes"}
    assert set(fleet.agents) == {"reader", "coder", "index", "digest", "writer"}
    assert plan_fleet(fleet, START).warnings == []


def test_the_reference_page_has_every_table_of_the_schema() -> None:
    assert {table.__name__ for table in FLEET_TABLES.values()} == {
        name for name, made in fleet_schema()["$defs"].items() if made.get("type") == "object"
    }


def test_the_guide_lists_every_kind_of_trigger() -> None:
    guide = (ROOT / "docs" / "fleet.md").read_text()
    for key in ("cron", "every", "event", "after", 'on = "start"'):
        assert f"| `{key}" in guide
