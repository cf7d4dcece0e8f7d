"""Readers of the journal: they fold facts, and write nothing."""
