"""A datastore in the real engine: an answer that it holds takes fewer steps than with the request's own text alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug.datastore.writer import Writer
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
    info: dict[str, Any] = {}

    def ask(method: str, options: dict[str, Any]) -> Result:
        settings, environment = speculation(engine, method, **options)
        running = start(method, process={"env": environment}, **settings)
        running.ready()
        result = running.generate([PROMPT], {"temperature": 0, "max_tokens": 48}).results[0]
        info.update(running.info())
        running.close()
        return result

    before = ask("specplug.suffix", {})
    with Writer(tmp_path, int(info["vocab_size"])) as writer:
        writer.add(np.array([*before.prompt_token_ids, *before.only.token_ids], np.int32))
        writer.publish({})
    after = ask(method, {"datastore": str(tmp_path)})
    assert after.only.token_ids == before.only.token_ids
    assert len(after.only.steps) < 0.7 * len(before.only.steps)
