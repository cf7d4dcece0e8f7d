"""What a run used, read from the JSON that its program prints.

Coding agents on the command line end by printing JSON that says what they used, what they answered and whether they
failed; each in a shape of its own. A *shape* is data: which objects it is about, where in them each dimension of usage
is found, where the answer is, and what says that it failed. `PRESETS` has the shapes of common programs; a plan may
name a preset, or write paths of its own:

    usage = "claude"
    usage = { tokens = "usage.input_tokens + usage.output_tokens", cost_micro = "total_cost_usd * 1000000" }

The grammar is small on purpose, and nothing in it is evaluated as code:

    sum      term, or several joined by +
    term     a path, perhaps times a number:  total_cost_usd * 1000000
    path     names joined by dots, and [n] for the n-th of a list, [-1] for the last:  turns[-1].usage.total
             a * in the place of a name is every value there, summed:  stats.models.*.tokens.total

A path that leads nowhere counts nothing; a sum of which no path leads anywhere is not found. Two keys are no dimension:
`text` is where the answer is, `error` what says that the run failed (anything but null, false, 0 and nothing).

A program may print one object on one line, many (the last that has something to say about a dimension counts: such
streams end with totals), a list of them, or one object over many lines; and text in between. Lines and objects have a
longest length, and what is longer is passed over. Whatever is printed, reading it never fails: what is not found is
said by an advisory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from rota.errors import FleetInvalid
from rota.model.checks import AMOUNT_MAX

__all__ = ["PRESETS", "Report", "Shape", "UsageReader", "compile_sum"]

LINE_BYTES_MAX = 1024 * 1024  # of one line
DOCUMENT_BYTES_MAX = 4 * 1024 * 1024  # of one object over many lines
TEXT_CHARS_MAX = 32_000  # of the answer: as JSON it fits into a result whatever it is made of
VALUES_MAX = 10_000  # that one * may sum

TEXT, ERROR = "text", "error"  # the keys of a plan's `usage` that are no dimension


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of object that a program prints, and what is where in it."""

    when: dict[str, str] = {}  # path → the text that must be there
    usage: dict[str, tuple[str, ...]] = {}  # dimension → sums; the first that is found counts
    text: tuple[str, ...] = ()
    error: tuple[str, ...] = ()


_TO_MICRO = "* 1000000"
_ANTHROPIC_TOKENS = (
    "usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens + usage.output_tokens"
)

# Tokens are all that went through the model, those read from a cache included: each program counts them so in its own
# total, or has them beside. What they cost is cost_micro, where the program says it.
PRESETS: Mapping[str, tuple[Shape, ...]] = {
    "claude": (  # claude --print --output-format json, or stream-json
        Shape(
            when={"type": "result"},
            usage={"tokens": (_ANTHROPIC_TOKENS,), "cost_micro": (f"total_cost_usd {_TO_MICRO}",)},
            text=("result",),
            error=("is_error",),
        ),
        *(
            Shape(when={"type": "result", "subtype": f"error_{why}"}, error=("subtype",))
            for why in ("max_turns", "during_execution", "max_budget_usd")
        ),
    ),
    "codex": (  # codex exec --json: its totals are those of the whole thread, so the last one counts
        Shape(when={"type": "turn.completed"}, usage={"tokens": ("usage.input_tokens + usage.output_tokens",)}),
        Shape(when={"type": "item.completed", "item.type": "agent_message"}, text=("item.text",)),
        Shape(when={"type": "turn.failed"}, error=("error.message", "error")),
    ),
    "gemini": (  # gemini --output-format json: one object over many lines; stream-json ends with totals
        Shape(
            usage={"tokens": ("stats.models.*.tokens.total",), "tool_calls": ("stats.tools.totalCalls",)},
            text=("response",),
            error=("error.message", "error"),
        ),
        Shape(
            when={"type": "result"},
            usage={"tokens": ("stats.total_tokens",), "tool_calls": ("stats.tool_calls",)},
        ),
    ),
    "generic": (
        Shape(
            usage={
                "tokens": (
                    "usage.total_tokens",
                    _ANTHROPIC_TOKENS,
                    "usage.prompt_tokens + usage.completion_tokens",
                    "total_tokens",
                    "tokens",
                ),
                "cost_micro": (
                    "cost_micro",
                    f"total_cost_usd {_TO_MICRO}",
                    f"cost_usd {_TO_MICRO}",
                    f"usage.cost {_TO_MICRO}",
                ),
            },
            text=("result", "response", "text", "output"),
            error=("is_error", "error"),
        ),
    ),
}


