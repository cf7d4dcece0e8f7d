"""One suite for all stores: few tests are bound to some of them, each says why, and nearly all run on PostgreSQL."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.stores import KINDS, NO_STORE, ONCE

ROOT = Path(__file__).parents[1]
SUITES = ("kernel", "service", "why", "fleet", "daemon")
BOUND_MAX = 0.03  # of all test functions
ONCE_MAX = 0.10  # of all test functions: those that ./dev test leaves out on PostgreSQL with their whole module


class Mark(NamedTuple):
    """A test, or all tests of a module, that only some stores can run."""

    where: str
    kinds: tuple[str, ...]
    reason: str
    tests: int


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for suite in SUITES:
        for path in sorted((ROOT / suite).glob("test_*.py")):
            if path.stem not in NO_STORE:
                yield path, ast.parse(path.read_text())


def functions_of(module: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def marks() -> Iterator[Mark]:
    for path, module in modules():
        found = functions_of(module)
        for node in module.body:
            if isinstance(node, ast.Assign) and "only_on" in ast.unparse(node.value):
                yield _mark(f"{path.name}", node.value, len(found))
        for test in found:
            for decorator in test.decorator_list:
                if "only_on" in ast.unparse(decorator):
                    yield _mark(f"{path.name}::{test.name}", decorator, 1)


def _mark(where: str, node: ast.expr, tests: int) -> Mark:
    assert isinstance(node, ast.Call), f"{where}: write only_on(kinds, reason=…) where it applies"
    kinds = tuple(str(ast.literal_eval(kind)) for kind in node.args)
    reason = next((str(ast.literal_eval(each.value)) for each in node.keywords if each.arg == "reason"), "")
    return Mark(where, kinds, reason, tests)


def test_every_mark_names_stores_and_its_reason() -> None:
    wrong = [mark for mark in marks() if not mark.kinds or set(mark.kinds) - set(KINDS) or len(mark.reason) < 10]
    assert wrong == []


def test_few_tests_are_bound_to_a_store() -> None:
    bound = sum(mark.tests for mark in marks() if "postgres" not in mark.kinds)
    total = sum(len(functions_of(module)) for _, module in modules())
    assert bound < BOUND_MAX * total, f"{bound} of {total}: {[mark.where for mark in marks()]}"


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_runs_on_every_store(suite: str) -> None:
    assert "from tests.stores import pytest_generate_tests, store_kind" in (ROOT / suite / "conftest.py").read_text()


def test_a_module_without_a_store_opens_none() -> None:
    paths = [ROOT / suite / f"{name}.py" for suite in SUITES for name in NO_STORE]
    opening = [path.name for path in paths if path.exists() and "store.open(" in path.read_text()]
    assert opening == []


def test_few_modules_run_once_and_each_says_why() -> None:
    found = [(path.stem, len(functions_of(module))) for path, module in modules()]
    assert {name for name, _ in found} >= set(ONCE)
    assert all(len(reason) >= 20 for reason in ONCE.values())
    assert sum(tests for name, tests in found if name in ONCE) < ONCE_MAX * sum(tests for _, tests in found)
