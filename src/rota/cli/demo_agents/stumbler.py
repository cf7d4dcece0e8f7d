"""A program that always falls over: it says a word and kills itself, as one with a bug in a C library would."""

from __future__ import annotations

import os
import signal

print("about to fall over", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
