"""What a client may ask of specplug for one request, and how requests are kept apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

#: Key of the nested form, ``{"specplug": {"draft_limit": 0}}``; flat keys are ``specplug_draft_limit``.
KEY = "specplug"


class Wishes(NamedTuple):
    """What a request asks for.

    Attributes:
        draft_limit: at most so many draft tokens per step; None leaves it to the server.
        namespace: text is shared only within one.
        complaint: what was wrong with the hints, for the log; empty if nothing was.
    """

    draft_limit: int | None
    namespace: str
    complaint: str


def wishes(parameters: Any, where: str) -> Wishes:
    """Read ``{"specplug": {...}}`` or flat ``specplug_*`` keys; ``where`` names the field for messages.

    A request is never refused over a hint: a wrong value is ignored and reported.
    """
    if not isinstance(parameters, Mapping):
        return Wishes(None, "", "")
    nested = parameters.get(KEY, {})
    if not isinstance(nested, Mapping):
        return Wishes(None, "", f"{where}['specplug'] must be an object, got {nested!r}")
    limit = nested.get("draft_limit", parameters.get("specplug_draft_limit"))
    namespace = nested.get("namespace", parameters.get("specplug_namespace", ""))
    unknown = sorted(set(nested) - {"draft_limit", "namespace"})
    complaint = f"unknown key {unknown[0]!r}; valid: draft_limit, namespace" if unknown else ""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        limit, complaint = None, f"draft_limit must be an integer of at least 0, got {limit!r}"
    if not isinstance(namespace, str):
        # Not to share at all is the safe reading of a namespace that cannot be read.
        complaint = f"namespace must be a string, got {namespace!r}"
        namespace = f"?{namespace!r}"
    return Wishes(limit, namespace, complaint)


def joined_namespace(lora: str = "", salt: str = "", wished: str = "") -> str:
    """Requests share text only if the client's namespace, the LoRA adapter and the cache salt are all equal."""
    parts = (("lora", lora), ("salt", salt), ("namespace", wished))
    return "|".join(f"{name}={value}" for name, value in parts if value)
