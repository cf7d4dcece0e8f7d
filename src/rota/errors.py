"""Every error that rota raises: one class tree and one table of codes.

    RotaError                            the root: catches every error of rota
    ├── InvalidInput                     a value was refused and nothing was written (also a ValueError)
    │   ├── AmbiguousAgent               several agents have the name, in several projects
    │   ├── InvalidPayload               a field of an agent or an event
    │   │   └── SchedInvalidPayload      a field of a queue entry
    │   │       └── SchedInvalidStateFilter
    │   ├── LedgerInvalidAmount, LedgerInvalidRefund, LedgerInvalidWarnAt
    │   ├── ProjectInvalid, ContextInvalid, PolicyInvalid, CommandInvalid
    │   ├── LimitExceeded                a named maximum, with its value and the value requested
    │   ├── FleetInvalid                 fleet file: file, key, what was expected
    │   ├── ScenarioInvalid              simulation file: file, key, what was expected
    │   ├── GraphInvalid                 graph file: carries its diagnostics
    │   └── ComponentInvalid             a graph component's signature, configuration or use
    ├── NotFound                         the id or name does not exist (also a KeyError)
    │   ├── UnknownPid, UnknownAgent, SchedUnknownId, UnknownPolicy, ProjectUnknown, WorkspaceUnknown
    │   ├── ContextUnknown, LeaseUnknown, IslandUnknown, EntityUnknown, RunnerUnknownPid
    │   ├── ComponentUnknown, LaneUnknown, GraphRunUnknown
    │   └── LedgerUnknownDim, UnknownRequest
    ├── Conflict                         the id or name exists already
    │   ├── LedgerExists, ProjectExists, WorkspaceExists, ContextExists, WorkerExists, GraphRunExists
    │   └── PolicyDiffers                the store has another policy, which an operator can change
    ├── IllegalTransition                the state machine has no such arrow; nothing changed
    │   ├── SchedIllegalTransition       = IllegalQueueTransition
    │   ├── InvalidStateTransition       of the tick world
    │   ├── ProjectIllegalTransition, ContextIllegalTransition
    │   ├── LeaseIllegalTransition, IslandIllegalTransition, EntityIllegalTransition
    │   └── RunnerIllegalState
    ├── Refused                          the request is valid but cannot be granted now
    │   ├── SchedAdmissionDenied         force_claim: carries every blocking reason
    │   ├── StaleClaim                   the caller no longer holds the claim
    │   ├── GraphRunRefused              a graph run that lives, or has ended, does not allow this
    │   ├── WorkspaceHeld, ContextDepleted, StaleHandle, DonationCycle
    │   ├── AskExceedsLimit              a run asked a limit for more than it has in a period
    │   └── ContextRefused, LeaseRefused, IslandRefused
    ├── NotAllowed                       authentication and authorization
    │   └── NotOriginator, Unauthenticated, Forbidden, LockedOut, DaemonUntrusted
    ├── StoreError                       the database file
    │   ├── StoreUnavailable             it cannot be reached or written now
    │   │   └── StoreMissing             there is none at the address
    │   └── SchemaMismatch, StoreCorrupt, StoreReplaced, UnsafePath, NotEnabled
    ├── HostError                        the operating system refused a request
    │   ├── SpawnFailed                  the command was not started: the reason and the errno
    │   ├── ReaperLost                   the reaper process has died, and its commands with it
    │   ├── WorkersUnavailable           the warm workers cannot be started
    │   └── HostUnsupported              this machine does not offer the feature
    ├── RunnerHandshakeFailed, RunnerIpcTimeout, RunnerProtocolBroken
    ├── RunFailed                        the run whose result was requested did not succeed
    ├── PolicyFailed                     a policy raised, stalled or returned invalid decisions
    ├── WaitTimeout                      a wait ended before its condition was met (also a TimeoutError)
    └── GraphRunFailed

An error has a `code` (the number on the wire), a `name` (the word on the wire), `data` (JSON values), and a message:
what happened, followed by a hint what to do. `CODES` maps every code to its name, its meaning and its class.

Most errors differ only in code, name and text. They are declared in the class statement; their docstring is the
`meaning` in the table. Its annotations are its *facts*: they are in `data` and are attributes, here and in the client
of a daemon. A fact that one error of the class does not have is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

__all__ = ["CODES", "RESERVED", "ErrorCode", "IllegalQueueTransition", "RotaError", "rebuilt"]


class RotaError(Exception):
    """An error without a more specific class."""

    code: ClassVar[int] = -32100
    name: ClassVar[str] = "kernel_error"
    meaning: ClassVar[str] = "An error without a more specific class."
    hint: str = "See the cause above; if it repeats, report it with the journal's last events."
    facts: ClassVar[tuple[str, ...]] = ()  # the names of the facts that errors of the class may have

    def __init_subclass__(cls, *, code: int | None = None, name: str | None = None) -> None:
        super().__init_subclass__()
        if code is not None:
            cls.code = code
        if name is not None:
            cls.name = name
        cls.meaning = (cls.__doc__ or cls.__name__).partition("\n")[0]
        cls.facts = tuple(dict.fromkeys((*cls.facts, *cls.__annotations__)))

    def __init__(self, message: str, *, hint: str | None = None, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        if hint is not None:
            self.hint = hint
        self.data: dict[str, Any] = data

    if not TYPE_CHECKING:  # the annotations of each class say which attributes it has

        def __getattr__(self, name: str) -> Any:
            data = self.__dict__.get("data", {})
            if name in data:
                return data[name]
            if name in type(self).facts:
                return None
            raise AttributeError(f"{type(self).__name__} has no fact {name!r}")

    def __str__(self) -> str:
        if not self.hint:
            return self.message
        return f"{self.message}{'' if self.message.endswith(('.', '?', '!')) else '.'} {self.hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuilt, (type(self), self.message, self.hint, self.data)

    def to_rpc_data(self) -> dict[str, Any]:
        """Return the data as sent on the wire."""
        return {**self.data, "name": self.name, "hint": self.hint}


def rebuilt(kind: type[RotaError], message: str, hint: str, data: dict[str, Any]) -> RotaError:
    """Recreate an error from another process, without its own constructor."""
    error = kind.__new__(kind)
    RotaError.__init__(error, message, hint=hint)
    error.data = data
    if "code" in data:  # of a class that this version does not have
        vars(error)["code"] = data["code"]
    return error


# --- invalid input -------------------------------------------------------------------------------


class InvalidInput(RotaError, ValueError, code=-32602, name="invalid_params"):
    """A field is missing, unknown or has an invalid value."""

    hint = "Correct the named field and call again; nothing was written."
    field: str | None

    def __init__(self, message: str, *, field: str | None = None, hint: str | None = None, **data: Any) -> None:
        if field is not None:
            data["field"] = field
        super().__init__(message, hint=hint, **data)


class AmbiguousAgent(InvalidInput, code=-32118, name="kernel_ambiguous_agent"):
    """Several live agents have this name; `candidates` has the project of each, by pid."""

    hint = "Give the project of the agent, or its pid."
    agent: str

    def __init__(self, agent: str, candidates: Mapping[int, str | None], *, hint: str | None = None) -> None:
        each = (
            f"{pid} in {'no project' if project is None else f'project {project!r}'}"
            for pid, project in sorted(candidates.items())
        )
        text = f"{len(candidates)} agents are named {agent!r}: {', '.join(each)}"
        super().__init__(text, field="agent", hint=hint, agent=agent, candidates=dict(candidates))

    @property
    def candidates(self) -> dict[int, str | None]:
        """The project of each agent of this name, by pid."""
        return {int(pid): project for pid, project in self.data["candidates"].items()}  # JSON has no numbers as keys


class InvalidPayload(InvalidInput, code=-32104, name="kernel_invalid_payload"):
    """Invalid value in a field of an agent or an event."""


class SchedInvalidPayload(InvalidPayload, code=-32133, name="kernel_sched_invalid_payload"):
    """Invalid value in a field of a queue entry."""


class SchedInvalidStateFilter(SchedInvalidPayload, code=-32135, name="kernel_sched_invalid_state_filter"):
    """A list was filtered by a state that does not exist."""


class LedgerInvalidAmount(InvalidInput, code=-32123, name="kernel_ledger_invalid_amount"):
    """The amount of a charge or a grant is not a whole number in range."""


class LedgerInvalidRefund(InvalidInput, code=-32124, name="kernel_ledger_invalid_refund"):
    """The refund is larger than the usage."""


class LedgerInvalidWarnAt(InvalidInput, code=-32125, name="kernel_ledger_invalid_warn_at"):
    """warn_at lies outside 0 to 1."""


class ProjectInvalid(InvalidInput, code=-32183, name="kernel_project_invalid"):
    """Invalid value in a field of a project or a workspace."""


class ContextInvalid(InvalidInput, code=-32193, name="kernel_context_invalid"):
    """Invalid value in a field of a context, a lease or an island."""


class PolicyInvalid(InvalidInput, code=-32222, name="policy_invalid_parameter"):
    """Unknown or invalid parameter of a policy."""

    policy: str | None


class CommandInvalid(InvalidInput, code=-32240, name="host_command_invalid"):
    """Invalid command, limits or scheduling options."""


class LimitExceeded(InvalidInput, code=-32223, name="limit_exceeded"):
    """A named maximum was exceeded."""

    hint = "Ask for less, or raise the named limit."
    limit: str
    maximum: float
    asked: float

    def __init__(self, limit: str, maximum: float, asked: float, *, field: str | None = None) -> None:
        super().__init__(
            f"{limit} is {maximum:,} and {asked:,} was requested",
            field=field,
            limit=limit,
            maximum=maximum,
            asked=asked,
        )


class FleetInvalid(InvalidInput, code=-32211, name="fleet_invalid"):
    """The fleet file is invalid."""

    file: str | None
    keys: list[str] | None
    problem: str | None
    problems: list[str] | None


class ScenarioInvalid(InvalidInput, code=-32308, name="scenario_invalid"):
    """The scenario file is invalid."""


class GraphInvalid(InvalidInput, code=-32201, name="graph_invalid"):
    """The graph cannot be loaded or does not pass validation."""

    def __init__(self, message: str, *, diagnostics: Sequence[Any] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint, diagnostics=tuple(diagnostics))

    @property
    def diagnostics(self) -> tuple[Any, ...]:
        """What was found in the graph."""
        return tuple(self.data["diagnostics"])


class ComponentInvalid(InvalidInput, code=-32204, name="graph_component_invalid"):
    """Invalid signature, configuration or use of a graph component."""

    hint = "Correct the component, or its configuration in the graph."
    component_id: str | None
    component_type: str | None
    module: str | None
    port: str | None


# --- missing, or existing already ----------------------------------------------------------------


class NotFound(RotaError, KeyError, code=-32107, name="not_found"):
    """The id or name does not exist."""

    hint = "Check the id or the name."
    pid: object
    sched_id: object
    agent: str | None

    __str__ = RotaError.__str__  # KeyError would print the repr of the message


class UnknownPid(NotFound, code=-32102, name="kernel_unknown_pid"):
    """No agent has this pid."""

    hint = "Check the pid; `rota agents` lists them."

    def __init__(self, pid: object) -> None:
        super().__init__(f"no agent has pid {pid}", pid=pid)


class UnknownAgent(NotFound, code=-32116, name="kernel_unknown_agent"):
    """No live agent has this name, or none of the project."""

    hint = "Create it first, or check its name; `rota agents list` shows them."
    project_id: str | None

    def __init__(self, agent: str, project_id: str | None = None) -> None:
        place = "" if project_id is None else f" in project {project_id!r}"
        super().__init__(f"there is no agent named {agent!r}{place}", agent=agent, project_id=project_id)


class SchedUnknownId(NotFound, code=-32132, name="kernel_sched_unknown_id"):
    """No queue entry has this sched_id."""

    hint = "Check the id; `rota queue --state all` lists the entries."

    def __init__(self, sched_id: object) -> None:
        super().__init__(f"no entry has sched_id {sched_id}", sched_id=sched_id)


class LedgerUnknownDim(NotFound, code=-32121, name="kernel_ledger_unknown_dim"):
    """The agent's ledger has no line for this dimension."""

    hint = "Grant the dimension first."
    dim: str


