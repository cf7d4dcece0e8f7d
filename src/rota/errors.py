"""Every error rota raises: one tree, one code table.

    RotaError                            the root: catch this to catch everything of ours
    ├── InvalidInput                     a value was refused and nothing was written (also a ValueError)
    │   ├── InvalidPayload               an agent's or an event's field
    │   │   └── SchedInvalidPayload      a queue entry's field
    │   │       └── SchedInvalidStateFilter
    │   ├── LedgerInvalidAmount, LedgerInvalidRefund, LedgerInvalidWarnAt
    │   ├── ProjectInvalid, ContextInvalid, PolicyInvalid, CommandInvalid
    │   ├── LimitExceeded                a named limit, with its value and what was asked
    │   ├── FleetInvalid                 fleet file: file, key, what was expected
    │   ├── ScenarioInvalid              simulation file: file, key, what was expected
    │   ├── GraphInvalid                 graph file: carries its diagnostics
    │   └── ComponentInvalid             a graph component's signature, configuration or use
    ├── NotFound                         no such thing (also a KeyError)
    │   ├── UnknownPid, UnknownAgent, SchedUnknownId, UnknownPolicy, ProjectUnknown, WorkspaceUnknown
    │   ├── ContextUnknown, LeaseUnknown, IslandUnknown, EntityUnknown, RunnerUnknownPid
    │   ├── ComponentUnknown, LaneUnknown
    │   └── LedgerUnknownDim, UnknownRequest
    ├── Conflict                         it exists already
    │   └── LedgerExists, ProjectExists, WorkspaceExists, ContextExists, WorkerExists
    ├── IllegalTransition                the state machine has no such arrow; nothing changed
    │   ├── SchedIllegalTransition       = IllegalQueueTransition
    │   ├── InvalidStateTransition       the tick world's
    │   ├── ProjectIllegalTransition, ContextIllegalTransition
    │   ├── LeaseIllegalTransition, IslandIllegalTransition, EntityIllegalTransition
    │   └── RunnerIllegalState
    ├── Refused                          right question, and the answer is no
    │   ├── SchedAdmissionDenied         force_claim: carries every blocking reason
    │   ├── StaleClaim                   the claim is no longer yours
    │   ├── WorkspaceHeld, ContextDepleted, StaleHandle, DonationCycle
    │   └── ContextRefused, LeaseRefused, IslandRefused
    ├── NotAllowed                       authentication and scope
    │   └── NotOriginator, Unauthenticated, Forbidden, LockedOut, DaemonUntrusted
    ├── StoreError                       the file or the database
    │   └── SchemaMismatch, StoreUnavailable, StoreCorrupt, NotEnabled
    ├── HostError                        what the operating system did not give
    │   ├── SpawnFailed                  the command was not started: why, and the system's own errno
    │   ├── MinderLost                   the process that minds the commands is gone, and they with it
    │   ├── WorkersUnavailable           the warm workers cannot be started
    │   └── HostUnsupported              this machine does not offer it
    ├── RunnerHandshakeFailed, RunnerIpcTimeout, RunnerProtocolBroken
    ├── RunFailed                        whose result was asked for
    ├── PolicyFailed                     a policy raised, stalled or answered nonsense
    ├── WaitTimeout                      what you waited for has not happened yet (also a TimeoutError)
    └── GraphRunFailed

An error knows its `code` (the number on the wire), its `name` (the word on the wire), its `data`
(the facts, as JSON-able values) and a sentence: what happened, then what to do about it.
`CODES` maps every number rota knows to its name, its meaning and the class that raises it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

__all__ = ["CODES", "RESERVED", "Code", "IllegalQueueTransition", "RotaError", "rebuilt"]


class RotaError(Exception):
    """Something rota could not or would not do."""

    code: ClassVar[int] = -32100
    name: ClassVar[str] = "kernel_error"
    meaning: ClassVar[str] = "an error without a more precise code"
    hint: str = "See the cause above; if it repeats, report it with the journal's last events."

    def __init__(self, message: str, *, hint: str | None = None, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        if hint is not None:
            self.hint = hint
        self.data: dict[str, Any] = data

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuilt, (type(self), self.message, self.hint, self.data)

    def to_rpc_data(self) -> dict[str, Any]:
        """The facts as they travel on the wire."""
        return {"name": self.name, "hint": self.hint, **self.data}


def rebuilt(kind: type[RotaError], message: str, hint: str, data: dict[str, Any]) -> RotaError:
    """Make an error again in another process, whatever its own constructor asks for."""
    error = kind.__new__(kind)
    RotaError.__init__(error, message, hint=hint, **data)
    for key, value in data.items():
        setattr(error, key, value)
    return error


# --- refused values ------------------------------------------------------------------------------


class InvalidInput(RotaError, ValueError):
    """A value was refused before anything was written."""

    code = -32602
    name = "invalid_params"
    meaning = "a field is missing, unknown or of the wrong type"
    hint = "Correct the named field and call again; nothing was written."

    def __init__(self, message: str, *, field: str | None = None, hint: str | None = None, **data: Any) -> None:
        if field is not None:
            data["field"] = field
        super().__init__(message, hint=hint, **data)
        self.field = field


class InvalidPayload(InvalidInput):
    """A field of an agent or an event was refused."""

    code = -32104
    name = "kernel_invalid_payload"
    meaning = "bad value in an agent's or an event's field"


class SchedInvalidPayload(InvalidPayload):
    """A field of a queue entry was refused."""

    code = -32133
    name = "kernel_sched_invalid_payload"
    meaning = "bad value in a queue entry's field"


class SchedInvalidStateFilter(SchedInvalidPayload):
    """A list was asked for in a state that does not exist."""

    code = -32135
    name = "kernel_sched_invalid_state_filter"
    meaning = "state filter not in the allowed set"


class LedgerInvalidAmount(InvalidInput):
    """A charge or a grant is not a whole number in range."""

    code = -32123
    name = "kernel_ledger_invalid_amount"
    meaning = "amount is not an integer in range"


class LedgerInvalidRefund(InvalidInput):
    """A refund is larger than what was used."""

    code = -32124
    name = "kernel_ledger_invalid_refund"
    meaning = "refund is larger than what was used"


class LedgerInvalidWarnAt(InvalidInput):
    """The warning mark lies outside 0 to 1."""

    code = -32125
    name = "kernel_ledger_invalid_warn_at"
    meaning = "warn_at is outside 0 to 1"


class ProjectInvalid(InvalidInput):
    """A field of a project, its shares or its workspaces was refused."""

    code = -32183
    name = "kernel_project_invalid"
    meaning = "bad value in a project's or workspace's field"


class ContextInvalid(InvalidInput):
    """A field of a context, lease or island was refused."""

    code = -32193
    name = "kernel_context_invalid"
    meaning = "bad value in a context's, lease's or island's field"


class PolicyInvalid(InvalidInput):
    """A policy was given a parameter it does not take."""

    code = -32222
    name = "policy_invalid_parameter"
    meaning = "unknown or bad parameter of a policy"


class CommandInvalid(InvalidInput):
    """A command, its limits or its scheduling cannot be what somebody meant."""

    code = -32240
    name = "host_command_invalid"
    meaning = "bad value in a command's, its limits' or its scheduling's field"


class LimitExceeded(InvalidInput):
    """A named limit was passed."""

    code = -32223
    name = "limit_exceeded"
    meaning = "a named limit was passed"
    hint = "Ask for less, or raise the named limit."

    def __init__(self, limit: str, maximum: float, asked: float, *, field: str | None = None) -> None:
        super().__init__(
            f"{limit} is {maximum:,} and {asked:,} was asked",
            field=field,
            limit=limit,
            maximum=maximum,
            asked=asked,
        )
        self.limit, self.maximum, self.asked = limit, maximum, asked


class FleetInvalid(InvalidInput):
    """The fleet file says something that cannot be."""

    code = -32211
    name = "fleet_invalid"
    meaning = "the fleet file does not say something that can be run"


class ScenarioInvalid(InvalidInput):
    """The scenario file says something that cannot be."""

    code = -32308
    name = "scenario_invalid"
    meaning = "the scenario file does not say something that can be simulated"


class GraphInvalid(InvalidInput):
    """The graph file cannot be loaded or does not pass validation."""

    code = -32201
    name = "graph_invalid"
    meaning = "the graph cannot be loaded or does not pass validation"

    def __init__(self, message: str, *, diagnostics: Sequence[Any] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint, diagnostics=tuple(diagnostics))
        self.diagnostics = tuple(diagnostics)


class ComponentInvalid(InvalidInput):
    """A graph component's signature, configuration or use was refused."""

    code = -32204
    name = "graph_component_invalid"
    meaning = "a component's signature, configuration or use was refused"
    hint = "Correct the component, or its configuration in the graph."


