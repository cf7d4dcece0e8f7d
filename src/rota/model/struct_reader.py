"""Read plain values into structures, and say what is wrong with them.

msgspec stops at the first value that does not fit, and describes it in its own terms. The author of a file wants the
complete list: each key with what is expected there and what was found. So the reader walks the values once, along the
types of the structures (`value_types`), and records each problem at the path that it has reached. `TomlReader` reads
fleet and scenario files, the graph loader reads YAML and JSON. Where speed matters msgspec reads the values, and
`first_problem` describes those that it refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, NoReturn, TypeVar

import msgspec

from rota.model.value_types import (
    INVALID,
    ChoiceType,
    ListType,
    ScalarType,
    StructType,
    TableType,
    UnionType,
    ValueType,
    closest,
    describe_value,
    struct_type,
)

__all__ = [
    "PROBLEMS_MAX",
    "VALUES_MAX",
    "Problem",
    "Problems",
    "StructReader",
    "TomlReader",
    "first_problem",
    "join_key",
]

PROBLEMS_MAX = 50  # listed in one error
VALUES_MAX = 50_000  # read to describe a refusal, which takes at most half a second

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class Problems:
    """The problems of a file, in the order in which they were found."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}

    def add(self, key: str, message: str) -> None:
        """Record a problem; only the first one of each key is kept."""
        self._found.setdefault(key, message)

    def add_mismatch(self, key: str, expected: str, value: Any) -> None:
        """Record a value that is not what is expected."""
        self.add(key, f"expected {expected}, found {describe_value(value)}")

    def add_unknown_name(self, key: str, what: str, name: str, known: Iterable[str]) -> None:
        """Record a name that is not defined, with the closest defined one."""
        names = sorted(known)
        similar = closest(name, names)
        if similar is not None:
            self.add(key, f"unknown {what} {name!r}; did you mean {similar!r}?")
        else:
            self.add(key, f"unknown {what} {name!r}; defined: {', '.join(names) or 'none'}")

    def __len__(self) -> int:
        return len(self._found)

    def messages(self) -> list[str]:
        """Return the problems as "key: message", at most `PROBLEMS_MAX` and a count of the rest."""
        shown = [f"{key}: {message}" if key else message for key, message in islice(self._found.items(), PROBLEMS_MAX)]
        if len(self._found) > PROBLEMS_MAX:
            shown.append(f"and {len(self._found) - PROBLEMS_MAX} more")
        return shown

    def text(self) -> str:
        """Return the problems as the text of an error: one on its own, several as a list."""
        shown = self.messages()
        return shown[0] if len(shown) == 1 else f"{len(shown)} problems\n  " + "\n  ".join(shown)

    def keys(self) -> list[str]:
        """Return the keys that have a problem."""
        return list(self._found)


def join_key(path: str, key: str) -> str:
    """Return the path of a key in a table, written as in TOML."""
    bare = key and all(letter.isalnum() or letter in "_-" for letter in key)
    written = key if bare else msgspec.json.encode(key).decode()
    return f"{path}.{written}" if path else written