class UnknownPolicy(NotFound, code=-32221, name="policy_unknown"):
    """No policy is registered under this name."""

    hint = "`rota policy list` shows the names."
    policy: str


class ProjectUnknown(NotFound, code=-32181, name="kernel_project_unknown"):
    """No project has this id."""

    project_id: str


class WorkspaceUnknown(NotFound, code=-32184, name="kernel_workspace_unknown"):
    """No workspace has this id."""

    workspace_id: str


class ContextUnknown(NotFound, code=-32191, name="kernel_context_unknown"):
    """No scheduling context has this id or name."""

    context_id: int | None
    bound_id: str | None


class LeaseUnknown(NotFound, code=-32197, name="kernel_lease_unknown"):
    """No isolation lease has this id."""


class IslandUnknown(NotFound, code=-32301, name="kernel_island_unknown"):
    """No realtime island has this id."""

    island_id: int


class EntityUnknown(NotFound, code=-32305, name="cpu_entity_unknown"):
    """No entity, group or core of the engine has this id."""

    entity: int | None
    group: int | None
    core: int | None
    command: str | None


class RunnerUnknownPid(NotFound, code=-32173, name="kernel_runner_unknown_pid"):
    """The supervisor runs nothing for this pid."""


class UnknownRequest(NotFound, code=-32002, name="unknown_request"):
    """The daemon has no such request."""

    token_id: str | None


