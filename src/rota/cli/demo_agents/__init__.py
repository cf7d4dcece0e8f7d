"""Programs that the demonstration runs as agents. Each is started by its path, in a process of its own."""
