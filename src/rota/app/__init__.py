"""`Rota`: agents, their queue and their supervisor in one object.

    rota = Rota("rota.db")

    @rota.agent(project="research", project_weight=3, budget={"tokens": 200_000})
    def summarise(ctx, url: str):
        ctx.charge(tokens=1234)
        return {"summary": f"read {url}"}

    job = summarise.enqueue(url="…", priority=5)
    rota.run(slots=4)            # elsewhere: job.result(wait_s=60)

Entries run at least once: an entry whose run fails is retried. An agent whose effects must not be repeated uses
(ctx.sched_id, ctx.attempt, ctx.token) as its idempotency key. docs/python.md is the guide.
"""

from __future__ import annotations

from rota.app.agent_handle import AgentHandle, EnqueueOptions
from rota.app.agent_options import AgentOptions
from rota.app.jobs import Job, Progress
from rota.app.rota import Rota

__all__ = ["AgentHandle", "AgentOptions", "EnqueueOptions", "Job", "Progress", "Rota"]
