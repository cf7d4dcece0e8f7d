"""Simulations: the real thing under a clock that is moved by hand, from a seed."""
