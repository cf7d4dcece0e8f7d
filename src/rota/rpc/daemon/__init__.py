"""The daemon: one process that opens the store and serves many clients."""
