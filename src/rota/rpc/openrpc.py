"""The wire table as an OpenRPC document: what `rpc.discover` answers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from rota.errors import RotaError
from rota.rpc.methods import ANY_METHOD, METHODS, PROTOCOL, Method

__all__ = ["document"]

_REFERENCE = "#/components/schemas/{name}"


@lru_cache(maxsize=1)
def document(rota_version: str) -> dict[str, Any]:
    """The whole table; the same for everybody, so it is made once."""
    kinds = {kind for method in METHODS.values() for kind in (method.params, method.shape.result)}
    ordered = sorted(kinds, key=str)
    schemas, components = msgspec.json.schema_components(ordered, ref_template=_REFERENCE)
    schema_of = dict(zip(ordered, schemas, strict=True))
    return {
        "openrpc": "1.3.2",
        "info": {"title": "rota", "version": rota_version, "x-protocol": PROTOCOL},
        "methods": [_method(method, schema_of) for method in METHODS.values()],
        "components": {"schemas": components},
    }


def _method(method: Method, schema_of: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": method.name,
        "summary": method.sentence,
        "paramStructure": "by-name",
        "params": _params(method, schema_of),
        "result": {"name": "result", "schema": schema_of[method.shape.result]},
        "errors": [_error(kind) for kind in (*method.errors, *ANY_METHOD)],
        "x-scope": method.scope,
        "x-guarded": list(method.guarded),
        "x-safe": method.safe,
    }


def _params(method: Method, schema_of: dict[Any, dict[str, Any]]) -> list[dict[str, Any]]:
    """Each field as OpenRPC wants it: by name, with where in the whole its own schema stands."""
    whole = schema_of[method.params]["$ref"]
    fields: Iterable[Any] = msgspec.structs.fields(method.params)
    return [
        {"name": field.name, "required": field.required, "schema": {"$ref": f"{whole}/properties/{field.name}"}}
        for field in fields
    ]


def _error(kind: type[RotaError]) -> dict[str, Any]:
    return {"code": kind.code, "message": kind.__name__, "data": {"name": kind.name, "meaning": kind.meaning}}
