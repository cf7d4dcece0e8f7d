"""The pages that are made from code: what they say cannot drift from what the code does.

`./dev docs` writes them; a test holds them current.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import structs
from typer.main import get_command

from rota.cli import app
from rota.cli.exit_codes import EXITS
from rota.errors import CODES, RESERVED
from rota.fleet.config import tables as fleet_tables
from rota.graph.capabilities import IMPLEMENTED, unused_fields
from rota.graph.diagnostics import CODES as CODES_OF_GRAPHS
from rota.graph.document import InputLimits
from rota.graph.spec import LANE_TYPES_V1
from rota.mcp.tools import TOOLS
from rota.model.cpu import CpuSettings
from rota.model.events import EVENT_TYPES
from rota.model.lifecycle import MACHINES, StateMachine
from rota.model.reasons import BLOCKING, ORDERING, WORKERS
from rota.model.value_types import value_type
from rota.policy import registry
from rota.rpc.methods import ANY_METHOD, METHODS, PROTOCOLS, Method
from rota.rpc.rest import ROUTES
from rota.service.api.declaration import SCOPES, Scope, declarations
from rota.sim import scenario
from tests.docs.plots import PLOTS

ROOT = Path(__file__).parents[2]
LINE_MAX = 120  # of source code
MADE = "<!-- Generated from the code by `./dev docs`; edit the code, not this page. -->\n"


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


def state_machines() -> Iterator[str]:
    """docs/state-machines.md."""
    yield "# State machines\n"
    yield MADE
    yield "Every state machine in rota is a table of transitions in `rota/model/lifecycle.py`. A verb that is not drawn"
    yield "raises an error that names the state, the verb and the legal verbs, and changes nothing.\n"
    for machine in MACHINES:
        yield f"## {machine.name}\n"
        yield f"{machine.about}\n"
        yield "```mermaid\nstateDiagram-v2"
        yield f"  [*] --> {machine.initial}"
        yield from _arrows(machine)
        for state in machine.states:
            if state in machine.final:
                yield f"  {state} --> [*]"
        yield "```\n"


def _arrows(machine: StateMachine) -> Iterator[str]:
    """One line for each pair of states, with every verb that leads from the one to the other."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for (source, verb), target in machine.arrows.items():
        verbs.setdefault((source, target), []).append(verb)
    for (source, target), names in verbs.items():
        yield f"  {source} --> {target} : {' / '.join(names)}"


def errors() -> Iterator[str]:
    """docs/reference/errors.md."""
    yield "# Errors\n"
    yield MADE
    yield "Every error has a code, a name, a sentence that says what to do, and facts: attributes, on the wire data.\n"
    yield "| code | name | raised as | meaning | facts |\n|---|---|---|---|---|"
    for code in CODES.values():
        kind = f"`{code.raised_by.__name__}`" if code.raised_by else "the protocol"
        facts = ", ".join(f"`{fact}`" for fact in (code.raised_by.facts if code.raised_by else ()))
        yield f"| {code.code} | `{code.name}` | {kind} | {code.meaning} | {facts} |"
    yield "\nReserved for other programs that share the codes:\n"
    for numbers, whose in RESERVED.items():
        yield f"- {numbers.stop - 1} to {numbers.start}: {whose}"
    yield ""


def events() -> Iterator[str]:
    """docs/reference/events.md."""
    yield "# Events\n"
    yield MADE
    yield "Every event that rota records. Your own events may have any kind that does not begin with `kernel.`.\n"
    yield "| kind | version | meaning | fields |\n|---|---|---|---|"
    for kind, fact in EVENT_TYPES.items():
        fields = ", ".join(f"`{name}`" for name in fact.__struct_fields__)
        yield f"| `{kind}` | {fact.version} | {_first_line(fact)} | {fields} |"
    yield ""


def reasons() -> Iterator[str]:
    """docs/reference/reasons.md."""
    yield "# Reasons\n"
    yield MADE
    yield "Why an entry waits. *Blocking*: no worker can claim it. *Ordering*: it is eligible, and others run first.\n"
    yield "| blocking | meaning | remedy |\n|---|---|---|"
    for reason in BLOCKING:
        yield f"| `{reason.__struct_config__.tag}` | {_first_line(reason)} | {reason.remedy} |"
    yield "\n| ordering | meaning |\n|---|---|"
    for ordering in ORDERING:
        yield f"| `{ordering.__struct_config__.tag}` | {_first_line(ordering)} |"
    yield "\nBesides these, which are about a claim: why no *worker* would make one now.\n"
    yield "| workers | meaning | remedy |\n|---|---|---|"
    for worker in WORKERS:
        yield f"| `{worker.__struct_config__.tag}` | {_first_line(worker)} | {worker.remedy} |"
    yield ""


