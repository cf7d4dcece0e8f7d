"""Reading text: the plain core of YAML and JSON is accepted, hostile input is refused with a diagnostic."""

from __future__ import annotations

import json

import pytest
import yaml

from rota.errors import GraphInvalid
from rota.graph import document
from rota.graph.document import InputLimits, Section, read_document

LIMITS = InputLimits()


@pytest.fixture(params=["c", "python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both parsers of PyYAML: an installation may have only one of them."""
    kind = "CSafeLoader" if request.param == "c" else "SafeLoader"
    monkeypatch.setattr(document, "_PARSER", getattr(yaml, kind))
    return str(request.param)


def refusal(data: bytes | str, limits: InputLimits = LIMITS) -> str:
    with pytest.raises(GraphInvalid) as caught:
        read_document(data, limits)
    assert len(caught.value.diagnostics) == 1
    diagnostic = caught.value.diagnostics[0]
    assert diagnostic.code == "graph_validation_error"
    return str(diagnostic.sentence())


@pytest.mark.usefixtures("parser")
class TestAccepted:
    def test_scalars_follow_yaml_1_2(self) -> None:
        text = "{a: 1, b: -2.5, c: true, d: null, e: ~, f: 'x', g: 0x10, h: 1e3, i: .5, j: 0o17, k: 007}"
        assert dict(read_document(text, LIMITS)) == {
            "a": 1,
            "b": -2.5,
            "c": True,
            "d": None,
            "e": None,
            "f": "x",
            "g": 16,
            "h": 1000.0,
            "i": 0.5,
            "j": 15,
            "k": 7,
        }

    def test_special_words_of_yaml_1_1_are_strings(self) -> None:
        text = "{a: no, b: on, c: 12:30:00, d: 2026-11-15, e: 1_000, f: y}"
        assert dict(read_document(text, LIMITS)) == {
            "a": "no",
            "b": "on",
            "c": "12:30:00",
            "d": "2026-11-15",
            "e": "1_000",
            "f": "y",
        }

    def test_quoted_numbers_are_text(self) -> None:
        assert dict(read_document("{a: '1', b: \"true\", c: '~'}", LIMITS)) == {"a": "1", "b": "true", "c": "~"}

    def test_keys_are_always_text(self) -> None:
        assert list(read_document("{1: a, on: b, null: c}", LIMITS)) == ["1", "on", "null"]

    def test_an_alias_is_the_value_of_its_anchor(self) -> None:
        value = read_document("a: &x {b: [1, 2]}\nc: *x\nd: *x\n", LIMITS)
        assert value["c"] == value["d"] == {"b": [1, 2]}

    def test_a_mapping_has_its_line(self) -> None:
        value = read_document("# a comment\na:\n  b: 1\nc:\n  - d: 1\n  - d: 2\n", LIMITS)
        assert (value.line, value["a"].line, [item.line for item in value["c"]]) == (2, 3, [5, 6])

    def test_a_byte_order_mark_is_ignored(self) -> None:
        assert dict(read_document(b"\xef\xbb\xbfa: 1", LIMITS)) == {"a": 1}


def test_json_is_read_as_json_and_has_no_lines() -> None:
    value = read_document('{"a": {"b": [1, 2.5, null, true]}}', LIMITS)
    assert value == {"a": {"b": [1, 2.5, None, True]}}
    assert value.line is None
    assert isinstance(value["a"], Section)


def test_a_yaml_file_may_begin_with_a_brace() -> None:
    assert read_document("{a: 1}", LIMITS).line == 1


def test_the_json_format_does_not_accept_yaml() -> None:
    with pytest.raises(GraphInvalid, match="not JSON"):
        read_document("a: 1", LIMITS, "json")


@pytest.mark.usefixtures("parser")
class TestRefused:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "empty"),
            ("# only a comment\n", "empty"),
            ("- 1\n", "must be a mapping"),
            ("just words", "must be a mapping"),
            ("a: 1\nb: 2\na: 3\n", "line 3: duplicate key 'a'"),
            ("a:\n  b: 1\n  'b': 2\n", "line 3: duplicate key 'b'"),
            ("a: !!python/object/apply:os.system [ls]", "tags are not allowed"),
            ("a: !!str 1", "tags are not allowed"),
            ("!tagged {a: 1}", "tags are not allowed"),
            ("a: .inf", "not a finite number"),
            ("a: .NaN", "not a finite number"),
            ("a: 1e999", "too large"),
            ("a: 9223372036854775808", "too large"),
            ("a: " + "9" * 6000, "too large"),
            ("? [a, b]\n: 1", "a key must be plain text"),
            ("? {a: b}\n: 1", "a key must be plain text"),
            ("&k a: 1", "a key must be plain text"),
            ("a: &x 1\n*x : 2", "a key must be plain text"),
            ("a: *missing", "has no anchor"),
            ("a: &a [1, *a]", "inside its own anchor"),
            ("a: &a {b: {c: *a}}", "inside its own anchor"),
            ("--- {a: 1}\n--- {b: 1}\n", "second document"),
            ("a: [1, 2", "not YAML"),
            ("a: b: c", "not YAML"),
            ("\ta: 1", "not YAML"),
            ("a: 1\nb: \x07", "line 2: YAML does not allow the character U+0007"),
            ("%YAML 7.1\n---\na: 1", "not YAML"),
        ],
    )
    def test_with_a_diagnostic_that_gives_the_reason(self, text: str, words: str) -> None:
        assert words in refusal(text)

    def test_an_alias_bomb_before_it_is_expanded(self) -> None:
        rows = ["l0: &l0 [x, x, x, x, x, x, x, x, x]"]
        rows += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 40)]
        assert "expands to more values than the limit 500000" in refusal("\n".join(rows))

    def test_one_value_past_the_limit_and_not_the_last_one_within_it(self) -> None:
        text = "a: &a [1, 2, 3]\nb: *a\n"  # the root, a and its three, b and its three
        assert read_document(text, InputLimits(values=9))
        assert "limit 8" in refusal(text, InputLimits(values=8))

    def test_nesting_one_past_the_limit_and_not_at_it(self) -> None:
        def nested(levels: int) -> str:
            return "{a: " * levels + "1" + "}" * levels

        assert read_document(nested(5), InputLimits(nesting_depth=5))
        assert "nesting exceeds limit 5" in refusal(nested(6), InputLimits(nesting_depth=5))
        assert "nesting exceeds limit 32" in refusal("[" * 200_000)


