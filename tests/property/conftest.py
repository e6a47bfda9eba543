"""Profiles of the property tests: ``dev`` finishes in seconds, ``ci`` looks further."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

# No deadline: the first example of a test compiles kernels. Explaining a failure multiplies its
# time, and the messages of the kit show what differs anyway.
_COMMON = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
    "phases": [Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
}
settings.register_profile("dev", max_examples=60, derandomize=True, **_COMMON)
settings.register_profile("ci", max_examples=600, print_blob=True, **_COMMON)
settings.load_profile(os.environ.get("SPECPLUG_HYPOTHESIS_PROFILE", "dev"))