# --- not there, or there already -----------------------------------------------------------------


class NotFound(RotaError, KeyError):
    """There is no such thing."""

    code = -32107
    name = "not_found"
    meaning = "no such thing"
    hint = "Check the id; `list` shows what exists."

    __str__ = RotaError.__str__  # KeyError would print the repr of the message


class UnknownPid(NotFound):
    """No agent has this pid."""

    code = -32102
    name = "kernel_unknown_pid"
    meaning = "no agent has this pid"

    def __init__(self, pid: object) -> None:
        super().__init__(f"no agent has pid {pid}", pid=pid)
        self.pid = pid


class UnknownAgent(NotFound):
    """No agent has this name."""

    code = -32116
    name = "kernel_unknown_agent"
    meaning = "no agent has this name"
    hint = "Make it first, or check its name; `rota agents list` shows them."

    def __init__(self, agent: str) -> None:
        super().__init__(f"there is no agent named {agent!r}", agent=agent)
        self.agent = agent


class SchedUnknownId(NotFound):
    """No queue entry has this id."""

    code = -32132
    name = "kernel_sched_unknown_id"
    meaning = "sched_id not present"

    def __init__(self, sched_id: object) -> None:
        super().__init__(f"no entry has sched_id {sched_id}", sched_id=sched_id)
        self.sched_id = sched_id


