"""How an entry is executed: the runner contract and the three runners (command, ndjson, callable)."""
