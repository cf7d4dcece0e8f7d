"""Messages are whole sentences: no doubled punctuation, no placeholder left unfilled, nothing that says None.

Every error, reason, event and step of a history is made once with plausible values, with and without what is optional,
and its text is checked. The texts that the code gives to errors, suggestions and hints are checked where they are
written, with a word in place of each value.
"""

from __future__ import annotations

import ast
import enum
import itertools
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rota
from rota import errors
from rota.errors import RotaError
from rota.model import events, reasons
from rota.model.events import Event
from rota.model.work import ReadyEntry
from rota.observe.event_text import FailedRun, describe
from rota.service.entry_history import _describe as describe_step

SOURCE = Path(rota.__file__).parent
BROKEN = (
    (re.compile(r"\.\.(?!\.)|\?\.|\. \.|;\.|:\.|,\.|\.,"), "doubled punctuation"),
    (re.compile(r"[{}]|%[srd]\b"), "a placeholder"),
    (re.compile(r"\bNone\b"), "None"),
    (re.compile(r"  |\( | \)| ,| \.(?![\w.])"), "a space too many"),
    (re.compile(r"\b1[0-9]{9}\.[0-9]"), "epoch seconds"),
)


def problems(text: str) -> list[str]:
    """Return what is wrong with a text."""
    found = [f"{what}: {text!r}" for pattern, what in BROKEN if pattern.search(text.replace("...", "…"))]
    return found if text.strip() else [*found, "an empty text"]


# --- values for every type -----------------------------------------------------------------------


def values(kind: Any, depth: int = 0) -> list[Any]:  # noqa: PLR0911  # one line for each kind of type
    """Return plausible values of a type: one of each kind that it may have."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return [value for each in args for value in values(each, depth)[:1]]
    if origin is typing.Literal:
        return list(args)
    if origin in (list, set, frozenset):
        return [origin([values(args[0], depth + 1)[0]])]
    if origin is tuple:
        return [tuple(values(each, depth + 1)[0] for each in args if each is not Ellipsis)]
    if origin is dict or kind is dict:
        return [{values(args[0], depth + 1)[0]: values(args[1], depth + 1)[0]} if args else {"part": 1}]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return list(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return list(examples(kind, depth + 1))[:2]
    simple = {int: 7, float: 1_700_000_000.5, str: "word", bool: True, type(None): None, bytes: b"{}"}
    return [simple.get(kind, "word")]


def examples(kind: type, depth: int = 0) -> Iterator[Any]:
    """Yield structures of a type: with each value of each field in turn, the others being the first ones."""
    hints = typing.get_type_hints(kind)
    choices = {field.name: values(hints[field.name], depth) for field in msgspec.structs.fields(kind)}
    choices |= {name: [90.0] for name, found in choices.items() if name.endswith("_s") and isinstance(found[0], float)}
    first = {name: found[0] for name, found in choices.items()}
    last = {name: found[-1] for name, found in choices.items()}
    variants = [first, last, *({**first, name: value} for name, found in choices.items() for value in found[1:])]
    for variant in variants:
        try:
            yield kind(**variant)
        except (RotaError, ValueError, TypeError):
            continue  # two values that exclude each other


# --- what is said about things -------------------------------------------------------------------

REASONS = [*reasons.BLOCKING, *reasons.ORDERING, *reasons.WORKERS]


@pytest.mark.parametrize("kind", REASONS, ids=lambda kind: kind.__name__)
def test_every_reason_is_a_sentence(kind: Any) -> None:
    made = list(examples(kind))
    assert made
    for reason in made:
        text = reason.sentence()
        assert problems(text) == []
        assert not text.endswith((".", ":", ";", ",")), text


class Names:
    """The names in these tests."""

    def agent(self, pid: int | None) -> str:
        return "an agent" if pid is None else f"agent-{pid}"

    def run(self, sched_id: int) -> str:
        return f"run #{sched_id}"

    def agent_of(self, sched_id: int) -> int | None:
        return 100 + sched_id

    def why(self, _sched_id: int, reason: str | None) -> str:
        return reason or "failed"

    def failed_run(self, _sched_id: int) -> FailedRun:
        return FailedRun(2, 3, "exit code 3")

    def run_details(self, _sched_id: int, _at: float) -> str:
        return " after 2.0 s"


EVENTS = [each for each in vars(events).values() if isinstance(each, type) and hasattr(each, "kind")]
EVENTS = [each for each in EVENTS if issubclass(each, events.EventData) and each is not events.EventData]


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_every_event_is_told_in_whole_sentences(kind: Any) -> None:
    made = list(itertools.islice(examples(kind), 40))
    assert made
    entry = ReadyEntry(7, 1, 0, 0.0, None, "manual", {}, "queued", None, 0.0, None, None, None)
    for data, pid in itertools.product(made, (5, None)):
        event = Event(9, pid, 1_700_000_000.5, kind.kind, {})
        texts = [told.text for told in describe(event, data, Names())]
        step = describe_step(data, entry)
        for text in texts if step is None else [*texts, step]:
            assert problems(text) == [], data


ERRORS = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, RotaError)]


@pytest.mark.parametrize("kind", dict.fromkeys(ERRORS), ids=lambda kind: kind.__name__)
def test_every_error_is_a_sentence_with_what_to_do(kind: type[RotaError]) -> None:
    error = errors.rebuilt(kind, "entry 7 is in the way", kind.hint, {})
    for message in ("entry 7 is in the way", "it failed.", "what is this?"):
        error.message = message
        assert problems(str(error)) == []
    assert str(error)[-1] in ".`" or kind.hint.startswith("rota ")


@pytest.mark.parametrize(
    "error",
    [
        errors.UnknownPid(7),
        errors.SchedUnknownId(7),
        errors.LimitExceeded("payload_bytes_max", 10, 11, field="payload"),
        errors.AmbiguousAgent("bob", {1: None, 2: "acme"}),
        errors.IllegalTransition("agent", 7, "DEAD", "run"),
        errors.IllegalTransition("agent", None, "READY", "wake", legal=("run",), history=("created", "woken")),
        errors.SchedIllegalTransition("entry", 7, "dispatched", "cancel", legal=("complete",)),
        errors.InvalidStateTransition(7, "READY", "BLOCKED"),
        errors.SpawnFailed("it was not started", reason="missing", errno=2, hint="Install it."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_that_write_their_own_message(error: RotaError) -> None:
    assert problems(str(error)) == []
    assert str(error).endswith(".")


# --- what the code writes ------------------------------------------------------------------------

NAMES = {kind.__name__ for kind in ERRORS} | {"Suggestion"}


class Written(typing.NamedTuple):
    """A text in the code."""

    where: str
    role: str  # message or hint
    text: str
    starts_with_value: bool


def _rendered(node: ast.expr) -> str | None:
    """Return a text with a word in place of each value; None if it is not written there."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "word" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _rendered(node.left), _rendered(node.right)
        return None if left is None or right is None else left + right
    return None