def policies() -> Iterator[str]:
    """docs/reference/policies.md."""
    yield "# Policies\n"
    yield MADE
    yield "A policy is a plain function from a snapshot to decisions. Any policy works in any runtime.\n"
    yield "| name | order | waiting bound | parameters |\n|---|---|---|---|"
    for name in registry.names():
        policy = registry.make(name)
        waiting = policy.bound.sentence if policy.bound else "**none: it can starve**"
        parameters = ", ".join(f"`{key}={_value(value)}`" for key, value in registry.parameters(name).items())
        yield f"| `{name}` | {policy.sentence} | {waiting} | {parameters or '–'} |"
    yield ""


def fleet_file() -> Iterator[str]:
    """docs/reference/fleet.md."""
    yield "# The fleet file, key by key\n"
    yield MADE
    yield "[The guide](../fleet.md) explains the file. `rota run --schema` prints it as a JSON Schema, for editors.\n"
    yield from _tables(FLEET_TABLES)


def _tables(tables: Mapping[str, type[msgspec.Struct]]) -> Iterator[str]:
    """The keys of each table of a file."""
    for place, table in tables.items():
        yield f"## {place}\n"
        yield f"{_first_line(table)}\n"
        yield "| key | value | default | meaning |\n|---|---|---|---|"
        for field in structs.fields(table):
            description = next(note.description for note in field.type.__metadata__ if note.description)
            kind, default = value_type(field.type).describe(), _file_default(field)
            yield f"| `{field.encode_name}` | {kind} | {default} | {description} |"
        yield ""


FLEET_TABLES: Mapping[str, type[msgspec.Struct]] = {
    "Top level": fleet_tables.FleetFile,
    "`policy`, as a table": fleet_tables.PolicyTable,
    "`[scheduling]`": fleet_tables.SchedulingTable,
    "`scheduling.preemption`": fleet_tables.PreemptionTable,
    "`[projects.NAME]`": fleet_tables.ProjectTable,
    "`projects.NAME.workspaces`, as a table": fleet_tables.WorktreesTable,
    "`[limits.NAME]`": fleet_tables.LimitTable,
    "`limits.NAME.requests`, `limits.NAME.tokens`": fleet_tables.PeriodBudgetTable,
    "`[prices.MODEL]`": fleet_tables.PriceTable,
    "`[agents.NAME]`": fleet_tables.AgentTable,
    "`agents.NAME.cpu`, `projects.NAME.cpu`": CpuSettings,
    "`agents.NAME.limits`": fleet_tables.RunLimitsTable,
    "`agents.NAME.restart`": fleet_tables.RestartTable,
    "`agents.NAME.triggers`, each": fleet_tables.TriggerTable,
    "`[graphs.NAME]`": fleet_tables.GraphTable,
    "`[hooks.NAME]`": fleet_tables.HookTable,
    "`[ray]`": fleet_tables.RayTable,
    "`[retention]`": fleet_tables.RetentionTable,
}


def scenario_file() -> Iterator[str]:
    """docs/reference/scenario.md."""
    yield "# The scenario file, key by key\n"
    yield MADE
    yield "What `rota cpu sim` simulates, in TOML ([the guide](../cpu.md#simulation)). Times are whole numbers, in the"
    yield "unit that ends the key. From a range, `[200, 800]`, each time is drawn at random. Cores are numbered"
    yield "from 0.\n"
    yield from _tables(SCENARIO_TABLES)


SCENARIO_TABLES: Mapping[str, type[msgspec.Struct]] = {
    "Top level": scenario.Scenario,
    "`[[thread]]`": scenario.ThreadSpec,
    "`[[group]]`": scenario.GroupSpec,
    "`[[context]]`": scenario.ContextSpec,
    "`[[lease]]`": scenario.LeaseSpec,
    "`[[island]]`": scenario.IslandSpec,
    "`[capacity]`": scenario.CapacitySpec,
    "`[[event]]`": scenario.EventSpec,
}


def _file_default(field: structs.FieldInfo) -> str:
    """Return the default of a key as the file would write it."""
    if field.required:
        return "**required**"
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    shown = msgspec.to_builtins(default)
    return "–" if shown in (None, {}, [], ()) else f"`{msgspec.json.encode(shown).decode()}`"


