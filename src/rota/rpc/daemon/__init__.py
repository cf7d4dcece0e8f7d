"""The daemon: one process that owns the file and serves many clients."""