class ComponentUnknown(NotFound, code=-32202, name="graph_component_unknown"):
    """No component or component type has this name."""

    hint = "Register the type, or load the module that defines it."
    component_id: str | None
    component_type: str | None


class LaneUnknown(NotFound, code=-32205, name="graph_lane_unknown"):
    """The graph has no lane of this name that can be stepped manually."""

    hint = "Only lanes of type manual_step are stepped manually."
    lane: str


class GraphRunUnknown(NotFound, code=-32206, name="graph_run_unknown"):
    """No graph run has this name."""

    hint = "`rota graph ps` lists them."
    run_id: str | None


class Conflict(RotaError, code=-32108, name="exists"):
    """The id or name exists already."""

    hint = "Choose another name, or change the one that exists."


class LedgerExists(Conflict, code=-32122, name="kernel_ledger_exists"):
    """The agent's ledger has this dimension already."""

    hint = "Use update_grant to change it."
    pid: int
    dim: str


class ProjectExists(Conflict, code=-32182, name="kernel_project_exists"):
    """A project with this id exists already."""

    project_id: str


class WorkspaceExists(Conflict, code=-32185, name="kernel_workspace_exists"):
    """A workspace with this id or path exists already."""

    workspace_id: str


class WorkerExists(Conflict, code=-32177, name="worker_exists"):
    """A supervisor with this worker_id is running."""

    hint = "Stop it first, or start this one with another worker_id."
    worker_id: str