def graph() -> Iterator[str]:
    """docs/reference/graph.md."""
    yield "# Graph files: diagnostics, lanes and limits\n"
    yield MADE
    yield "The diagnostics of `rota graph validate`, the features of each lane type, and the maximum sizes of a file.\n"
    yield "## Diagnostics\n"
    yield "An error refuses a graph; with `--strict-diagnostics` a warning does too; advisories and notes never do.\n"
    yield "| code | severity | category | meaning | fix |\n|---|---|---|---|---|"
    for name, code in CODES_OF_GRAPHS.items():
        yield f"| `{name}` | {code.severity} | {code.category} | {code.meaning} | {code.fix} |"
    yield "\n## Lane types\n"
    yield "Each feature is the name of a test. `rota graph plan --format json` lists the features of your lanes,"
    yield "and which fields this machine applies and which it does not.\n"
    yield "| type | schema | features | unused fields |\n|---|---|---|---|"
    for kind, words in IMPLEMENTED.items():
        version = "1" if kind in LANE_TYPES_V1 else "2"
        features = ", ".join(f"`{word}`" for word in words)
        unused = ", ".join(f"`{field}`" for field in unused_fields(kind)) or "–"
        yield f"| `{kind}` | {version} | {features} | {unused} |"
    yield "\n## Limits of a file\n"
    yield "| limit | default |\n|---|---|"
    limits = InputLimits()
    for name in InputLimits.__struct_fields__:
        yield f"| `{name}` | {getattr(limits, name):,} |"
    yield ""


def cli() -> Iterator[str]:
    """docs/reference/cli.md."""
    yield "# The command line\n"
    yield MADE
    yield "Every command prints text for people and, with `--json`, JSON for programs. The store is `--store`, else"
    yield "`ROTA_STORE`, else `rota.db` in the current folder. An error is one sentence on standard error or, with"
    yield "`--json`, an object with its code, name and facts; the exit code says which kind of error it was.\n"
    yield "| exit code | meaning |\n|---|---|"
    for code, meaning in EXITS.items():
        yield f"| {code} | {meaning} |"
    yield "\nBefore a command: how to authenticate with a daemon ([guide](../daemon.md)).\n"
    yield "| option | meaning |\n|---|---|"
    root: Any = get_command(app)
    for param in root.params:
        if param.name in ("token_file", "ca_file"):
            yield f"| `{param.opts[0]}` | {param.help} |"
    yield from _commands(root, "rota")


