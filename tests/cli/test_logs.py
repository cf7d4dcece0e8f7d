"""`rota logs`: what a run printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rota.fleet.run_logs import log_name
from tests.cli.shell import Shell


@pytest.fixture
def folder(path: Path) -> Path:
    made = Path(f"{path}-logs")
    made.mkdir()
    (made / log_name(7, 1)).write_text("first\n")
    (made / log_name(7, 2)).write_text("second, and caf\N{LATIN SMALL LETTER E WITH ACUTE}\n")
    return made


def test_the_last_run_is_shown_unless_another_is_asked_for(rota: Shell, folder: Path) -> None:
    assert rota("logs", 7).out == "second, and caf\N{LATIN SMALL LETTER E WITH ACUTE}\n"
    assert rota("logs", 7, "--attempt", 1).out == "first\n"
    answer = rota("logs", 7, "--attempt", 1, "--json").json
    assert answer == {"sched_id": 7, "attempt": 1, "path": str(folder / "7.1.log"), "text": "first\n"}


def test_what_is_kept_elsewhere_is_found_there(rota: Shell, folder: Path, tmp_path: Path) -> None:
    moved = folder.rename(tmp_path / "elsewhere")
    assert rota("logs", 7).code == 3
    assert rota("logs", 7, "--folder", moved).out.startswith("second")


def test_output_that_is_not_kept_is_said_with_where_to_look(rota: Shell, folder: Path) -> None:
    refused = rota("logs", 8)
    assert refused.code == 3
    assert f"there is no log of entry 8 in {folder}" in refused.err
    assert "--folder" in refused.err
    assert "attempt 3 of entry 7" in rota("logs", 7, "--attempt", 3).err


def test_bytes_that_are_no_text_are_printed_as_they_are(rota: Shell, folder: Path) -> None:
    (folder / log_name(9, 1)).write_bytes(b"\xff\xfe raw\n")
    assert rota("logs", 9, "--json").json["text"] == "\ufffd\ufffd raw\n"
