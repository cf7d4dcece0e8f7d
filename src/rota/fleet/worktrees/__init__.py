"""Git worktrees of runs: made when an entry first runs, kept through its attempts, removed after its end."""
