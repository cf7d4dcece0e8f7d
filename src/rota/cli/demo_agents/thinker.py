"""An agent that thinks for a while, step by step, and pays for each. If it was cut short before, it goes on there.

Its payload: `steps`, `step_s` how long each takes, `tokens` what each costs, `keeps` whether it saves where it stands.
"""

from __future__ import annotations

from rota.agent import connect

with connect() as run:
    first = (run.saved or {}).get("next", 0)
    if first:
        run.log(f"an earlier attempt came as far as step {first}: going on there")
    for step in range(first, run.payload["steps"]):
        run.wait_for_stop(run.payload["step_s"])
        run.raise_if_stopped()
        run.charge(tokens=run.payload["tokens"])
        if run.payload.get("keeps"):
            run.checkpoint({"next": step + 1})
    run.result({"steps": run.payload["steps"], "began_at_step": first})
