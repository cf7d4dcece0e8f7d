"""A demo program that always crashes: it prints a line and kills itself, as a bug in a C library would."""

from __future__ import annotations

import os
import signal

print("about to crash", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
