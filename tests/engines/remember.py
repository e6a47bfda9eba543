"""A plain engine that is asked each greedy question once: many checks compare with the same answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from specplug.testing.engine_process import EngineProcess
from specplug.testing.engine_protocol import Batch, Params, Prompt, Result


class Remembering:
    """Passes everything on, but answers a greedy request from memory where it was served before.

    A greedy answer does not depend on the batch, but for near-ties, which :mod:`compare` allows for.
    """

    def __init__(self, engine: EngineProcess) -> None:
        self._engine = engine
        self._known: dict[str, Result] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: Params | Sequence[Params],
        *,
        abort_after: Mapping[int, int] | None = None,
        raw_seed: int | None = None,
    ) -> Batch:
        """See ``Driver.generate``; time and steps are those of the new requests."""
        each = [params] * len(prompts) if isinstance(params, Mapping) else list(params)
        if abort_after or raw_seed is not None or any(p.get("temperature") != 0 for p in each):
            return self._engine.generate(
                prompts, params, abort_after=abort_after, raw_seed=raw_seed
            )
        keys = [json.dumps([q, dict(p)]) for q, p in zip(prompts, each, strict=True)]
        new = {
            key: (prompt, own)
            for key, prompt, own in zip(keys, prompts, each, strict=True)
            if key not in self._known
        }
        seconds, steps = 0.0, 0
        if new:
            batch = self._engine.generate(
                [p for p, _ in new.values()], [o for _, o in new.values()]
            )
            self._known.update(zip(new, batch.results, strict=True))
            seconds, steps = batch.seconds, batch.engine_steps
        return Batch(tuple(self._known[key] for key in keys), seconds, steps)
