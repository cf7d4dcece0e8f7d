"""A real cluster of two nodes on this machine, as a process that obeys lines on standard input.

It prints `up ADDRESS` when both nodes are up, and `done` after each command: `kill second`, `add second`, `kill all`,
`restart`. Its environment says where it keeps files, and that it tells nobody (conftest.py).
"""

from __future__ import annotations

import inspect
import itertools
import sys
from pathlib import Path
from typing import Any

from ray._private import services
from ray.cluster_utils import Cluster

COMMON: dict[str, Any] = {
    "node_ip_address": "127.0.0.1",
    "object_store_memory": 80 * 1024 * 1024,
    "include_log_monitor": False,
    "no_monitor": True,
}


_start_raylet = services.start_raylet
_ports = itertools.count(20_000)


def start_raylet(*args: Any, **options: Any) -> Any:
    """Start a node without waiting for its dashboard agent: on a busy machine that takes longer than Ray waits."""
    given = inspect.signature(_start_raylet).bind(*args, **options).arguments
    for name in ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"):
        Path(given["session_dir"], f"{name}_{given['node_id']}").write_text("-1")  # as without a dashboard
    return _start_raylet(*args, **options)


services.start_raylet = start_raylet


def head(port: int) -> Any:
    arguments = {**COMMON, "num_cpus": 2, "node_name": "head", "include_dashboard": False, "gcs_server_port": port}
    arguments["runtime_env_agent_port"] = next(_ports)
    return Cluster(initialize_head=True, head_node_args=arguments)


def add_second(cluster: Any) -> Any:
    more = {**COMMON, "runtime_env_agent_port": next(_ports)}
    return cluster.add_node(num_cpus=2, node_name="second", resources={"left": 2}, **more)


def main(port: int) -> None:
    cluster = head(port)
    second = add_second(cluster)
    print("up", cluster.address, flush=True)
    for line in sys.stdin:
        match line.split():
            case ["kill", "second"]:
                second.kill_all_processes(check_alive=False, allow_graceful=False)
            case ["add", "second"]:
                second = add_second(cluster)
            case ["kill", "all"]:
                for node in cluster.list_all_nodes():
                    node.kill_all_processes(check_alive=False, allow_graceful=False)
            case ["restart"]:
                cluster = head(port)
        print("done", flush=True)
    for node in cluster.list_all_nodes():
        node.kill_all_processes(check_alive=False, allow_graceful=False)


if __name__ == "__main__":
    main(int(sys.argv[1]))
