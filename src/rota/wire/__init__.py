"""The wire: every method once, and JSON-RPC around it."""
