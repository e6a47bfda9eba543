"""What every test run shares: the hypothesis profiles, and the guard against two copies of a module."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# `ci` draws the same examples in every run, so that a red build is red again when it is repeated.
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
# No deadline in `dev` either: the first call of a kernel compiles it, which takes seconds.
settings.register_profile("dev", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


@pytest.fixture(scope="session", autouse=True)
def one_copy_of_every_module() -> Iterator[None]:
    """Fail the run if anything imported the mapped folders under their names in the checkout.

    ``import proposers.suffix`` works in the checkout's root and gives a *different* class from
    ``specplug.proposers.suffix``; comparisons between the two then fail in puzzling ways.
    """
    yield
    copies = sorted({name.split(".")[0] for name in sys.modules} & {"adapters", "proposers"})
    assert not copies, f"top-level {copies} was imported; use specplug.adapters, specplug.proposers"