def _commands(group: Any, path: str) -> Iterator[str]:
    """Each command below a group, and the groups below it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield f"\n## {path} {name}\n\n{command.help}"
            yield from _commands(command, f"{path} {name}")
        else:
            yield from _command(command, f"{path} {name}")


def _command(command: Any, path: str) -> Iterator[str]:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    words = " ".join(_metavar(param) for param in arguments)
    yield f"\n### {path}{' ' * bool(words)}{words}\n\n{command.help}\n"
    if command.params:
        yield "| argument or option | meaning | default |\n|---|---|---|"
    for param in command.params:
        if getattr(param, "hidden", False):
            continue
        shown = _metavar(param) if param in arguments else f"`{'`, `'.join([*param.opts, *param.secondary_opts])}`"
        unsaid = param.required or param.default is None or param.default is False
        default = "" if unsaid else f"`{param.default}`"
        yield f"| {shown} | {param.help} | {default} |"


def _metavar(argument: Any) -> str:
    word = argument.name.upper() + ("…" if argument.nargs == -1 else "")
    return word if argument.required else f"[{word}]"


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {item}" for key, item in value.items()) + "}"
    return repr(value)


def rpc() -> Iterator[str]:
    """docs/reference/rpc.md."""
    yield "# Methods\n"
    yield MADE
    yield "The daemon's methods, the same over the unix socket and over HTTP ([guide](../daemon.md)). A parameter"
    yield "without a default is required. An unknown parameter, or one of the wrong type, is error -32602. A parameter"
    yield "marked † needs scope `operate` unless it has its default. A *safe* method can be retried when its response"
    yield "was lost.\n"
    shared = ", ".join(f"`{kind.__name__}` {kind.code}" for kind in ANY_METHOD)
    yield f"Every method may return {shared}; the further errors of a method are listed with it.\n"
    for method in METHODS.values():
        yield from _method(method)


def _method(method: Method) -> Iterator[str]:
    yield f"## {method.name}\n"
    safe = ", safe" if method.retry_safe else ""
    yield f"{method.summary} Scope `{method.scope}`{safe}.\n"
    fields = msgspec.structs.fields(method.params)
    if fields:
        yield "| parameter | type | default |\n|---|---|---|"
        for field in fields:
            mark = " †" if field.name in method.operate_fields else ""
            yield f"| `{field.name}`{mark} | {_type(field.type)} | {_default(field)} |"
        yield ""
    yield f"Returns {_answer(method.codec.result)}."
    if method.errors:
        own = ", ".join(f"`{kind.__name__}` {kind.code}" for kind in method.errors)
        yield f"Further errors: {own}."
    yield ""


def _type(kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    text = re.sub(r"\b(?:rota\.[a-z_.]+|typing|msgspec(?:\._core)?)\.", "", text)
    text = text.replace(" | UnsetType", "")  # its default says so
    return f"`{text}`".replace("|", "\\|").replace("NoneType", "None")


def _default(field: Any) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return f"`{field.default_factory()!r}`"
    if field.default is msgspec.NODEFAULT:
        return ""
    if field.default is msgspec.UNSET:
        return "left out"
    return f"`{msgspec.json.encode(field.default).decode()}`"


def _answer(result: Any) -> str:
    if not hasattr(result, "__struct_fields__"):
        return f"{_type(result)}"
    if not result.__struct_fields__:
        return "an empty object"
    if result.__module__.startswith("rota.model"):
        return f"`{result.__name__}`"
    fields = ", ".join(f"`{field.name}`: {_type(field.type)}" for field in msgspec.structs.fields(result))
    return fields.replace("\\|", "|")


def rest() -> Iterator[str]:
    """docs/reference/rest.md."""
    yield "# REST routes\n"
    yield MADE
    yield "Each route calls one [method](rpc.md) ([guide](../daemon.md#rest)). `GET /v1/openapi.json` is the same table"
    yield "as an OpenAPI document. `{agent}` and `agent` are a pid or a percent-encoded name; several values of a query"
    yield "parameter are separated by commas.\n"
    for route in ROUTES:
        yield f"## {route.verb} {route.path}\n"
        yield f"{route.method.summary} Calls `{route.method.name}`, scope `{route.method.scope}`.\n"
        agent = [] if not route.agent_as or "{agent}" in route.path else ["agent"]
        project = ["project"] if route.takes_project else []
        lines = {
            "Query": [*route.query, *agent, *project],
            "Header": [name.title() for name in route.headers],
            "Body": list(route.body_fields),
        }
        for title, names in lines.items():
            if names:
                yield f"- {title}: {', '.join(f'`{name}`' for name in names)}"
        yield f"- Returns {route.status}: {_answer(route.method.codec.result)}\n"


ROLES: Mapping[str, Scope] = {  # unbound tokens
    "viewer": "read",
    "enqueue": "enqueue",
    "work": "work",
    "operator": "operate",
    "admin": "admin",
}
RUNS = {
    "refused": "–",
    "own": "own run",
    "children": "own children",
    "own_or_child": "own entries",
    "view": "as project",
}


def rights() -> Iterator[str]:
    """docs/reference/rights.md."""
    yield "# Rights\n"
    yield MADE
    yield "What each caller may do with each method ([guide](../daemon.md#http),"
    yield "[why](../decisions/0027-who-may-see-what.md)). It is enforced from the same declarations.\n"
    yield "| role | is |\n|---|---|"
    yield "| viewer, enqueue, work, operator, admin | A token of that scope (`read`, …, `operate`, `admin`). |"
    yield "| admin | Also: every process of the daemon's user at the unix socket that shows no token. |"
    yield "| project | A token of scope `read` or `enqueue` that is bound to projects (`--scope read:website`). |"
    yield "| run | A run with its own token, while its claim lives. |\n"
    yield "For *project* and *run*, what belongs to other projects does not exist: it is absent from lists, counts and"
    yield "events, and its ids are answered like ids that were never used.\n"
    yield "| cell | means |\n|---|---|"
    yield "| yes † | except with a parameter that needs scope `operate` (marked † in the [methods](rpc.md)) |"
    yield "| own | the result shows its projects only |"
    yield "| own `x` | parameter `x` must name something of its projects |"
    yield "| all | nothing is taken out: the result holds nothing of a project |"
    yield "| own run | `sched_id`, `pid` and `token` must be those of the run; omitted ones are filled in |"
    yield "| own children | `parent_id` is the run's entry |"
    yield "| own entries | `sched_id` names the run's entry, or one that the run has enqueued |"
    yield "| as project | what a token that is bound to its project may |\n"
    yield "`/events` shows what `kernel.event.tail` shows. `/metrics` needs a token that is not bound to projects.\n"
    yield f"| method | {' | '.join(ROLES)} | project | run |\n|---|{'---|' * (len(ROLES) + 2)}"
    for method in METHODS.values():
        cells = (f"`{method.name}`", *_rights(method), _bound(method), RUNS[method.run or "refused"])
        yield f"| {' | '.join(cells)} |"
    yield ""


def _rights(method: Method) -> Iterator[str]:
    for scope in ROLES.values():
        has = SCOPES.index(scope) >= SCOPES.index(method.scope)
        mark = " †" if method.operate_fields and SCOPES.index(scope) < SCOPES.index("operate") else ""
        yield f"yes{mark}" if has else "–"


def _bound(method: Method) -> str:
    rule = method.bound
    if rule is None or not rule.allowed:
        return "–"
    names = ("pid" if name in ("spec", "specs") else name for name in rule.owned)  # of each entry, its agent
    return f"own {', '.join(f'`{name}`' for name in names)}" if rule.owned else "all" if rule.reason else "own"


def client_parts() -> Iterator[str]:
    """src/rota/rpc/client/parts.py."""
    yield '"""The functions of each part of the API, for both clients: one line for each declared method.\n'
    yield "Generated from the declarations by `./dev docs`; edit the declarations, not this file."
    yield '"""\n'
    yield "from __future__ import annotations\n"
    yield "from rota.rpc.client.senders import AsyncRemotePart, RemotePart, sent, sent_async"
    for module in ("rota.rpc.server_api", "rota.service.api"):
        names = [each.__name__ for each in PROTOCOLS.values() if each.__module__.startswith(module)]
        yield _import(module, sorted(names))
    for kind, sender in (("", "sent"), ("Async", "sent_async")):
        for part, protocol in PROTOCOLS.items():
            yield f"\n\nclass {kind}{part.capitalize()}Part({kind}RemotePart):"
            yield f'    """{_first_line(protocol)}"""\n'
            for declaration in declarations(protocol):
                yield f"    {declaration.verb} = {sender}({protocol.__name__}.{declaration.verb})"
    yield ""


