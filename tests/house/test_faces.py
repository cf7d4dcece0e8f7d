"""Each package has a face: what its `__init__` exports is public, and nothing outside reaches past it.

Pages, examples and the command line import from faces only, so that everything behind them may change freely.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import rota

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "rota"
PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py") if path.parent.name != "cli")
FACES = {
    "rota",
    "rota.agent",
    "rota.app",
    "rota.clock",
    "rota.doc_pages",
    "rota.decoding",
    "rota.errors",
    "rota.policy.fair_share",
    "rota.time_text",
    *(f"rota.{name}" for name in PACKAGES),
}


def blocks(page: Path) -> Iterator[str]:
    """The Python of a page: a file as it is, or the fenced blocks of a document."""
    text = page.read_text()
    if page.suffix == ".py":
        yield text
    else:
        yield from re.findall(r"^```python[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def imported(code: str) -> Iterator[tuple[str, str]]:
    """Each module of ours that the code imports from, with the name it takes."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "rota":
            for alias in node.names:
                yield node.module, alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "rota":
                    yield alias.name, ""


PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.py"),
        *(SOURCE / "cli").rglob("*.py"),
    ]
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_imports_from_faces_only(page: Path) -> None:
    for code in blocks(page):
        for module, name in imported(code):
            own = page.is_relative_to(SOURCE / "cli") and module.startswith("rota.cli")
            assert own or module in FACES, f"imports {name} from {module}, which is not a face"
            submodule = SOURCE.joinpath(*module.split(".")[1:], name)
            inside = name and module != "rota" and (submodule.with_suffix(".py").exists() or submodule.is_dir())
            assert own or not inside or name in exported(module), f"imports the module {module}.{name}"


def exported(module: str) -> list[str]:
    return list(getattr(importlib.import_module(module), "__all__", []))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_face_says_what_it_is_and_exports_what_exists(package: str) -> None:
    face = importlib.import_module(f"rota.{package}")
    assert face.__doc__
    assert exported(face.__name__), "a face without exports hides its whole package"
    assert all(hasattr(face, name) for name in exported(face.__name__))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_exported_name_is_that_of_a_module(package: str) -> None:
    """Importing the module would put it in the place of what is exported."""
    modules = {path.stem for path in (SOURCE / package).iterdir() if path.suffix == ".py" or path.is_dir()}
    assert not modules.intersection(exported(f"rota.{package}"))


def test_the_top_face_exports_what_exists() -> None:
    assert all(hasattr(rota, name) for name in rota.__all__)
