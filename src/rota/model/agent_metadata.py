"""What rota keeps in the metadata of an agent, and what of it is hidden from readers.

The values of `env` are often secrets. Only what starts the program needs them: everywhere else (events, messages, the
command line, callers of scope `read` or `enqueue`, representations) a variable is shown with `HIDDEN` as its value.
"""

from __future__ import annotations

from typing import Any

__all__ = ["FLEET_KEY", "HIDDEN", "SETTINGS_KEY", "hide_env", "hide_env_in_event", "hide_values"]

SETTINGS_KEY = "run"  # how the agent is run: `AgentSettings`
FLEET_KEY = "fleet"  # also of a project: the name of its fleet
HIDDEN = "(hidden)"  # in place of the value of a variable


def hide_env(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return an agent's metadata with the values of its variables hidden; their names stay."""
    settings = metadata.get(SETTINGS_KEY)
    if not isinstance(settings, dict) or not settings.get("env"):
        return metadata
    return {**metadata, SETTINGS_KEY: {**settings, "env": hide_values(settings["env"])}}


def hide_env_in_event(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of an event about an agent's new settings, or about the call that wrote them, without values."""
    hidden = dict(body)
    for field in ("changes", "detail"):
        given = body.get(field)
        if isinstance(given, dict) and isinstance(given.get("metadata"), dict):
            hidden[field] = {**given, "metadata": hide_env(given["metadata"])}
    return hidden


def hide_values(env: Any) -> Any:
    """Return variables with their values hidden; None stays None."""
    return dict.fromkeys(env, HIDDEN) if isinstance(env, dict) else env and HIDDEN
