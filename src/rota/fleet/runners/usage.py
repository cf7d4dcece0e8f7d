"""The usage of a run, read from the JSON that its program prints.

Command-line coding agents print JSON at the end that says what they used, what they answered and whether they failed,
each in its own format (`rota.model.usage_shapes`). A path without a value adds nothing; a sum is missing if none of its
paths has a value.

A program may print one object on one line, many objects (the last one with a dimension counts: such streams end with
totals), a list of objects, or one object over many lines, with other text in between. Lines and objects have a maximum
length; longer ones are skipped. Reading never fails, whatever is printed: an advisory names what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from rota.model.checks import AMOUNT_MAX, ID_CHARS_MAX
from rota.model.prices import TOKEN_PARTS
from rota.model.usage_shapes import EVERY, ONLY_NAME, CompiledShape, PathStep, Term, compile_shapes

__all__ = ["UsageReader", "UsageReport"]

LINE_BYTES_MAX = 1024 * 1024
DOCUMENT_BYTES_MAX = 4 * 1024 * 1024  # one object over many lines
TEXT_CHARS_MAX = 32_000  # of the answer: fits into a result as JSON, whatever characters it has
VALUES_MAX = 10_000  # that one * may match
PROGRAMS = {  # how the program of a preset prints its usage
    "claude": "claude --print --output-format json",
    "codex": "codex exec --json",
    "gemini": "gemini --output-format json",
}


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
    elif step == ONLY_NAME:
        if isinstance(document, dict) and len(document) == 1:
            yield from document
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
    model: str | None = None
    text: str | None = None
    error: str | None = None  # set if the program reported a failure, with its own text if there is one
    advisories: tuple[str, ...] = ()


class UsageReader:
    """Reads a program's output as it arrives and reports at the end what it found."""

    def __init__(self, usage: str | Mapping[str, str]) -> None:
        self._shapes = compile_shapes(usage)
        self._hint = f"; run `{PROGRAMS[usage]}`" if isinstance(usage, str) and usage in PROGRAMS else ""
        self._requires_all = not isinstance(usage, str)  # a preset lists dimensions that may be missing
        dims = dict.fromkeys(dim for shape in self._shapes for dim, _ in shape.usage)
        self._dims = tuple(dim for dim in dims if self._requires_all or dim not in TOKEN_PARTS)  # whose absence is told
        self._line = bytearray()  # the unfinished line
        self._skipping = False  # inside a line that is too long
        self._open: bytearray | None = None  # the unfinished object over many lines
        self._too_long = 0
        self._documents = 0
        self._usage: dict[str, int] = {}
        self._invalid: dict[str, str] = {}  # dimension → advisory
        self._model: str | None = None
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
        return UsageReport(
            usage=self._usage,
            model=self._model,
            text=self._text,
            error=self._error,
            advisories=tuple(self._advisories()),
        )

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
                    if _matches(shape, each):
                        self._read_shape(shape, each)

    def _read_shape(self, shape: CompiledShape, document: dict[str, Any]) -> None:
        for dim, sums in shape.usage:
            amount = next((value for terms in sums if (value := sum_at(document, terms)) is not None), None)
            if amount is not None:
                self._set_usage(dim, amount)
        text = _first(document, shape.text)
        if isinstance(text, str):
            self._text = text[-TEXT_CHARS_MAX:]
        model = _first(document, shape.model)
        if isinstance(model, str) and model.isprintable() and 0 < len(model) <= ID_CHARS_MAX:
            self._model = model
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
            what = (
                "no JSON object" if not self._documents else f"JSON objects ({self._documents}), none of them with it"
            )
            yield f"no usage found: the output had {what} (looked for {', '.join(self._dims)}){self._hint}"
        elif missing and self._requires_all:
            yield f"usage: {', '.join(missing)} not found"


def _matches(shape: CompiledShape, document: dict[str, Any]) -> bool:
    """Whether an object has the texts that its shape expects; an empty text is what a missing value has."""
    return all(next(values_at(document, path), "") == expected for path, expected in shape.when)


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
