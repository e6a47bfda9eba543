"""How many cores and threads are ours. An engine shares its machine with other processes, its own among them."""

from __future__ import annotations

import os

from specplug.errors import SettingsError

#: Environment variable that sets the threads of a proposer.
THREADS_VARIABLE = "SPECPLUG_THREADS"

#: More than this helps no look-up that takes microseconds.
MOST_THREADS = 8


def usable_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def thread_share(workers: int) -> int:
    """Threads for the look-ups of one of ``workers`` engine processes on this machine.

    What SPECPLUG_THREADS says, or half of a process's share of the usable cores (the engine needs the other half),
    at most :data:`MOST_THREADS`.

    Raises:
        SettingsError: SPECPLUG_THREADS is not a positive integer.
    """
    value = os.environ.get(THREADS_VARIABLE, "").strip()
    if value:
        if not value.isdigit() or int(value) < 1:
            raise SettingsError(
                f"{THREADS_VARIABLE} must be an integer of at least 1, got {value!r}"
            )
        return int(value)
    return max(1, min(MOST_THREADS, usable_cores() // (2 * max(1, workers))))
