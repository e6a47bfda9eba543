"""What SGLang knows of a request, in the words of specplug."""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.adapters.common.wishes import joined_namespace, wishes
from specplug.types import SEPARATOR, TOKEN_DTYPE, Request, TokenArray


def describe(req: Any) -> tuple[Request, str]:
    """A :class:`Request` from SGLang's ``Req``, and a complaint about its custom_params (or "").

    Drafts of requests with a sampling seed need no care: seeds mean something to SGLang in deterministic mode only,
    and there every position is drawn with the coin that plain decoding would use for it.
    """
    params = req.sampling_params
    limit, namespace, shares, complaint = wishes(
        getattr(params, "custom_params", None), "custom_params"
    )
    temperature = 0.0 if int(params.top_k) == 1 else float(params.temperature)
    request = Request(
        request_id=str(req.rid),
        prompt_length=len(req.origin_input_ids),
        stop_token_ids=frozenset(() if params.ignore_eos else stop_ids(req)),
        max_output=params.max_new_tokens,
        draft_limit=limit,
        namespace=_namespace(req, namespace),
        shares=shares,
        temperature=temperature,
    )
    return request, complaint


def stop_ids(req: Any) -> set[int]:
    """Every id that SGLang takes for an end of the output (unless ``ignore_eos``), as its ``Req`` collects them."""
    tokenizer = getattr(req, "tokenizer", None)
    found = set(req.sampling_params.stop_token_ids or ()) | set(
        getattr(req, "eos_token_ids", None) or ()
    )
    found |= set(getattr(tokenizer, "additional_stop_token_ids", None) or ())
    found.add(getattr(tokenizer, "eos_token_id", None))
    return {int(token) for token in found if token is not None}


def has_tokens(req: Any) -> bool:
    """False for a prompt given as embeddings: its positions hold no token ids to draft from."""
    return getattr(req, "input_embeds", None) is None


def needs_own_logits(req: Any) -> bool:
    """Whether a custom logits processor looks at this request: it sees the committed tokens only, so no drafts."""
    return getattr(req, "custom_logit_processor", None) is not None


def _namespace(req: Any, wished: str) -> str:
    # `extra_key` keeps prefixes apart in the cache, so it keeps drafts apart too; it contains the LoRA adapter's id.
    salts = [str(getattr(req, name, None) or "") for name in ("cache_salt", "extra_key")]
    lora = str(getattr(req, "lora_id", None) or "")
    return joined_namespace(lora, "/".join(salts) if any(salts) else "", wished)


class History:
    """All tokens of one request as int32, copied once: a step adds what is new.

    ``array.array``, in which SGLang holds tokens, must not be exported while it grows, so it cannot be looked at in
    place. Ids that are no tokens (placeholders of images are hashes) become separators.
    """

    def __init__(self, req: Any, vocab_size: int) -> None:
        self.req = req
        self._vocab_size = vocab_size
        self.prompt_length = len(req.origin_input_ids)
        self._tokens: TokenArray = np.zeros(self.prompt_length + 256, TOKEN_DTYPE)
        self._write(0, req.origin_input_ids)
        self._known = 0

    def follow(self, extra: list[int]) -> TokenArray:
        """int32 ``[n]``: prompt, output and ``extra``, tokens not yet in the output; valid until the next call."""
        output = self.req.output_ids
        length = self.prompt_length + len(output)
        self._reserve(length + len(extra))
        # Outputs only ever grow while a request lives (SGLang's own contract).
        self._known = min(self._known, len(output))
        self._write(self.prompt_length + self._known, output[self._known :])
        self._known = len(output)
        self._write(length, extra)
        return self._tokens[: length + len(extra)]

    def _reserve(self, length: int) -> None:
        if length > len(self._tokens):
            grown = np.empty(2 * length, TOKEN_DTYPE)
            grown[: len(self._tokens)] = self._tokens
            self._tokens = grown

    def _write(self, start: int, tokens: Any) -> None:
        if not len(tokens):
            return
        given = np.array(tokens, np.int64)
        given[(given < 0) | (given >= self._vocab_size)] = SEPARATOR
        self._tokens[start : start + len(given)] = given
