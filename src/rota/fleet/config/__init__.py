"""The fleet file: load it, plan what it would do, apply it to a store."""
