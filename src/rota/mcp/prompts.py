"""The prompt "diagnose a stuck fleet": what is known now, and how to find out the rest."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rota.errors import RotaError
from rota.mcp.callers import Caller
from rota.mcp.outlook_tools import WhyAll, why_all
from rota.mcp.work_tools import ListWork, list_work

__all__ = ["DIAGNOSE", "diagnosis"]

DIAGNOSE = "diagnose_a_stuck_fleet"
RUNNING_MAX = 10  # running entries that the prompt shows

_TASK = """\
Find out why the work of this fleet{whose} does not go on, and say what to do about it.

What is known now:

{facts}

Go on like this:

1. For each reason above, call `why` with its example. `blocked_by` is why it may not run; `runs_later_because` is what
   runs first; `workers` says whether a worker is there at all; `what_would_start_it` names the smallest change.
2. Read the running entries that hold what others wait for: `show_work`, and `read_work` with part log for their last
   lines. Say which of them make no progress.
3. Read failed entries: `list_work` with status failed. Say which error repeats.
4. If a budget or a limit is used up, say which, what was used, and when it frees up.

Then answer in this order: the one cause that holds up most work; the evidence, with entry ids; the exact command or
tool call that changes it, and what that costs other projects. Change nothing before a person has agreed.
"""


def diagnosis(caller: Caller, project: str | None) -> str:
    """Return the text of the prompt, with what the caller may see now."""
    facts = [
        _fact("Why queued entries wait", lambda: why_all.function(caller, WhyAll(project=project))),
        _fact(
            "What runs",
            lambda: list_work.function(caller, ListWork(status=("running",), project=project, limit=RUNNING_MAX)),
        ),
        _fact("The policy in force", lambda: caller.api.policies.get().sentence()),
    ]
    return _TASK.format(whose="" if project is None else f" in project {project}", facts="\n\n".join(facts))


def _fact(heading: str, read: Callable[[], object]) -> str:
    """Return a fact as JSON; what the caller may not read is said, and the rest is still of use."""
    try:
        return f"{heading}:\n{msgspec.json.encode(read()).decode()}"
    except RotaError as problem:
        return f"{heading}: not known. {problem}"
