"""Whether a value of one annotated type may be passed where another is expected, for graphs that are built in Python.

Only a certain mismatch is refused: two classes that do not inherit from each other, a list where a number is expected,
a list of strings where a list of numbers is expected. Everything that cannot be decided here (type variables,
protocols, names that do not resolve) is accepted; a type checker is the place for more.

    accepts(float, int)             yes: Python's numbers
    accepts(Sequence[str], list)    yes: a list of unknown items
    accepts(str | None, str)        yes: one of the alternatives
    accepts(list[int], list[str])   no
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NewType, TypeVar

__all__ = ["accepts", "hint_text", "item_hint", "list_hint"]

_NUMBERS: dict[type, tuple[type, ...]] = {float: (int,), complex: (int, float)}  # what else is accepted as a number


def accepts(wanted: Any, given: Any) -> bool:
    """Return whether a value annotated as `given` may be passed where `wanted` is expected."""
    wanted, given = _plain(wanted), _plain(given)
    if _is_open(wanted) or _is_open(given):
        return True
    if (members := _members(given)) is not None:
        return any(accepts(wanted, member) for member in members)
    if (members := _members(wanted)) is not None:
        return any(accepts(member, given) for member in members)
    return _is_subclass(_class_of(wanted), _class_of(given)) and _items_accepted(wanted, given)


def _is_subclass(wanted: type | None, given: type | None) -> bool:
    if wanted is None or given is None or given in _NUMBERS.get(wanted, ()):
        return True
    try:
        return issubclass(given, wanted)
    except TypeError:  # a protocol that cannot be checked at run time
        return True


def item_hint(hint: Any) -> Any:
    """Return the type of the items of a list, tuple, set or other sequence; Any if it is unknown."""
    hint = _plain(hint)
    arguments = [each for each in typing.get_args(hint) if each is not Ellipsis]
    return arguments[0] if len(arguments) == 1 else Any


def list_hint(hint: Any) -> Any:
    """Return the type of a list of such items."""
    return list if _is_open(_plain(hint)) else list[hint]


def hint_text(hint: Any) -> str:
    """Return a type as people write it."""
    return hint.__qualname__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


def _plain(hint: Any) -> Any:
    """Return the type itself, without annotations on it and without a name of its own."""
    while True:
        if typing.get_origin(hint) is Annotated:
            hint = typing.get_args(hint)[0]
        elif isinstance(hint, NewType):
            hint = hint.__supertype__
        elif typing.is_typeddict(hint):
            return dict
        else:
            return hint


def _is_open(hint: Any) -> bool:
    return hint is Any or hint is object or hint is inspect.Parameter.empty or isinstance(hint, TypeVar | str)


def _members(hint: Any) -> list[Any] | None:
    """Return the alternatives of a union (without None: a component that returns None publishes nothing) or literal."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return [each for each in typing.get_args(hint) if each is not type(None)]
    return [type(value) for value in typing.get_args(hint)] if origin is Literal else None


def _class_of(hint: Any) -> type | None:
    origin = typing.get_origin(hint) or hint
    return origin if isinstance(origin, type) else None


def _items_accepted(wanted: Any, given: Any) -> bool:
    """Compare the items of two containers of one kind, if both say what they contain."""
    of_wanted, of_given = typing.get_args(wanted), typing.get_args(given)
    outer = _class_of(wanted)
    if outer is None or not of_wanted or not of_given:
        return True
    if issubclass(outer, Mapping):
        return len(of_wanted) != len(of_given) or all(map(accepts, of_wanted, of_given))
    if issubclass(outer, Iterable) and issubclass(_class_of(given) or object, Iterable):
        return accepts(item_hint(wanted), item_hint(given))
    return True
