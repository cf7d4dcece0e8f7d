"""Layer 3: joins what may run (the kernel) with which goes next (a policy). It never runs work."""
