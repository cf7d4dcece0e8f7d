"""Usage is read from the JSON that programs print, in their own shapes; invalid output never raises."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import FleetInvalid
from rota.fleet.runners.usage import DOCUMENT_BYTES_MAX, LINE_BYTES_MAX, UsageReader, UsageReport
from rota.model.usage_shapes import PRESETS, Term, compile_sum

CLAUDE: dict[str, Any] = {
    "type": "result", "subtype": "success", "is_error": False, "duration_ms": 1200, "num_turns": 3,
    "result": "Done.", "session_id": "s", "total_cost_usd": 0.012345,
    "modelUsage": {"claude-x": {"outputTokens": 66}}, "usage": {
        "input_tokens": 3, "cache_creation_input_tokens": 331, "cache_read_input_tokens": 1000, "output_tokens": 66,
    },
}  # fmt: skip
CODEX = [
    {"type": "thread.started", "thread_id": "t"},
    {"type": "turn.started"},
    {"type": "item.completed", "item": {"id": "item_0", "type": "reasoning", "text": "Hm."}},
    {"type": "item.completed", "item": {"id": "item_1", "type": "agent_message", "text": "Hi"}},
    {"type": "turn.completed", "usage": {"input_tokens": 100, "cached_input_tokens": 60, "output_tokens": 7}},
]
GEMINI: dict[str, Any] = {
    "response": "Paris.",
    "stats": {
        "models": {
            "gemini-2.5-pro": {"tokens": {"prompt": 20, "candidates": 5, "total": 25}},
            "gemini-2.5-flash": {"tokens": {"prompt": 8, "candidates": 2, "total": 10}},
        },
        "tools": {"totalCalls": 2},
    },
}


def read(usage: str | dict[str, str], *chunks: bytes) -> UsageReport:
    reader = UsageReader(usage)
    for chunk in chunks:
        reader.feed(chunk)
    return reader.report()


def lines(*documents: Any) -> bytes:
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


def test_claude_code_prints_one_object_or_a_stream_that_ends_with_it() -> None:
    expected = UsageReport(
        usage={
            "tokens": 1400,
            "cost_micro": 12_345,
            "input_tokens": 334,
            "cached_input_tokens": 1000,
            "output_tokens": 66,
        },
        model="claude-x",
        text="Done.",
    )
    stream = [{"type": "system"}, {"type": "assistant", "message": {"usage": {"input_tokens": 1}}}, CLAUDE]
    assert read("claude", json.dumps(CLAUDE).encode()) == expected
    assert read("claude", lines(*stream)) == expected
    assert read("claude", json.dumps(stream).encode()) == expected  # verbose: a list of all events


def test_claude_code_reports_a_failure() -> None:
    assert read("claude", lines(CLAUDE | {"is_error": True})).error == "the program reported a failure"
    assert read("claude", lines(CLAUDE | {"subtype": "error_max_turns"})).error == "error_max_turns"


def test_codex_prints_events() -> None:
    assert read("codex", lines(*CODEX)) == UsageReport(
        usage={"tokens": 107, "input_tokens": 40, "cached_input_tokens": 60, "output_tokens": 7}, text="Hi"
    )
    failed = read("codex", lines(*CODEX[:3], {"type": "turn.failed", "error": {"message": "out of quota"}}))
    assert failed.error == "out of quota"
    assert "no usage found" in failed.advisories[0]


def test_gemini_prints_one_object_over_many_lines() -> None:
    pretty = json.dumps(GEMINI, indent=2).encode()
    expected = UsageReport(usage={"tokens": 35, "tool_calls": 2, "input_tokens": 28, "output_tokens": 7}, text="Paris.")
    assert read("gemini", b"Loaded cached credentials.\n" + pretty) == expected
    stream = lines(
        {"type": "init"}, {"type": "result", "status": "success", "stats": {"total_tokens": 9, "tool_calls": 1}}
    )
    assert read("gemini", stream).usage == {"tokens": 9, "tool_calls": 1}
    error = json.dumps({"error": {"type": "ApiError", "message": "quota", "code": 429}}, indent=2).encode()
    assert read("gemini", error).error == "quota"
    failed_tool = {"type": "tool_result", "status": "error", "error": {"message": "no such file"}}
    ended = {"type": "result", "status": "success", "stats": {"total_tokens": 9}}
    assert read("gemini", lines(failed_tool, ended)).error is None, "the agent has dealt with it"
    assert read("gemini", lines(ended | {"status": "error"})).error == "error"
    assert read("gemini", lines(ended | {"status": "error", "error": {"message": "quota"}})).error == "quota"


@pytest.mark.parametrize(
    ("document", "usage"),
    [
        ({"usage": {"total_tokens": 5}}, {"tokens": 5}),
        ({"usage": {"prompt_tokens": 5, "completion_tokens": 2}}, {"tokens": 7, "input_tokens": 5, "output_tokens": 2}),
        (
            {"usage": {"input_tokens": 5, "output_tokens": 2}, "cost_usd": 0.5},
            {"tokens": 7, "cost_micro": 500_000, "input_tokens": 5, "output_tokens": 2},
        ),
        ({"tokens": 4, "cost_micro": 9}, {"tokens": 4, "cost_micro": 9}),
    ],
)
def test_the_generic_preset_knows_the_usual_names(document: Any, usage: dict[str, int]) -> None:
    assert read("generic", lines(document)).usage == usage


def test_custom_paths_with_the_answer_and_the_failure() -> None:
    paths = {"tokens": "turns.*.in + turns.*.out", "last": "turns[-1].in", "cost_micro": "usd * 1e6", "text": "a.b"}
    document = {"turns": [{"in": 1, "out": 2}, {"in": 10, "out": 20}], "usd": 0.25, "a": {"b": "yes"}, "failed": 1}
    report = read(paths | {"error": "failed"}, lines(document))
    assert report.usage == {"tokens": 33, "last": 10, "cost_micro": 250_000}
    assert (report.text, report.error) == ("yes", "the program reported a failure")


def test_the_last_object_with_a_dimension_counts() -> None:
    assert read({"tokens": "t"}, lines({"t": 1}, {"t": 5}, {"other": 2})).usage == {"tokens": 5}


@pytest.mark.parametrize(
    "bad", ["", "a +", "a * b", "a..b", "a[x]", "__import__('os')", "a - ", "(a + b) * 2", "a.", "* *"]
)
def test_an_invalid_path_is_refused(bad: str) -> None:
    with pytest.raises(FleetInvalid, match="is not a valid path"):
        UsageReader({"tokens": bad})


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(FleetInvalid, match="claude, codex, gemini, generic"):
        UsageReader("clod")


def test_the_grammar_is_parsed() -> None:
    assert compile_sum("a.*.b[-1] * 2.5 + c") == (Term(("a", "*", "b", -1), 2.5), Term(("c",)))


def test_missing_usage_is_an_advisory() -> None:
    found = "no usage found: the output had no JSON object (looked for tokens, cost_micro)"
    assert read("claude", b"plain text\n").advisories == (f"{found}; run `claude --print --output-format json`",)
    assert "JSON objects (1), none of them with it" in read("claude", lines({"type": "other"})).advisories[0]
    assert read({"tokens": "t", "cost_micro": "c"}, lines({"t": 1})).advisories == ("usage: cost_micro not found",)


@pytest.mark.parametrize("value", [-1, 1e300, True, "12", None, [], {}])
def test_an_invalid_amount_is_no_usage(value: Any) -> None:
    report = read({"tokens": "t"}, lines({"t": value}))
    assert report.usage == {}
    assert len(report.advisories) >= 1


def test_a_line_or_object_that_is_too_long_is_skipped_and_the_rest_is_read() -> None:
    reader = UsageReader({"tokens": "t"})
    reader.feed(b'{"t": 1, "x": "')
    for _ in range(LINE_BYTES_MAX // 1000 + 1):
        reader.feed(b"y" * 1000)
        assert len(reader._line) <= LINE_BYTES_MAX
    reader.feed(b'"}\n{\n')
    for _ in range(DOCUMENT_BYTES_MAX // 100_000 + 1):
        reader.feed(b" " * 100_000 + b"\n")
    reader.feed(b'\n{"t": 2}\n')
    report = reader.report()
    assert report.usage == {"tokens": 2}
    assert report.advisories == ("usage: 2 lines or objects were too long to read",)


@given(st.sampled_from([*PRESETS, "own"]), st.lists(st.binary(max_size=60)))
def test_reading_never_fails_whatever_is_printed(preset: str, chunks: list[bytes]) -> None:
    report = read({"tokens": "a.*[0].b"} if preset == "own" else preset, *chunks)
    assert all(type(amount) is int for amount in report.usage.values())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "usage", "result", "stats", "models", "error", "is_error", "a"]), inner
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from([*PRESETS]), json_values, st.integers(1, 50))
def test_wrong_shapes_give_the_same_report_however_they_are_cut(preset: str, document: Any, cut: int) -> None:
    text = json.dumps(document).encode()
    pieces = [text[at : at + cut] for at in range(0, len(text), cut)]
    whole, cut_up = read(preset, text), read(preset, *pieces)
    assert whole == cut_up
    assert all(amount >= 0 for amount in whole.usage.values())


def test_the_model_is_found_where_the_shape_says() -> None:
    assert read("generic", lines({"model": "gpt-x", "usage": {"total_tokens": 5}})).model == "gpt-x"
    one = {"stats": {"models": {"gemini-2.5-pro": GEMINI["stats"]["models"]["gemini-2.5-pro"]}}}
    assert read("gemini", lines(one)).model == "gemini-2.5-pro"
    assert read("gemini", lines(GEMINI)).model is None  # two models: the sums belong to neither
    stream = [{"type": "system", "model": "claude-y"}, {"type": "result", "usage": {"output_tokens": 1}}]
    assert read("claude", lines(*stream)).model == "claude-y"
    assert read({"tokens": "t", "model": "m.name"}, lines({"t": 1, "m": {"name": "own"}})).model == "own"
    assert read({"tokens": "t", "model": "m"}, lines({"t": 1, "m": "bad\nname"})).model is None


def test_paths_may_be_subtracted() -> None:
    assert read({"tokens": "all - cache-hits + 2x"}, lines({"all": 9, "cache-hits": 4, "2x": 1})).usage == {"tokens": 6}
