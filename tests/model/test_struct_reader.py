"""Reading plain values into structures: all problems are found, and valid values are read as msgspec reads them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from rota.model.struct_reader import PROBLEMS_MAX, VALUES_MAX, Problem, Problems, TomlReader, first_problem
from rota.model.value_types import value_type


class Colour(StrEnum):
    """An enumeration."""

    RED = "red"
    BLUE = "blue"


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table inside another one."""

    name: Annotated[str, Meta(min_length=1, max_length=5, pattern="^[a-z]+$")]
    size: Annotated[int, Meta(ge=1)] = 1


class Whole(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key of each type."""

    count: Annotated[int, Meta(ge=0, le=9)] = 0
    ratio: Annotated[float, Meta(gt=0, le=1)] = 1.0
    most: Annotated[float, Meta(le=5)] = 0.0
    on: bool = False
    text: Annotated[str, Meta(min_length=1)] | None = None
    colour: Colour = Colour.RED
    mode: Literal["fast", "slow", ""] = "slow"
    level: Literal[1, 2] = 1
    parts: tuple[Part, ...] = ()
    names: Annotated[list[str], Meta(min_length=1, max_length=2)] = []
    pair: tuple[int, int] | int = 0
    table: dict[str, int] = {}
    source: Annotated[int, Meta(description="the key is not the name")] = msgspec.field(name="from", default=0)
    either: Part | str | int | float = 0


def problems_of(values: dict[str, Any]) -> list[str]:
    problems = Problems()
    TomlReader(problems).read(Whole, values)
    return problems.messages()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 10}, "count: expected a whole number from 0 to 9, found 10"),
        ({"count": True}, "count: expected a whole number from 0 to 9, found true"),
        ({"count": 1.0}, "count: expected a whole number from 0 to 9, found 1.0"),
        ({"ratio": 0}, "ratio: expected a number above 0 and at most 1, found 0"),
        ({"ratio": float("nan")}, "ratio: expected a number above 0 and at most 1, found nan"),
        ({"most": 6}, "most: expected a number of at most 5, found 6"),
        ({"most": -(10**400)}, f"most: expected a number of at most 5, found -1{'0' * 58}…"),
        ({"on": 1}, "on: expected true or false, found 1"),
        ({"text": ""}, 'text: expected a string that is not empty, found ""'),
        ({"colour": "green"}, 'colour: expected one of red, blue, found "green"'),
        ({"mode": []}, 'mode: expected one of fast, slow, "", found an empty list'),
        ({"level": True}, "level: expected one of 1, 2, found true"),
        ({"parts": {}}, "parts: expected a list (each item: a table), found a table"),
        ({"parts": [{"size": 0, "name": "a"}]}, "parts[0].size: expected a whole number of at least 1, found 0"),
        ({"parts": [{"name": "A"}]}, 'parts[0].name: expected a string of 1 to 5 characters, found "A"'),
        ({"parts": [{"name": "a\n"}]}, 'parts[0].name: expected a string of 1 to 5 characters, found "a\\n"'),
        (
            {"parts": [{}]},
            "parts[0].name: required key is missing; expected a string of 1 to 5 characters",
        ),
        ({"parts": [{"name": "a", "sise": 1}]}, "parts[0].sise: unknown key; did you mean 'size'?"),
        ({"names": []}, "names: expected a list (each item: a string) that is not empty, found an empty list"),
        ({"names": ["a", "b", "c"]}, "names: expected at most 2 items, found 3"),
        ({"pair": [1]}, "pair: expected a list of 2 items (each item: a whole number), found a list of 1"),
        ({"pair": "1"}, 'pair: expected a list of 2 items (each item: a whole number) or a whole number, found "1"'),
        ({"table": {"a b": "x"}}, 'table."a b": expected a whole number, found "x"'),
        ({"from": "x"}, 'from: expected a whole number, found "x"'),
        ({"either": True}, "either: expected a table or a string or a whole number or a number, found true"),
    ],
)
def test_a_value_that_does_not_fit_is_described(values: dict[str, Any], message: str) -> None:
    assert problems_of(values) == [message]


def test_all_problems_are_found_and_the_list_is_limited() -> None:
    assert problems_of({"count": -1, "parts": [{"name": 1}, {"name": "ok", "x": 1}], "zzz": 0}) == [
        "count: expected a whole number from 0 to 9, found -1",
        "parts[0].name: expected a string of 1 to 5 characters, found 1",
        "parts[1].x: unknown key; valid keys: name, size",
        problems_of({"zzz": 0})[0],
    ]
    many = problems_of({f"x{at}": 1 for at in range(PROBLEMS_MAX + 3)})
    assert (len(many), many[-1]) == (PROBLEMS_MAX + 1, "and 3 more")


def test_the_word_for_a_mapping_belongs_to_the_format() -> None:
    assert value_type(dict[str, Part]).describe("mapping") == "a mapping (each value: a mapping)"
    assert value_type(Annotated[str, Meta(extra={"expected": "a name"})] | None).describe() == "a name"


scalars = st.booleans() | st.integers(-3, 12) | st.floats(-1, 6) | st.sampled_from(["", "a", "abcdef", "red", "fast"])
parts = st.dictionaries(st.sampled_from(["name", "size", "other"]), scalars, max_size=3)
values_of_all_types = scalars | st.lists(scalars, max_size=3) | parts | st.lists(parts, max_size=2)


@given(st.dictionaries(st.sampled_from([*Whole.__struct_fields__, "from"]), values_of_all_types, max_size=4))
def test_the_reader_accepts_what_msgspec_accepts_and_reads_the_same(values: dict[str, Any]) -> None:
    try:
        expected = msgspec.convert(values, Whole)
    except msgspec.ValidationError:
        expected = None
    problems = Problems()
    found = TomlReader(problems).read(Whole, values)
    assert (None if problems else found) == expected


@given(st.dictionaries(st.sampled_from([*Whole.__struct_fields__, "from", "x"]), st.none() | values_of_all_types))
def test_there_is_a_first_problem_exactly_if_msgspec_refuses(values: dict[str, Any]) -> None:
    try:
        msgspec.convert(values, Whole)
    except msgspec.ValidationError:
        assert first_problem(Whole, values) is not None
    else:
        assert first_problem(Whole, values) is None


class Pair(msgspec.Struct, frozen=True, array_like=True):
    """A structure that is encoded as a list."""

    left: int
    right: int


class Loose(msgspec.Struct):
    """A structure that ignores unknown keys, with fields that only a program sets."""

    limit: int | None
    pair: Pair = Pair(1, 2)
    change: int | msgspec.UnsetType = msgspec.UNSET
    colour: Colour | None = None
    numbers: list[int] = []

    def __post_init__(self) -> None:
        if self.limit == 13:
            raise ValueError("13 is not allowed")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"limit": None, "more": 1, "pair": [3, 4]}, None),
        ([], Problem("", "expected a JSON object, found an empty list")),
        ({"change": 1}, Problem("limit", "required field is missing; expected a whole number")),
        ({"limit": 1, "change": None}, Problem("change", "expected a whole number, found null")),
        ({"limit": 1, "pair": {}}, Problem("pair", "expected a list (left, right), found a JSON object")),
        ({"limit": 1, "pair": (1, "x")}, Problem("pair.right", 'expected a whole number, found "x"')),
        ({"limit": 1, "colour": "x"}, Problem("colour", 'expected one of red, blue, found "x"', is_choice=True)),
        ({"limit": 1, "colour": 1}, Problem("colour", "expected one of red, blue, found 1")),
        ({"limit": object, "more": 1}, Problem("limit", "expected a whole number, found \"<class 'object'>\"")),
        ({"limit": 13}, Problem("", "13 is not allowed")),
    ],
)
def test_the_first_problem_has_a_path_and_a_message(values: Any, problem: Problem | None) -> None:
    assert first_problem(Loose, values) == problem


def test_the_first_problem_is_searched_up_to_the_limit() -> None:
    numbers: list[Any] = [0] * (VALUES_MAX - 3)  # after the structure, its limit and the list itself
    assert first_problem(Loose, {"limit": 1, "numbers": [*numbers[1:], "x"]}) is not None
    assert first_problem(Loose, {"limit": 1, "numbers": [*numbers, 0, "x"]}) is None
