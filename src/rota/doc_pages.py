"""The pages of docs/: in a checkout they are beside `src`, in an installed package in `rota/docs`.

Messages name a page by the command that prints it, `rota docs agents`, so that it is found without a checkout.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["page_names", "read_page"]

_HERE = Path(__file__).parent
_FOLDERS = (_HERE / "docs", _HERE.parents[1] / "docs")  # installed; a checkout
_RECORDS = "decisions"  # why rota is built as it is: for its developers, by number


def page_names() -> list[str]:
    """Return the names of all pages: `agents`, `reference/rights`, …"""
    folder = _folder()
    pages = (page.relative_to(folder).with_suffix("").as_posix() for page in folder.rglob("*.md"))
    return sorted(name for name in pages if not name.startswith(_RECORDS))


def read_page(name: str) -> str | None:
    """Return a page by its name, in full or without its folder; None if there is none."""
    wanted = name.removeprefix("docs/").removesuffix(".md")
    found = [each for each in page_names() if wanted in (each, each.rpartition("/")[2])]
    if not found:
        return None
    return (_folder() / f"{wanted if wanted in found else found[0]}.md").read_text(encoding="utf-8")


def _folder() -> Path:
    return next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])