class PolicyDiffers(Conflict, code=-32225, name="policy_differs"):
    """The store has another policy than the one that was given."""

    hint = "`rota policy show` shows it, and `rota policy set` changes it."
    policy: str | None
    params: dict[str, Any] | None
    share_by: str | None
    set_by: str | None


class ContextExists(Conflict, code=-32192, name="kernel_context_exists"):
    """A scheduling context with this name exists already."""

    bound_id: str | None
    context_id: int | None
    island_id: int | None
    lease_id: int | None
    lease_ids: list[int] | None
    group: int | None
    command: str | None


class GraphRunExists(Conflict, code=-32207, name="graph_run_exists"):
    """A graph run with this name exists already, of another graph or with other inputs."""

    run_id: str | None
    graph: str | None


# --- state machines ------------------------------------------------------------------------------


class IllegalTransition(RotaError, code=-32103, name="kernel_illegal_transition"):
    """The state machine has no such arrow; nothing changed."""

    machine: str
    subject: object
    state: str
    verb: str

    def __init__(
        self,
        machine: str,
        subject: object,
        state: str,
        verb: str,
        *,
        legal: Sequence[str] = (),
        history: Sequence[str] = (),
    ) -> None:
        name = machine if subject is None else f"{machine} {subject}"
        hint = f"From {state} it can: {', '.join(legal)}." if legal else f"{state} is final."
        if history:
            hint += f" Recently: {'; '.join(history)}."
        super().__init__(
            f"{name} is {state} and cannot {verb}",
            hint=hint,
            machine=machine,
            subject=subject,
            state=state,
            verb=verb,
            legal=list(legal),
            history=list(history),
        )

    @property
    def legal(self) -> tuple[str, ...]:
        """The verbs that the state allows."""
        return tuple(self.data.get("legal", ()))

    @property
    def history(self) -> tuple[str, ...]:
        """What happened to it lately."""
        return tuple(self.data.get("history", ()))

    @property
    def prev_state(self) -> str:
        """The state, under the name that the queue uses."""
        return self.state

    @property
    def op(self) -> str:
        """The refused verb, under the name that the queue uses."""
        return self.verb


