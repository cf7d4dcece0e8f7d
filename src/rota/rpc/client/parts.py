"""The functions of each part of the API, for both clients: one line for each declared method.

Generated from the declarations by `./dev docs`; edit the declarations, not this file.
"""

from __future__ import annotations

from rota.rpc.client.senders import AsyncRemotePart, RemotePart, sent, sent_async
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


class QueuePart(RemotePart):
    """Entries and their runs."""

    enqueue = sent(QueueApi.enqueue)
    enqueue_many = sent(QueueApi.enqueue_many)
    enqueue_unique = sent(QueueApi.enqueue_unique)
    complete = sent(QueueApi.complete)
    complete_many = sent(QueueApi.complete_many)
    heartbeat = sent(QueueApi.heartbeat)
    heartbeat_many = sent(QueueApi.heartbeat_many)
    charge = sent(QueueApi.charge)
    put_back = sent(QueueApi.put_back)
    cancel = sent(QueueApi.cancel)
    request_cancel = sent(QueueApi.request_cancel)
    cancel_where = sent(QueueApi.cancel_where)
    retry_where = sent(QueueApi.retry_where)
    bulk = sent(QueueApi.bulk)
    change = sent(QueueApi.change)
    release = sent(QueueApi.release)
    affinity_wait = sent(QueueApi.affinity_wait)
    set_affinity_wait = sent(QueueApi.set_affinity_wait)
    force_claim = sent(QueueApi.force_claim)
    get = sent(QueueApi.get)
    counts = sent(QueueApi.counts)
    unfinished = sent(QueueApi.unfinished)
    wait = sent(QueueApi.wait)
    gc_expired = sent(QueueApi.gc_expired)
    gc_dispatched = sent(QueueApi.gc_dispatched)
    take_over = sent(QueueApi.take_over)
    upkeep = sent(QueueApi.upkeep)
    nudge = sent(QueueApi.nudge)
    peek = sent(QueueApi.peek)
    retry = sent(QueueApi.retry)
    list = sent(QueueApi.list)
    running = sent(QueueApi.running)
    search = sent(QueueApi.search)


class ClaimsPart(RemotePart):
    """Claims by a policy."""

    claim = sent(ClaimApi.claim)
    complete_and_claim = sent(ClaimApi.complete_and_claim)
    turn = sent(ClaimApi.turn)


class SupervisionPart(RemotePart):
    """State changes of runs together with their agents."""

    began = sent(SupervisionApi.began)
    settings_changed = sent(SupervisionApi.settings_changed)
    access_token = sent(SupervisionApi.access_token)
    checkpoint = sent(SupervisionApi.checkpoint)
    progress = sent(SupervisionApi.progress)
    rest = sent(SupervisionApi.rest)
    agent_to_spawn = sent(SupervisionApi.agent_to_spawn)
    throttle = sent(SupervisionApi.throttle)
    spawn = sent(SupervisionApi.spawn)
    acquire = sent(SupervisionApi.acquire)
    settle = sent(SupervisionApi.settle)
    quarantine = sent(SupervisionApi.quarantine)
    moved = sent(SupervisionApi.moved)
    recover = sent(SupervisionApi.recover)


class GraphsPart(RemotePart):
    """Graph runs."""

    start = sent(GraphsApi.start)
    list = sent(GraphsApi.list)
    get = sent(GraphsApi.get)
    show = sent(GraphsApi.show)
    cancel = sent(GraphsApi.cancel)
    resume = sent(GraphsApi.resume)
    forget = sent(GraphsApi.forget)
    take = sent(GraphsApi.take)
    take_entry = sent(GraphsApi.take_entry)
    commit = sent(GraphsApi.commit)
    enqueue = sent(GraphsApi.enqueue)
    ended = sent(GraphsApi.ended)
    finish = sent(GraphsApi.finish)
    tidy = sent(GraphsApi.tidy)


class WorkersPart(RemotePart):
    """The workers that are there."""

    register = sent(WorkersApi.register)
    leave = sent(WorkersApi.leave)
    list = sent(WorkersApi.list)


class CoresPart(RemotePart):
    """The cores of hosts."""

    grant = sent(CoresApi.grant)
    release = sent(CoresApi.release)
    leased = sent(CoresApi.leased)
    status = sent(CoresApi.status)


class LogsPart(RemotePart):
    """The output of runs."""

    read = sent(LogsApi.read)
    places = sent(LogsApi.places)
    append = sent(LogsApi.append)


class AgentsPart(RemotePart):
    """Agents."""

    create = sent(AgentsApi.create)
    get = sent(AgentsApi.get)
    find = sent(AgentsApi.find)
    names = sent(AgentsApi.names)
    paused = sent(AgentsApi.paused)
    transition = sent(AgentsApi.transition)
    update = sent(AgentsApi.update)
    pause = sent(AgentsApi.pause)
    resume = sent(AgentsApi.resume)
    recover = sent(AgentsApi.recover)
    list = sent(AgentsApi.list)


