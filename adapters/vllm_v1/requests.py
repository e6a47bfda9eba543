"""What vLLM knows of a request, in the words of specplug."""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.adapters.common.wishes import joined_namespace, wishes
from specplug.types import SEPARATOR, TOKEN_DTYPE, Request, TokenArray


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
    # Over HTTP (``vllm_xargs``) values must be flat: ``specplug_draft_limit``.
    limit, namespace, shares, complaint = wishes(getattr(params, "extra_args", None), "extra_args")
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
        shares=shares,
        temperature=temperature,
    )
    return request, complaint


def has_tokens(state: Any) -> bool:
    """False for a prompt given as embeddings: its positions hold no token ids to draft from."""
    return getattr(state, "prompt_embeds", None) is None and state.sampling_params is not None


def _namespace(state: Any, salt: str, wished: str) -> str:
    lora = getattr(state, "lora_request", None)
    name = "" if lora is None else f"{lora.lora_int_id}:{lora.lora_name}"
    return joined_namespace(name, salt, wished)


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
