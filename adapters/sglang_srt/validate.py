"""Before a model loads: refuse what cannot work, with the reason, and set the defaults that SGLang sets for its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from specplug.adapters.common import host_logger
from specplug.adapters.common.preflight import preflight
from specplug.adapters.sglang_srt import options
from specplug.adapters.sglang_srt.requirements import REQUIREMENTS
from specplug.adapters.sglang_srt.setup import tokenizer_digest, vocabulary_size
from specplug.errors import SettingsError
from specplug.registry import PREFIX

#: Tokens per request and verification: the last token and up to 15 drafts.
DEFAULT_WIDTH = 16
#: As vLLM's limit of 128 draft tokens; wider steps are never worth their cost.
MAX_WIDTH = 129

#: SGLang's own default for requests at once when it speculates.
DEFAULT_REQUESTS = 48


class Refusal(NamedTuple):
    """A combination that cannot work: field, test of its value, and why."""

    field: str
    test: Callable[[Any], bool]
    reason: str


_REFUSED = (
    Refusal(
        "speculative_draft_model_path",
        bool,
        "drafts come from text, there is no draft model; remove the argument",
    ),
    Refusal("pp_size", lambda v: (v or 1) > 1, "pipeline parallelism is not supported; use 1"),
    Refusal("enable_dp_attention", bool, "data-parallel attention is not supported; turn it off"),
    Refusal("speculative_adaptive", bool, "drafts vary in length by themselves; remove it"),
    Refusal(
        "speculative_eagle_topk",
        lambda v: v not in (None, 1),
        "it is an argument for draft models; remove it (trees come from the proposer)",
    ),
    Refusal(
        "enable_watermark",
        bool,
        "a watermark chooses tokens in the sampler, which verification does not go through",
    ),
    Refusal(
        "rl_on_policy_target",
        lambda v: v is not None,
        "training needs the sampler's own log-probabilities; decode plainly there",
    ),
    Refusal(
        "disaggregation_mode",
        lambda v: v not in (None, "null"),
        "prefill and decode on different servers are not supported; use null",
    ),
    Refusal("enable_pdmux", bool, "multiplexed prefill and decode are not supported; turn it off"),
)


def validate(server_args: Any, name: str) -> None:
    """SGLang calls this with a stand-in for its arguments, and takes over what is assigned to known fields.

    Raises:
        SettingsError: (a ValueError) a wrong option, or an argument that cannot work with it.
        HostMismatchError: this SGLang lacks what is needed, or is not one that was tested.
    """
    warning = REQUIREMENTS.require()
    if warning:
        host_logger("sglang").warning("specplug: %s", warning)
    where = PREFIX + name
    choice = options.checked(name, getattr(server_args, options.FILE_ARGUMENT, None))
    for refusal in _REFUSED:
        value = getattr(server_args, refusal.field, None)
        if refusal.test(value):
            argument = "--" + refusal.field.replace("_", "-")
            raise SettingsError(f"{where}: {argument} {value!r}: {refusal.reason}")
    preflight(
        *(name, choice.options),
        partial(vocabulary_size, server_args),
        partial(tokenizer_digest, server_args),
    )
    server_args.speculative_num_draft_tokens = width = _width(server_args, where)
    # SGLang keeps twice the larger of this and the width free in the KV cache for every request.
    server_args.speculative_num_steps = width - 1
    server_args.speculative_eagle_topk = 1
    if getattr(server_args, "max_running_requests", None) is None:
        server_args.max_running_requests = DEFAULT_REQUESTS
    server_args.enable_mixed_chunk = False
    on_cpu = getattr(server_args, "device", None) == "cpu"
    if on_cpu and not options.truthy(options.OVERLAP_VARIABLE):
        server_args.disable_overlap_schedule = True


def _width(server_args: Any, where: str) -> int:
    width = getattr(server_args, "speculative_num_draft_tokens", None)
    steps = getattr(server_args, "speculative_num_steps", None)
    if width is None:
        width = DEFAULT_WIDTH if steps is None else int(steps) + 1
    if isinstance(width, bool) or not isinstance(width, int) or not 2 <= width <= MAX_WIDTH:
        raise SettingsError(
            f"{where}: --speculative-num-draft-tokens must be an integer from 2 to {MAX_WIDTH} (the last token and "
            f"the drafts), got {width!r}"
        )
    if steps not in (None, width - 1):
        raise SettingsError(
            f"{where}: --speculative-num-steps {steps} does not fit --speculative-num-draft-tokens {width}; leave "
            "the former out"
        )
    return width