class LedgerUnknownDim(NotFound):
    """The agent's ledger has no line of this dimension."""

    code = -32121
    name = "kernel_ledger_unknown_dim"
    meaning = "the ledger has no line of this dimension"
    hint = "Grant the dimension first."


class UnknownPolicy(NotFound):
    """No policy is registered under this name."""

    code = -32221
    name = "policy_unknown"
    meaning = "no policy is registered under this name"
    hint = "`rota policy list` shows the names."


class ProjectUnknown(NotFound):
    """No project has this id."""

    code = -32181
    name = "kernel_project_unknown"
    meaning = "no project has this id"


class WorkspaceUnknown(NotFound):
    """No workspace has this id."""

    code = -32184
    name = "kernel_workspace_unknown"
    meaning = "no workspace has this id"


class ContextUnknown(NotFound):
    """No scheduling context has this id or name."""

    code = -32191
    name = "kernel_context_unknown"
    meaning = "no scheduling context has this id or name"


class LeaseUnknown(NotFound):
    """No lease has this id."""

    code = -32197
    name = "kernel_lease_unknown"
    meaning = "no isolation lease has this id"


class IslandUnknown(NotFound):
    """No island has this id."""

    code = -32301
    name = "kernel_island_unknown"
    meaning = "no realtime island has this id"


class EntityUnknown(NotFound):
    """No entity, group or core of the engine has this id."""

    code = -32305
    name = "cpu_entity_unknown"
    meaning = "no entity, group or core of the engine has this id"


class RunnerUnknownPid(NotFound):
    """The supervisor runs nothing for this pid."""

    code = -32173
    name = "kernel_runner_unknown_pid"
    meaning = "the supervisor runs nothing for this pid"


class UnknownRequest(NotFound):
    """The daemon knows no such request."""

    code = -32002
    name = "unknown_request"
    meaning = "the daemon knows no such request"


class ComponentUnknown(NotFound):
    """No component, or no component type, has this name."""

    code = -32202
    name = "graph_component_unknown"
    meaning = "no component or component type has this name"
    hint = "Register the type, or load the module that defines it."


class LaneUnknown(NotFound):
    """The graph has no lane of this name that can be stepped."""

    code = -32205
    name = "graph_lane_unknown"
    meaning = "the graph has no lane of this name that can be stepped by hand"
    hint = "Only lanes of type manual_step are stepped by hand."


class Conflict(RotaError):
    """It exists already."""

    code = -32108
    name = "exists"
    meaning = "it exists already"
    hint = "Choose another name, or change the one that exists."


class LedgerExists(Conflict):
    """The agent's ledger has this dimension already."""

    code = -32122
    name = "kernel_ledger_exists"
    meaning = "the ledger has this dimension already"
    hint = "Use update_grant to change it."


class ProjectExists(Conflict):
    """A project with this id exists already."""

    code = -32182
    name = "kernel_project_exists"
    meaning = "a project with this id exists already"


class WorkspaceExists(Conflict):
    """A workspace with this id or path exists already."""

    code = -32185
    name = "kernel_workspace_exists"
    meaning = "a workspace with this id or path exists already"


