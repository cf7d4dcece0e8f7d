"""What the live view shows: scenes in, text out."""

from __future__ import annotations

from collections import deque

import msgspec
import pytest
from rich.cells import cell_len

from rota.cli.panels import WINDOWS_S, Look, Scene, bar, lane_cells, scene_view, window_s_for
from rota.observe.event_text import EventText
from rota.observe.run_chart import ChartRow
from tests.cli.scenes import NOW, fleet, painted, project, screen, span
from tests.docs.pages import ROOT

PLAIN = Look(width=100, height=30, in_color=False)

SCREEN = """\
rota eevdf · 2 slots · up 1:23 · worker-a · rota.db
─ slots · the last 60 s ────────────────────────────────────────────────────────────────────────────
worker-a            1 |  rrrrrrrrrrrrrrrrrrrrrrr▏eeeeeeeeeeeeeeeeeeeeee✗  eeeeeeeeeeeeeeeeeeeeeeeeee
worker-a            2 |      rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr▏uuuuuuuuuuuuuuuuuuuuuuu↺  rrrrrrrrrrrrr
worker-b            1 |   rrrrrrrrrrrrrrrrrrrrrrrrrrrrr☠
queue 24 waiting (1 backing off, 3 delayed) · 2 running · 98 ended
failures 1 over budget · 2 retried · 1 reclaimed
─ projects · share of tokens against target ────────────────────────────────────────────────────────
r research           ████████████│░░░░░░░░░░░  52% of  50%  weight 3 · 51.2k · 51 runs
e review             ███████░│░░░░░░░░░░░░░░░  31% of  33%  weight 2 · 31.0k · 30 runs
u upkeep             ████│░░░░░░░░░░░░░░░░░░░  17% of  17%  weight 1 · 17.0k · 17 runs
─ budgets ──────────────────────────────────────────────────────────────────────────────────────────
research tokens      ████████████░░░░░░░░░░░░ 48.8k left of 100.0k, 2,000 reserved
global cost          ░░░░░░░░░░░░░░░░░░░░░░░░ $0.00 left of $0.05
─ named limits ─────────────────────────────────────────────────────────────────────────────────────
model-api requests   ██████░░░░░░░░░░░░░░░░░░ 150 of 600 per 60 s
─ last events ──────────────────────────────────────────────────────────────────────────────────────
   22 s ago  reviewer #40 ended failed (over budget) after 18.0 s, stopped by message
   20 s ago  tester #41 started on worker-a
   10 s ago  reader #42 started on worker-a"""


def test_a_wide_terminal_shows_all_of_it() -> None:
    assert screen(fleet(), PLAIN) == SCREEN


def test_the_page_about_the_demonstration_shows_the_same_screen() -> None:
    assert f"```text\n{SCREEN}\n```" in (ROOT / "docs" / "demo.md").read_text()


def test_a_narrow_terminal_shows_numbers_without_bars() -> None:
    lines = screen(fleet(), Look(width=40, height=30, in_color=False)).splitlines()
    assert "r research       52% of  50%" in lines
    assert lines[2].startswith("  1 |")
    assert not any("█" in line for line in lines)


@pytest.mark.parametrize("width", [10, 24, 40, 59, 60, 61, 80, 133, 240])
@pytest.mark.parametrize("height", [1, 2, 5, 12, 24, 60])
def test_a_view_is_never_wider_or_higher_than_its_terminal(width: int, height: int) -> None:
    for look in (
        Look(width=width, height=height),
        Look(width=width, height=height, in_color=False),
        Look(width=width, height=height, ascii_only=True),
    ):
        lines = painted(scene_view(fleet(), look), width)
        assert 1 <= len(lines) <= height
        assert all(cell_len(line) <= width for line in lines)


def test_a_terminal_of_plain_letters_is_given_nothing_else() -> None:
    text = screen(fleet(), Look(width=90, height=40, ascii_only=True))
    assert text.isascii()
    assert "worker-b            1 |   rrrrrrrrrrrrrrrrrrrrrrrr!" in text
    assert "research tokens      ###########............ 48.8k left of 100.0k" in text


