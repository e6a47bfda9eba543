"""What vLLM knows of a request, in the words of specplug."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from specplug.types import SEPARATOR, TOKEN_DTYPE, Request, TokenArray

#: Key of ``SamplingParams.extra_args`` (``vllm_xargs`` over HTTP, where values must be flat: see below).
EXTRA = "specplug"


def describe(request_id: str, state: Any, cache_salt: str = "") -> tuple[Request, str]:
    """A :class:`Request` from vLLM's ``CachedRequestState``, and a complaint about its extra_args (or "").

    The end-of-sequence id and ``stop_token_ids`` both end the output, except that ``ignore_eos`` takes the former out
    (vLLM then leaves ``eos_token_id`` of the sampling parameters empty).

    A request that samples with a ``seed`` gets no drafts unless it asks for them by ``draft_limit``: which random
    numbers a verification consumes depends on the draft, and drafts depend on what the engine has served before, so
    only plain decoding gives the same answer to the same seed.
    """
    params = state.sampling_params
    stops = set(getattr(params, "stop_token_ids", None) or ())
    eos = getattr(params, "eos_token_id", None)
    if eos is not None and not getattr(params, "ignore_eos", False):
        stops.add(eos)
    limit, namespace, complaint = _wishes(getattr(params, "extra_args", None))
    temperature = float(getattr(params, "temperature", 0.0) or 0.0)
    if limit is None and temperature > 0 and getattr(params, "seed", None) is not None:
        limit = 0
    request = Request(
        request_id=request_id,
        prompt_length=int(state.num_prompt_tokens),
        stop_token_ids=frozenset(stops),
        max_output=getattr(params, "max_tokens", None),
        draft_limit=limit,
        namespace=_namespace(state, cache_salt, namespace),
        temperature=temperature,
    )
    return request, complaint


def has_tokens(state: Any) -> bool:
    """False for a prompt given as embeddings: its positions hold no token ids to draft from."""
    return getattr(state, "prompt_embeds", None) is None and state.sampling_params is not None


def _namespace(state: Any, salt: str, wished: str) -> str:
    """Requests share text only if the client's namespace, the LoRA adapter and the cache salt are all equal."""
    parts = []
    lora = getattr(state, "lora_request", None)
    if lora is not None:
        parts.append(f"lora={lora.lora_int_id}:{lora.lora_name}")
    if salt:
        parts.append(f"salt={salt}")
    if wished:
        parts.append(f"namespace={wished}")
    return "|".join(parts)


def _wishes(extra_args: Any) -> tuple[int | None, str, str]:
    """Draft limit, namespace and a complaint, from ``{"specplug": {...}}`` or flat ``specplug_*`` keys.

    A request is never refused over a hint: a wrong value is ignored and reported.
    """
    if not isinstance(extra_args, Mapping):
        return None, "", ""
    nested = extra_args.get(EXTRA, {})
    if not isinstance(nested, Mapping):
        return None, "", f"extra_args['specplug'] must be an object, got {nested!r}"
    limit = nested.get("draft_limit", extra_args.get("specplug_draft_limit"))
    namespace = nested.get("namespace", extra_args.get("specplug_namespace", ""))
    unknown = sorted(set(nested) - {"draft_limit", "namespace"})
    complaint = f"unknown key {unknown[0]!r}; valid: draft_limit, namespace" if unknown else ""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        limit, complaint = None, f"draft_limit must be an integer of at least 0, got {limit!r}"
    if not isinstance(namespace, str):
        # Not to share at all is the safe reading of a namespace that cannot be read.
        complaint = f"namespace must be a string, got {namespace!r}"
        namespace = f"?{namespace!r}"
    return limit, namespace, complaint


class MaskedHistory:
    """The history of a multimodal request, its placeholder positions replaced by separators.

    Placeholders are ordinary ids for vLLM (one id repeated hundreds of times per image): to draft or match them would
    be nonsense. The masked copy grows with the request, so a step copies new tokens only. Rewound histories are
    followed because the last token known is compared.
    """

    def __init__(self, features: Any) -> None:
        self._ranges = [
            (int(f.mm_position.offset), int(f.mm_position.offset) + int(f.mm_position.length))
            for f in features
        ]
        self._tokens: TokenArray = np.zeros(0, TOKEN_DTYPE)
        self._raw_last = SEPARATOR
        self._known = 0

    def follow(self, row: TokenArray) -> TokenArray:
        """A view of the masked copy of ``row``, int32 ``[n]``; valid until the next call."""
        length = len(row)
        if self._known > length or (self._known and int(row[self._known - 1]) != self._raw_last):
            self._known = 0
        if length > len(self._tokens):
            grown = np.empty(max(2 * len(self._tokens), length + 256), TOKEN_DTYPE)
            grown[: self._known] = self._tokens[: self._known]
            self._tokens = grown
        self._tokens[self._known : length] = row[self._known :]
        for start, end in self._ranges:
            if end > self._known:
                self._tokens[max(start, self._known) : min(end, length)] = SEPARATOR
        self._known = length
        self._raw_last = int(row[-1]) if length else SEPARATOR
        return self._tokens[:length]
