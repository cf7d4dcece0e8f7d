"""Output shapes: where a program's JSON output has its usage, its answer and what marks a failure.

An *output shape* is data: which objects it matches, and the paths of each dimension of usage, of the answer and of what
marks a failure. `PRESETS` has the shapes of common programs. An agent's settings name a preset or give their own paths:

    usage = "claude"
    usage = { tokens = "usage.input_tokens + usage.output_tokens", cost_micro = "total_cost_usd * 1000000" }

The grammar is small on purpose; nothing is evaluated as code:

    sum      a term, or several joined by + or by - between spaces
    term     a path, optionally times a number:  total_cost_usd * 1000000
    path     names joined by dots, and [n] for the n-th item of a list, [-1] for the last:  turns[-1].usage.total
             a * in place of a name matches every value there; they are added up:  stats.models.*.tokens.total
             a ~ at the end is the name there, instead of its value, if it is the only one:  stats.models.~

Three keys are not dimensions: `text` is the path of the answer, `error` the path of what marks a failure (any value
except null, false, 0 and empty), `model` the path of the model's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from rota.errors import FleetInvalid

__all__ = [
    "EVERY",
    "ONLY_NAME",
    "PRESETS",
    "CompiledShape",
    "OutputShape",
    "PathStep",
    "Term",
    "compile_shapes",
    "compile_sum",
]

TEXT, ERROR, MODEL = "text", "error", "model"  # the keys of the `usage` setting that are not dimensions
_NO_DIMS = (TEXT, ERROR, MODEL)


class OutputShape(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of object that a program prints, and the paths of its values."""

    when: dict[str, str] = {}  # path → the text it must have, "": none; all must match
    usage: dict[str, tuple[str, ...]] = {}  # dimension → sums; the first one with a value counts
    text: tuple[str, ...] = ()
    error: tuple[str, ...] = ()
    model: tuple[str, ...] = ()


_TO_MICRO = "* 1000000"
_ANTHROPIC_TOKENS = (
    "usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens + usage.output_tokens"
)

# What a model's price is for. Tokens read from a cache are counted separately: some programs include them in the input.
_ANTHROPIC_PARTS = {
    "input_tokens": ("usage.input_tokens + usage.cache_creation_input_tokens",),
    "cached_input_tokens": ("usage.cache_read_input_tokens",),
    "output_tokens": ("usage.output_tokens",),
}

# Tokens are all tokens that the model processed, including those read from a cache: each program includes them in its
# total or lists them separately. cost_micro is their cost, if the program prints it.
PRESETS: Mapping[str, tuple[OutputShape, ...]] = {
    "claude": (  # claude --print --output-format json, or stream-json
        OutputShape(
            when={"type": "result"},
            usage={
                "tokens": (_ANTHROPIC_TOKENS,),
                "cost_micro": (f"total_cost_usd {_TO_MICRO}",),
                **_ANTHROPIC_PARTS,
            },
            text=("result",),
            error=("is_error",),
            model=("modelUsage.~",),
        ),
        OutputShape(when={"type": "system"}, model=("model",)),  # the first object of a stream
        *(
            OutputShape(when={"type": "result", "subtype": f"error_{reason}"}, error=("subtype",))
            for reason in ("max_turns", "during_execution", "max_budget_usd")
        ),
    ),
    "codex": (  # codex exec --json: its totals are for the whole thread, so the last one counts
        OutputShape(
            when={"type": "turn.completed"},
            usage={
                "tokens": ("usage.input_tokens + usage.output_tokens",),
                "input_tokens": ("usage.input_tokens - usage.cached_input_tokens",),
                "cached_input_tokens": ("usage.cached_input_tokens",),
                "output_tokens": ("usage.output_tokens",),
            },
            model=("model", "usage.model"),
        ),
        OutputShape(when={"type": "item.completed", "item.type": "agent_message"}, text=("item.text",)),
        OutputShape(when={"type": "turn.failed"}, error=("error.message", "error")),
    ),
    "gemini": (  # gemini --output-format json: one object over many lines; stream-json ends with totals
        OutputShape(  # the objects of a stream have a type, and a tool that failed there is no failed run
            when={"type": ""},
            usage={
                "tokens": ("stats.models.*.tokens.total",),
                "tool_calls": ("stats.tools.totalCalls",),
                "input_tokens": ("stats.models.*.tokens.prompt - stats.models.*.tokens.cached",),
                "cached_input_tokens": ("stats.models.*.tokens.cached",),
                "output_tokens": ("stats.models.*.tokens.candidates + stats.models.*.tokens.thoughts",),
            },
            text=("response",),
            error=("error.message", "error"),
            model=("stats.models.~",),
        ),
        OutputShape(when={"type": "result", "status": "error"}, error=("status",)),
        OutputShape(
            when={"type": "result"},
            usage={"tokens": ("stats.total_tokens",), "tool_calls": ("stats.tool_calls",)},
            error=("error.message", "error"),
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
                "input_tokens": ("usage.prompt_tokens", *_ANTHROPIC_PARTS["input_tokens"]),
                "cached_input_tokens": _ANTHROPIC_PARTS["cached_input_tokens"],
                "output_tokens": ("usage.completion_tokens", *_ANTHROPIC_PARTS["output_tokens"]),
            },
            model=("model",),
            text=("result", "response", "text", "output"),
            error=("is_error", "error"),
        ),
    ),
}


