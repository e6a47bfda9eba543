"""Cache salts reach the worker, so that tenants who must not share cached prefixes share no drafts either.

vLLM keeps ``cache_salt`` in the engine core, where prefixes are cached. The worker's view of a new request is made by
``NewRequestData.from_request``; this wrapper attaches the salt to it. Requests without a salt are not touched.
"""

from __future__ import annotations

import functools
import sys
from importlib import import_module
from typing import Any

MODULE = "vllm.v1.core.sched.output"
_ATTRIBUTE = "specplug_cache_salt"
_MARK = "_specplug"


def carry(*, load: bool = False) -> None:
    """Wrap ``NewRequestData.from_request`` once, if its module is loaded in this process (or ``load`` is given).

    The engine core may be a process of its own, which never sees the user's configuration but loads plugins, or live
    in the caller's process, which loads plugins before it imports the scheduler.
    """
    if load:
        try:
            import_module(MODULE)
        except ImportError:  # listed as an optional symbol: the doctor reports it
            return
    owner = getattr(sys.modules.get(MODULE), "NewRequestData", None)
    original = getattr(owner, "from_request", None)
    if owner is None or original is None or getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def from_request(cls: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(request, *args, **kwargs)
        salt = getattr(request, "cache_salt", None)
        if salt:
            setattr(made, _ATTRIBUTE, str(salt))
        return made

    setattr(from_request, _MARK, True)
    owner.from_request = classmethod(from_request)


def salt_of(new_request: Any) -> str:
    """The salt attached to a ``NewRequestData``, or an empty string."""
    return str(getattr(new_request, _ATTRIBUTE, ""))