# --- the grammar -----------------------------------------------------------------------------------


Step: TypeAlias = str | int  # a name, a number of a list; `EVERY` is every value
EVERY = "*"


class Term(msgspec.Struct, frozen=True):
    """A path and what its value is multiplied by."""

    path: tuple[Step, ...]
    scale: float = 1.0


_NAME = r"[\w$:/@-]+"
_STEP = rf"(?:{_NAME}|\*)"
_INDEX = r"\[-?\d{1,9}\]"
_PATH = rf"(?:{_STEP}|{_INDEX})(?:\.{_STEP}|{_INDEX})*"
_TERM = re.compile(rf"\s*({_PATH})\s*(?:\*\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?))?\s*")
_STEPS = re.compile(rf"{_INDEX}|{_STEP}")


def compile_sum(text: str) -> tuple[Term, ...]:
    """A sum of paths, understood; FleetInvalid says what is wrong with it."""
    return tuple(_term(part, text) for part in text.split("+"))


def compile_path(text: str) -> tuple[Step, ...]:
    """One path, understood."""
    (term, *more) = compile_sum(text)
    if more or term.scale != 1.0:
        raise _not_understood(text, text)
    return term.path


def _term(part: str, text: str) -> Term:
    matched = _TERM.fullmatch(part)
    if matched is None:
        raise _not_understood(part, text)
    return Term(tuple(_step(step) for step in _STEPS.findall(matched[1])), float(matched[2] or 1))


def _step(text: str) -> Step:
    return int(text[1:-1]) if text.startswith("[") else text


def _not_understood(part: str, text: str) -> FleetInvalid:
    return FleetInvalid(
        f"usage: {part.strip()!r} in {text!r} is not a path",
        field="usage",
        hint="Write names joined by dots, [n] for one of a list, * for every value; + between paths, * and a number.",
    )


def values_at(document: Any, path: tuple[Step, ...]) -> Iterator[Any]:
    """Every value that a path leads to."""
    if not path:
        yield document
        return
    step, rest = path[0], path[1:]
    if step == EVERY:
        for value in _all_in(document):
            yield from values_at(value, rest)
    elif isinstance(step, int):
        if isinstance(document, list) and -len(document) <= step < len(document):
            yield from values_at(document[step], rest)
    elif isinstance(document, dict) and step in document:
        yield from values_at(document[step], rest)


def _all_in(document: Any) -> Iterable[Any]:
    if isinstance(document, dict):
        return list(document.values())[:VALUES_MAX]
    return document[:VALUES_MAX] if isinstance(document, list) else ()


