"""How ready invocations are executed: one file per kind of lane, and what they share."""
