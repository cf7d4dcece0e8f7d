"""Clients of a daemon, for threads and for event loops."""