class LedgerPart(RemotePart):
    """Grants, charges, budgets."""

    create = sent(LedgerApi.create)
    get = sent(LedgerApi.get)
    charge = sent(LedgerApi.charge)
    check = sent(LedgerApi.check)
    refund = sent(LedgerApi.refund)
    update_grant = sent(LedgerApi.update_grant)
    list_breached = sent(LedgerApi.list_breached)
    set_budget = sent(LedgerApi.set_budget)
    share_window = sent(LedgerApi.share_window)
    set_share_window = sent(LedgerApi.set_share_window)
    budgets = sent(LedgerApi.budgets)
    graph_budgets = sent(LedgerApi.graph_budgets)
    open_graph_budgets = sent(LedgerApi.open_graph_budgets)
    charge_graph = sent(LedgerApi.charge_graph)
    set_graph_budget = sent(LedgerApi.set_graph_budget)


class UsagePart(RemotePart):
    """What was used, per day."""

    report = sent(UsageApi.report)
    prices = sent(UsageApi.prices)
    set_prices = sent(UsageApi.set_prices)


class ProjectsPart(RemotePart):
    """Projects, workspaces, the fleet's pause."""

    create = sent(ProjectsApi.create)
    get = sent(ProjectsApi.get)
    update = sent(ProjectsApi.update)
    constrain = sent(ProjectsApi.constrain)
    move = sent(ProjectsApi.move)
    pause_fleet = sent(ProjectsApi.pause_fleet)
    resume_fleet = sent(ProjectsApi.resume_fleet)
    fleet_paused_by = sent(ProjectsApi.fleet_paused_by)
    add_workspace = sent(ProjectsApi.add_workspace)
    remove_workspace = sent(ProjectsApi.remove_workspace)
    keep_workspace = sent(ProjectsApi.keep_workspace)
    workspace = sent(ProjectsApi.workspace)
    workspaces = sent(ProjectsApi.workspaces)
    grant = sent(ProjectsApi.grant)
    revoke_grant = sent(ProjectsApi.revoke_grant)
    grants = sent(ProjectsApi.grants)
    list = sent(ProjectsApi.list)


class ContextsPart(RemotePart):
    """Budgets per period, named limits."""

    create = sent(ContextsApi.create)
    get = sent(ContextsApi.get)
    adjust = sent(ContextsApi.adjust)
    revoke = sent(ContextsApi.revoke)
    resolve = sent(ContextsApi.resolve)
    charge = sent(ContextsApi.charge)
    throttle = sent(ContextsApi.throttle)
    resume = sent(ContextsApi.resume)
    list = sent(ContextsApi.list)


class PoliciesPart(RemotePart):
    """The policy in force."""

    get = sent(PolicyApi.get)
    set = sent(PolicyApi.set)


class JournalPart(RemotePart):
    """The journal of events."""

    append = sent(JournalApi.append)
    tail = sent(JournalApi.tail)
    remember = sent(JournalApi.remember)
    recall = sent(JournalApi.recall)
    cursor = sent(JournalApi.cursor)


class SystemPart(RemotePart):
    """What concerns several parts."""

    terminate = sent(SystemApi.terminate)
    enqueue_agent = sent(SystemApi.enqueue_agent)
    info = sent(SystemApi.info)
    show = sent(SystemApi.show)
    explain = sent(SystemApi.explain)
    estimate = sent(SystemApi.estimate)
    explain_many = sent(SystemApi.explain_many)


class RetentionPart(RemotePart):
    """Checkpoints and the removal of old rows."""

    checkpoint = sent(RetentionApi.checkpoint)
    prune = sent(RetentionApi.prune)
    status = sent(RetentionApi.status)
    set = sent(RetentionApi.set)


class TokensPart(RemotePart):
    """Access tokens, for clients over HTTP."""

    create = sent(TokensApi.create)
    revoke = sent(TokensApi.revoke)
    rotate = sent(TokensApi.rotate)
    list = sent(TokensApi.list)


class ServerPart(RemotePart):
    """The server itself."""

    record = sent(ServerApi.record)
    hello = sent(ServerApi.hello)
    discover = sent(ServerApi.discover)


