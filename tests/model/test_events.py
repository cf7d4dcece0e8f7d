"""Events are typed and versioned, and decode to what was encoded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rota.errors import InvalidPayload, StoreCorrupt
from rota.model import events
from rota.model.checks import PAYLOAD_BYTES_MAX
from rota.model.event_codec import UPGRADES, check_user_event, decode, encode
from rota.model.events import EVENT_TYPES, EntriesClaimed, EntriesEnqueued, EventData


def _example(kind: type[EventData]) -> EventData:
    """An event of this type with a plausible value in every field."""
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
    if "properties" in schema:
        return {name: _value(schema["properties"][name], shared) for name in schema["required"]}
    if "prefixItems" in schema:
        return [_value(item, shared) for item in schema["prefixItems"]]
    return {"string": "x", "integer": 3, "number": 1.5, "boolean": True, "null": None, "array": [], "object": {}}[
        schema["type"]
    ]


@pytest.mark.parametrize("kind", EVENT_TYPES.values(), ids=lambda kind: kind.kind)
def test_an_event_is_decoded_as_it_was_encoded(kind: type[EventData]) -> None:
    fact = _example(kind)
    assert decode(kind.kind, msgspec.json.decode(encode(fact))) == fact


def test_every_event_type_has_a_reserved_kind_and_a_description() -> None:
    for kind, fact in EVENT_TYPES.items():
        assert kind.startswith(events.RESERVED_PREFIX)
        assert fact.__doc__


def test_a_claim_of_many_entries_is_one_event() -> None:
    fact = EntriesClaimed(worker_id="w", incarnation="1", entries=[events.ClaimedEntry(1, 2, 1)], policy="strict")
    assert encode(fact) == b'{"worker_id":"w","incarnation":"1","entries":[[1,2,1,{},null,null]],"policy":"strict"}'


def test_an_older_version_is_upgraded_and_a_newer_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EntriesEnqueued, "version", 2)
    monkeypatch.setitem(UPGRADES, (EntriesEnqueued.kind, 1), lambda old: {"first_id": old["id"], "count": 1})
    assert decode(EntriesEnqueued.kind, {"id": 5}) == EntriesEnqueued(first_id=5)
    assert encode(EntriesEnqueued(first_id=5)) == b'{"v":2,"first_id":5}'
    assert decode(EntriesEnqueued.kind, msgspec.json.decode(encode(EntriesEnqueued(first_id=5)))).version == 2
    with pytest.raises(StoreCorrupt, match="newer rota"):
        decode(EntriesEnqueued.kind, {"v": 3})


def test_an_unknown_or_invalid_event_is_corrupt() -> None:
    with pytest.raises(StoreCorrupt, match="unknown kind"):
        decode("kernel.nonsense", {})
    with pytest.raises(StoreCorrupt, match="cannot be read"):
        decode(EntriesEnqueued.kind, {"first_id": "one"})


def test_a_user_event_may_have_any_kind_without_the_reserved_prefix() -> None:
    assert check_user_event("build.done", {"ok": True}) == b'{"ok":true}'
    with pytest.raises(InvalidPayload, match=r"must not begin with 'kernel\.'"):
        check_user_event("kernel.sched.claimed", {})
    for kind, payload in (("", {}), ("x", []), ("x", {"f": object()}), ("x", {"s": "y" * PAYLOAD_BYTES_MAX})):
        with pytest.raises(InvalidPayload):
            check_user_event(kind, payload)  # type: ignore[arg-type]
