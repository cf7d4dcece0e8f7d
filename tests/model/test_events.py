"""Facts are typed, versioned and read back as they were written."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rota.errors import InvalidPayload, StoreCorrupt
from rota.model import events
from rota.model.checks import PAYLOAD_BYTES_MAX
from rota.model.events import FACTS, UPGRADES, EntriesClaimed, EntriesEnqueued, Fact, check_user_event, decode, encode


def _example(kind: type[Fact]) -> Fact:
    """A fact of this kind with a plausible value in every field."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        schema = msgspec.json.schema(field.type)
        values[field.encode_name] = _value(schema, schema.get("$defs", {}))
    return msgspec.convert(values, kind)


def _value(schema: dict[str, Any], shared: dict[str, Any]) -> Any:
    if "$ref" in schema:
        return _value(shared[schema["$ref"].rsplit("/", 1)[1]], shared)
    if "anyOf" in schema:
        return _value(schema["anyOf"][0], shared)
    if "enum" in schema:
        return schema["enum"][0]
    if "prefixItems" in schema:
        return [_value(item, shared) for item in schema["prefixItems"]]
    return {"string": "x", "integer": 3, "number": 1.5, "boolean": True, "null": None, "array": [], "object": {}}[
        schema["type"]
    ]


@pytest.mark.parametrize("kind", FACTS.values(), ids=lambda kind: kind.kind)
def test_a_fact_is_read_back_as_it_was_written(kind: type[Fact]) -> None:
    fact = _example(kind)
    assert decode(kind.kind, msgspec.json.decode(encode(fact))) == fact


def test_every_fact_is_of_the_kernels_own_kind_and_says_what_it_means() -> None:
    for kind, fact in FACTS.items():
        assert kind.startswith(events.RESERVED_PREFIX)
        assert fact.__doc__


def test_a_claim_of_many_is_one_fact() -> None:
    fact = EntriesClaimed(worker_id="w", incarnation="1", entries=[events.ClaimedEntry(1, 2, 1)], policy="strict")
    assert encode(fact) == b'{"worker_id":"w","incarnation":"1","entries":[[1,2,1,{},null]],"policy":"strict"}'


def test_an_older_shape_is_brought_up_to_date_and_a_newer_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EntriesEnqueued, "version", 2)
    monkeypatch.setitem(UPGRADES, (EntriesEnqueued.kind, 1), lambda old: {"first_id": old["id"], "count": 1})
    assert decode(EntriesEnqueued.kind, {"id": 5}) == EntriesEnqueued(first_id=5)
    assert encode(EntriesEnqueued(first_id=5)) == b'{"v":2,"first_id":5}'
    assert decode(EntriesEnqueued.kind, msgspec.json.decode(encode(EntriesEnqueued(first_id=5)))).version == 2
    with pytest.raises(StoreCorrupt, match="newer rota"):
        decode(EntriesEnqueued.kind, {"v": 3})


def test_what_cannot_be_a_fact_is_called_corrupt() -> None:
    with pytest.raises(StoreCorrupt, match="unknown kind"):
        decode("kernel.nonsense", {})
    with pytest.raises(StoreCorrupt, match="cannot be read"):
        decode(EntriesEnqueued.kind, {"first_id": "one"})


def test_a_users_event_may_say_anything_but_in_our_name() -> None:
    assert check_user_event("build.done", {"ok": True}) == b'{"ok":true}'
    with pytest.raises(InvalidPayload, match=r"must not begin with 'kernel\.'"):
        check_user_event("kernel.sched.claimed", {})
    for kind, payload in (("", {}), ("x", []), ("x", {"f": object()}), ("x", {"s": "y" * PAYLOAD_BYTES_MAX})):
        with pytest.raises(InvalidPayload):
            check_user_event(kind, payload)  # type: ignore[arg-type]
