"""So many requests at a time, always: runs inside an engine process of :mod:`specplug.testing.engine_process`.

When one request ends the next begins, as with so many clients who ask again at once. A batch that is served to its end
would be as slow as its slowest request, whatever became of the others.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any


def serve(llm: Any, prompts: list[list[int]], together: int, tokens: int) -> dict[str, Any]:
    """Serve ``prompts``, ``together`` at a time, greedily, ``tokens`` per answer.

    The clock stops when there is no prompt left for a place that has become free; what then still runs is served to its
    end all the same, since answers are compared.

    Returns:
        Seconds of the clock, seconds of processors, the engine's steps and the tokens that came in them; and all
        answers as token ids.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    engine = llm.llm_engine
    # Prompts wait in the prefix cache: answers are short here, and the figures would be about prompts otherwise.
    llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        SamplingParams(temperature=0, max_tokens=1),
        use_tqdm=False,
    )
    params = SamplingParams(
        temperature=0, max_tokens=tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )
    waiting = deque(enumerate(prompts))
    answers: list[list[int]] = [[] for _ in prompts]
    running, steps, emitted = 0, 0, 0
    found: dict[str, Any] = {}
    begun, busy = time.perf_counter(), time.process_time()
    while waiting or running:
        while waiting and running < together:
            number, prompt = waiting.popleft()
            engine.add_request(f"loop-{number}", {"prompt_token_ids": prompt}, params)
            running += 1
        outputs = engine.step()
        steps += 1
        for output in outputs:
            new = [int(token) for token in output.outputs[0].token_ids]
            answers[int(output.request_id.removeprefix("loop-"))] += new
            emitted += len(new)
            running -= bool(output.finished)
        if not found and not waiting and running < together:
            found = {
                "seconds": time.perf_counter() - begun,
                "processor_seconds": time.process_time() - busy,
                "steps": steps,
                "tokens": emitted,
            }
    return {**found, "text": answers}
