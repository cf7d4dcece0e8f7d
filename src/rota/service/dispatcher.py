"""The dispatcher joins what may run (the kernel) with which runs next (a policy): it owns the scheduling transaction.

Every claim, of a worker or a supervisor, alone or with the end of earlier runs, is one transaction (`run_turn`):

    end runs → do what is due → propose entries, each checked by the kernel → write the claims → settle the agents

Runs end before maintenance takes back expired claims: a result that arrives in time to be committed is not thrown away.
The kernel itself implements strict order. For a policy that shares by virtual time a pass goes through the flows
(flow_pass.py), for one that shares by usage through the projects (share_pass.py), and any other policy ranks a bounded
window of candidates (ranked_pass.py). Each proposed entry is checked before it is claimed; a refused one is skipped. A
policy that fails can change the order, never the correctness: strict order replaces it in the same pass, and the
journal records why.

**Which policy.** A policy that a claim names; else the policy of the store (kernel/store_policy.py); else the one that
the dispatcher was made with; else, for a supervisor's turn, the default, and for a plain claim strict order. If the
store has a policy, a claim cannot name another. The setting is read in the transaction of the claim, so a change holds
from the next claim on. To make a policy of another package may take long: it is made before the transaction, and a
claim that meets a new one in its transaction uses strict order once.

With `policy_isolation="process"` policies of other packages run in processes of their own and are asked outside the
transaction (isolated_pass.py): such a claim is parked until the policy has answered, even if it waits for no entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Unpack

import msgspec

from rota.errors import PolicyFailed, RotaError, StoreCorrupt
from rota.kernel import Completion, Kernel, RunReport
from rota.kernel.claim_pass import ClaimPass, begin_claim, read_of_ready, read_ready_ahead
from rota.kernel.completion import EndedRuns, end_runs, read_of_runs
from rota.kernel.flows import ServedFlows
from rota.kernel.journal import append
from rota.kernel.progress import NoRepeats
from rota.kernel.run_reports import CompletionAnswer, check_completions, check_reports
from rota.kernel.store_policy import StorePolicy, merged_policy
from rota.kernel.turn import ClaimKind, ClaimOptions, TurnRequest, TurnResult, make_turn_request
from rota.lazy import exports
from rota.model.events import PolicyFellBack
from rota.model.policy_setting import DEFAULT_SHARE_BY, PolicySetting, ShareBy
from rota.model.work import ReadyEntry
from rota.policy.contract import Policy, PolicyIsolation, as_policy
from rota.policy.registry import default_policy, is_built_in_name, make
from rota.service.flow_pass import FlowPass
from rota.service.isolated_pass import IsolatedPass, asks_process
from rota.service.policy_guard import SUSPENSION_S, Answer, PolicyGuard
from rota.service.policy_process import LOAD_TIMEOUT_S, PolicyProcess, isolate, make_policy
from rota.service.ranked_pass import RankedPass
from rota.service.share_pass import SharePass
from rota.service.store_policies import StorePolicies
from rota.store import Row, Transaction

if TYPE_CHECKING:  # what is loaded on first use
    from rota.kernel.automatic_retention import AutomaticRetention
    from rota.kernel.supervision import Supervision
    from rota.kernel.usage import Usage
    from rota.service.core_grants import CoreGrants
    from rota.service.graph_runs import GraphRunVerbs
    from rota.service.run_logs import RunLogs

__all__ = ["ANSWER_WAIT_S", "NOTHING", "Dispatcher"]

ANSWER_WAIT_S = LOAD_TIMEOUT_S + 5.0  # how long a claim that does not wait for entries waits for a policy's process
LEFT_OVER = 0.0  # when a claim that found nothing tries again, if its transaction has left work over to the next one
LEFT_OVER_TURNS_MAX = 1_000  # turns of one claim that does not wait
NOTHING: list[Any] = [None]  # the result of a claim that found nothing and is not parked: an empty list would park it


class _Turn(NamedTuple):
    """What one scheduling transaction did."""

    answers: list[CompletionAnswer]
    entries: list[ReadyEntry]
    has_more: bool  # nothing was claimed, and the next transaction goes on with what this one left over


_load = exports(
    "rota.service", {"core_grants": ("CoreGrants",), "graph_runs": ("GraphRunVerbs",), "run_logs": ("RunLogs",)}
)
_STRICT = make("strict")
_ROW_FAULTS = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, StoreCorrupt)


class _Proposer(Protocol):
    """A way to choose which entries to claim."""

    def propose(self, claim: ClaimPass) -> ServedFlows:
        """Claim entries, and return the flows that were served."""
        ...

    def on_written(self, stamp: int) -> None:
        """Called when the flow changes of a pass were written with this stamp."""
        ...

    def copy(self, guard: PolicyGuard) -> _Proposer:
        """Return an independent copy that proposes the same."""
        ...


class ProgramAccess(Protocol):
    """How the programs that a supervisor starts reach the store."""

    def address(self) -> str | None:
        """Return the value of ROTA_STORE; None if they cannot reach it."""
        ...

    def close(self) -> None:
        """End the access."""
        ...


class Dispatcher:
    """The scheduler API on a kernel in this process."""

    def __init__(
        self, kernel: Kernel, policy: Policy | str | None = None, *, policy_isolation: PolicyIsolation = "thread"
    ) -> None:
        """`policy` is used while the store has none of its own."""
        self.kernel = kernel
        self.policy_isolation = policy_isolation
        self.clock = kernel.clock
        self.agents = kernel.agents
        self.queue = kernel.queue
        self.ledger = kernel.ledger
        self.contexts = kernel.contexts
        self.projects = kernel.projects
        self.journal = kernel.journal
        self.policies = StorePolicies(kernel.policies)
        self.workers = kernel.workers
        self.program_access: ProgramAccess | None = None  # how the programs that a supervisor starts reach the store
        self._isolated: dict[str, tuple[Policy | str, Mapping[str, Any], Policy]] = {}  # by name: as given, and made
        self._own = None if policy is None else self.make_policy(policy)
        self._default = default_policy()
        self._seen: StorePolicy | None = None  # what the store said in the last transaction
        self._share_by: ShareBy = DEFAULT_SHARE_BY  # what the proposers count
        self._stored: tuple[PolicySetting, Policy] | None = None  # the policy of the store, made
        self._was_strict = False  # the policy of the last turn, on a store that is told early what a turn reads
        self._guard = PolicyGuard(kernel.clock)
        self._policies: dict[str, Policy] = {each.name: each for each in (self._own,) if each is not None}
        self._proposers: dict[str, _Proposer] = {}
        kernel.queue.claim_by_policy = self._claim_for_kernel

    @cached_property
    def logs(self) -> RunLogs:
        """What runs have printed."""
        made: RunLogs = _load("RunLogs")(self.kernel)
        return made

    @cached_property
    def graphs(self) -> GraphRunVerbs:
        """Graph runs."""
        made: GraphRunVerbs = _load("GraphRunVerbs")(self.kernel)
        return made

    @cached_property
    def cores(self) -> CoreGrants:
        """CPU time and cores that were granted."""
        made: CoreGrants = _load("CoreGrants")(self.kernel)
        return made

    @property
    def usage(self) -> Usage:
        """What was used, per day."""
        return self.kernel.usage

    @property
    def retention(self) -> AutomaticRetention:
        """What is removed, and when."""
        return self.kernel.retention

    @property
    def supervision(self) -> Supervision:
        """What runs report."""
        return self.kernel.supervision

    # --- turns -----------------------------------------------------------------------------------

    def claim(
        self,
        worker_id: str,
        max_n: int = 1,
        *,
        policy: Policy | str | None = None,
        wait_s: float = 0.0,
        **options: Unpack[ClaimOptions],
    ) -> list[ReadyEntry]:
        """Claim the next entries by a policy; while there are none, wait up to `wait_s`."""
        chosen = None if policy is None else self._select(policy)
        request = make_turn_request(worker_id=worker_id, max_n=max_n, wait_s=wait_s, **options)
        return self._take_turn(request, chosen).entries

    def complete_and_claim(
        self,
        completions: Sequence[Completion],
        worker_id: str,
        max_n: int = 1,
        *,
        policy: Policy | str | None = None,
        wait_s: float = 0.0,
        **options: Unpack[ClaimOptions],
    ) -> TurnResult:
        """Complete runs and claim the next entries in one commit, at half the cost of two."""
        chosen = None if policy is None else self._select(policy)
        run_ends = check_completions(completions)
        request = make_turn_request(worker_id=worker_id, max_n=max_n, wait_s=wait_s, run_ends=run_ends, **options)
        return self._take_turn(request, chosen)

    def turn(
        self,
        reports: Sequence[RunReport],
        worker_id: str,
        max_n: int = 1,
        *,
        policy: Policy | str | None = None,
        wait_s: float = 0.0,
        **options: Unpack[ClaimOptions],
    ) -> TurnResult:
        """For supervisors: end runs, claim the next entries and move the agents of both, in one commit.

        With `max_n=0` nothing is claimed. A turn without reports that claims nothing writes nothing.
        """
        chosen = None if policy is None else self._select(policy)
        run_ends = check_reports(reports)
        request = make_turn_request(
            worker_id=worker_id, max_n=max_n, wait_s=wait_s, run_ends=run_ends, moves_agents=True, **options
        )
        return self._take_turn(request, chosen)

    def _take_turn(self, request: TurnRequest, policy: Policy | None) -> TurnResult:
        """Run a turn; while it claims nothing, wait. Ended runs are durable before the wait begins."""
        if policy is None:
            self.load_stored()
        if request.max_n and asks_process(self._expected(policy, request)):
            return self._take_asking_turn(request, policy)
        answers: list[CompletionAnswer] = []
        if request.run_ends or not (request.max_n and request.wait_s):
            turn = self.kernel.store.write(partial(self.run_turn, request, policy))
            answers = turn.answers
            if turn.has_more and not request.wait_s:
                return TurnResult(answers, self._claim_what_is_left(request, policy))
            if turn.entries or not (request.max_n and request.wait_s):
                return TurnResult(answers, turn.entries)
        claiming = msgspec.structs.replace(request, run_ends=())
        key = _key_of(policy, request)
        entries = self.kernel.queue.park(lambda tx: self.run_turn(claiming, policy, tx).entries, claiming, key)
        return TurnResult(answers, entries)

    def _claim_what_is_left(self, request: TurnRequest, policy: Policy | None) -> list[ReadyEntry]:
        """Claim again while only what a transaction has left over to the next one is in the way.

        A turn takes in a limited part of the inbox, and a claim that does not wait must not return as if that were all.
        """
        claiming = msgspec.structs.replace(request, run_ends=())
        for _ in range(LEFT_OVER_TURNS_MAX):
            turn = self.kernel.store.write(partial(self.run_turn, claiming, policy))
            if not turn.has_more:
                return turn.entries
        return []

    def _take_asking_turn(self, request: TurnRequest, policy: Policy | None) -> TurnResult:
        """Run a turn whose policy is in another process: end runs first, then wait for its answer."""
        answers: list[CompletionAnswer] = []
        if request.run_ends:
            ending = msgspec.structs.replace(request, max_n=0)
            answers = self.kernel.store.write(partial(self.run_turn, ending, policy)).answers
        claiming = msgspec.structs.replace(request, run_ends=())

        def work(tx: Transaction) -> list[ReadyEntry]:
            turn = self.run_turn(claiming, policy, tx)
            asked = self._expected(policy, request)
            may_park = request.wait_s > 0 or turn.has_more or self.is_asking(asked, request.claim_kind)
            return turn.entries if turn.entries or may_park else NOTHING

        if request.wait_s > 0:
            entries = self.kernel.queue.park(work, claiming, _key_of(policy, request))
        else:
            entries = self.kernel.store.wait(work, ANSWER_WAIT_S)
        return TurnResult(answers, [] if entries is NOTHING else entries)

    def run_turn(self, request: TurnRequest, policy: Policy | None, tx: Transaction) -> _Turn:
        """The scheduling transaction: end runs, claim the next entries, settle the agents."""
        if tx.prefetches:
            self._prefetch(tx, request)
        policy = self._in_force(tx, policy, is_turn=request.moves_agents)
        kernel, now = self.kernel, self.kernel.env.read_clock(tx, writes=False)
        ahead: list[Row] | None = None
        if tx.prefetches and request.max_n:
            kernel.queue.maintenance.remember_due(tx, now)
            self._was_strict = policy.name == "strict"
            ahead = read_ready_ahead(tx, kernel.env, request, now) if self._was_strict else None
        ended = end_runs(tx, kernel.env, request.run_ends, now) if request.run_ends else EndedRuns([], {}, {})
        if tx.effects.wake_parked:  # a run has ended
            kernel.env.note_time(tx, now)
        entries: list[ReadyEntry] = []
        if request.max_n:
            ahead = None if ended.makes_ready else ahead
            claim = begin_claim(tx, kernel.env, kernel.queue.maintenance, request, ahead)
            entries = self.fill(claim, policy)
            seen: NoRepeats | None = None  # rarely needed
            while claim.ended_unreadable and not entries:  # what it took could not be read; there may be more
                seen = seen or NoRepeats("ready entries")
                seen.check(claim.ended_unreadable)
                claim = begin_claim(tx, kernel.env, kernel.queue.maintenance, request)
                entries = self.fill(claim, policy)
        if request.moves_agents:
            pids = {run.pid for run in ended.runs.values()} | {entry.pid for entry in entries}
            kernel.supervision.settle_agents(tx, pids, ended.final, now)
        return _Turn(ended.answers, entries, not entries and tx.effects.retry_at == LEFT_OVER)

    def _prefetch(self, tx: Transaction, request: TurnRequest) -> None:
        """Name what a turn reads first, so that the first trip brings it. The policy is taken to be the last one."""
        reads = [read_of_runs(request.run_ends)] if request.run_ends else []
        if self._was_strict and request.max_n and not request.except_agents:
            reads.append(read_of_ready(request))
        tx.read_together(reads)

    def fill(self, claim: ClaimPass, policy: Policy) -> list[ReadyEntry]:
        """Propose entries by a policy, each checked by the kernel, and write the claims."""
        if claim.is_fleet_paused:
            return claim.write()
        if policy.name == "strict" or (self._guard.suspended_until and self._guard.is_suspended(policy)):
            claim.claim_in_strict_order()
            return claim.write()
        if claim.has_unreleased:
            claim.release_all_due()
        proposer = self._proposers.get(policy.name) or self._make_proposer(policy)
        if claim.lifted and not isinstance(proposer, IsolatedPass):  # what it keeps between claims does not have these
            proposer = self._new_proposer(policy)
        try:
            served = proposer.propose(claim)
        except PolicyFailed as failure:
            return self._fall_back(policy, claim, failure)
        except _ROW_FAULTS as fault:
            # a damaged row or index that a pass over all owners meets; strict order reads single entries
            _close(self._proposers.pop(policy.name, None))
            text = f"a pass failed: {type(fault).__name__}: {fault}"
            return self._fall_back(policy, claim, PolicyFailed(text, failure="raised"))
        entries = claim.write(policy=policy.name, served=served)
        if claim.token is not None:
            proposer.on_written(claim.token)
        return entries

    def copy(self, policy: Policy, answers: Sequence[Answer] = ()) -> Dispatcher:
        """Return a dispatcher that claims by this policy as this one would, for a dry run: this one does not change.

        A policy in another process is not asked; it has given these answers (see `PolicyGuard`). Call it inside a
        write transaction, so that no other thread changes what is copied.
        """
        copied = Dispatcher.__new__(Dispatcher)
        copied.__dict__ = self.__dict__.copy()
        copied._proposers = {}
        copied._guard, copied._policies = self._guard.copy(answers), self._policies.copy()
        copied._select(policy)
        live = self._proposers.get(policy.name)
        if live is not None and self._policies.get(policy.name) is policy:
            copied._proposers[policy.name] = live.copy(copied._guard)
        return copied

    # --- the policy in force ---------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        """The policy of a supervisor's turn, as far as the last transaction of this dispatcher knows."""
        return self._chosen(is_turn=True)

    def _chosen(self, *, is_turn: bool) -> Policy:
        if self._seen is not None and self._seen.setting is not None:
            return self._stored[1] if self._stored is not None else _STRICT
        return self._own or (self._default if is_turn else _STRICT)

    def _expected(self, policy: Policy | None, request: TurnRequest) -> Policy:
        return policy or self._chosen(is_turn=request.moves_agents)

    def load_stored(self, *, again: bool = False) -> None:
        """Make the policy of the store, if that has not been done; what cannot be made is replaced by strict order.

        With `again` the setting is read even if a transaction has read it: another process may have changed it since.
        """
        if self._seen is None or again:
            self._seen = self.kernel.policies.get()
        if self._needs_loading:
            self._make_stored(self._seen.setting)

    @property
    def _needs_loading(self) -> bool:
        setting = None if self._seen is None else self._seen.setting
        return setting is not None and (self._stored is None or self._stored[0] != setting)

    def _make_stored(self, setting: PolicySetting | None) -> None:
        assert setting is not None  # noqa: S101  # the caller has looked
        try:
            made = self.make_policy(setting.name, setting.params, setting.isolation)
        except RotaError as problem:  # its package is not installed here, or has another version
            made = _STRICT
            failure = PolicyFellBack(policy=setting.name, failure="raised", detail=problem.message)
            self.kernel.store.write(lambda tx: append(tx, failure, now=self.clock.now()))
        self._stored = setting, made

    def _in_force(self, tx: Transaction, given: Policy | None, *, is_turn: bool) -> Policy:
        """Return the policy of a claim; raises `PolicyDiffers` if it names another than the store has."""
        stored = self.kernel.env.cache.store_policy(tx)
        if self._share_by != stored.share_by:
            for proposer in self._proposers.values():  # what they keep counts something else
                _close(proposer)
            self._proposers.clear()
            self._share_by = stored.share_by
        self._seen = stored
        setting = stored.setting
        if setting is not None:
            if given is not None and given.name != setting.name:
                merged_policy(setting, PolicySetting(name=given.name, by="a claim"), replace=False)
            if self._needs_loading and is_built_in_name(setting.name):
                self._make_stored(setting)
            chosen = _STRICT if self._needs_loading or self._stored is None else self._stored[1]
        else:
            chosen = given or self._chosen(is_turn=is_turn)
        return self._select(chosen)

    def _claim_for_kernel(self, request: TurnRequest, tx: Transaction) -> list[ReadyEntry]:
        """Claim for the kernel's own verb, by the policy of the store; it does not wait for a policy's process."""
        stored = self._in_force(tx, None, is_turn=False)
        if asks_process(stored) and not request.wait_s:
            claim = begin_claim(tx, self.kernel.env, self.kernel.queue.maintenance, request)
            claim.claim_in_strict_order()
            return claim.write()
        return self.run_turn(request, None, tx).entries

    # --- policies --------------------------------------------------------------------------------

    def resolve_policy(self, policy: Policy | str | None) -> Policy:
        """The policy that a claim with this argument uses."""
        if policy is None:
            return self.policy
        if isinstance(policy, str):
            return self._policies.get(policy) or self.make_policy(policy)
        if self.policy_isolation == "process":
            return self.make_policy(policy)
        return policy if type(policy) is Policy else as_policy(policy)

    def make_policy(
        self,
        policy: Policy | str,
        params: Mapping[str, Any] | None = None,
        isolation: PolicyIsolation | None = None,
    ) -> Policy:
        """Return a policy, given by name or as an object, isolated as this dispatcher isolates policies."""
        isolation = isolation or self.policy_isolation
        if isolation != "process":
            return make_policy(policy, params or {}, isolation) if isinstance(policy, str) else as_policy(policy)
        if isinstance(policy, Policy) and type(policy.rank) is PolicyProcess:
            return policy
        name = policy if isinstance(policy, str) else as_policy(policy).name
        given, with_params, made = self._isolated.get(name, (None, {}, None))
        if made is None or with_params != (params or {}) or not (given is policy or given == name == policy):
            made = isolate(policy, params, clock=self.clock)
            self._isolated[name] = policy, params or {}, made
        return made

    def knows(self, policy: str | None) -> bool:
        """Whether a policy (None: that of the store) can be used without loading another package."""
        if policy is None:
            return self._seen is not None and not self._needs_loading
        return policy in self._policies or is_built_in_name(policy)

    def load(self, policy: str | None) -> None:
        """Load a policy of another package; None: that of the store."""
        self.load_stored() if policy is None else self._select(policy)

    def asks_process(self, policy: Policy | str | None = None) -> bool:
        """Whether a claim by this policy asks another process, and is parked until it has answered."""
        return asks_process(self.resolve_policy(policy))

    def is_asking(self, policy: Policy | str | None, kind: ClaimKind) -> bool:
        """Whether claims of this kind wait for the answer of a policy's process."""
        proposer = self._proposers.get(self.resolve_policy(policy).name)
        return isinstance(proposer, IsolatedPass) and proposer.is_asking(kind)

    def _select(self, policy: Policy | str) -> Policy:
        chosen = self.resolve_policy(policy)
        if self._policies.get(chosen.name) is not chosen:
            self._policies[chosen.name] = chosen
            _close(self._proposers.pop(chosen.name, None))
        return chosen

    def _make_proposer(self, policy: Policy) -> _Proposer:
        self._proposers[policy.name] = made = self._new_proposer(policy)
        return made

    def _new_proposer(self, policy: Policy) -> _Proposer:
        made: _Proposer
        match policy.window:
            case "flow":
                made = FlowPass(eligibility=policy.eligibility, priority_first=policy.priority_first)
            case "share":
                made = SharePass(guarantee=policy.guarantee)
            case _ if asks_process(policy) and not self._guard.has_answers:
                made = IsolatedPass(policy, self._guard, self.kernel.store, self._record_failure)
            case _:
                made = RankedPass(policy, self._guard)
        return made

    def _fall_back(self, policy: Policy, claim: ClaimPass, failure: PolicyFailed) -> list[ReadyEntry]:
        """Replace a policy that failed by strict order; what it has claimed in this pass is kept."""
        self._record_failure(claim.tx, policy, failure)
        claim.claim_in_strict_order()
        return claim.write(policy="strict")

    def _record_failure(self, tx: Transaction, policy: Policy, failure: PolicyFailed) -> None:
        """Suspend a policy that failed. One in its own process rests for longer with every failure in a row."""
        self._guard.suspend(policy, policy.rank.backoff_s if type(policy.rank) is PolicyProcess else SUSPENSION_S)
        event = PolicyFellBack(policy=policy.name, failure=failure.data["failure"], detail=failure.message)
        append(tx, event, now=self.clock.now())

    def program_variables(self) -> dict[str, str]:
        """Return the environment variables by which a program reaches the store; none if it cannot."""
        address = None if self.program_access is None else self.program_access.address()
        return {} if address is None else {"ROTA_STORE": address}

    def close_policies(self) -> None:
        """End the processes of policies."""
        for proposer in self._proposers.values():
            _close(proposer)
        for policy in (*self._policies.values(), *(made for _, _, made in self._isolated.values())):
            if type(policy.rank) is PolicyProcess:
                policy.rank.close()

    def close(self) -> None:
        """End the access of programs and the processes of policies, and close the store."""
        if self.program_access is not None:
            self.program_access.close()
        self.close_policies()
        self.kernel.store.close()


def _key_of(policy: Policy | None, request: TurnRequest) -> str:
    """Return what parked claims have in common that find the same; that of the policy in force may change."""
    return f"in force, {'turn' if request.moves_agents else 'claim'}" if policy is None else policy.name


def _close(proposer: _Proposer | None) -> None:
    if isinstance(proposer, IsolatedPass):
        proposer.close()
