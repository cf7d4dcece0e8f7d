"""The daemon: one process that has the file, and many that talk to it."""
