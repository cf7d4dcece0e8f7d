"""The fleet file: read, compared with a store, applied, planned."""
