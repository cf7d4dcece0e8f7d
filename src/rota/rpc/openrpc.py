"""The method table as an OpenRPC document: the result of `rpc.discover`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from rota.errors import RotaError
from rota.rpc.methods import ANY_METHOD, METHODS, PROTOCOL, Method

__all__ = ["openrpc_document"]

_REFERENCE = "#/components/schemas/{name}"


@lru_cache(maxsize=1)
def openrpc_document(rota_version: str) -> dict[str, Any]:
    """Return the document of the whole table; it is cached."""
    kinds = {kind for method in METHODS.values() for kind in (method.params, method.codec.result)}
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
        "summary": method.summary,
        "paramStructure": "by-name",
        "params": _params(method, schema_of),
        "result": {"name": "result", "schema": schema_of[method.codec.result]},
        "errors": [_error(kind) for kind in (*method.errors, *ANY_METHOD)],
        "x-scope": method.scope,
        "x-guarded": list(method.operate_fields),
        "x-safe": method.retry_safe,
    }


def _params(method: Method, schema_of: dict[Any, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each parameter with a reference to its own schema inside the schema of all parameters."""
    reference = schema_of[method.params]["$ref"]
    fields: Iterable[Any] = msgspec.structs.fields(method.params)
    return [
        {"name": field.name, "required": field.required, "schema": {"$ref": f"{reference}/properties/{field.name}"}}
        for field in fields
    ]


def _error(kind: type[RotaError]) -> dict[str, Any]:
    return {"code": kind.code, "message": kind.__name__, "data": {"name": kind.name, "meaning": kind.meaning}}
