"""The pictures of the documentation: there, small, and shown. `python -m tests.web.pictures` draws them again."""

from __future__ import annotations

import re
from pathlib import Path

from tests.web.pictures import NAMES, PICTURES, SIZE_MAX

ROOT = Path(__file__).parents[2]


def test_every_picture_is_small_and_shown_in_the_guide() -> None:
    found = {path.stem: path.stat().st_size for path in PICTURES.glob("*.png")}
    assert {name for name in found if not name.startswith("tutorial-")} == set(NAMES)
    assert max(found.values()) < SIZE_MAX
    assert set(re.findall(r"\]\(pictures/(\w+)\.png\)", (ROOT / "docs" / "web.md").read_text())) == set(NAMES)
    assert "(docs/pictures/overview.png)" in (ROOT / "README.md").read_text()