class SchedIllegalTransition(IllegalTransition, code=-32131, name="kernel_sched_illegal_transition"):
    """A queue entry has no such transition, such as cancel when dispatched or complete when queued."""


IllegalQueueTransition = SchedIllegalTransition


class InvalidStateTransition(IllegalTransition, name="tick_invalid_state_transition"):
    """A tick-world agent cannot move from its state to the target state."""

    pid: object
    current: str
    target: str

    def __init__(
        self, pid: object, current: str, target: str, *, legal: Sequence[str] = (), history: Sequence[str] = ()
    ) -> None:
        super().__init__("agent", pid, current, target, legal=legal, history=history)
        self.data |= {"pid": pid, "current": current, "target": target}


class ProjectIllegalTransition(IllegalTransition, code=-32187, name="kernel_project_illegal_transition"):
    """A project has no such transition from its status."""


class ContextIllegalTransition(IllegalTransition, code=-32302, name="kernel_context_illegal_transition"):
    """A scheduling context has no such transition from its state."""


class LeaseIllegalTransition(IllegalTransition, code=-32303, name="kernel_lease_illegal_transition"):
    """An isolation lease has no such transition from its state."""


class IslandIllegalTransition(IllegalTransition, code=-32304, name="kernel_island_illegal_transition"):
    """A realtime island has no such transition from its state."""


class EntityIllegalTransition(IllegalTransition, code=-32306, name="cpu_entity_illegal_transition"):
    """An entity on the cores has no such transition from its state."""


class RunnerIllegalState(IllegalTransition, code=-32171, name="kernel_runner_illegal_state"):
    """The agent is not in a state from which it can be started."""


# --- refused -------------------------------------------------------------------------------------


class Refused(RotaError, code=-32109, name="refused"):
    """The request is valid but cannot be granted now."""

    core: int | None


class SchedAdmissionDenied(Refused, code=-32134, name="kernel_sched_admission_denied"):
    """force_claim met blocking reasons that an operator cannot override; the data lists them all."""

    hint = "Each reason says what would remove it."
    sched_id: int
    reasons: list[dict[str, Any]]


class GraphRunRefused(Refused, code=-32208, name="graph_run_refused"):
    """The state of the graph run does not allow this."""

    run_id: str | None
    status: str | None


class StaleClaim(Refused, code=-32136, name="kernel_sched_stale_claim"):
    """The claim token is not that of the live claim; nothing changed."""

    hint = "The claim expired or was taken back; discard this result, the entry runs again elsewhere."
    sched_id: int | None
    token: int | None
    run_id: str | None


class WorkspaceHeld(Refused, code=-32186, name="kernel_workspace_held"):
    """Another claim holds the workspace."""

    hint = "Wait for its holder, or add a workspace to the project."
    workspace_id: str
    sched_id: int


class ContextDepleted(Refused, code=-32194, name="kernel_context_depleted"):
    """The context has no budget left in this period."""

    hint = "Wait for the next refill, or adjust the context."


class AskExceedsLimit(Refused, code=-32309, name="kernel_ask_exceeds_limit"):
    """A run asked a limit for more than it ever has in one period, so it would wait for ever."""

    hint = "Ask for less at a time, or raise the limit: `rota limits` shows its id for `rota limits set`."
    limit_name: str
    unit: str
    asked: int
    budget: int


class StaleHandle(Refused, code=-32195, name="kernel_stale_handle"):
    """The handle was revoked or belongs to an earlier generation."""

    hint = "Ask its owner for a new handle."
    context_id: int | None
    slot: int | None
    generation: int | None


class DonationCycle(Refused, code=-32196, name="kernel_donation_cycle"):
    """The call would wait for itself: its context would return to a caller that already waits."""

    hint = "Break the cycle of calls; a context can be donated along a chain only."
    caller: int
    callee: int


