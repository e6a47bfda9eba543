"""What a client may ask of specplug for one request, and how requests are kept apart."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

#: Key of the nested form, ``{"specplug": {"draft_limit": 0}}``; flat keys are ``specplug_draft_limit``.
KEY = "specplug"
#: What can be asked for.
NAMES = ("draft_limit", "namespace", "share")

#: What a namespace is made of, see :func:`joined_namespace`.
NAMESPACE_PARTS = ("lora", "salt", "namespace")


class Wishes(NamedTuple):
    """What a request asks for.

    Attributes:
        draft_limit: at most so many draft tokens per step; None leaves it to the server.
        namespace: text is shared only within one.
        share: whether its text may serve others.
        complaint: what was wrong with the hints, for the log; empty if nothing was.
    """

    draft_limit: int | None
    namespace: str
    share: bool
    complaint: str


def wishes(parameters: Any, where: str) -> Wishes:
    """Read ``{"specplug": {...}}`` or flat ``specplug_*`` keys; ``where`` names the field for messages.

    A request is never refused over a hint: a wrong value is ignored and reported. Where it cannot be known what was
    meant, the text of the request is not kept for others.
    """
    if not isinstance(parameters, Mapping):
        return Wishes(None, "", True, "")
    nested = parameters.get(KEY, {})
    if not isinstance(nested, Mapping):
        return Wishes(None, "", False, f"{where}['specplug'] must be an object, got {nested!r}")
    given = {key: parameters[f"{KEY}_{key}"] for key in NAMES if f"{KEY}_{key}" in parameters}
    given.update(nested)
    limit, namespace, share = (given.get(key) for key in NAMES)
    complaints = []
    if unknown := sorted(map(str, set(given) - set(NAMES))):
        complaints.append(f"unknown key {unknown[0]!r}; valid: {', '.join(NAMES)}")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        complaints.append(f"draft_limit must be an integer of at least 0, got {limit!r}")
        limit = None
    if namespace is not None and not isinstance(namespace, str):
        # Not to share at all is the safe reading of a namespace that cannot be read.
        complaints.append(f"namespace must be a string, got {namespace!r}")
        namespace = f"?{namespace!r}"
    # Not every client can send booleans, hence 0 and 1.
    if share is not None and not (isinstance(share, int) and share in (0, 1)):
        complaints.append(f"share must be true or false, got {share!r}")
        share = False
    shared = bool(share) if share is not None else not unknown
    return Wishes(limit, namespace or "", shared, "; ".join(complaints))


def joined_namespace(lora: str = "", salt: str = "", wished: str = "") -> str:
    """Requests share text only if the client's namespace, the LoRA adapter and the cache salt are all equal.

    The salt is hashed: in a fixed form no salt can spell another tenant's namespace, nor be read in a saved store.
    """
    hashed = hashlib.sha256(salt.encode()).hexdigest()[:32] if salt else ""
    parts = zip(NAMESPACE_PARTS, (lora, hashed, wished), strict=True)
    return "|".join(f"{name}={value}" for name, value in parts if value)
