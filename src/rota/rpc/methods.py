"""Every RPC method, made from its declaration.

The protocols of the scheduler API (`rota.service.api`) and of the server (`server_api.py`) declare the methods. This
table adds their types on the wire: the parameters, from the function's signature, and the result, from what it returns
(`results.py`). The server, the clients, the reference page and `rpc.discover` all read it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from operator import or_
from types import GenericAlias, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from rota import errors as e
from rota.decoding import json_decoder
from rota.errors import RotaError
from rota.rpc.results import ResultCodec, result_codec
from rota.rpc.server_api import ServerApi, TokensApi
from rota.service.api import (
    AgentsApi,
    ClaimApi,
    ContextsApi,
    CoresApi,
    GraphsApi,
    JournalApi,
    LedgerApi,
    LogsApi,
    PolicyApi,
    ProjectsApi,
    QueueApi,
    RetentionApi,
    SupervisionApi,
    SystemApi,
    UsageApi,
    WorkersApi,
)
from rota.service.api.declaration import SCOPES, Declaration, Scope, declarations

__all__ = ["ANY_METHOD", "METHODS", "PROTOCOL", "PROTOCOLS", "SCOPES", "Method", "Parts", "Scope"]

PROTOCOL = 1  # increased when a method changes in a way that an older client would misread

ANY_METHOD: tuple[type[RotaError], ...] = (  # errors that every method may return
    e.InvalidInput, e.LimitExceeded, e.Unauthenticated, e.Forbidden, e.LockedOut, e.StoreUnavailable,
    e.StoreReplaced,
)  # fmt: skip


class Method(Declaration, frozen=True, kw_only=True, eq=False, dict=True):
    """A method with its types on the wire, which are made when they are first used."""

    part: str  # the part of the API that has the function

    @cached_property
    def signature(self) -> inspect.Signature:
        """The function's signature, without `self`."""
        signature = inspect.signature(self.function)
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The types of the function's arguments and of what it returns."""
        return get_type_hints(self.function, include_extras=True)

    @cached_property
    def params(self) -> Any:
        """The type of the parameters: a structure with the function's arguments as fields."""
        if self.takes_struct:
            (argument,) = self.signature.parameters
            return self.hints[argument]
        return _params_struct(self)

    @cached_property
    def operate_defaults(self) -> dict[str, Any]:
        """The defaults of the `operate_fields`."""
        return {field: self.signature.parameters[field].default for field in self.operate_fields}

    @cached_property
    def codec(self) -> ResultCodec:
        """The conversion between what the function returns and the result on the wire."""
        return result_codec(self._struct_name("Result"), self.result, self.hints["return"])

    @cached_property
    def params_decoder(self) -> msgspec.json.Decoder[Any]:
        """Decodes parameters."""
        return json_decoder(self.params)

    @cached_property
    def result_decoder(self) -> msgspec.json.Decoder[Any]:
        """Decodes results."""
        return json_decoder(self.codec.result)

    @cached_property
    def bind(self) -> Callable[..., Any]:
        """A function that makes the parameters from a call's arguments; it raises `TypeError` as the call would."""
        return self._bind_struct if self.takes_struct else self.params

    def _bind_struct(self, *args: Any, **kwargs: Any) -> Any:
        (struct,) = args if len(args) == 1 and not kwargs else self.signature.bind(*args, **kwargs).args
        return struct

    def _struct_name(self, suffix: str) -> str:
        words = self.name.removeprefix("kernel.").replace(".", "_").split("_")
        return "".join(word.capitalize() for word in words) + suffix


def _params_struct(method: Method) -> Any:
    """Return a structure whose constructor takes the arguments of the method's function."""
    by_position: list[Any] = []
    by_name: list[Any] = []
    for parameter in method.signature.parameters.values():
        field: Any = (parameter.name, _concrete(method.hints[parameter.name]))
        if parameter.default is not parameter.empty:
            field = (*field, parameter.default)
        (by_name if parameter.kind is parameter.KEYWORD_ONLY else by_position).append(field)
    name = method._struct_name("Params")
    options: Any = {"frozen": True, "forbid_unknown_fields": True, "omit_defaults": True, "module": __name__}
    struct = msgspec.defstruct(name, by_position, **options)
    return msgspec.defstruct(name, by_name, bases=(struct,), kw_only=True, **options) if by_name else struct


def _concrete(hint: Any) -> Any:
    """Return the type that an argument is decoded to, where the function accepts any sequence or mapping."""
    if get_origin(hint) in (Union, UnionType):
        return reduce(or_, map(_concrete, get_args(hint)))
    concrete = {Sequence: list, Mapping: dict}.get(get_origin(hint))
    return hint if concrete is None else GenericAlias(concrete, get_args(hint))


class Parts(NamedTuple):
    """The objects that implement the methods: each part of the API with its protocol."""

    queue: QueueApi
    claims: ClaimApi
    supervision: SupervisionApi
    graphs: GraphsApi
    workers: WorkersApi
    cores: CoresApi
    logs: LogsApi
    agents: AgentsApi
    ledger: LedgerApi
    usage: UsageApi
    projects: ProjectsApi
    contexts: ContextsApi
    policies: PolicyApi
    journal: JournalApi
    system: SystemApi
    retention: RetentionApi
    tokens: TokensApi
    server: ServerApi


PROTOCOLS: Mapping[str, type] = get_type_hints(Parts)


def _methods() -> Iterator[Method]:
    for part, protocol in PROTOCOLS.items():
        for declaration in declarations(protocol):
            yield Method(part=part, **msgspec.structs.asdict(declaration))


def _by_namespace(methods: list[Method]) -> list[Method]:
    """Group the methods by the first words of their names, as readers of a list expect."""
    namespaces = list(dict.fromkeys(method.name.rpartition(".")[0] for method in methods))
    return sorted(methods, key=lambda method: namespaces.index(method.name.rpartition(".")[0]))


METHODS: Mapping[str, Method] = {method.name: method for method in _by_namespace(list(_methods()))}
