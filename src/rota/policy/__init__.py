"""Layer 2, pure: which of those that may run goes next. No clock, no row, no random number."""
