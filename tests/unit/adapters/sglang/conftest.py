"""Stand-ins for SGLang's request and arguments; no engine and no torch is needed."""

from __future__ import annotations

import logging
from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from specplug.adapters.sglang_srt.drafting import Drafter
from specplug.session import Session
from specplug.testing.toys import CopyProposer
from specplug.types import Context, Request, TokenArray

VOCABULARY = 1000


def make_req(rid: str, prompt: list[int], **fields: Any) -> Any:
    """A request as the scheduler holds it; sampling parameters by ``params``."""
    params = {
        "top_k": 1,
        "temperature": 1.0,
        "max_new_tokens": 100,
        "ignore_eos": False,
        "stop_token_ids": None,
        "custom_params": None,
        **fields.pop("params", {}),
    }
    base = {
        "rid": rid,
        "origin_input_ids": array("q", prompt),
        "output_ids": array("q"),
        "sampling_params": SimpleNamespace(**params),
        "eos_token_ids": {2},
        "is_retracted": False,
    }
    return SimpleNamespace(**{**base, **fields})


class Recorder(CopyProposer):
    """Copies from the history, and remembers how it was called."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.started: list[Request] = []
        self.begun: list[list[int]] = []
        self.kept: list[bool] = []

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        self.started.append(request)
        self.begun.append(history.tolist())
        super().start(slot, request, history)

    def finish(self, slot: int, keep: bool) -> None:
        self.kept.append(keep)
        super().finish(slot, keep)


class Bench:
    """A drafter around a :class:`Recorder`."""

    def __init__(self, width: int = 4, trees: bool = False) -> None:
        self.proposers: list[Recorder] = []
        self.width = width
        self.drafter = Drafter(
            self._session, VOCABULARY, width, trees, logging.getLogger("specplug")
        )

    def _session(self) -> Session:
        context = Context(VOCABULARY, 500, self.width, max_requests=8)
        self.proposers.append(Recorder(context))
        return Session(self.proposers[-1], context)

    @property
    def proposer(self) -> Recorder:
        return self.proposers[-1]

    def step(self, *reqs: Any, extras: Any = None) -> list[list[int]]:
        """One decode step: the drafts per row."""
        histories = self.drafter.histories(reqs, extras or [[] for _ in reqs])
        drafts = self.drafter.draft(reqs, histories, [True] * len(reqs))
        return [t[:n].tolist() for t, n in zip(drafts.tokens, drafts.lengths.tolist(), strict=True)]


@pytest.fixture
def bench() -> Bench:
    return Bench()
