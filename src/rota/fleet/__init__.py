"""Layer 4: the supervisor and its runners, the fleet file and triggers."""