def test_an_empty_fleet_says_so() -> None:
    lines = screen(Scene(at=NOW, policy="strict", slots=4), PLAIN).splitlines()
    assert lines[0] == "rota strict · 4 slots · up 0:00"
    assert lines[2:4] == ["  nothing has run yet", "queue 0 waiting · 0 running · 0 ended"]


def test_slots_that_find_no_room_are_counted() -> None:
    lanes = tuple((f"worker-{number}", 1, (span("lab", 5),)) for number in range(50))
    text = screen(Scene(at=NOW, lanes=lanes), Look(width=80, height=20, in_color=False))
    shown = sum("| " in line for line in text.splitlines())
    assert f"  … {50 - shown} more slots" in text.splitlines()


def test_many_projects_are_counted_beyond_the_first() -> None:
    projects = tuple(project(f"p{number:02}", 1, 10, share=0.05, target=0.05, runs=1) for number in range(20))
    assert "  … 12 more projects" in screen(Scene(at=NOW, projects=projects), Look(width=80, height=60)).splitlines()


def test_what_could_not_be_shown_is_said() -> None:
    assert "1,234 events not shown" in screen(Scene(at=NOW, skipped=1_234), PLAIN)


def test_a_limit_that_is_throttled_or_used_up_says_so() -> None:
    throttled = msgspec.structs.replace(fleet(), throttles={"model-api": NOW + 12})
    assert "150 of 600 per 60 s  throttled for 12 s" in screen(throttled, PLAIN)
    (limit,) = fleet().limits
    empty = msgspec.structs.replace(limit, state="depleted", remaining=-30)
    dry = msgspec.structs.replace(fleet(), limits=(empty,), throttles={"model-api": NOW - 1})
    assert "-30 of 600 per 60 s  depleted" in screen(dry, PLAIN)


def test_markup_in_a_name_is_printed_and_not_obeyed() -> None:
    story = EventText(1, NOW, "plain", "[bold]agent[/bold] #1 started on [red]w")
    text = screen(Scene(at=NOW, stories=(story,)), PLAIN)
    assert "[bold]agent[/bold] #1 started on [red]w" in text


def test_a_row_shows_how_each_run_ended() -> None:
    look = Look(width=15, height=5, in_color=False)  # ten columns of three seconds
    scene = Scene(at=NOW, window_s=30.0)
    spans = (
        span("lab", 30, 22, "completed"),
        span("lab", 21, 16, "failed"),
        span("lab", 15, 13, "completed"),
        span("lab", 12, 9, "lost"),
        span("lab", 5),
    )
    cells = "".join(glyph for _, glyph in lane_cells(spans, scene, look, {"lab": "l"}))
    assert cells == "ll▏l✗ll☠ll"  # what ended well within one column is drawn as having run, not as an end


def test_a_bar_has_its_tick_where_the_target_is() -> None:
    assert bar(0.5, 10, PLAIN) == "█████░░░░░"
    assert bar(0.5, 10, PLAIN, target=0.75) == "█████░░│░░"
    assert bar(2.0, 4, PLAIN, target=1.0) == "███│"
    assert bar(-1.0, 4, PLAIN) == "░░░░"
    assert bar(0.5, 0, PLAIN, target=0.5) == ""


def test_the_chart_shows_more_time_the_longer_runs_last() -> None:
    def lanes(*lengths_s: float) -> list[ChartRow]:
        return [ChartRow("w", 1, deque(span("lab", length_s, 0.0, "completed") for length_s in lengths_s))]

    assert window_s_for([], NOW) == WINDOWS_S[0]
    assert window_s_for(lanes(1.0, 1.0, 500.0), NOW) == 30.0
    assert window_s_for(lanes(5.0), NOW) == 120.0
    assert window_s_for(lanes(4_000.0), NOW) == WINDOWS_S[-1]