class TestRefusedJson:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ('{"a": 1, "a": 2}', "duplicate key 'a'"),
            ('{"a": {"b": 1, "b": 2}}', "duplicate key 'b'"),
            ('{"a": NaN}', "not a finite number"),
            ('{"a": -Infinity}', "not a finite number"),
            ('{"a": 1e999}', "too large"),
            ('{"a": 123456789012345678901234567890}', "too large"),
            ('{"a": ' + "1" * 6000 + "}", "too large"),
        ],
    )
    def test_with_a_diagnostic_that_gives_the_reason(self, text: str, words: str) -> None:
        assert words in refusal(text)

    def test_nesting_one_past_the_limit_and_not_at_it(self) -> None:
        limits = InputLimits(nesting_depth=4)
        deep = json.dumps({"a": {"b": {"c": {}}}})
        assert read_document(deep, limits, "json")
        with pytest.raises(GraphInvalid, match="nesting exceeds limit 4"):
            read_document(json.dumps({"x": json.loads(deep)}), limits, "json")
        with pytest.raises(GraphInvalid, match="nesting exceeds limit"):
            read_document('{"a":' * 100_000 + "1" + "}" * 100_000, LIMITS, "json")

    def test_syntax_with_its_line(self) -> None:
        with pytest.raises(GraphInvalid, match="line 2"):
            read_document('{"a": 1,\n "b" 2}', LIMITS, "json")


class TestBytes:
    @pytest.mark.parametrize(
        "data", [b"\xff\xfea\x00", "a: é".encode("latin-1"), "a: 1".encode("utf-16"), b"a: \xc0\x80"]
    )
    def test_bytes_that_are_not_utf8_are_refused(self, data: bytes) -> None:
        assert "not UTF-8" in refusal(data)

    def test_text_that_cannot_be_encoded_as_utf8_is_refused(self) -> None:
        assert "not UTF-8" in refusal("a: \ud800")

    def test_one_byte_past_the_limit_and_not_the_last_one_within_it(self) -> None:
        text = "a: " + "é" * 10  # 23 bytes
        assert read_document(text, InputLimits(graph_input_bytes=23))
        assert "graph input size exceeds limit 22" in refusal(text, InputLimits(graph_input_bytes=22))
        assert "graph input size exceeds limit 22" in refusal(text.encode(), InputLimits(graph_input_bytes=22))
