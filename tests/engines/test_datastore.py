"""A datastore in the real engine: an answer that it holds takes fewer steps than with the request's own text alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug.datastore.writer import Writer
from specplug.index.datastore import FILE
from specplug.testing.engine_protocol import Result

from .conftest import Start
from .engines import Engine, speculation

PROMPT = "The first ten elements of the periodic table and one property of each:\n1."


@pytest.mark.parametrize(
    "method", ["specplug.hybrid", pytest.param("specplug.rest", marks=pytest.mark.long)]
)
def test_what_a_datastore_holds_comes_in_fewer_steps(
    start: Start, engine: Engine, tmp_path: Path, method: str
) -> None:
    """Whatever happens to its file meanwhile: it is removed, published again, cut in place."""

    def started(method: str, **options: Any) -> Any:
        settings, environment = speculation(engine, method, **options)
        running = start(method, process={"env": environment}, **settings)
        running.ready()
        return running

    def answer(running: Any) -> Result:
        result: Result = running.generate([PROMPT], {"temperature": 0, "max_tokens": 48}).results[0]
        return result

    def publish() -> Path:
        with Writer(tmp_path, vocab_size) as writer:
            writer.add(np.array([*before.prompt_token_ids, *before.only.token_ids], np.int32))
            writer.publish({})
        return tmp_path / FILE

    running = started("specplug.suffix")
    vocab_size = int(running.info()["vocab_size"])
    before = answer(running)
    running.close()
    file = publish()
    running = started(method, datastore=str(tmp_path), refresh_s=0.0)
    steps = []
    for damage in (None, file.unlink, publish, lambda: os.truncate(file, 4200), publish):
        if damage is not None:
            damage()
        after = answer(running)
        assert after.only.token_ids == before.only.token_ids
        steps.append(len(after.only.steps))
    running.close()
    # A removed file stays in use. ``hybrid`` has the answers that it gave meanwhile, ``rest`` has nothing else.
    assert all(count < 0.7 * len(before.only.steps) for count in (*steps[:3], steps[4]))
    if method == "specplug.rest":
        assert steps[3] == len(before.only.token_ids)
