"""The routes of the REST face as an OpenAPI 3.1 document."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from rota.rpc.methods import ANY_METHOD
from rota.rpc.rest import AGENT, PROJECT, ROUTES, Route, status_of

__all__ = ["openapi_document"]

_REFERENCE = "#/components/schemas/{name}"
_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["code", "message", "name", "hint"],
    "properties": {
        "code": {"type": "integer", "description": "See the table of errors."},
        "name": {"type": "string"},
        "message": {"type": "string", "description": "What happened."},
        "hint": {"type": "string", "description": "What to do about it."},
    },
    "additionalProperties": True,
}


@lru_cache(maxsize=1)
def openapi_document(rota_version: str) -> dict[str, Any]:
    """Return the document of all routes; it is cached."""
    kinds = sorted({kind for route in ROUTES for kind in (route.method.params, route.method.codec.result)}, key=str)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    schema_of = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        own = components[schema_of[route.method.params]["$ref"].rpartition("/")[2]]
        operation = _operation(route, own, schema_of[route.method.codec.result])
        paths.setdefault(route.path, {})[route.verb.lower()] = operation
    used = {name: schema for name, schema in components.items() if not name.endswith("Params")}
    return {
        "openapi": "3.1.0",
        "info": {"title": "rota", "version": rota_version},
        "paths": paths,
        "components": {
            "schemas": {**used, "Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(route: Route, params: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    method = route.method
    found: dict[str, Any] = {
        "operationId": method.name.replace(".", "_"),
        "summary": method.summary,
        "description": f"Calls `{method.name}`. Needs scope `{method.scope}`.",
        "parameters": list(_parameters(route, params["properties"])),
        "responses": {
            str(route.status): {"description": "Success.", "content": _json(result)},
            **{str(status): _error(names) for status, names in sorted(_errors(route).items())},
        },
    }
    if route.body_fields:
        required = [name for name in params.get("required", ()) if name in route.body_fields]
        body: dict[str, Any] = {
            "type": "object",
            "properties": {name: params["properties"][name] for name in route.body_fields},
            "additionalProperties": False,
        }
        found["requestBody"] = {
            "required": bool(required),
            "content": _json(body | ({"required": required} if required else {})),
        }
    return found


def _parameters(route: Route, properties: dict[str, Any]) -> list[dict[str, Any]]:
    agent = {"type": "string", "description": "The agent's pid, or its name."}
    project = {"type": "string", "description": "The project of the agent, if several have its name."}
    found = []
    for segment in route.segments:
        if segment.startswith("{"):
            name = segment.strip("{}")
            found.append({"name": name, "in": "path", "required": True, "schema": properties.get(name, agent)})
    found += [{"name": name, "in": "query", "schema": properties[own]} for name, own in route.query.items()]
    if route.agent_as and "{agent}" not in route.segments:
        found.append({"name": AGENT, "in": "query", "schema": agent})
    if route.takes_project:
        found.append({"name": PROJECT, "in": "query", "schema": project})
    found += [{"name": name.title(), "in": "header", "schema": properties[own]} for name, own in route.headers.items()]
    return found


def _errors(route: Route) -> dict[int, list[str]]:
    """Return the names of the errors of a route, by their status."""
    found: dict[int, list[str]] = {}
    for kind in dict.fromkeys((*route.method.errors, *ANY_METHOD)):
        found.setdefault(status_of(kind.__new__(kind)), []).append(kind.name)
    return found


def _error(names: list[str]) -> dict[str, Any]:
    return {"description": ", ".join(names), "content": _json({"$ref": "#/components/schemas/Error"})}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
