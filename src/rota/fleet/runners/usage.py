"""The usage of a run, read from the JSON that its program prints.

Command-line coding agents print JSON at the end that says what they used, what they answered and whether they failed,
each in its own format. An *output shape* is data: which objects it matches, and the paths of each dimension of usage,
of the answer and of what marks a failure. `PRESETS` has the shapes of common programs. An agent's settings name a
preset or give their own paths:

    usage = "claude"
    usage = { tokens = "usage.input_tokens + usage.output_tokens", cost_micro = "total_cost_usd * 1000000" }

The grammar is small on purpose; nothing is evaluated as code:

    sum      a term, or several joined by +
    term     a path, optionally times a number:  total_cost_usd * 1000000
    path     names joined by dots, and [n] for the n-th item of a list, [-1] for the last:  turns[-1].usage.total
             a * in place of a name matches every value there; they are added up:  stats.models.*.tokens.total

A path without a value adds nothing; a sum is missing if none of its paths has a value. Two keys are not dimensions:
`text` is the path of the answer, `error` the path of what marks a failure (any value except null, false, 0 and empty).

A program may print one object on one line, many objects (the last one with a dimension counts: such streams end with
totals), a list of objects, or one object over many lines, with other text in between. Lines and objects have a maximum
length; longer ones are skipped. Reading never fails, whatever is printed: an advisory names what is missing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from rota.errors import FleetInvalid
from rota.model.checks import AMOUNT_MAX

__all__ = ["PRESETS", "OutputShape", "UsageReader", "UsageReport", "compile_sum"]

LINE_BYTES_MAX = 1024 * 1024
DOCUMENT_BYTES_MAX = 4 * 1024 * 1024  # one object over many lines
TEXT_CHARS_MAX = 32_000  # of the answer: fits into a result as JSON, whatever characters it has
VALUES_MAX = 10_000  # that one * may match

TEXT, ERROR = "text", "error"  # the keys of the `usage` setting that are not dimensions


class OutputShape(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of object that a program prints, and the paths of its values."""

    when: dict[str, str] = {}  # path → the text it must have; all must match
    usage: dict[str, tuple[str, ...]] = {}  # dimension → sums; the first one with a value counts
    text: tuple[str, ...] = ()
    error: tuple[str, ...] = ()


_TO_MICRO = "* 1000000"
_ANTHROPIC_TOKENS = (
    "usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens + usage.output_tokens"
)