class AsyncQueuePart(AsyncRemotePart):
    """Entries and their runs."""

    enqueue = sent_async(QueueApi.enqueue)
    enqueue_many = sent_async(QueueApi.enqueue_many)
    enqueue_unique = sent_async(QueueApi.enqueue_unique)
    complete = sent_async(QueueApi.complete)
    complete_many = sent_async(QueueApi.complete_many)
    heartbeat = sent_async(QueueApi.heartbeat)
    heartbeat_many = sent_async(QueueApi.heartbeat_many)
    charge = sent_async(QueueApi.charge)
    put_back = sent_async(QueueApi.put_back)
    cancel = sent_async(QueueApi.cancel)
    request_cancel = sent_async(QueueApi.request_cancel)
    cancel_where = sent_async(QueueApi.cancel_where)
    retry_where = sent_async(QueueApi.retry_where)
    bulk = sent_async(QueueApi.bulk)
    change = sent_async(QueueApi.change)
    release = sent_async(QueueApi.release)
    affinity_wait = sent_async(QueueApi.affinity_wait)
    set_affinity_wait = sent_async(QueueApi.set_affinity_wait)
    force_claim = sent_async(QueueApi.force_claim)
    get = sent_async(QueueApi.get)
    counts = sent_async(QueueApi.counts)
    unfinished = sent_async(QueueApi.unfinished)
    wait = sent_async(QueueApi.wait)
    gc_expired = sent_async(QueueApi.gc_expired)
    gc_dispatched = sent_async(QueueApi.gc_dispatched)
    take_over = sent_async(QueueApi.take_over)
    upkeep = sent_async(QueueApi.upkeep)
    nudge = sent_async(QueueApi.nudge)
    peek = sent_async(QueueApi.peek)
    retry = sent_async(QueueApi.retry)
    list = sent_async(QueueApi.list)
    running = sent_async(QueueApi.running)
    search = sent_async(QueueApi.search)


class AsyncClaimsPart(AsyncRemotePart):
    """Claims by a policy."""

    claim = sent_async(ClaimApi.claim)
    complete_and_claim = sent_async(ClaimApi.complete_and_claim)
    turn = sent_async(ClaimApi.turn)


class AsyncSupervisionPart(AsyncRemotePart):
    """State changes of runs together with their agents."""

    began = sent_async(SupervisionApi.began)
    settings_changed = sent_async(SupervisionApi.settings_changed)
    access_token = sent_async(SupervisionApi.access_token)
    checkpoint = sent_async(SupervisionApi.checkpoint)
    progress = sent_async(SupervisionApi.progress)
    rest = sent_async(SupervisionApi.rest)
    agent_to_spawn = sent_async(SupervisionApi.agent_to_spawn)
    throttle = sent_async(SupervisionApi.throttle)
    spawn = sent_async(SupervisionApi.spawn)
    acquire = sent_async(SupervisionApi.acquire)
    settle = sent_async(SupervisionApi.settle)
    quarantine = sent_async(SupervisionApi.quarantine)
    moved = sent_async(SupervisionApi.moved)
    recover = sent_async(SupervisionApi.recover)


class AsyncGraphsPart(AsyncRemotePart):
    """Graph runs."""

    start = sent_async(GraphsApi.start)
    list = sent_async(GraphsApi.list)
    get = sent_async(GraphsApi.get)
    show = sent_async(GraphsApi.show)
    cancel = sent_async(GraphsApi.cancel)
    resume = sent_async(GraphsApi.resume)
    forget = sent_async(GraphsApi.forget)
    take = sent_async(GraphsApi.take)
    take_entry = sent_async(GraphsApi.take_entry)
    commit = sent_async(GraphsApi.commit)
    enqueue = sent_async(GraphsApi.enqueue)
    ended = sent_async(GraphsApi.ended)
    finish = sent_async(GraphsApi.finish)
    tidy = sent_async(GraphsApi.tidy)


class AsyncWorkersPart(AsyncRemotePart):
    """The workers that are there."""

    register = sent_async(WorkersApi.register)
    leave = sent_async(WorkersApi.leave)
    list = sent_async(WorkersApi.list)


class AsyncCoresPart(AsyncRemotePart):
    """The cores of hosts."""

    grant = sent_async(CoresApi.grant)
    release = sent_async(CoresApi.release)
    leased = sent_async(CoresApi.leased)
    status = sent_async(CoresApi.status)


class AsyncLogsPart(AsyncRemotePart):
    """The output of runs."""

    read = sent_async(LogsApi.read)
    places = sent_async(LogsApi.places)
    append = sent_async(LogsApi.append)


class AsyncAgentsPart(AsyncRemotePart):
    """Agents."""

    create = sent_async(AgentsApi.create)
    get = sent_async(AgentsApi.get)
    find = sent_async(AgentsApi.find)
    names = sent_async(AgentsApi.names)
    paused = sent_async(AgentsApi.paused)
    transition = sent_async(AgentsApi.transition)
    update = sent_async(AgentsApi.update)
    pause = sent_async(AgentsApi.pause)
    resume = sent_async(AgentsApi.resume)
    recover = sent_async(AgentsApi.recover)
    list = sent_async(AgentsApi.list)


