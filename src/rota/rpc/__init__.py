"""RPC: the method table, JSON-RPC, the handlers, the daemon and its clients.

Names are loaded when they are first used: a client needs none of the daemon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.lazy import exports

if TYPE_CHECKING:
    from rota.rpc.authorization import Principal
    from rota.rpc.client.async_client import AsyncClient
    from rota.rpc.client.client import Client
    from rota.rpc.client.connect import connect, connect_async, is_remote, shown_token
    from rota.rpc.client.rights import CallerRights, rights_of
    from rota.rpc.daemon.http import HttpServer
    from rota.rpc.daemon.runtime_dir import DaemonInfo, daemon_address, find_daemon
    from rota.rpc.daemon.server import Daemon, DaemonSettings, TransportFactory
    from rota.rpc.daemon.systemd import unit_file
    from rota.rpc.daemon.tcp import HttpSettings
    from rota.rpc.daemon.transport import DaemonLimits
    from rota.rpc.handlers import RpcHandlers
    from rota.rpc.methods import METHODS, PROTOCOL, SCOPES, Method
    from rota.rpc.openrpc import openrpc_document
    from rota.rpc.program_access import give_programs_access
    from rota.rpc.server_api import CreatedToken, TokenLine

__all__ = [
    "METHODS",
    "PROTOCOL",
    "SCOPES",
    "AsyncClient",
    "CallerRights",
    "Client",
    "CreatedToken",
    "Daemon",
    "DaemonInfo",
    "DaemonLimits",
    "DaemonSettings",
    "HttpServer",
    "HttpSettings",
    "Method",
    "Principal",
    "RpcHandlers",
    "TokenLine",
    "TransportFactory",
    "connect",
    "connect_async",
    "daemon_address",
    "find_daemon",
    "give_programs_access",
    "is_remote",
    "openrpc_document",
    "rights_of",
    "shown_token",
    "unit_file",
]

__getattr__ = exports(
    __name__,
    {
        "authorization": ("Principal",),
        "client.async_client": ("AsyncClient",),
        "client.client": ("Client",),
        "client.connect": ("connect", "connect_async", "is_remote", "shown_token"),
        "client.rights": ("CallerRights", "rights_of"),
        "daemon.http": ("HttpServer",),
        "daemon.runtime_dir": ("DaemonInfo", "daemon_address", "find_daemon"),
        "daemon.server": ("Daemon", "DaemonSettings", "TransportFactory"),
        "daemon.systemd": ("unit_file",),
        "daemon.tcp": ("HttpSettings",),
        "daemon.transport": ("DaemonLimits",),
        "handlers": ("RpcHandlers",),
        "methods": ("METHODS", "PROTOCOL", "SCOPES", "Method"),
        "openrpc": ("openrpc_document",),
        "program_access": ("give_programs_access",),
        "server_api": ("CreatedToken", "TokenLine"),
    },
)
