"""How hard the generated tests look: quickly in ./dev test, long in ./dev soak."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("test", max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", max_examples=2_000, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))