def written(path: Path) -> Iterator[Written]:
    """Yield the messages and hints that a file gives to errors and suggestions."""
    tree = ast.parse(path.read_text())
    scopes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    seen: set[tuple[int, str]] = set()
    for scope in scopes:
        named = _named_texts(scope)
        for node in ast.walk(scope):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            found = [("message", node.args[0])] if name in NAMES and node.args else []
            found += [("hint", keyword.value) for keyword in node.keywords if keyword.arg == "hint"]
            for role, value in found:
                for each in named.get(value.id, []) if isinstance(value, ast.Name) else [value]:
                    if (text := _rendered(each)) and (each.lineno, text) not in seen:
                        seen.add((each.lineno, text))
                        first = each.values[0] if isinstance(each, ast.JoinedStr) else None
                        where = f"{path.relative_to(SOURCE)}:{each.lineno}"
                        yield Written(where, role, text, isinstance(first, ast.FormattedValue))


def _named_texts(scope: ast.AST) -> dict[str, list[ast.expr]]:
    """Return what is assigned to the names of a function."""
    named: dict[str, list[ast.expr]] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            named.setdefault(node.targets[0].id, []).append(node.value)
    return named


WRITTEN = [each for path in sorted(SOURCE.rglob("*.py")) for each in written(path)]


def test_there_are_texts() -> None:
    assert len([each for each in WRITTEN if each.role == "message"]) > 300
    assert len([each for each in WRITTEN if each.role == "hint"]) > 150


def test_no_text_in_the_code_is_broken() -> None:
    wrong = [f"{each.where} {problem}" for each in WRITTEN for problem in problems(_without_json(each.text))]
    assert not wrong, "\n".join(wrong)


def _without_json(text: str) -> str:
    """Leave out examples of JSON and of shell code, which have braces."""
    return re.sub(r"[`'{].*[}`']", "…", text)


def test_a_message_begins_in_lower_case_and_has_no_full_stop() -> None:
    """It is printed behind a name (`rota: …`) and before a hint (`. …`)."""
    wrong = [
        f"{each.where} {each.text!r}"
        for each in WRITTEN
        if each.role == "message"
        and (
            each.text.endswith((".", "!", "?", ":", ";", ","))
            or (not each.starts_with_value and re.match(r"[A-Z][a-z]+ ", each.text))
        )
    ]
    assert not wrong, "\n".join(wrong)


def test_a_hint_is_a_sentence_or_a_command() -> None:
    wrong = [
        f"{each.where} {each.text!r}"
        for each in WRITTEN
        if each.role == "hint"
        and not re.match(r"(rota|chmod|pip|python|word) ", each.text)  # a command
        and not (each.text.endswith((".", "`.", ")")) and re.match(r"[A-Z`\-\"'(]|word|docs/|python", each.text))
    ]
    assert not wrong, "\n".join(wrong)
