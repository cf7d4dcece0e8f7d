"""How an entry is run: the runner contract and the three runners (command, ndjson, callable)."""