class ContextRefused(Refused, code=-32307, name="cpu_context_refused"):
    """The context does not fit beside the admitted ones; the data gives the shortfall in numbers."""

    hint = "Ask for less per period, a longer period, or another core."
    context_id: int | None
    missing: dict[str, Any] | None
    never: bool | None  # whether no host could grant it


class LeaseRefused(Refused, code=-32198, name="kernel_lease_refused"):
    """The lease cannot be granted; the data names the check that failed."""

    lease_id: int
    proofs: list[str]
    never: bool | None  # whether no host could grant it


class IslandRefused(Refused, code=-32199, name="kernel_island_refused"):
    """The island does not fit; the data gives the shortfall in numbers."""

    island_id: int
    evidence: dict[str, Any]
    missing: dict[str, Any] | None
    never: bool | None  # whether no host could grant it


# --- authentication and authorization ------------------------------------------------------------


class NotAllowed(RotaError, code=-32006, name="not_allowed"):
    """The caller is not allowed to do this."""

    pid: int | None


class NotOriginator(NotAllowed, code=-32001, name="not_originator"):
    """Only the client that started this may continue it."""

    hint = "Call with the client id that started it."


class Unauthenticated(NotAllowed, code=-32003, name="unauthenticated"):
    """The access token is missing, unknown, expired or revoked."""

    hint = "Create a token with `rota token create` and pass it: token=…, ROTA_ACCESS_TOKEN, or --token-file."
    token_id: str | None
    sched_id: int | None


class Forbidden(NotAllowed, code=-32004, name="forbidden"):
    """The token's scope does not cover this method or project."""

    hint = "Use a token with the scope named in the message."
    scope: str | None
    project_id: str | None
    right: str | None
    header: str | None


class LockedOut(NotAllowed, code=-32005, name="locked_out"):
    """Too many failed attempts from this address."""

    hint = "Wait until the lock-out ends."
    token_id: str | None
    retry_after_s: float


class DaemonUntrusted(NotAllowed, code=-32007, name="daemon_untrusted"):
    """The client does not trust the daemon's certificate."""

    hint = "Pass the PEM file of the CA that signed it: ca_file=…, --ca-file, or ROTA_CA_FILE."
    address: str


# --- the store -----------------------------------------------------------------------------------


class StoreError(RotaError, code=-32106, name="kernel_store_error"):
    """An operation on the database failed."""


class SchemaMismatch(StoreError, code=-32105, name="kernel_schema_mismatch"):
    """The file's schema version is foreign, newer or malformed; the file was not written."""

    hint = "Open it with the version of rota that wrote it, or choose another store."
    stamp: str | None
    latest: int | None
    table: str | None
    columns: list[str] | None


class NotEnabled(StoreError, code=-32101, name="kernel_not_enabled"):
    """This store was opened without that part."""


class StoreUnavailable(StoreError, code=-32110, name="kernel_store_unavailable"):
    """The store cannot be reached or written now: disk full, locked, deleted."""

    hint = "Nothing of this call was written; remove the cause and retry."
    path: str | None
    address: str | None
    may_be_executed: bool | None
    closed: bool | None


class StoreMissing(StoreUnavailable, code=-32120, name="kernel_store_missing"):
    """There is no store at the address: no such file, or no rota in the schema."""

    hint = "Correct the address, or create the store: `rota agents create NAME`."


class StoreCorrupt(StoreError, code=-32115, name="kernel_store_corrupt"):
    """The stored data is damaged."""

    hint = "Run `rota db check` and restore from a backup."
    path: str | None
    kind: str | None
    version: object
    pid: int | None
    run_id: str | None
    note: str | None
    token_id: str | None


class StoreReplaced(StoreError, code=-32117, name="kernel_store_replaced"):
    """The store that the process has open is no longer at its address: its file was replaced, or its schema dropped."""

    hint = "This call may have been saved in the earlier file; decide which file to use, then start this process again."
    path: str


class UnsafePath(StoreError, code=-32119, name="kernel_unsafe_path"):
    """A link or another kind of file is where rota writes a file of its own; it may have been planted there."""

    hint = "Find out who created it, and remove it."
    path: str


# --- the host ------------------------------------------------------------------------------------


class HostError(RotaError, code=-32241, name="host_error"):
    """The operating system refused a request."""

    group: str | None


