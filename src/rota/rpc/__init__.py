"""RPC: every method declared once; JSON-RPC around it; the handlers, the client and the daemon."""