def sum_at(document: Any, terms: tuple[Term, ...]) -> float | None:
    """A sum in a document; None if none of its paths leads to a number."""
    found = [
        value * term.scale
        for term in terms
        for value in values_at(document, term.path)
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return math.fsum(found) if found else None


# --- reading ---------------------------------------------------------------------------------------


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a program's output says about its run."""

    usage: dict[str, int] = {}
    text: str | None = None
    error: str | None = None  # that it failed, in its own words where it has some
    advisories: tuple[str, ...] = ()


class _Reading(msgspec.Struct, frozen=True):
    """A shape, understood."""

    when: tuple[tuple[tuple[Step, ...], str], ...]
    usage: tuple[tuple[str, tuple[tuple[Term, ...], ...]], ...]
    text: tuple[tuple[Step, ...], ...]
    error: tuple[tuple[Step, ...], ...]

    def fits(self, document: dict[str, Any]) -> bool:
        return all(next(values_at(document, path), None) == wanted for path, wanted in self.when)


def _understood(shape: Shape) -> _Reading:
    return _Reading(
        when=tuple((compile_path(path), wanted) for path, wanted in shape.when.items()),
        usage=tuple((dim, tuple(map(compile_sum, sums))) for dim, sums in shape.usage.items()),
        text=tuple(map(compile_path, shape.text)),
        error=tuple(map(compile_path, shape.error)),
    )


def shapes_of(said: str | Mapping[str, str]) -> tuple[Shape, ...]:
    """The shapes of a plan's `usage`."""
    if isinstance(said, str):
        if said not in PRESETS:
            known = ", ".join(PRESETS)
            raise FleetInvalid(f"usage: there is no preset {said!r}", field="usage", hint=f"Presets: {known}.")
        return PRESETS[said]
    dims: dict[str, tuple[str, ...]] = {dim: (text,) for dim, text in said.items() if dim not in (TEXT, ERROR)}
    places = {key: (said[key],) for key in (TEXT, ERROR) if key in said}
    return (Shape(usage=dims, text=places.get(TEXT, ()), error=places.get(ERROR, ())),)


class UsageReader:
    """Reads a program's output as it comes, and says at the end what it found."""

    def __init__(self, said: str | Mapping[str, str]) -> None:
        self._readings = tuple(map(_understood, shapes_of(said)))
        self._by_hand = not isinstance(said, str)  # every dimension was asked for; a preset lists what may be there
        self._wanted = tuple(dict.fromkeys(dim for reading in self._readings for dim, _ in reading.usage))
        self._line = bytearray()  # that has begun and not ended
        self._skipping = False  # the rest of a line that is too long
        self._open: bytearray | None = None  # an object over many lines that has begun and not ended
        self._too_long = 0
        self._documents = 0
        self._usage: dict[str, int] = {}
        self._nonsense: dict[str, str] = {}
        self._text: str | None = None
        self._error: str | None = None

    def feed(self, data: bytes) -> None:
        """Take what was printed."""
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._extend(end)
            line, skipped = bytes(self._line), self._skipping
            self._line.clear()
            self._skipping = False
            if not skipped:
                self._take(line)
        self._extend(rest)

    def report(self) -> Report:
        """What was found, once nothing more comes."""
        if self._line and not self._skipping:
            self._take(bytes(self._line))
            self._line.clear()
        return Report(usage=self._usage, text=self._text, error=self._error, advisories=tuple(self._advisories()))

    def _extend(self, part: bytes) -> None:
        if self._skipping:
            return
        if len(self._line) + len(part) > LINE_BYTES_MAX:
            self._line.clear()
            self._open = None
            self._skipping = True
            self._too_long += 1
        else:
            self._line += part

    def _take(self, line: bytes) -> None:
        """A whole line: an object, a part of one, or nothing for us."""
        if self._open is not None:
            self._take_more(line)
        elif line.lstrip()[:1] in (b"{", b"["):
            document = _parsed(line)
            if document is not None:
                self._read(document)
            elif line.rstrip() in (b"{", b"["):  # as programs begin that print an object over many lines
                self._open = bytearray(line)

    def _take_more(self, line: bytes) -> None:
        document = self._open
        assert document is not None  # noqa: S101  # only called with one
        document += b"\n" + line
        if line.rstrip() in (b"}", b"]"):  # in the first column: the end of it
            self._open = None
            self._read(_parsed(bytes(document)))
        elif len(document) > DOCUMENT_BYTES_MAX:
            self._open = None
            self._too_long += 1

    def _read(self, document: Any) -> None:
        for each in document if isinstance(document, list) else (document,):
            if isinstance(each, dict):
                self._documents += 1
                for reading in self._readings:
                    if reading.fits(each):
                        self._read_by(reading, each)

    def _read_by(self, reading: _Reading, document: dict[str, Any]) -> None:
        for dim, sums in reading.usage:
            found = next((value for terms in sums if (value := sum_at(document, terms)) is not None), None)
            if found is not None:
                self._count(dim, found)
        text = _first(document, reading.text)
        if isinstance(text, str):
            self._text = text[-TEXT_CHARS_MAX:]
        error = _first(document, reading.error)
        if error:
            self._error = error[:TEXT_CHARS_MAX] if isinstance(error, str) else "it says that it failed"

    def _count(self, dim: str, amount: float) -> None:
        if 0 <= amount <= AMOUNT_MAX:  # false for what is not a number, too
            self._usage[dim] = round(amount)
        else:
            self._nonsense[dim] = f"usage: {dim} is said to be {amount:g}, which is no amount"

    def _advisories(self) -> Iterator[str]:
        yield from self._nonsense.values()
        if self._too_long:
            yield f"usage: {self._too_long} lines or objects were too long to be read"
        missing = [dim for dim in self._wanted if dim not in self._usage and dim not in self._nonsense]
        if self._wanted and not self._usage:
            what = "no JSON object" if not self._documents else f"{self._documents} JSON objects, none of them with it"
            yield f"no usage found: the output had {what} ({', '.join(self._wanted)} looked for)"
        elif missing and self._by_hand:
            yield f"usage: {', '.join(missing)} not found"


def _parsed(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def _first(document: dict[str, Any], paths: tuple[tuple[Step, ...], ...]) -> Any:
    """The first of several places where there is something."""
    for path in paths:
        for value in values_at(document, path):
            if value is not None:
                return value
    return None