class AsyncLedgerPart(AsyncRemotePart):
    """Grants, charges, budgets."""

    create = sent_async(LedgerApi.create)
    get = sent_async(LedgerApi.get)
    charge = sent_async(LedgerApi.charge)
    check = sent_async(LedgerApi.check)
    refund = sent_async(LedgerApi.refund)
    update_grant = sent_async(LedgerApi.update_grant)
    list_breached = sent_async(LedgerApi.list_breached)
    set_budget = sent_async(LedgerApi.set_budget)
    share_window = sent_async(LedgerApi.share_window)
    set_share_window = sent_async(LedgerApi.set_share_window)
    budgets = sent_async(LedgerApi.budgets)
    graph_budgets = sent_async(LedgerApi.graph_budgets)
    open_graph_budgets = sent_async(LedgerApi.open_graph_budgets)
    charge_graph = sent_async(LedgerApi.charge_graph)
    set_graph_budget = sent_async(LedgerApi.set_graph_budget)


class AsyncUsagePart(AsyncRemotePart):
    """What was used, per day."""

    report = sent_async(UsageApi.report)
    prices = sent_async(UsageApi.prices)
    set_prices = sent_async(UsageApi.set_prices)


class AsyncProjectsPart(AsyncRemotePart):
    """Projects, workspaces, the fleet's pause."""

    create = sent_async(ProjectsApi.create)
    get = sent_async(ProjectsApi.get)
    update = sent_async(ProjectsApi.update)
    constrain = sent_async(ProjectsApi.constrain)
    move = sent_async(ProjectsApi.move)
    pause_fleet = sent_async(ProjectsApi.pause_fleet)
    resume_fleet = sent_async(ProjectsApi.resume_fleet)
    fleet_paused_by = sent_async(ProjectsApi.fleet_paused_by)
    add_workspace = sent_async(ProjectsApi.add_workspace)
    remove_workspace = sent_async(ProjectsApi.remove_workspace)
    keep_workspace = sent_async(ProjectsApi.keep_workspace)
    workspace = sent_async(ProjectsApi.workspace)
    workspaces = sent_async(ProjectsApi.workspaces)
    grant = sent_async(ProjectsApi.grant)
    revoke_grant = sent_async(ProjectsApi.revoke_grant)
    grants = sent_async(ProjectsApi.grants)
    list = sent_async(ProjectsApi.list)


class AsyncContextsPart(AsyncRemotePart):
    """Budgets per period, named limits."""

    create = sent_async(ContextsApi.create)
    get = sent_async(ContextsApi.get)
    adjust = sent_async(ContextsApi.adjust)
    revoke = sent_async(ContextsApi.revoke)
    resolve = sent_async(ContextsApi.resolve)
    charge = sent_async(ContextsApi.charge)
    throttle = sent_async(ContextsApi.throttle)
    resume = sent_async(ContextsApi.resume)
    list = sent_async(ContextsApi.list)


class AsyncPoliciesPart(AsyncRemotePart):
    """The policy in force."""

    get = sent_async(PolicyApi.get)
    set = sent_async(PolicyApi.set)


class AsyncJournalPart(AsyncRemotePart):
    """The journal of events."""

    append = sent_async(JournalApi.append)
    tail = sent_async(JournalApi.tail)
    remember = sent_async(JournalApi.remember)
    recall = sent_async(JournalApi.recall)
    cursor = sent_async(JournalApi.cursor)


class AsyncSystemPart(AsyncRemotePart):
    """What concerns several parts."""

    terminate = sent_async(SystemApi.terminate)
    enqueue_agent = sent_async(SystemApi.enqueue_agent)
    info = sent_async(SystemApi.info)
    show = sent_async(SystemApi.show)
    explain = sent_async(SystemApi.explain)
    estimate = sent_async(SystemApi.estimate)
    explain_many = sent_async(SystemApi.explain_many)


class AsyncRetentionPart(AsyncRemotePart):
    """Checkpoints and the removal of old rows."""

    checkpoint = sent_async(RetentionApi.checkpoint)
    prune = sent_async(RetentionApi.prune)
    status = sent_async(RetentionApi.status)
    set = sent_async(RetentionApi.set)


class AsyncTokensPart(AsyncRemotePart):
    """Access tokens, for clients over HTTP."""

    create = sent_async(TokensApi.create)
    revoke = sent_async(TokensApi.revoke)
    rotate = sent_async(TokensApi.rotate)
    list = sent_async(TokensApi.list)


class AsyncServerPart(AsyncRemotePart):
    """The server itself."""

    record = sent_async(ServerApi.record)
    hello = sent_async(ServerApi.hello)
    discover = sent_async(ServerApi.discover)
