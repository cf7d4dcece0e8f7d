"""Code and docs use plain words: the subject is named, and each public class name means one thing."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "rota"

# each hides the subject of its sentence, or is no longer in use: docs/glossary.md has the words to write instead
REFUSED = re.compile(
    r"\b(who(m)?ever|whom|some(body|one)|nobody|no one|any(body|one)|every(body|one)|anew|reckon(s|ed|ing)?|hitherto"
    r"|thereby|in vain|would rather|the answer is|as it were)\b",
    re.IGNORECASE,
)
PAGES = sorted(
    [
        *SOURCE.rglob("*.py"),
        *(ROOT / "docs").rglob("*.md"),
        *(path for path in (ROOT / "examples").rglob("*.*") if path.suffix != ".pyc"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "dev")),
    ]
)
TERMS_MAX = 40
SHARED_NAMES_MAX = 12  # public class names that are defined in two modules


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_uses_plain_words(page: Path) -> None:
    found = [
        f"{page.relative_to(ROOT)}:{number}: {line.strip()}"
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if REFUSED.search(line)
    ]
    assert not found, "\n".join(found)


def test_the_glossary_is_short_and_sorted() -> None:
    terms = re.findall(r"^\| \*\*(.+?)\*\* \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert len(terms) <= TERMS_MAX
    assert terms == sorted(terms, key=str.lower)
    assert "glossary.md" in (ROOT / "README.md").read_text()


def test_few_public_class_names_occur_twice() -> None:
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path.relative_to(SOURCE).as_posix())
    shared = {name: files for name, files in homes.items() if len(files) > 1}
    assert len(shared) <= SHARED_NAMES_MAX, shared
