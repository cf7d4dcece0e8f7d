"""Which annotated types fit together when a graph is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NewType, Protocol, TypedDict, TypeVar

import pytest

from rota.graph.type_hints import accepts, hint_text, item_hint, list_hint

T = TypeVar("T")
Topic = NewType("Topic", str)


class Review(TypedDict):
    """A dictionary with known keys."""

    score: int


class Closes(Protocol):
    """A protocol that cannot be checked at run time."""

    def close(self) -> None: ...


class Base:
    """A class."""


class Derived(Base):
    """A class that inherits from it."""


FITS: list[tuple[Any, Any]] = [
    (int, bool),
    (float, int),
    (Any, int),
    (int, Any),
    (object, str),
    (T, int),
    (Base, Derived),
    (str, Topic),
    (Topic, str),
    (dict, Review),
    (Review, dict[str, int]),
    (Sequence[str], list),
    (Sequence[str], list[str]),
    (Iterable[Any], tuple[int, ...]),
    (Mapping[str, float], dict[str, int]),
    (list[Base], list[Derived]),
    (str | None, str),
    (str, str | None),
    (int | str, str),
    (Literal["a", "b"], str),
    (str, Literal["a"]),
    (Annotated[int, "metres"], int),
    (Callable[[int], int], Any),
    (Closes, int),
    ("Unresolved", int),
]
CLASHES: list[tuple[Any, Any]] = [
    (int, str),
    (int, float),
    (str, list[str]),
    (list[int], list[str]),
    (list[int], tuple[int, ...]),
    (Derived, Base),
    (Mapping[str, int], dict[str, str]),
    (int | str, bytes),
    (int, Literal["a"]),
    (Topic, int),
    (Review, list[int]),
]


@pytest.mark.parametrize(("wanted", "given"), FITS)
def test_these_fit(wanted: Any, given: Any) -> None:
    assert accepts(wanted, given)


@pytest.mark.parametrize(("wanted", "given"), CLASHES)
def test_these_clash(wanted: Any, given: Any) -> None:
    assert not accepts(wanted, given)


def test_lists_and_their_items() -> None:
    assert [item_hint(hint) for hint in (list[int], tuple[str, ...], list, dict[str, int], Any)] == [
        int,
        str,
        Any,
        Any,
        Any,
    ]
    assert (list_hint(int), list_hint(Any)) == (list[int], list)
    assert (hint_text(int), hint_text(list[int]), hint_text(Base)) == ("int", "list[int]", "Base")
