"""Fan-out over a list: a component with `map_over` runs once for each item of a message, and publishes one list.

    plan ──questions──> search, map_over: questions          message questions#1 is ["a", "b", "c"]

    three invocations        inputs  "a" (questions[0/3]#1)  "b" (questions[1/3]#1)  "c" (questions[2/3]#1)
    one publication          ["all about a", "all about b", "all about c"], in the order of the items

The message of an item says in its channel id which item it is and of how many, so an invocation knows its place
wherever it runs, also after a restart. An item that fails under `on_error: continue`, or returns None, is None in the
list. On a durable lane each item is an entry of its own; their results are committed together, when all have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from rota.errors import ComponentInvalid, LimitExceeded
from rota.graph.invocation import Publication
from rota.graph.messages import Inputs, Message

__all__ = ["ItemPlace", "MapOver", "item_place"]


class ItemPlace(NamedTuple):
    """Which item of which message an invocation is for."""

    message_id: str
    at: int
    items: int


def item_place(message: Message) -> ItemPlace:
    """Return the place of an item's message."""
    edge, _, place = message.channel_id.rpartition("[")
    at, _, items = place.removesuffix("]").partition("/")
    return ItemPlace(f"{edge}#{message.number}", int(at), int(items))


class MapOver:
    """How a component maps over one of its inputs, and the results of its items that are not published yet."""

    def __init__(self, component_id: str, port: str, items_max: int, channel_ports: Sequence[str]) -> None:
        self._component_id = component_id
        self._port = port
        self._items_max = items_max
        self._position = list(channel_ports).index(port)
        self._results: dict[str, dict[int, Any]] = {}  # by message, then by item

    def items(self, inputs: Inputs) -> list[Inputs]:
        """Return the inputs of one invocation for each item; raises if the message is no list, or too long."""
        message = inputs[self._position]
        payload = message.payload if isinstance(message, Message) else None
        if not isinstance(message, Message) or not isinstance(payload, list | tuple):
            found = "no message" if message is None else type(payload).__name__
            raise ComponentInvalid(
                f"component {self._component_id} maps over {self._port}, which must be a list, not {found}",
                hint="Publish a list there, or remove map_over.",
                component_id=self._component_id,
                port=self._port,
            )
        if len(payload) > self._items_max:
            raise LimitExceeded(f"map_max of component {self._component_id}", self._items_max, len(payload))
        origin = msgspec.structs.replace(message.origin, correlation=message.correlation_id)
        before, after = inputs[: self._position], inputs[self._position + 1 :]
        return [
            (*before, self._item(message, origin, item, f"[{at}/{len(payload)}]"), *after)
            for at, item in enumerate(payload)
        ]

    @staticmethod
    def _item(message: Message, origin: Any, item: Any, place: str) -> Message:
        return msgspec.structs.replace(message, payload=item, channel_id=f"{message.channel_id}{place}", origin=origin)

    def place(self, inputs: Inputs) -> ItemPlace:
        """Return which item an invocation is for."""
        message = inputs[self._position]
        assert isinstance(message, Message)  # noqa: S101  # `items` made it
        return item_place(message)

    def whole(self, inputs: Inputs) -> Inputs:
        """Return the inputs of an item with the message that it came from, as far as its id goes."""
        message = inputs[self._position]
        assert isinstance(message, Message)  # noqa: S101  # `items` made it
        edge = message.channel_id.rpartition("[")[0]
        original = msgspec.structs.replace(message, channel_id=edge)
        return (*inputs[: self._position], original, *inputs[self._position + 1 :])

    def keep(self, inputs: Inputs, published: Sequence[Publication]) -> None:
        """Remember what an item published; raises if it is more than one value."""
        if len(published) > 1:
            raise ComponentInvalid(
                f"component {self._component_id} published {len(published)} messages for one item; a component with "
                "map_over publishes one",
                hint="Return a list, or publish once.",
                component_id=self._component_id,
            )
        place = self.place(inputs)
        self._results.setdefault(place.message_id, {})[place.at] = published[0].payload if published else None

    def take(self, inputs: Inputs) -> list[Any]:
        """Return and forget the results of all items of a message, in order; None for an item without one."""
        place = self.place(inputs)
        results = self._results.pop(place.message_id, {})
        return [results.get(at) for at in range(place.items)]