class SpawnFailed(HostError, code=-32242, name="host_spawn_failed"):
    """A command was not started; the data gives the reason."""

    reason: str
    errno: int
    argv0: str | None
    cwd: str | None

    def __init__(self, message: str, *, reason: str, errno: int, hint: str, **data: Any) -> None:
        super().__init__(message, hint=hint, reason=reason, errno=errno, **data)


class ReaperLost(HostError, code=-32243, name="host_reaper_lost"):
    """The reaper process that starts commands has died; its commands were ended."""

    hint = "Start a new reaper; the ended commands are reported as lost and can run again."


class HostUnsupported(HostError, code=-32244, name="host_unsupported"):
    """This machine does not offer the requested feature."""

    hint = "`rota docs caveats` says what each platform offers."


class WorkersUnavailable(HostError, code=-32245, name="host_workers_unavailable"):
    """The warm worker processes cannot be started."""

    hint = "Remove the cause named in the message and create a new pool."


# --- running -------------------------------------------------------------------------------------


class RunnerHandshakeFailed(RotaError, code=-32172, name="kernel_runner_handshake_failed"):
    """The subprocess did not complete the runner handshake."""

    hint = "It must answer init with ready before anything else; `rota docs agents` has every message."


class RunnerIpcTimeout(RotaError, code=-32174, name="kernel_runner_ipc_timeout"):
    """The subprocess did not answer in time."""

    hint = "It must answer init with ready immediately; load slow modules afterwards."


class RunnerProtocolBroken(RotaError, code=-32175, name="kernel_runner_protocol_broken"):
    """The subprocess sent a line that is not a message."""

    hint = "`rota docs agents` has every message; print text for people to standard error."
    line: str | None


class RunFailed(RotaError, code=-32176, name="kernel_run_failed"):
    """The run whose result was requested did not succeed; the data holds a partial result, if any."""

    hint = "`rota why ID` shows its history."
    sched_id: int
    state: str
    exit_kind: str | None
    outcome: str | None
    result: Any


class PolicyFailed(RotaError, code=-32138, name="policy_failed"):
    """A policy raised, stalled or returned invalid decisions; strict order replaced it."""

    hint = "Strict order is in use; fix the policy and reload."
    policy: str | None
    failure: str | None
    tick: int | None


class WaitTimeout(RotaError, TimeoutError, code=-32139, name="wait_timeout"):
    """The wait ended before its condition was met."""

    hint = "The run continues; wait again, or ask `rota why`."
    sched_id: int | None
    sched_ids: list[int] | None


class GraphRunFailed(RotaError, code=-32203, name="graph_run_failed"):
    """A graph run ended with an error."""

    graph: str | None


# --- the table of codes --------------------------------------------------------------------------


class ErrorCode(NamedTuple):
    """One code on the wire."""

    code: int
    name: str
    meaning: str
    raised_by: type[RotaError] | None  # None: raised by the protocol itself


_PROTOCOL = (
    ErrorCode(-32700, "parse_error", "The text is not JSON.", None),
    ErrorCode(-32600, "invalid_request", "The JSON is not a request.", None),
    ErrorCode(-32601, "method_not_found", "The method does not exist.", None),
    ErrorCode(-32603, "internal_error", "A defect in rota; the log has the request id.", None),
)

# Codes of other programs that share this number range. rota never raises them and never assigns them.
RESERVED: Mapping[range, str] = {
    range(-32114, -32110): "capabilities",
    range(-32145, -32140): "mailboxes",
    range(-32153, -32150): "registry",
    range(-32165, -32160): "agent file system",
}


def _tree(root: type[RotaError]) -> list[type[RotaError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _tree(child))]


def _table() -> dict[int, ErrorCode]:
    table = {code.code: code for code in _PROTOCOL}
    for kind in _tree(RotaError):
        if "code" not in vars(kind):
            continue  # it shares its parent's code under another name
        if kind.code in table or any(kind.code in numbers for numbers in RESERVED):
            raise AssertionError(f"{kind.__name__} has code {kind.code}, which is taken")
        table[kind.code] = ErrorCode(kind.code, kind.name, kind.meaning, kind)
    return dict(sorted(table.items(), reverse=True))


CODES: Mapping[int, ErrorCode] = _table()
