"""The adapter's proposer on a stand-in host; no engine is needed."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from specplug.adapters.vllm_v1.options import Choice
from specplug.testing.stub_host import StubHost, configuration, periodic_target, stub_vllm
from specplug.testing.toys import CopyProposer, HistoryProposer
from specplug.types import Capabilities, Context, DraftBuffers, IntArray, Request, TokenArray

VOCABULARY = 1000


class Recorder(CopyProposer):
    """The toy that copies from the history, and remembers how it was called."""

    made: list[Recorder]

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.started: list[Request] = []
        self.kept: list[bool] = []
        self.fail_in = ""
        type(self).made.append(self)

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        self.started.append(request)
        super().start(slot, request, history)

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        if self.fail_in == "propose":
            raise RuntimeError("the proposer is broken")
        super().propose(slots, ceilings, out)

    def finish(self, slot: int, keep: bool) -> None:
        self.kept.append(keep)
        super().finish(slot, keep)


class Fork(HistoryProposer):
    """Drafts a tree whose second child of the root comes before the first one's child."""

    capabilities = Capabilities(trees=True)

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        assert out.parents is not None
        for row, ceiling in enumerate(ceilings.tolist()):
            out.tokens[row, :4], out.parents[row, :4] = (10, 20, 11, 21), (-1, -1, 0, 1)
            out.survival[row, :4] = 0.5
            out.lengths[row] = min(4, ceiling)


@pytest.fixture
def make() -> Iterator[Callable[..., tuple[StubHost, Any]]]:
    """Build a host and an adapter around a :class:`Recorder`; ``adapter.session.proposer`` is the recorder."""
    from specplug.adapters.vllm_v1.proposer import VllmProposer

    module = types.ModuleType("specplug_test_recorder")
    Recorder.made = []
    module.Recorder = Recorder  # type: ignore[attr-defined]
    module.Fork = Fork  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module

    def build(
        target: Any = periodic_target,
        tensor_parallel_rank: int = 0,
        control: Any = None,
        proposer: str = "specplug_test_recorder:Recorder",
        options: dict[str, Any] | None = None,
        **limits: Any,
    ) -> Any:
        config = configuration(vocab_size=VOCABULARY, **limits)
        if tensor_parallel_rank:
            config.parallel_config.tensor_parallel_size = 2
            config.parallel_config.distributed_executor_backend = "mp"
        with stub_vllm(tensor_parallel_rank):
            adapter = VllmProposer(config, Choice(proposer, options or {}, control))
        host = StubHost(
            target, config.scheduler_config.max_num_seqs, config.model_config.max_model_len
        )
        host.runner.drafter = adapter
        return host, adapter

    yield build
    del sys.modules[module.__name__]
