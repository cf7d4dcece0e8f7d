"""The house is read from top to bottom: docs/architecture.md lists the files, and imports run upward only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "rota"


@cache
def listing() -> list[str]:
    """The house, file by file or room by room, as the architecture page draws it."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    block = page.split("```house\n", 1)[1].split("```", 1)[0]
    return block.split()


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def place(path: Path) -> tuple[int, int]:
    """Where a file stands. Inside a room that is listed whole, files stand side by side."""
    name = path.relative_to(SOURCE).as_posix()
    for at, listed in enumerate(listing()):
        if name == listed or (listed.endswith("/") and name.startswith(listed)):
            return at, 1 if listed.endswith("/") else 0
    raise AssertionError(f"{name} stands nowhere in docs/architecture.md: add it where it belongs")


def module_file(module: str, name: str | None = None) -> Path | None:
    """The file behind `import module` or `from module import name`."""
    parts = module.split(".")[1:] + ([name] if name else [])
    for candidate in (SOURCE.joinpath(*parts).with_suffix(".py"), SOURCE.joinpath(*parts, "__init__.py")):
        if parts and candidate.exists():
            return candidate
    return module_file(module) if name else (SOURCE / "__init__.py" if module == "rota" else None)


@cache
def imports(path: Path) -> list[tuple[Path, int]]:
    """Every file of ours that this one imports, with the line."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[Path, int]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            if node.module and node.module.split(".")[0] == "rota":
                for alias in node.names:
                    target = module_file(node.module, alias.name)
                    assert target is not None, f"{path}:{node.lineno} imports what is not there"
                    yield target, node.lineno
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "rota" and (target := module_file(alias.name)):
                    yield target, node.lineno


@pytest.mark.parametrize("path", files(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_file_imports_only_what_stands_above_it(path: Path) -> None:
    here, _ = place(path)
    for target, line in imports(path):
        there, side_by_side = place(target)
        above = there < here or (there == here and side_by_side)
        assert above, f"{path.relative_to(ROOT)}:{line} imports {target.relative_to(SOURCE)}, which stands below it"


@pytest.mark.parametrize("path", files(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_no_import_hides_inside_a_function(path: Path) -> None:
    if path.relative_to(SOURCE).parts[0] in {"cli", "__init__.py"}:
        return  # doors load late so that they open at once; they stand at the bottom, so no cycle can hide there
    for function in ast.walk(tree(path)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = [node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)]
            assert not inner, f"{path.relative_to(ROOT)}:{inner[0].lineno} imports inside {function.name}"


def test_every_listed_place_exists() -> None:
    missing = [listed for listed in listing() if not (SOURCE / listed).exists()]
    assert not missing


def test_rooms_without_a_list_have_no_cycles() -> None:
    """Inside a room that is listed whole there is no order to read, so look for circles."""
    for path in files():
        at, whole_room = place(path)
        if whole_room:
            reached: set[Path] = set()
            pending = [target for target, _ in imports(path) if place(target)[0] == at]
            while pending:
                target = pending.pop()
                if target not in reached:
                    reached.add(target)
                    pending += [further for further, _ in imports(target) if place(further)[0] == at]
            assert path not in reached, f"{path.relative_to(SOURCE)} imports itself, by way of others"


def test_only_the_clock_asks_what_time_it_is() -> None:
    asks = {("time", name) for name in ("time", "time_ns", "monotonic", "monotonic_ns", "sleep")}
    for path in files():
        if path.name == "clock.py":
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                asked = (node.value.id, node.attr)
                assert asked not in asks, f"{path.relative_to(ROOT)}:{node.lineno} asks time.{node.attr}"


def test_only_the_store_and_the_kernel_contain_sql() -> None:
    """A statement outside of them would be a second place that knows what a row means."""
    statements = SOURCE / "store" / "statements"
    found = {
        f"{path.relative_to(SOURCE)}:{line}"
        for path in files()
        if path.relative_to(SOURCE).parts[0] not in ("store", "kernel")
        for target, line in imports(path)
        if target.parent == statements
    }
    assert found == set()
