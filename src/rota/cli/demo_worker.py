"""The demonstration's second worker, in its own process: the one that is killed.

python -m rota.cli.demo_worker STORE POLICY SLOTS CLAIM_TIMEOUT_S
"""

from __future__ import annotations

import sys

from rota.app import Rota

__all__ = ["WORKER_ID", "serve"]

WORKER_ID = "worker-b"


def serve(store: str, policy: str, slots: int, claim_timeout_s: float) -> None:
    """Run a supervisor until it is killed."""
    with Rota(store, policy=policy) as rota:
        rota.run(
            slots,
            handles_signals=True,
            worker_id=WORKER_ID,
            claim_timeout_s=claim_timeout_s,
            heartbeat_s=claim_timeout_s / 4,
        )


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
