"""What the pages say about the fleet file is what is read."""

from __future__ import annotations

import re
from pathlib import Path

from rota.fleet.config.plan import plan
from rota.fleet.config.tables import schema
from tests.docs.pages import FLEET_TABLES
from tests.fleet.office import START, Office

ROOT = Path(__file__).parents[2]


def test_the_guides_pieces_are_together_one_fleet_without_a_warning_that_is_not_meant(office: Office) -> None:
    guide = (ROOT / "docs" / "fleet.md").read_text()
    pieces = re.findall(r"^```toml\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    fleet = office.fleet("\n".join(pieces))
    assert set(fleet.agents) == {"reader", "coder", "index", "digest"}
    assert plan(fleet, START).warnings == []


def test_the_reference_has_every_table_of_the_schema() -> None:
    assert {table.__name__ for table in FLEET_TABLES.values()} == {
        name for name, made in schema()["$defs"].items() if made.get("type") == "object"
    }


def test_the_guide_names_every_kind_of_trigger() -> None:
    guide = (ROOT / "docs" / "fleet.md").read_text()
    for key in ("cron", "every", "event", "after", 'on = "start"'):
        assert f"| `{key}" in guide
