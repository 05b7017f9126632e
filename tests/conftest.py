"""How property tests run: the same examples every time, and no clock."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# derandomize: the same code gives the same examples, so that a failure can be repeated. The compiled kernels take
# seconds on the first call of a fresh checkout, which no deadline should count.
settings.register_profile(
    "drimed",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("drimed")
