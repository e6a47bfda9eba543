"""What every test run shares: the hypothesis profiles, and the guard against two copies of a module."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings

# `dev` finishes in seconds (`make test-core`), `ci` looks further (`make test`, and so CI), `long` as far as time
# allows (`make test-long`). No deadline: the first example of a test compiles kernels.
# Explaining a failure multiplies its time, and the messages of the kit show what differs anyway.
_COMMON = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
    "phases": [Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
}
settings.register_profile("dev", max_examples=25, derandomize=True, **_COMMON)
settings.register_profile("ci", max_examples=80, derandomize=True, print_blob=True, **_COMMON)
settings.register_profile("long", max_examples=600, print_blob=True, **_COMMON)
# For tools/mutation.py, which asks only whether a test fails: no time is spent on small examples.
_FAST = {**_COMMON, "phases": [Phase.explicit, Phase.generate], "report_multiple_bugs": False}
settings.register_profile("mutation", max_examples=60, derandomize=True, **_FAST)
settings.load_profile(os.environ.get("SPECPLUG_HYPOTHESIS_PROFILE", "dev"))


#: Folders whose tests share fixtures that take long to make: each runs in one process when there are several.
TOGETHER = ("packaging", "quality")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of such a folder together (`pytest -n 2 --dist loadgroup`)."""
    for item in items:
        folder = item.path.parent.name
        if folder in TOGETHER:
            item.add_marker(pytest.mark.xdist_group(folder))


def pytest_collection_finish() -> None:
    """Take modules and tests out of what the garbage collector looks at: replays collect before each run they time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def datastore(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Text over two tokens for proposers that need a datastore: it fits any vocabulary, and matches often."""
    from specplug.datastore.writer import Writer

    folder = tmp_path_factory.mktemp("datastore")
    with Writer(folder, 2) as writer:
        for seed in range(8):
            writer.add(np.random.default_rng(seed).integers(0, 2, 30).astype(np.int32))
        writer.publish({})
    return str(folder)


@pytest.fixture(scope="session", autouse=True)
def one_copy_of_every_module() -> Iterator[None]:
    """Fail the run if anything imported the mapped folders under their names in the checkout.

    ``import proposers.suffix`` works in the checkout's root and gives a *different* class from
    ``specplug.proposers.suffix``; comparisons between the two then fail in puzzling ways.
    """
    yield
    copies = sorted({name.split(".")[0] for name in sys.modules} & {"adapters", "proposers"})
    assert not copies, f"top-level {copies} was imported; use specplug.adapters, specplug.proposers"
