"""Both clients implement the API for type checkers.

`./dev check` runs mypy, which reports an ignored error that is not there: each ignored line below must be an error.
"""

from __future__ import annotations

import inspect
from typing import Any

from rota import store
from rota.kernel import Kernel, ScheduleSpec
from rota.rpc import AsyncClient, Client
from rota.rpc.methods import METHODS, PROTOCOLS
from rota.service import (
    AgentsApi,
    ClaimApi,
    ContextsApi,
    Dispatcher,
    JournalApi,
    LedgerApi,
    ProjectsApi,
    QueueApi,
    RetentionApi,
    SchedulerApi,
    SupervisionApi,
    SystemApi,
)
from tests.daemon.harness import Served


def accepted(api: SchedulerApi, claims: ClaimApi, system: SystemApi) -> None: ...
def accepted_parts(  # noqa: PLR0917
    queue: QueueApi,
    agents: AgentsApi,
    ledger: LedgerApi,
    contexts: ContextsApi,
    projects: ProjectsApi,
    journal: JournalApi,
    supervision: SupervisionApi,
    retention: RetentionApi,
) -> None: ...


def check_parts(client: Client, kernel: Kernel) -> None:
    accepted(client, client, client)
    dispatcher = Dispatcher(kernel)
    accepted(dispatcher, dispatcher, client)
    for api in (client, kernel):
        accepted_parts(
            api.queue,
            api.agents,
            api.ledger,
            api.contexts,
            api.projects,
            api.journal,
            api.supervision,
            api.retention,
        )


def check_client(client: Client) -> None:
    sched_id: int = client.queue.enqueue(ScheduleSpec(1))
    client.queue.enqueue(1)  # type: ignore[arg-type]
    client.queue.no_such_function()  # type: ignore[attr-defined]
    client.queue.watch(sched_id, print)  # type: ignore[attr-defined]  # the kernel's, but not a method
    client.queue.get(sched_id, 2)  # type: ignore[call-arg]
    client.claim("worker", wait="1")  # type: ignore[call-arg]
    client.agents.update(1, colour="red")  # type: ignore[call-arg]
    name: str = client.queue.counts()  # type: ignore[assignment]
    del name


async def check_async_client(client: AsyncClient) -> None:
    sched_id: int = await client.queue.enqueue(ScheduleSpec(1))
    await client.queue.enqueue(1)  # type: ignore[arg-type]
    await client.queue.no_such_function()  # type: ignore[attr-defined]
    await client.turn([], "supervisor", wait="1")  # type: ignore[call-arg]
    entry: str = await client.get(sched_id)  # type: ignore[assignment]
    del entry


def functions_of(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_") and callable(getattr(thing, name))}


def test_the_async_client_has_everything_that_the_client_has(served: Served) -> None:
    with served.client() as client:
        other = AsyncClient(served.unix)
        assert functions_of(client) <= functions_of(other)
        for part in PROTOCOLS.keys() - {"claims", "system"}:
            assert functions_of(getattr(client, part)) == functions_of(getattr(other, part)), part
        for method in METHODS.values():
            top = method.part in ("claims", "system")
            near, far = ((each if top else getattr(each, method.part)) for each in (client, other))
            assert inspect.signature(getattr(near, method.verb)) == inspect.signature(getattr(far, method.verb))
            assert inspect.iscoroutinefunction(getattr(far, method.verb))


def test_a_kernel_part_has_every_function_of_its_protocol() -> None:
    kernel = Kernel(store.open(":memory:"))
    for part in ("queue", "agents", "ledger", "contexts", "projects", "journal", "supervision", "retention"):
        declared = {
            name for name, value in vars(PROTOCOLS[part]).items() if inspect.isfunction(value) and name[0] != "_"
        }
        assert declared <= functions_of(getattr(kernel, part))
    kernel.store.close()