def _import(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    return line if len(line) <= LINE_MAX else f"from {module} import (\n    " + ",\n    ".join(names) + ",\n)"


def mcp_tools() -> Iterator[str]:
    """docs/reference/mcp.md."""
    yield "# MCP tools\n"
    yield MADE
    yield "What `rota mcp` offers ([guide](../mcp.md)). A caller is offered a tool if it may call its"
    yield "[methods](rpc.md). *writes*: only with `--allow-write`, or inside a run. *run*: only inside a run.\n"
    for tool in TOOLS.values():
        marks = [word for word, marked in (("writes", tool.writes), ("run", tool.needs_run)) if marked]
        yield f"## {tool.name}\n"
        yield f"{tool.about}\n"
        methods = ", ".join(f"`{name}`" for name in tool.uses)
        yield f"Methods: {methods}.{''.join(f' *{mark}*' for mark in marks)}\n"
        required = tool.input_schema.get("required", [])
        if not tool.input_schema["properties"]:
            continue
        yield "| argument | default | meaning |\n|---|---|---|"
        for name, field in tool.input_schema["properties"].items():
            default = "required" if name in required else f"`{_json(field.get('default', {}))}`"
            yield f"| `{name}` | {default} | {field.get('description', '')} |"
        yield ""


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


PAGES: Mapping[str, Callable[[], Iterator[str]]] = {
    "docs/state-machines.md": state_machines,
    "docs/reference/errors.md": errors,
    "docs/reference/events.md": events,
    "docs/reference/reasons.md": reasons,
    "docs/reference/policies.md": policies,
    "docs/reference/fleet.md": fleet_file,
    "docs/reference/scenario.md": scenario_file,
    "docs/reference/graph.md": graph,
    "docs/reference/cli.md": cli,
    "docs/reference/rpc.md": rpc,
    "docs/reference/rest.md": rest,
    "docs/reference/rights.md": rights,
    "docs/reference/mcp.md": mcp_tools,
    "src/rota/rpc/client/parts.py": client_parts,
    **PLOTS,
}


def render(page: str) -> str:
    """A page's text."""
    return "\n".join(PAGES[page]())
