"""A demo agent that thinks step by step and charges tokens for each. A retry resumes at the last checkpoint.

Its payload: `steps`, `step_s` (seconds per step), `tokens` (per step), `keeps` (whether it writes checkpoints).
"""

from __future__ import annotations

from rota.agent import connect

with connect() as run:
    first = (run.saved or {}).get("next", 0)
    if first:
        run.log(f"resuming at step {first} from the last attempt's checkpoint")
    for step in range(first, run.payload["steps"]):
        run.wait_for_stop(run.payload["step_s"])
        run.raise_if_stopped()
        run.charge(tokens=run.payload["tokens"])
        if run.payload.get("keeps"):
            run.checkpoint({"next": step + 1})
    run.result({"steps": run.payload["steps"], "began_at_step": first})