class WorkerExists(Conflict):
    """A supervisor of that name is at work."""

    code = -32177
    name = "worker_exists"
    meaning = "a supervisor of that name is at work"
    hint = "Stop it first, or give this one another worker_id."


class ContextExists(Conflict):
    """A context of this name exists already."""

    code = -32192
    name = "kernel_context_exists"
    meaning = "a scheduling context of this name exists already"


# --- state machines ------------------------------------------------------------------------------


class IllegalTransition(RotaError):
    """The state machine has no such arrow, and nothing changed."""

    code = -32103
    name = "kernel_illegal_transition"
    meaning = "the state machine has no such arrow"

    def __init__(
        self,
        machine: str,
        subject: object,
        state: str,
        verb: str,
        *,
        legal: Sequence[str] = (),
        story: Sequence[str] = (),
    ) -> None:
        who = machine if subject is None else f"{machine} {subject}"
        hint = f"From {state} it can: {', '.join(legal)}." if legal else f"{state} is final."
        if story:
            hint += f" Recently: {'; '.join(story)}."
        super().__init__(
            f"{who} is {state} and cannot {verb}",
            hint=hint,
            machine=machine,
            subject=subject,
            state=state,
            verb=verb,
            legal=list(legal),
        )
        self.machine, self.subject, self.state, self.verb, self.legal = (
            machine,
            subject,
            state,
            verb,
            tuple(legal),
        )
        self.story = tuple(story)

    @property
    def prev_state(self) -> str:
        """The state it was in, under the queue's own word."""
        return self.state

    @property
    def op(self) -> str:
        """The verb that was refused, under the queue's own word."""
        return self.verb


class SchedIllegalTransition(IllegalTransition):
    """A queue entry cannot do that from its state."""

    code = -32131
    name = "kernel_sched_illegal_transition"
    meaning = "e.g. cancel on dispatched, complete on queued"


IllegalQueueTransition = SchedIllegalTransition


class InvalidStateTransition(IllegalTransition):
    """A tick-world agent cannot go from its state to that one."""

    name = "tick_invalid_state_transition"
    meaning = "a tick-world agent cannot go from its state to that one"

    def __init__(
        self, pid: object, current: str, target: str, *, legal: Sequence[str] = (), story: Sequence[str] = ()
    ) -> None:
        super().__init__("agent", pid, current, target, legal=legal, story=story)
        self.pid, self.current, self.target = pid, current, target
        self.data |= {"pid": pid, "current": current, "target": target}


class ProjectIllegalTransition(IllegalTransition):
    """A project cannot do that from its status."""

    code = -32187
    name = "kernel_project_illegal_transition"
    meaning = "a project cannot do that from its status"


class ContextIllegalTransition(IllegalTransition):
    """A context cannot do that from its state."""

    code = -32302
    name = "kernel_context_illegal_transition"
    meaning = "a scheduling context cannot do that from its state"


class LeaseIllegalTransition(IllegalTransition):
    """A lease cannot do that from its state."""

    code = -32303
    name = "kernel_lease_illegal_transition"
    meaning = "an isolation lease cannot do that from its state"


class IslandIllegalTransition(IllegalTransition):
    """An island cannot do that from its state."""

    code = -32304
    name = "kernel_island_illegal_transition"
    meaning = "a realtime island cannot do that from its state"


class EntityIllegalTransition(IllegalTransition):
    """An entity on the cores cannot do that from its state."""

    code = -32306
    name = "cpu_entity_illegal_transition"
    meaning = "an entity on the cores cannot do that from its state"


class RunnerIllegalState(IllegalTransition):
    """The agent is not in a state in which it can be started."""

    code = -32171
    name = "kernel_runner_illegal_state"
    meaning = "the agent is not in a state in which it can be started"


# --- the answer is no ----------------------------------------------------------------------------


class Refused(RotaError):
    """The question was right and the answer is no."""

    code = -32109
    name = "refused"
    meaning = "the answer is no"


class SchedAdmissionDenied(Refused):
    """A forced claim met reasons that even an operator cannot pass."""

    code = -32134
    name = "kernel_sched_admission_denied"
    meaning = "force_claim met blocking reasons; the data lists them all"
    hint = "Each reason says what would lift it."


class StaleClaim(Refused):
    """The token does not belong to the live claim."""

    code = -32136
    name = "kernel_sched_stale_claim"
    meaning = "the token does not belong to the live claim; nothing changed"
    hint = "The claim expired or was taken back; drop this result, the entry runs again elsewhere."


