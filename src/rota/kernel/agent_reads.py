"""Reading agents: one, those of a name, a page of all. The methods that change them are in `agents.py`."""

from __future__ import annotations

from collections.abc import Sequence

from rota.errors import InvalidPayload
from rota.kernel.environment import KernelEnvironment
from rota.kernel.lookups import find_agent
from rota.kernel.paging import LIST_MAX, page
from rota.kernel.rows import agent_from_row
from rota.model.checks import Checks
from rota.model.lifecycle import AGENT
from rota.model.work import Agent
from rota.store import Store, Transaction
from rota.store.statements import agents as sql

__all__ = ["AgentReads", "check_filter", "check_pids"]

_agent = Checks("Agent", InvalidPayload)


def check_pids(pids: Sequence[int]) -> set[int]:
    """Check the pids of a call, and return each once."""
    _agent.sequence("pids", pids)
    if len(pids) > LIST_MAX:
        raise _agent.refuse("pids", f"may be at most {LIST_MAX:,}, not {len(pids):,}")
    return {_agent.whole("pids", pid) for pid in pids}


def check_filter(state: str | None, project_id: str | None, parent_pid: int | None) -> None:
    """Check by what a list of agents is filtered."""
    if state is not None:
        _agent.one_of("state", state, AGENT.states)
    _agent.optional_text("project_id", project_id)
    if parent_pid is not None:
        _agent.whole("parent_pid", parent_pid)


class AgentReads:
    """Methods that read agents."""

    def __init__(self, store: KernelEnvironment | Store) -> None:
        self._store = store

    def get(self, pid: int) -> Agent:
        """Return one agent."""
        return self._store.read(lambda tx: find_agent(tx, pid))

    def find(self, name: str) -> list[Agent]:
        """Return the live agents of a name in all projects, newest first; see model/agent_names for which is meant."""
        _agent.text("name", name)
        return [agent_from_row(row) for row in self._store.read(lambda tx: tx.run(sql.FIND, (name,)))]

    def names(self, pids: Sequence[int]) -> dict[int, str]:
        """Return the names of agents, also of dead ones; those that do not exist are left out."""
        wanted = check_pids(pids)
        return dict(self._store.read(lambda tx: tx.run_for(sql.NAMES_OF, wanted))) if wanted else {}

    def list(
        self,
        *,
        state: str | None = None,
        project_id: str | None = None,
        parent_pid: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[list[Agent], int]:
        """Return a page of agents by pid, and the total number."""
        check_filter(state, project_id, parent_pid)
        at, wanted = page(limit, offset), (state, project_id, parent_pid)

        def work(tx: Transaction) -> tuple[list[Agent], int]:
            rows = tx.run(sql.LIST, (*wanted, at.limit, at.offset))
            return [agent_from_row(row) for row in rows], int(tx.run(sql.COUNT, wanted)[0][0])

        return self._store.read(work)
