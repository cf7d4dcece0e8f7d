"""Typed data is decoded through `rota.decoding` only: msgspec's own first use of a type is not safe on two threads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "rota"


def own_uses(path: Path) -> Iterator[str]:
    """Calls that make msgspec prepare a type: decoders of a type, `decode` with a type, `convert`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("msgspec."):
            name = ast.unparse(node.func).rsplit(".", 1)[1]
            is_typed = bool(node.args) if name == "Decoder" else any(each.arg == "type" for each in node.keywords)
            if name == "convert" or (name in ("Decoder", "decode") and is_typed):
                yield f"{path.relative_to(SOURCE)}:{node.lineno} {ast.unparse(node.func)}"


def test_only_one_file_prepares_types() -> None:
    found = [use for path in sorted(SOURCE.rglob("*.py")) for use in own_uses(path)]
    assert [use for use in found if not use.startswith("decoding.py:")] == []
    assert len(found) == 3, "decoding.py itself prepares types"
