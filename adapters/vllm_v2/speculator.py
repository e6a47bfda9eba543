"""What the V2 runner holds as its ``speculator``: one copy from the device, a look-up on the host, one copy back."""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.adapters.vllm_v1.options import Choice
from specplug.adapters.vllm_v2.door import Held, of_vllm
from specplug.adapters.vllm_v2.proposer import V2Proposer
from specplug.types import TOKEN_DTYPE, TokenArray

#: What stands where there is no draft: valid in every vocabulary, unlike -1, and never given to the scheduler.
PADDING = 0


class Exchange(Held):
    """The tensors between the device and a :class:`V2Proposer`.

    Per step one copy to the host, int32 ``[B, K + 3]``: how many tokens were sampled, how many there are, and the last
    ``K + 1`` of them; and one back, int64 ``[B, K]``. The host waits for the first, so for the step itself.

    Attributes:
        proposer: what drafts.
    """

    def __init__(
        self, proposer: V2Proposer, requests: int, width: int, device: Any, states: Any
    ) -> None:
        import torch

        self.proposer = proposer
        self._states = states
        self._device = torch.device(device)
        self._away = self._device.type != "cpu"
        self._width = width
        self._columns = torch.arange(-width - 1, 0, device=self._device)
        self._host_in = self._buffer((requests, width + 3), torch.int32)
        self._host_out = self._buffer((requests, width), torch.int64)
        self._out = torch.full((requests, width), PADDING, dtype=torch.int64, device=self._device)
        self._taken: tuple[list[str], list[list[int]]] | None = None

    def after_update(self, runner: Any, scheduler_output: Any) -> None:
        """See :meth:`V2Proposer.after_update`; drafts that nobody took are void with the next step."""
        self._taken = None
        self.proposer.after_update(runner, scheduler_output)

    def take(self) -> tuple[list[str], list[list[int]]] | None:
        """Request ids and drafts of the last step, once."""
        taken, self._taken = self._taken, None
        return taken

    def empty(self, rows: int) -> Any:
        """No drafts, int64 ``[rows, K]``: for steps that vLLM makes up to measure or to warm up."""
        return self._out[:rows].fill_(PADDING)

    def step(self, batch: Any, num_sampled: Any, most: int) -> Any:
        """Drafts of a real step, int64 ``[B, K]`` on the device, at most ``most`` tokens each, then :data:`PADDING`."""
        rows = batch.num_reqs
        ids = list(batch.req_ids[:rows])
        if self.proposer.stopped:
            self._taken = (ids, [[] for _ in ids])
            return self.empty(rows)
        try:
            index = batch.idx_mapping[:rows].long()
            seen = self._fetch(index, num_sampled[:rows])
        except Exception:  # noqa: BLE001  a draft is never worth a request: this step decodes plainly
            self.proposer.failed("fetch", ids)
            self._taken = (ids, [[] for _ in ids])
            return self.empty(rows)
        drafts = self.proposer.drafts(
            ids, seen[:, 1], seen[:, 0], seen[:, 2:], lambda row: self._read(index, row), most
        )
        self._taken = (ids, drafts)
        written = self._host_out.numpy()[:rows]
        written[:] = PADDING
        for row, draft in enumerate(drafts):
            written[row, : len(draft)] = draft
        # The buffer is written again only after the next fetch, which waits for this copy.
        return self._out[:rows].copy_(self._host_out[:rows], non_blocking=True)

    def _fetch(self, index: Any, num_sampled: Any) -> Any:
        """int32 ``[B, K + 3]``; waits for the step."""
        import torch

        lengths = self._states.total_len.gpu[index].int()
        places = (lengths[:, None] + self._columns).clamp_(min=0)
        tails = self._states.all_token_ids.gpu[index[:, None], places].int()
        packed = torch.cat((num_sampled.int()[:, None], lengths[:, None], tails), dim=1)
        host = self._host_in[: len(packed)]
        host.copy_(packed, non_blocking=True)
        if self._away:
            torch.accelerator.current_stream().synchronize()
        return host.numpy()

    def _read(self, index: Any, row: int) -> TokenArray:
        place = int(index[row])
        length = int(self._states.total_len.gpu[place])
        tokens = self._states.all_token_ids.gpu[place, :length].cpu().numpy()
        return np.array(tokens, TOKEN_DTYPE)

    def _buffer(self, shape: tuple[int, int], dtype: Any) -> Any:
        import torch

        return torch.zeros(shape, dtype=dtype, pin_memory=self._away)


def build(vllm_config: Any, device: Any, req_states: Any, choice: Choice) -> Any:
    """Our speculator, of vLLM's own base class.

    Args:
        vllm_config: the worker's configuration.
        device: where the model runs.
        req_states: V2's ``RequestState``.
        choice: proposer and options.
    """
    width = int(vllm_config.speculative_config.num_speculative_tokens)
    requests = int(vllm_config.scheduler_config.max_num_seqs)
    made = of_vllm(Exchange, width)
    return made(V2Proposer(vllm_config, choice), requests, width, device, req_states)
