"""Programs that the demonstration runs as agents, each started by its path."""
