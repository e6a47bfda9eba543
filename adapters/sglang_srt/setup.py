"""What a worker learns when it starts, and the calls into SGLang that are more than a name."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import numpy as np

from specplug.adapters.common import host_logger
from specplug.adapters.common.building import build_proposer
from specplug.adapters.sglang_srt import options
from specplug.adapters.sglang_srt.accept import Kept
from specplug.adapters.sglang_srt.layout import FIXED_WIDTH_BACKENDS, TREE_BACKENDS, Layout
from specplug.adapters.sglang_srt.metrics import Metrics
from specplug.adapters.sglang_srt.parallel import Ranks
from specplug.control import options as control
from specplug.control.fixed import FixedLength
from specplug.errors import HostMismatchError
from specplug.machine import thread_share
from specplug.session import Session
from specplug.types import Context
from specplug.vocabulary import vocabulary_digest


class Facts(NamedTuple):
    """What does not change while the worker lives.

    Attributes:
        choice: complete options of the proposer and the controller.
        context: limits, for the session.
        width: positions per row and step, the last token included.
        fixed_width: every step has the full width (CUDA graphs, and backends that know no other).
        trees: branching drafts can be verified.
        overlap: the scheduler prepares a step while the last one runs.
        sampling_backend: SGLang's sampler.
        device: torch's name of it.
        ranks: the tensor-parallel group.
    """

    choice: options.Choice
    context: Context
    width: int
    fixed_width: bool
    trees: bool
    overlap: bool
    sampling_backend: str
    device: Any
    ranks: Ranks


def facts(name: str, model_runner: Any) -> Facts:
    """Read SGLang's resolved configuration; the ``server_args`` that it hands over hold raw input only."""
    from sglang.srt.runtime_context import (
        attention_backends,
        get_device,
        get_exec,
        get_parallel,
        get_schedule,
        get_spec,
    )

    spec, schedule = get_spec(), get_schedule()
    width = int(spec.speculative_num_draft_tokens)
    config = model_runner.model_config
    device = get_device().device
    prefill, decode = (str(backend) for backend in attention_backends())
    backend = decode if spec.speculative_attention_mode == "decode" else prefill
    if backend == "torch_native":
        refuse_bare_torch_native()
    context = Context(
        vocab_size=int(config.vocab_size),
        max_length=int(config.context_len),
        max_draft=width - 1,
        # With overlap a request stays in the batch for a step after its end, when its successor is there already.
        max_requests=int(schedule.max_running_requests or 256) + 8,
        threads=thread_share(max(1, int(get_parallel().tp_size))),
        tokenizer=tokenizer_digest,
        saves=int(get_parallel().tp_rank) == 0,
        trees=backend in TREE_BACKENDS and int(schedule.page_size or 1) == 1,
    )
    return Facts(
        choice=options.checked(name, getattr(spec, options.FILE_ARGUMENT, None)),
        context=context,
        width=width,
        fixed_width=captures_graphs(device) or backend in FIXED_WIDTH_BACKENDS,
        trees=context.trees,
        overlap=not schedule.disable_overlap_schedule,
        sampling_backend=str(get_exec().kernel.sampling_backend),
        device=device,
        ranks=Ranks(get_parallel().tp_group),
    )


def tokenizer_digest(given: Any = None) -> str:
    """Digest of the tokenizer's vocabulary, for files of token ids; "" if it cannot be read.

    Asked for only by proposers that have such a file. ``given``: SGLang's arguments; those of this process if None.
    """
    try:
        from sglang.srt.runtime_context import get_server_args
        from sglang.srt.utils.hf_transformers_utils import get_tokenizer

        given = get_server_args() if given is None else given
        tokenizer = get_tokenizer(
            given.tokenizer_path or given.model_path, trust_remote_code=given.trust_remote_code
        )
        return vocabulary_digest(tokenizer.get_vocab())
    except Exception as error:  # noqa: BLE001  a tokenizer fails in as many ways as there are kinds of them
        host_logger("sglang").warning(
            "specplug: the tokenizer cannot be read (%r); files of tokens are checked by vocabulary size only",
            error,
        )
        return ""


def vocabulary_size(given: Any) -> int:
    """Token ids of the model that SGLang's arguments name, before it is loaded; 0 if that cannot be read."""
    try:
        from sglang.srt.utils.hf_transformers_utils import get_config

        config = get_config(given.model_path, trust_remote_code=given.trust_remote_code)
        text = getattr(config, "get_text_config", lambda: config)()
        return int(text.vocab_size)
    except Exception:  # noqa: BLE001  as above; the worker, which has the model, asks again
        return 0