class WorkspaceHeld(Refused):
    """Somebody else holds the workspace."""

    code = -32186
    name = "kernel_workspace_held"
    meaning = "somebody else holds the workspace"
    hint = "Wait for its holder, or add a workspace to the project."


class ContextDepleted(Refused):
    """The context has no budget left in this period."""

    code = -32194
    name = "kernel_context_depleted"
    meaning = "the context has no budget left in this period"
    hint = "Wait for the next refill, or adjust the context."


class StaleHandle(Refused):
    """The handle was revoked."""

    code = -32195
    name = "kernel_stale_handle"
    meaning = "the handle was revoked or belongs to an earlier generation"
    hint = "Ask its owner for a new handle."


class DonationCycle(Refused):
    """The call would donate a context back to one who already waits for it."""

    code = -32196
    name = "kernel_donation_cycle"
    meaning = "the call would wait for itself"
    hint = "Break the circle of calls; a context can be donated along a chain only."


class ContextRefused(Refused):
    """The context does not fit beside those that were admitted."""

    code = -32307
    name = "cpu_context_refused"
    meaning = "the context does not fit; the data gives the shortfall in numbers"
    hint = "Ask for less per period, a longer period, or another core."


class LeaseRefused(Refused):
    """The lease could not be granted."""

    code = -32198
    name = "kernel_lease_refused"
    meaning = "the lease could not be granted; the data names the proof that failed"


class IslandRefused(Refused):
    """The island does not fit."""

    code = -32199
    name = "kernel_island_refused"
    meaning = "the island does not fit; the data gives the shortfall in numbers"


# --- who may -------------------------------------------------------------------------------------


class NotAllowed(RotaError):
    """The caller may not do this."""

    code = -32006
    name = "not_allowed"
    meaning = "the caller may not do this"


class NotOriginator(NotAllowed):
    """Only the client that began this may go on with it."""

    code = -32001
    name = "not_originator"
    meaning = "only the client that began this may go on with it"
    hint = "Call with the client id that began it."


class Unauthenticated(NotAllowed):
    """The daemon does not know who calls."""

    code = -32003
    name = "unauthenticated"
    meaning = "no token, or one that is unknown, expired or revoked"
    hint = "Make a token with `rota token create` and give it: token=…, ROTA_ACCESS_TOKEN, or --token-file."


class Forbidden(NotAllowed):
    """The token's scope does not cover this."""

    code = -32004
    name = "forbidden"
    meaning = "the token's scope does not cover this method or project"
    hint = "Use a token with the scope that the message names."


class LockedOut(NotAllowed):
    """Too many failures from this address."""

    code = -32005
    name = "locked_out"
    meaning = "too many failed attempts from this address"
    hint = "Wait until the lock-out ends."


class DaemonUntrusted(NotAllowed):
    """The client does not believe that the daemon is who it says."""

    code = -32007
    name = "daemon_untrusted"
    meaning = "the daemon's certificate is not one that this client trusts"
    hint = "Name the PEM file of whoever signed it: ca_file=…, --ca-file, or ROTA_CA_FILE."


# --- the store -----------------------------------------------------------------------------------


class StoreError(RotaError):
    """The file or the database did not do what was asked."""

    code = -32106
    name = "kernel_store_error"
    meaning = "the file or the database failed"


class SchemaMismatch(StoreError):
    """The file is stamped with a schema that is not ours, or newer than ours."""

    code = -32105
    name = "kernel_schema_mismatch"
    meaning = "the file's schema stamp is foreign, newer or malformed; it was not written"
    hint = "Open it with the program that made it, or choose another file."


class NotEnabled(StoreError):
    """This store was opened without that part."""

    code = -32101
    name = "kernel_not_enabled"
    meaning = "this store was opened without that part"


class StoreUnavailable(StoreError):
    """The store cannot be reached or written now."""

    code = -32110
    name = "kernel_store_unavailable"
    meaning = "the store cannot be reached or written now (disk full, locked, gone)"
    hint = "Nothing of this call was written; free the cause and call again."


class StoreCorrupt(StoreError):
    """What was read cannot be what was written."""

    code = -32115
    name = "kernel_store_corrupt"
    meaning = "what was read cannot be what was written"
    hint = "Run `rota db check` and restore from a backup."


# --- the host ------------------------------------------------------------------------------------


class HostError(RotaError):
    """The operating system did not give what was asked."""

    code = -32241
    name = "host_error"
    meaning = "the operating system did not give what was asked"


