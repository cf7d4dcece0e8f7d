"""An agent's settings as its supervisor uses them: `settings_of` reads them, `spec_for` builds an entry from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rota.model.agent_metadata import SETTINGS_KEY
from rota.model.agent_settings import AgentSettings
from rota.model.entry_defaults import settings_of, spec_for

if TYPE_CHECKING:
    from rota.service.api import KernelApi

__all__ = ["SETTINGS_KEY", "AgentSettings", "enqueue_agent", "settings_of", "spec_for"]


def enqueue_agent(api: KernelApi, pid: int, payload: Mapping[str, Any] | None = None, **options: Any) -> int:
    """Enqueue an entry of an agent with the agent's settings; an option that is None comes from them."""
    agent = api.agents.get(pid)
    given = {name: value for name, value in options.items() if value is not None}
    return api.queue.enqueue(spec_for(agent, settings_of(agent), payload or {}, **given))
