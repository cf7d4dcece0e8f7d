"""Events as sentences for a person who watches a fleet, in the order in which they happened.

Every event of rota has a sentence. Those that occur by the thousand, such as charges and the state changes of agents,
have the tone `detail` and are summed up elsewhere. The others say what starts, what ends and how, and what may need
action. `entry_sentences.py` and `fleet_sentences.py` have the texts.
"""

from __future__ import annotations

import msgspec

from rota.model.events import Event, EventData
from rota.observe.entry_sentences import ENTRY_SENTENCES
from rota.observe.event_names import About, Describers, EntityNames, FailedRun, TextTone
from rota.observe.fleet_sentences import FLEET_SENTENCES

__all__ = [
    "OWN_CHARS_MAX",
    "TEXTS_PER_EVENT_MAX",
    "EntityNames",
    "EventText",
    "FailedRun",
    "TextTone",
    "describe",
    "describe_own",
]

TEXTS_PER_EVENT_MAX = 50  # the rest of a batch is counted in one more sentence
OWN_CHARS_MAX = 400  # of the payload of a user's event in a sentence

_DESCRIBERS: Describers = {**ENTRY_SENTENCES, **FLEET_SENTENCES}


class EventText(msgspec.Struct, frozen=True):
    """One sentence about one event."""

    event_id: int
    at: float
    tone: TextTone
    text: str
    pid: int | None = None  # the agent it is about, if it is known
    sched_id: int | None = None


def describe(event: Event, data: EventData, names: EntityNames) -> list[EventText]:
    """Return the sentences about an event. Call it before the event is folded into `names`."""
    describer = _DESCRIBERS.get(type(data))
    if describer is None:
        return []
    lines = list(describer(data, event, names))
    left = len(lines) - TEXTS_PER_EVENT_MAX
    found = [_text(event, names, *line) for line in lines[:TEXTS_PER_EVENT_MAX]]
    return [*found, _text(event, names, lines[-1][0], f"… and {left:,} more like this")] if left > 0 else found


def _text(event: Event, names: EntityNames, tone: TextTone, text: str, about: About | None = None) -> EventText:
    if about is None:
        return EventText(event.event_id, event.ts, tone, text, event.pid)
    pid = event.pid if about.pid is None else about.pid
    return EventText(
        event.event_id, event.ts, tone, text, names.agent_of(about.sched_id) if pid is None else pid, about.sched_id
    )


def describe_own(event: Event, names: EntityNames) -> list[EventText]:
    """Return the sentence about an event of a user's own."""
    agent = "" if event.pid is None else f" of {names.agent(event.pid)}"
    payload = msgspec.json.encode(event.payload).decode() if event.payload else ""
    shown = payload if len(payload) <= OWN_CHARS_MAX else f"{payload[:OWN_CHARS_MAX]}…"
    return [_text(event, names, "quiet", f"{event.kind}{agent}{f': {shown}' if shown else ''}")]