class SpawnFailed(HostError):
    """A command was not started."""

    code = -32242
    name = "host_spawn_failed"
    meaning = "a command was not started; the data says why"

    def __init__(self, message: str, *, reason: str, errno: int, hint: str, **data: Any) -> None:
        super().__init__(message, hint=hint, reason=reason, errno=errno, **data)
        self.reason, self.errno = reason, errno


class MinderLost(HostError):
    """The process that starts and minds commands is gone."""

    code = -32243
    name = "host_minder_lost"
    meaning = "the process that starts and minds commands is gone; its sessions were ended"
    hint = "Start a new minder; what ran has been reported as lost and can be run again."


class HostUnsupported(HostError):
    """This machine does not offer what was asked."""

    code = -32244
    name = "host_unsupported"
    meaning = "this machine does not offer what was asked"
    hint = "docs/caveats.md says what each platform offers."


class WorkersUnavailable(HostError):
    """The warm workers cannot be started."""

    code = -32245
    name = "host_workers_unavailable"
    meaning = "the warm worker processes cannot be started"
    hint = "The message has the reason; mend it and make a new pool."


# --- running -------------------------------------------------------------------------------------


class RunnerHandshakeFailed(RotaError):
    """The subprocess did not answer as a runner."""

    code = -32172
    name = "kernel_runner_handshake_failed"
    meaning = "the subprocess did not answer as a runner"
    hint = "It must answer init with ready before anything else; docs/agents.md has every message."


class RunnerIpcTimeout(RotaError):
    """The subprocess did not answer in time."""

    code = -32174
    name = "kernel_runner_ipc_timeout"
    meaning = "the subprocess did not answer in time"
    hint = "It must answer init with ready at once: load what is slow afterwards."


class RunnerProtocolBroken(RotaError):
    """The subprocess said something that is no message."""

    code = -32175
    name = "kernel_runner_protocol_broken"
    meaning = "the subprocess said something that is no message"
    hint = "docs/agents.md has every message; what the program prints for people belongs on its standard error."


class RunFailed(RotaError):
    """The run whose result was asked for did not go well; what there is of a result is in the data."""

    code = -32176
    name = "kernel_run_failed"
    meaning = "the run whose result was asked for did not go well"
    hint = "`rota why ID` tells its story."


class PolicyFailed(RotaError):
    """A policy raised, stalled or answered nonsense; strict order took its place."""

    code = -32138
    name = "policy_failed"
    meaning = "a policy raised, stalled or answered nonsense"
    hint = "Strict order took its place; mend the policy and reload."


class WaitTimeout(RotaError, TimeoutError):
    """What was waited for has not happened yet."""

    code = -32139
    name = "wait_timeout"
    meaning = "what was waited for has not happened yet"
    hint = "It goes on; wait again, or ask `rota why`."


class GraphRunFailed(RotaError):
    """A graph run ended with an error."""

    code = -32203
    name = "graph_run_failed"
    meaning = "a graph run ended with an error"


# --- the table -----------------------------------------------------------------------------------


class Code(NamedTuple):
    """One number on the wire."""

    code: int
    name: str
    meaning: str
    raised_by: type[RotaError] | None  # None: spoken by the protocol, or kept free for a neighbour


_PROTOCOL = (
    Code(-32700, "parse_error", "the text is not JSON", None),
    Code(-32600, "invalid_request", "the JSON is not a request", None),
    Code(-32601, "method_not_found", "there is no such method", None),
    Code(-32603, "internal_error", "a defect in rota; the log has the request id", None),
)

# Numbers of neighbours that share this code space. rota never raises them and never gives them away.
RESERVED: Mapping[range, str] = {
    range(-32114, -32110): "capabilities",
    range(-32145, -32140): "mailboxes",
    range(-32153, -32150): "registry",
    range(-32165, -32160): "agent file system",
}


def _tree(root: type[RotaError]) -> list[type[RotaError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _tree(child))]


def _table() -> dict[int, Code]:
    table = {code.code: code for code in _PROTOCOL}
    for kind in _tree(RotaError):
        if "code" not in vars(kind):
            continue  # shares its parent's number under a finer name
        if kind.code in table or any(kind.code in numbers for numbers in RESERVED):
            raise AssertionError(f"{kind.__name__} takes {kind.code}, which is not free")
        table[kind.code] = Code(kind.code, kind.name, kind.meaning, kind)
    return dict(sorted(table.items(), reverse=True))


CODES: Mapping[int, Code] = _table()
