"""The object that stands for one of our algorithms inside SGLang."""

from __future__ import annotations

from typing import Any


def _yes(self: Any) -> bool:
    return True


def _no(self: Any) -> bool:
    return False


def _create_future_map(
    self: Any,
    device: Any,
    req_to_token_pool: Any,
    needs_cpu_seq_lens: bool = True,
    needs_confidence_relay: bool = False,
) -> Any:
    from sglang.srt.managers.overlap_utils import FutureMap

    return FutureMap(device, self, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay)


def _nothing(self: Any, *args: Any, **kwargs: Any) -> None:
    return None


def algorithm_class(base: type) -> type:
    """A subclass of SGLang's ``CustomSpecAlgo`` that a server can start with.

    ``is_ngram`` is True because SGLang relays accepted tokens, sizes the KV cache and builds dummy verify inputs for
    CUDA graphs by that answer, all of which are right for a drafter without a model. The three methods after it are
    called by the scheduler of 0.5.23 but missing in ``CustomSpecAlgo``.
    """
    return type(
        "SpecplugAlgorithm",
        (base,),
        {
            "is_ngram": _yes,
            "has_draft_kv": _no,
            "create_future_map": _create_future_map,
            "need_topk": _no,
            "carries_draft_hidden_states": _no,
            "get_platform_worker_cls": _nothing,
        },
    )