def captures_graphs(device: Any) -> bool:
    """Whether decoding replays CUDA graphs, which are captured at one width."""
    from sglang.srt.runtime_context import get_exec

    config = get_exec().graph.cuda_graph_config
    if str(device) == "cpu" or config is None:
        return False
    backend = config.decode.backend
    return str(getattr(backend, "value", backend)) != "disabled"


def refuse_bare_torch_native() -> None:
    """SGLang 0.5.23 crashes in the first verification with this backend, unless a plugin has mended it.

    Raises:
        HostMismatchError: it has not been mended.
    """
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    if not hasattr(TorchNativeAttnBackend.forward_extend, "__wrapped__"):
        raise HostMismatchError(
            "SGLang's attention backend 'torch_native' cannot verify drafts (its extend_prefix_lens is None then), "
            "whatever makes them; choose another --attention-backend. On the CPU that is intel_amx where the "
            "machine has AMX; the tests of specplug bring a replacement of their own"
        )


def session(name: str, known: Facts) -> Session:
    """A fresh proposer in a fresh session, under the controller of the user's choice.

    Where every step has the full width, drafts cost nothing more, and as many are made as fit.
    """
    proposer = build_proposer(name, known.context, known.choice.options, "SGLang")
    controller = (
        FixedLength()
        if known.fixed_width
        else control.build(
            known.choice.control,
            known.context,
            proposer.capabilities,
            device=device_name(known.device),
            name=f"specplug.{name}",
        )
    )
    return Session(proposer, known.context, controller=controller)


def device_name(device: Any) -> str:
    """The accelerator, as its driver calls it; empty on the CPU."""
    import torch

    if str(device) == "cpu":
        return ""
    try:
        return str(torch.get_device_module(device).get_device_name())
    except Exception:  # noqa: BLE001  a name in a file is worth no failure of whatever a platform raises
        return "unknown device"


def start_metrics(metrics: Metrics, proposer: str, log: logging.Logger) -> None:
    """Publish counters if the server publishes its own (``--enable-metrics``)."""
    try:
        from sglang.srt.runtime_context import get_observability, get_parallel

        if get_observability().enable_metrics:
            metrics.start({"proposer": proposer, "tp_rank": str(get_parallel().tp_rank)})
    except Exception:  # the server serves without its counters, whatever its registry raises
        log.exception("specplug: counters are not published")


def grammar_mask(batch: Any, layout: Layout) -> Any:
    """SGLang's mask of what the grammars allow at every position, or None."""
    import torch
    from sglang.srt.speculative.spec_utils import GrammarTree, build_grammar_vocab_mask

    tree = GrammarTree.from_host(
        torch.from_numpy(np.ascontiguousarray(layout.next_token)),
        torch.from_numpy(np.ascontiguousarray(layout.next_sibling)),
        torch.from_numpy(np.ascontiguousarray(layout.tokens)),
    )
    return build_grammar_vocab_mask(
        reqs=batch.reqs,
        tree=tree,
        sampling_info=batch.sampling_info,
        device=batch.seq_lens.device,
        barrier=None,
    )


def accept_index(kept: Kept, width: int) -> Any:
    """int32 ``[B, w]``: positions of the emitting laws in the flattened step, -1 behind."""
    import torch

    rows = kept.tokens.shape[0]
    device = kept.tokens.device
    places = torch.arange(width, device=device)
    path = kept.path
    if path is None:
        path = torch.where(places <= kept.accepted[:, None], places, -1)
    offsets = torch.arange(rows, device=device)[:, None] * width
    return torch.where(path >= 0, path + offsets, -1).to(torch.int32)


def commit_states(target: Any, batch: Any, kept: Kept, accept_lens: Any, width: int) -> None:
    """State-space layers keep the state after the last accepted token."""
    from sglang.srt.speculative.spec_utils import commit_mamba_states_after_verify

    commit_mamba_states_after_verify(target, batch, accept_lens, accept_index(kept, width), width)


def move_branch(batch: Any, kept: Kept, allocator: Any) -> None:
    """Move keys and values of an accepted branch to the front of its row's slots; a chain is there already."""
    from sglang.srt.speculative.spec_utils import move_accept_tokens_to_target_kvcache

    index = accept_index(kept, kept.tokens.shape[1])
    move_accept_tokens_to_target_kvcache(batch, index, kept.accepted.to(index.dtype), allocator)


def tree_logprobs(batch: Any, output: Any, kept: Kept) -> None:
    """Log-probabilities of an accepted branch, each from the law of its parent's position."""
    import torch
    from sglang.srt.layers.logprob_processor import compute_spec_logprobs

    rows, width = kept.tokens.shape
    index = accept_index(kept, width)
    predicted = torch.zeros(rows * width, dtype=torch.int32, device=index.device)
    used = index >= 0
    predicted[index[used].long()] = kept.tokens[used].to(torch.int32)
    compute_spec_logprobs(batch, output, predicted, accept_index=index)