# --- the grammar -----------------------------------------------------------------------------------


PathStep: TypeAlias = str | int  # a name, or an index of a list; `EVERY` matches every value
EVERY = "*"
ONLY_NAME = "~"


class Term(msgspec.Struct, frozen=True):
    """A path and the factor for its value."""

    path: tuple[PathStep, ...]
    scale: float = 1.0


_NAME = r"[\w$:/@-]+"
_STEP = rf"(?:{_NAME}|\*|~)"
_INDEX = r"\[-?\d{1,9}\]"
_PATH = rf"(?:{_STEP}|{_INDEX})(?:\.{_STEP}|{_INDEX})*"
_TERM = re.compile(rf"\s*({_PATH})\s*(?:\*\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?))?\s*")
_JOINS = re.compile(r"(\+|\s-\s)")  # a name may have a - in it
_STEPS = re.compile(rf"{_INDEX}|{_STEP}")


def compile_sum(text: str) -> tuple[Term, ...]:
    """Parse a sum of paths; FleetInvalid if it is not valid."""
    first, *more = _JOINS.split(text)
    signed = zip(more[::2], more[1::2], strict=True)
    return _term(first, text), *(_term(part, text, -1 if join.strip() == "-" else 1) for join, part in signed)


def compile_path(text: str) -> tuple[PathStep, ...]:
    """Parse one path."""
    (term, *more) = compile_sum(text)
    if more or term.scale != 1.0:
        raise _invalid_path(text, text)
    return term.path


def _term(part: str, text: str, sign: int = 1) -> Term:
    matched = _TERM.fullmatch(part)
    if matched is None:
        raise _invalid_path(part, text)
    return Term(tuple(_step(step) for step in _STEPS.findall(matched[1])), sign * float(matched[2] or 1))


def _step(text: str) -> PathStep:
    return int(text[1:-1]) if text.startswith("[") else text


def _invalid_path(part: str, text: str) -> FleetInvalid:
    return FleetInvalid(
        f"usage: {part.strip()!r} in {text!r} is not a valid path",
        field="usage",
        hint="Join names with dots; [n] is a list item, * every value; add paths with +, scale one with * NUMBER.",
    )


class CompiledShape(msgspec.Struct, frozen=True):
    """An output shape with parsed paths."""

    when: tuple[tuple[tuple[PathStep, ...], str], ...]
    usage: tuple[tuple[str, tuple[tuple[Term, ...], ...]], ...]
    text: tuple[tuple[PathStep, ...], ...]
    error: tuple[tuple[PathStep, ...], ...]
    model: tuple[tuple[PathStep, ...], ...]


def compile_shapes(usage: str | Mapping[str, str]) -> tuple[CompiledShape, ...]:
    """Parse a `usage` setting: a preset's name, or paths; FleetInvalid if it is not valid."""
    return tuple(map(_compile, _shapes_of(usage)))


def _compile(shape: OutputShape) -> CompiledShape:
    return CompiledShape(
        when=tuple((compile_path(path), expected) for path, expected in shape.when.items()),
        usage=tuple((dim, tuple(map(compile_sum, sums))) for dim, sums in shape.usage.items()),
        text=tuple(map(compile_path, shape.text)),
        error=tuple(map(compile_path, shape.error)),
        model=tuple(map(compile_path, shape.model)),
    )


def _shapes_of(usage: str | Mapping[str, str]) -> tuple[OutputShape, ...]:
    """Return the output shapes of a `usage` setting: a preset's name, or paths."""
    if isinstance(usage, str):
        if usage not in PRESETS:
            names = ", ".join(PRESETS)
            raise FleetInvalid(f"usage: there is no preset {usage!r}", field="usage", hint=f"Presets: {names}.")
        return PRESETS[usage]
    dims: dict[str, tuple[str, ...]] = {dim: (path,) for dim, path in usage.items() if dim not in _NO_DIMS}
    text, error, model = ((usage[key],) if key in usage else () for key in _NO_DIMS)
    return (OutputShape(usage=dims, text=text, error=error, model=model),)
