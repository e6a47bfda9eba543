"""What a search for layers to skip may ask of vLLM's model: see :class:`specplug.layers.policy.Probe`.

A probe runs over tokens of a request that are certain and in its KV cache already, all in the last block that they
reach. What it computes goes into a copy of that block in block 0, which vLLM keeps as a placeholder: it belongs to no
request and is never read. So nothing is reserved and no request's cache is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplug.adapters.vllm_v1.exit_heads import ExitHeads
from specplug.adapters.vllm_v1.looking import watching
from specplug.adapters.vllm_v1.passes import forward_context
from specplug.adapters.vllm_v1.sublayers import Parts, stubs
from specplug.errors import SkipPlanError
from specplug.layers.plan import Plan
from specplug.layers.policy import States, Trial
from specplug.layers.swapping import swapped

#: Tokens that a trial looks at; SWIFT's window. What fewer than the least say is mostly chance.
WINDOW, LEAST = 32, 12
#: The block that vLLM never gives away.
SCRATCH = 0


def window_of(known: int, prompt: int, block_size: int) -> tuple[int, int]:
    """First position and number of the tokens that a probe may run over.

    Args:
        known: tokens of the request; the newest is not in its cache yet.
        prompt: those of the prompt; a trial is held against output alone.
        block_size: tokens of a block.
    """
    end = known - 1
    start = max((end - 1) // block_size * block_size, prompt - 1, end - WINDOW, 0)
    return start, max(0, end - start)


def check(runner: Any, parts: Sequence[Parts]) -> None:
    """Refuse a model whose layers cannot be searched.

    Raises:
        SkipPlanError: sublayers that could not be told apart, or a cache that is not laid out by blocks.
    """
    for number, layer in enumerate(parts):
        if layer.attention is None or layer.mlp is None:
            raise SkipPlanError(
                f"layer {number} ({type(layer.block).__name__}) is not built as Llama's is, so its sublayers cannot be "
                "searched; name layers by skip or exit_layer"
            )
    blocks = int(runner.kv_cache_config.num_blocks)
    for cache in runner.kv_caches:
        shape = tuple(getattr(cache, "shape", ()))
        if not shape or shape[0] % blocks:
            raise SkipPlanError(
                f"the KV cache of a layer has the shape {shape}, expected a multiple of {blocks} blocks first, so "
                "layers cannot be searched; name them by skip or exit_layer"
            )


class LayerProbe:
    """Answers about one request, until its next step.

    Args:
        runner: vLLM's model runner.
        model: its model.
        parts: the model's layers.
        heads: fitted exit heads, if there are any.
        row: of the request in the runner's batch.
    """

    def __init__(
        self, runner: Any, model: Any, parts: Sequence[Parts], heads: ExitHeads | None, row: int
    ) -> None:
        self._runner, self._model, self._parts, self._heads, self._row = (
            runner,
            model,
            parts,
            heads,
            row,
        )
        batch = runner.input_batch
        self._table = batch.block_table[0]
        self._size = int(self._table.block_size)
        known = int(batch.num_tokens_no_spec[row])
        self._start, self.span = window_of(known, int(batch.num_prompt_tokens[row]), self._size)
        self._tokens = np.array(
            batch.token_ids_cpu[row, self._start : self._start + self.span + 1], np.int64
        )
        self._final: Any = None
        self._calls: list[Any] = []
        self._copied = False

    @property
    def layers(self) -> int:
        """Of the model."""
        return len(self._parts)

    def states(self) -> States:
        """See the protocol."""
        import torch

        call = self._parts[0].call
        blocks = [parts.block for parts in self._parts]
        with torch.inference_mode(), watching(blocks, call) as seen:
            self._pass(Plan.full(self.layers), self.span - 1)
            self._calls = seen
            return _numpy(torch.cat([seen[0].copies[0], *[one.output for one in seen]]))

    def run_layer(self, layer: int, states: States) -> States:
        """See the protocol. One after the other: each needs the same slot of the scratch block."""
        import torch

        if not self._calls:
            self.states()
        seen, parts = self._calls[layer], self._parts[layer]
        like, found = seen.copies[0], []
        with torch.inference_mode(), self._context(self.span - 1):
            for row in np.asarray(states):
                given = torch.tensor(row[None]).to(like.device, like.dtype)
                args, kwargs = parts.call.with_state(seen.args, seen.kwargs, given)
                found.append(parts.call.state(parts.block(*args, **kwargs)))
            return _numpy(torch.cat(found))

    def try_plan(self, plan: Plan) -> Trial:
        """See the protocol."""
        import torch

        if self.span < LEAST:
            return Trial(0, 0, 0.0)
        with torch.inference_mode():
            if self._final is None:
                self._final = self._pass(Plan.full(self.layers), 0).float()
            states = self._pass(plan, 0)
            if self._heads is not None:
                states = self._heads.apply(plan.exit_layer, states)
            best = self._model.compute_logits(states).argmax(dim=-1).cpu().numpy()
            cosines = torch.nn.functional.cosine_similarity(states.float(), self._final, dim=-1)
            matched = int((best == self._tokens[1:]).sum())
            return Trial(matched, self.span, float(cosines.mean()))

    def outputs(self) -> tuple[States, States]:
        """See the protocol."""
        import torch

        count = self.layers
        seen: list[Any] = [None] * (2 * count)

        def recorder(place: int) -> Callable[..., None]:
            def record(module: Any, args: Any, output: Any) -> None:
                first = output[0] if isinstance(output, tuple) else output
                seen[place] = first.reshape(-1, first.shape[-1]).clone()

            return record

        with ExitStack() as stack, torch.inference_mode():
            for layer, parts in enumerate(self._parts):
                for module, place in ((parts.attention, layer), (parts.mlp, count + layer)):
                    stack.callback(module.register_forward_hook(recorder(place)).remove)
            self._pass(Plan.full(count), 0)
            stacked = _numpy(torch.stack(seen))
        return stacked[:count], stacked[count:]

    def _pass(self, plan: Plan, first: int) -> Any:
        """States behind the last norm of the window's tokens from ``first`` on, ``[n, d]``."""
        import torch

        with self._context(first) as where, swapped(stubs(plan, self._parts)):
            ids = torch.as_tensor(self._tokens[first:-1], dtype=torch.int32, device=where.device)
            return self._model(
                input_ids=ids, positions=where, intermediate_tensors=None, inputs_embeds=None
            )

    @contextmanager
    def _context(self, first: int) -> Iterator[Any]:
        """vLLM's forward context for these tokens, the last block exchanged; gives their positions."""
        import torch
        from vllm.v1.attention.backend import CommonAttentionMetadata

        self._copy()
        device = self._runner.device
        begin, end = self._start + first, self._start + self.span
        where = torch.arange(begin, end, dtype=torch.int64, device=device)
        blocks = self._table.block_table.cpu[self._row : self._row + 1].clone()
        blocks[0, begin // self._size] = SCRATCH
        starts = torch.tensor([0, end - begin], dtype=torch.int32)
        common = CommonAttentionMetadata(
            query_start_loc=starts.to(device),
            query_start_loc_cpu=starts,
            seq_lens=torch.tensor([end], dtype=torch.int32, device=device),
            num_reqs=1,
            num_actual_tokens=end - begin,
            max_query_len=end - begin,
            max_seq_len=end,
            block_table_tensor=blocks.to(device),
            slot_mapping=SCRATCH * self._size + where % self._size,
            causal=True,
            positions=where,
        )
        with forward_context(self._runner, common):
            yield where

    def _copy(self) -> None:
        """The block of the window, into the scratch block of every layer's cache; once."""
        if self._copied:
            return
        self._copied = True
        block = int(self._table.block_table.np[self._row, self._start // self._size])
        blocks = int(self._runner.kv_cache_config.num_blocks)
        for cache in self._runner.kv_caches:
            # Where the kernel's blocks are smaller, several of them are one of the cache's.
            ratio = int(cache.shape[0]) // blocks
            scratch = slice(SCRATCH * ratio, (SCRATCH + 1) * ratio)
            cache[scratch] = cache[block * ratio : (block + 1) * ratio]


def _numpy(states: Any) -> NDArray[np.float64]:
    found: NDArray[np.float64] = states.double().cpu().numpy()
    return found
