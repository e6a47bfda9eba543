"""What the V2 runner holds as its ``speculator``: one copy from the device, a look-up on the host, one copy back."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from specplug.adapters.vllm_v1.options import Choice
from specplug.adapters.vllm_v2.door import Held, of_vllm
from specplug.adapters.vllm_v2.proposer import V2Proposer
from specplug.types import TOKEN_DTYPE, TokenArray

#: What stands where there is no draft: valid in every vocabulary, unlike -1, and never given to the scheduler.
PADDING = 0


class Asked(NamedTuple):
    """A step whose drafts are still to be made.

    Attributes:
        ids: request of each row.
        index: int64 ``[B]`` on the device, where the state of each is.
        most: tokens per draft.
        seen: int32 ``[B, K + 3]`` on the host, complete once its copy has been waited for.
    """

    ids: list[str]
    index: Any
    most: int
    seen: Any


class Exchange(Held):
    """The tensors between the device and a :class:`V2Proposer`.

    Per step one copy to the host, int32 ``[B, K + 3]``: how many tokens were sampled, how many there are, and the last
    ``K + 1`` of them; and one back, int64 ``[B, K]``, if there is a draft. The former is only begun where the runner
    asks for drafts, behind the step on the device. Drafts are made where the scheduler takes them: by then the runner
    has finished the step and the engine has given its tokens away, so that neither waits for a look-up.

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
        #: Of the copy to the host; whoever waits for it sleeps, as vLLM does in its own waits.
        self._copied = torch.Event(self._device, blocking=True) if self._away else None
        self._asked: Asked | None = None
        self._taken: tuple[list[str], list[list[int]]] | None = None

    def after_update(self, runner: Any, scheduler_output: Any) -> None:
        """See :meth:`V2Proposer.after_update`; drafts that nobody took are void with the next step."""
        self._asked = self._taken = None
        self.proposer.after_update(runner, scheduler_output)

    def empty(self, rows: int) -> Any:
        """No drafts, int64 ``[rows, K]``: for steps that vLLM makes up to measure or to warm up."""
        return self._out[:rows].fill_(PADDING)

    def step(self, batch: Any, num_sampled: Any, most: int) -> Any:
        """A real step: begins to copy what is new. Padding, int64 ``[B, K]``; drafts follow with :meth:`take`."""
        rows = batch.num_reqs
        ids = list(batch.req_ids[:rows])
        self._asked, self._taken = None, (ids, [[] for _ in ids])
        if not self.proposer.stopped:
            try:
                index = batch.idx_mapping[:rows].long()
                seen = self._fetch(index, num_sampled[:rows])
                self._asked = Asked(ids, index, most, seen)
            except Exception:  # noqa: BLE001  a draft is never worth a request: this step decodes plainly
                self.proposer.failed("fetch", ids)
        return self.empty(rows)

    def take(self) -> tuple[list[str], list[list[int]]] | None:
        """Request ids and drafts of the last step, at most ``most`` tokens each, once; the device has them too."""
        import torch

        asked, taken = self._asked, self._taken
        self._asked = self._taken = None
        if asked is None:
            return taken
        try:
            # As where the runner samples: tensors made there cannot be written to outside of it.
            with torch.inference_mode():
                seen = self._arrived(asked.seen)
                drafts = self.proposer.drafts(
                    *(asked.ids, seen[:, 1], seen[:, 0], seen[:, 2:]),
                    lambda row: self._read(asked.index, row),
                    asked.most,
                )
                self._send(asked.index, drafts)
        except Exception:  # noqa: BLE001  as above
            self.proposer.failed("take", asked.ids)
            return taken
        return asked.ids, drafts

    def _fetch(self, index: Any, num_sampled: Any) -> Any:
        """int32 ``[B, K + 3]`` on the host; nothing is waited for."""
        import torch

        lengths = self._states.total_len.gpu[index].int()
        places = (lengths[:, None] + self._columns).clamp_(min=0)
        tails = self._states.all_token_ids.gpu[index[:, None], places].int()
        packed = torch.cat((num_sampled.int()[:, None], lengths[:, None], tails), dim=1)
        host = self._host_in[: len(packed)]
        host.copy_(packed, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        return host

    def _arrived(self, seen: Any) -> Any:
        """The copy, when it is there."""
        if self._copied is not None:
            self._copied.synchronize()
        return seen.numpy()

    def _send(self, index: Any, drafts: list[list[int]]) -> None:
        """To where the runner keeps the drafts of each request, behind them :data:`PADDING`."""
        if not any(drafts):
            return
        rows = len(drafts)
        written = self._host_out.numpy()[:rows]
        written[:] = PADDING
        for row, draft in enumerate(drafts):
            written[row, : len(draft)] = draft
        # The buffer is written again only after the next copy to the host, which comes after this one.
        out = self._out[:rows].copy_(self._host_out[:rows], non_blocking=True)
        self._states.draft_tokens.index_copy_(0, index, out)

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
