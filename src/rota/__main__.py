"""`python -m rota` is the `rota` command."""

from __future__ import annotations

from rota.cli import main

main()