class StructReader:
    """Walks values along types. A subclass says what happens to a problem, and may describe problems in other words.

    A list or mapping whose items are partly invalid is read as its valid items, so that a caller can check those too.
    A structure with a problem anywhere in it is `INVALID`.
    """

    mapping_word = "table"  # what the format calls a mapping
    key_word = "key"

    def __init__(self, *, null_is_missing: bool = True) -> None:
        self._null_is_missing = null_is_missing
        self._steps: list[str | int] = []  # from the root to the value that is being read

    def read(self, kind: type[_Struct], value: Any) -> _Struct:
        """Return a mapping as a structure, or `INVALID` after recording its problems."""
        found: _Struct = self._read(struct_type(kind), value)
        return found

    def read_fields(self, kind: StructType, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the valid fields of a structure by name."""
        given: dict[str, Any] = {}
        for key, item in value.items():
            field = kind.fields.get(key)
            if item is None and self._null_is_missing:
                continue
            if field is None:
                if not kind.ignores_unknown:
                    self._add_unknown(key, kind)
            elif item is None and field.is_optional:
                given[field.name] = None
            else:
                self._steps.append(key)
                if (found := self._read(field.type, item)) is not INVALID:
                    given[field.name] = found
                self._steps.pop()
        for key in kind.required:
            if key not in value or (self._null_is_missing and value[key] is None):
                self._add_missing(key, kind)
        return given

    # --- one method per kind of value -------------------------------------------------------------------

    def _read(self, kind: ValueType, value: Any) -> Any:
        option = kind.option(value) if isinstance(kind, UnionType) else kind
        if isinstance(option, ScalarType):
            if (found := option.check(value)) is INVALID:
                self._add_mismatch(kind, value)
            return found
        if option is None or not option.accepts(value):
            self._add_mismatch(kind, value)
            return INVALID
        if isinstance(option, StructType):
            return self._read_struct(option, value)
        if isinstance(option, TableType):
            return self._read_table(option, value)
        if isinstance(option, ListType):
            return self._read_list(option, value)
        return self._read_any(value)

    def _read_struct(self, kind: StructType, value: Any) -> Any:
        before = self._problem_count()
        given = self.read_fields(kind, dict(zip(kind.fields, value, strict=False)) if kind.is_list else value)
        if self._problem_count() > before:
            return INVALID
        try:
            return kind.kind(**given)
        except ValueError as problem:  # a rule over several keys of the structure
            self._add(str(getattr(problem, "message", problem)))
            return INVALID

    def _read_table(self, kind: TableType, value: Mapping[str, Any]) -> Any:
        given: dict[str, Any] = {}
        if self._is_too_long(kind, len(value)):
            return given
        for key, item in value.items():
            self._steps.append(key)
            name = self._read(kind.key, key)
            is_given = item is not None or not self._null_is_missing
            if name is not INVALID and is_given and (found := self._read(kind.item, item)) is not INVALID:
                given[name] = found
            self._steps.pop()
        return given

    def _read_list(self, kind: ListType, value: Sequence[Any]) -> Any:
        given: list[Any] = []
        if self._is_too_long(kind, len(value)):
            return kind.kind()
        if kind.length not in (None, len(value)):
            self._add(f"expected {kind.describe()}, found a list of {len(value)}")
            return INVALID
        if len(value) < (kind.bounds.min_length or 0):
            self._add_mismatch(kind, value)
            return INVALID
        for at, item in enumerate(value):
            self._steps.append(self._item_step(kind, at, item))
            if (found := self._read(kind.item, item)) is not INVALID:
                given.append(found)
            self._steps.pop()
        return kind.kind(given)

    def _read_any(self, value: Any) -> Any:
        return msgspec.to_builtins(value)  # dates become strings, because the value is stored as JSON

    def _item_step(self, kind: ListType, at: int, item: Any) -> str | int:  # noqa: ARG002  # for items with a name
        """Return the step of a list item in a path."""
        return at

    def _is_too_long(self, kind: ListType | TableType, length: int) -> bool:
        length_max = kind.bounds.max_length
        if length_max is None or length <= length_max:
            return False
        self._add(f"expected at most {length_max:,} items, found {length:,}")
        return True

    # --- problems of the value at the end of `_steps` -----------------------------------------------------

    def _problem_count(self) -> int:
        raise NotImplementedError

    def _add(self, message: str) -> None:
        raise NotImplementedError

    def _path(self) -> str:
        path = ""
        for step in self._steps:
            path = f"{path}[{step}]" if isinstance(step, int) else join_key(path, step)
        return path

    def _add_mismatch(self, expected: ValueType, value: Any) -> None:
        word = self.mapping_word
        found = f"found {describe_value(value, word)}" if not expected.notes.get("secret") else "found something else"
        self._add(f"expected {expected.describe(word)}, {found}")

    def _add_missing(self, key: str, kind: StructType) -> None:
        self._steps.append(key)
        expected = kind.fields[key].type.describe(self.mapping_word)
        self._add(f"required {self.key_word} is missing; expected {expected}")
        self._steps.pop()

    def _add_unknown(self, key: str, kind: StructType) -> None:
        similar, word = closest(key, kind.fields), self.key_word
        hint = f"did you mean {similar!r}?" if similar else f"valid {word}s: {', '.join(kind.fields) or 'none'}"
        self._steps.append(key)
        self._add(f"unknown {word}; {hint}")
        self._steps.pop()


class TomlReader(StructReader):
    """Reads the tables of a TOML file, and adds what is wrong with them to `problems`."""

    def __init__(self, problems: Problems) -> None:
        super().__init__()
        self._problems = problems

    def _problem_count(self) -> int:
        return len(self._problems)

    def _add(self, message: str) -> None:
        self._problems.add(self._path(), message)


# --- values that msgspec refused -------------------------------------------------------------------------


class Problem(NamedTuple):
    """What is wrong with a value, and the path of the field that has it."""

    path: str  # empty: the value itself
    message: str
    is_choice: bool = False  # a string, where one of a few others is expected

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def first_problem(kind: type[msgspec.Struct], value: Any) -> Problem | None:
    """Return why msgspec refuses to read the value as this structure.

    None if there is no problem in the first `VALUES_MAX` values: the JSON text may have had a field twice, for example.
    """
    try:
        _FirstProblemReader().read(kind, msgspec.to_builtins(value, str_keys=True, enc_hook=repr))
    except _Found as found:
        return found.problem
    return None


class _Found(Exception):
    """Ends the walk."""

    def __init__(self, problem: Problem | None) -> None:
        super().__init__(problem)
        self.problem = problem


class _FirstProblemReader(StructReader):
    """Stops at the first problem, as msgspec does."""

    mapping_word = "JSON object"
    key_word = "field"

    def __init__(self) -> None:
        super().__init__(null_is_missing=False)
        self._is_choice = False
        self._values_read = 0

    def _read(self, kind: ValueType, value: Any) -> Any:
        self._values_read += 1
        if self._values_read > VALUES_MAX:
            raise _Found(None)
        return super()._read(kind, value)

    def _problem_count(self) -> int:
        return 0

    def _add(self, message: str) -> NoReturn:
        raise _Found(Problem(self._path(), message, self._is_choice))

    def _add_mismatch(self, expected: ValueType, value: Any) -> None:
        self._is_choice = isinstance(expected, ChoiceType) and isinstance(value, str)
        super()._add_mismatch(expected, value)