# Tokens are all tokens that the model processed, including those read from a cache: each program includes them in its
# total or lists them separately. cost_micro is their cost, if the program prints it.
PRESETS: Mapping[str, tuple[OutputShape, ...]] = {
    "claude": (  # claude --print --output-format json, or stream-json
        OutputShape(
            when={"type": "result"},
            usage={"tokens": (_ANTHROPIC_TOKENS,), "cost_micro": (f"total_cost_usd {_TO_MICRO}",)},
            text=("result",),
            error=("is_error",),
        ),
        *(
            OutputShape(when={"type": "result", "subtype": f"error_{reason}"}, error=("subtype",))
            for reason in ("max_turns", "during_execution", "max_budget_usd")
        ),
    ),
    "codex": (  # codex exec --json: its totals are for the whole thread, so the last one counts
        OutputShape(when={"type": "turn.completed"}, usage={"tokens": ("usage.input_tokens + usage.output_tokens",)}),
        OutputShape(when={"type": "item.completed", "item.type": "agent_message"}, text=("item.text",)),
        OutputShape(when={"type": "turn.failed"}, error=("error.message", "error")),
    ),
    "gemini": (  # gemini --output-format json: one object over many lines; stream-json ends with totals
        OutputShape(
            usage={"tokens": ("stats.models.*.tokens.total",), "tool_calls": ("stats.tools.totalCalls",)},
            text=("response",),
            error=("error.message", "error"),
        ),
        OutputShape(
            when={"type": "result"},
            usage={"tokens": ("stats.total_tokens",), "tool_calls": ("stats.tool_calls",)},
        ),
    ),
    "generic": (
        OutputShape(
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


PathStep: TypeAlias = str | int  # a name, or an index of a list; `EVERY` matches every value
EVERY = "*"


class Term(msgspec.Struct, frozen=True):
    """A path and the factor for its value."""

    path: tuple[PathStep, ...]
    scale: float = 1.0


_NAME = r"[\w$:/@-]+"
_STEP = rf"(?:{_NAME}|\*)"
_INDEX = r"\[-?\d{1,9}\]"
_PATH = rf"(?:{_STEP}|{_INDEX})(?:\.{_STEP}|{_INDEX})*"
_TERM = re.compile(rf"\s*({_PATH})\s*(?:\*\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?))?\s*")
_STEPS = re.compile(rf"{_INDEX}|{_STEP}")


def compile_sum(text: str) -> tuple[Term, ...]:
    """Parse a sum of paths; FleetInvalid if it is not valid."""
    return tuple(_term(part, text) for part in text.split("+"))


def compile_path(text: str) -> tuple[PathStep, ...]:
    """Parse one path."""
    (term, *more) = compile_sum(text)
    if more or term.scale != 1.0:
        raise _invalid_path(text, text)
    return term.path


def _term(part: str, text: str) -> Term:
    matched = _TERM.fullmatch(part)
    if matched is None:
        raise _invalid_path(part, text)
    return Term(tuple(_step(step) for step in _STEPS.findall(matched[1])), float(matched[2] or 1))


def _step(text: str) -> PathStep:
    return int(text[1:-1]) if text.startswith("[") else text


def _invalid_path(part: str, text: str) -> FleetInvalid:
    return FleetInvalid(
        f"usage: {part.strip()!r} in {text!r} is not a valid path",
        field="usage",
        hint="Join names with dots; [n] is a list item, * every value; add paths with +, scale one with * NUMBER.",
    )


def values_at(document: Any, path: tuple[PathStep, ...]) -> Iterator[Any]:
    """Yield every value that a path matches."""
    if not path:
        yield document
        return
    step, rest = path[0], path[1:]
    if step == EVERY:
        for value in _values_in(document):
            yield from values_at(value, rest)
    elif isinstance(step, int):
        if isinstance(document, list) and -len(document) <= step < len(document):
            yield from values_at(document[step], rest)
    elif isinstance(document, dict) and step in document:
        yield from values_at(document[step], rest)


def _values_in(document: Any) -> Iterable[Any]:
    if isinstance(document, dict):
        return list(document.values())[:VALUES_MAX]
    return document[:VALUES_MAX] if isinstance(document, list) else ()


def sum_at(document: Any, terms: tuple[Term, ...]) -> float | None:
    """Return a sum in a document; None if none of its paths matches a number."""
    found = [
        value * term.scale
        for term in terms
        for value in values_at(document, term.path)
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return math.fsum(found) if found else None


# --- reading ---------------------------------------------------------------------------------------


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a program's output says about its run."""

    usage: dict[str, int] = {}
    text: str | None = None
    error: str | None = None  # set if the program reported a failure, with its own text if there is one
    advisories: tuple[str, ...] = ()


class _CompiledShape(msgspec.Struct, frozen=True):
    """An output shape with parsed paths."""

    when: tuple[tuple[tuple[PathStep, ...], str], ...]
    usage: tuple[tuple[str, tuple[tuple[Term, ...], ...]], ...]
    text: tuple[tuple[PathStep, ...], ...]
    error: tuple[tuple[PathStep, ...], ...]

    def matches(self, document: dict[str, Any]) -> bool:
        return all(next(values_at(document, path), None) == expected for path, expected in self.when)


def _compile(shape: OutputShape) -> _CompiledShape:
    return _CompiledShape(
        when=tuple((compile_path(path), expected) for path, expected in shape.when.items()),
        usage=tuple((dim, tuple(map(compile_sum, sums))) for dim, sums in shape.usage.items()),
        text=tuple(map(compile_path, shape.text)),
        error=tuple(map(compile_path, shape.error)),
    )


def shapes_of(usage: str | Mapping[str, str]) -> tuple[OutputShape, ...]:
    """Return the output shapes of a `usage` setting: a preset's name, or paths."""
    if isinstance(usage, str):
        if usage not in PRESETS:
            names = ", ".join(PRESETS)
            raise FleetInvalid(f"usage: there is no preset {usage!r}", field="usage", hint=f"Presets: {names}.")
        return PRESETS[usage]
    dims: dict[str, tuple[str, ...]] = {dim: (path,) for dim, path in usage.items() if dim not in (TEXT, ERROR)}
    others = {key: (usage[key],) for key in (TEXT, ERROR) if key in usage}
    return (OutputShape(usage=dims, text=others.get(TEXT, ()), error=others.get(ERROR, ())),)


class UsageReader:
    """Reads a program's output as it arrives and reports at the end what it found."""

    def __init__(self, usage: str | Mapping[str, str]) -> None:
        self._shapes = tuple(map(_compile, shapes_of(usage)))
        self._requires_all = not isinstance(usage, str)  # a preset lists dimensions that may be missing
        self._dims = tuple(dict.fromkeys(dim for shape in self._shapes for dim, _ in shape.usage))
        self._line = bytearray()  # the unfinished line
        self._skipping = False  # inside a line that is too long
        self._open: bytearray | None = None  # the unfinished object over many lines
        self._too_long = 0
        self._documents = 0
        self._usage: dict[str, int] = {}
        self._invalid: dict[str, str] = {}  # dimension → advisory
        self._text: str | None = None
        self._error: str | None = None

    def feed(self, data: bytes) -> None:
        """Read a piece of the output."""
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._extend(end)
            line, skipped = bytes(self._line), self._skipping
            self._line.clear()
            self._skipping = False
            if not skipped:
                self._read_line(line)
        self._extend(rest)

    def report(self) -> UsageReport:
        """Return what was found. Call this at the end of the output."""
        if self._line and not self._skipping:
            self._read_line(bytes(self._line))
            self._line.clear()
        return UsageReport(usage=self._usage, text=self._text, error=self._error, advisories=tuple(self._advisories()))

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

    def _read_line(self, line: bytes) -> None:
        """Read a whole line: an object, a part of one, or other text."""
        if self._open is not None:
            self._continue_object(line)
        elif line.lstrip()[:1] in (b"{", b"["):
            document = _parse(line)
            if document is not None:
                self._read(document)
            elif line.rstrip() in (b"{", b"["):  # how programs start an object over many lines
                self._open = bytearray(line)

    def _continue_object(self, line: bytes) -> None:
        document = self._open
        assert document is not None  # noqa: S101  # only called with one
        document += b"\n" + line
        if line.rstrip() in (b"}", b"]"):  # in the first column: its end
            self._open = None
            self._read(_parse(bytes(document)))
        elif len(document) > DOCUMENT_BYTES_MAX:
            self._open = None
            self._too_long += 1

    def _read(self, document: Any) -> None:
        for each in document if isinstance(document, list) else (document,):
            if isinstance(each, dict):
                self._documents += 1
                for shape in self._shapes:
                    if shape.matches(each):
                        self._read_shape(shape, each)

    def _read_shape(self, shape: _CompiledShape, document: dict[str, Any]) -> None:
        for dim, sums in shape.usage:
            amount = next((value for terms in sums if (value := sum_at(document, terms)) is not None), None)
            if amount is not None:
                self._set_usage(dim, amount)
        text = _first(document, shape.text)
        if isinstance(text, str):
            self._text = text[-TEXT_CHARS_MAX:]
        error = _first(document, shape.error)
        if error:
            self._error = error[:TEXT_CHARS_MAX] if isinstance(error, str) else "the program reported a failure"

    def _set_usage(self, dim: str, amount: float) -> None:
        if 0 <= amount <= AMOUNT_MAX:  # false for NaN too
            self._usage[dim] = round(amount)
        else:
            self._invalid[dim] = f"usage: {dim} is {amount:g}, which is not a valid amount"

    def _advisories(self) -> Iterator[str]:
        yield from self._invalid.values()
        if self._too_long:
            yield f"usage: {self._too_long} lines or objects were too long to read"
        missing = [dim for dim in self._dims if dim not in self._usage and dim not in self._invalid]
        if self._dims and not self._usage:
            what = "no JSON object" if not self._documents else f"{self._documents} JSON objects, none of them with it"
            yield f"no usage found: the output had {what} (looked for {', '.join(self._dims)})"
        elif missing and self._requires_all:
            yield f"usage: {', '.join(missing)} not found"


def _parse(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def _first(document: dict[str, Any], paths: tuple[tuple[PathStep, ...], ...]) -> Any:
    """Return the first value on any of the paths that is not null."""
    for path in paths:
        for value in values_at(document, path):
            if value is not None:
                return value
    return None
