"""Measure a running OpenAI-compatible server from outside, without speculation.

A step with ``B`` tokens is taken from ``B`` requests that decode together, longer ones from prompts. Drafts cannot be
forced from outside; a step with as many tokens of fewer requests costs about the same.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from specplug.calibrate.fit import Point
from specplug.errors import SettingsError

REQUESTS = (1, 2, 4, 8, 16, 32)
PROMPTS = (32, 128, 512, 1024)
PROMPT_TOKENS = 16
SHORT, LONG = 4, 36
#: Ids of the random prompts: ordinary words in every vocabulary.
FIRST_ID, LAST_ID = 300, 5000


class Server:
    """Just enough of a client: completions of token ids.

    Args:
        url: with or without ``/v1``.

    Raises:
        SettingsError: nobody answers, or not as expected.
    """

    def __init__(self, url: str, model: str | None = None, key: str | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1") + "/v1"
        self._key = key
        models = self._json("/models")
        names = [str(entry["id"]) for entry in models.get("data", [])]
        if model is not None and model not in names:
            raise SettingsError(f"{self.url} serves {', '.join(names)}, not {model!r}")
        if not names:
            raise SettingsError(f"{self.url}/models names no model")
        self.model = model or names[0]

    def seconds(self, prompts: list[list[int]], tokens: int) -> float:
        """Wall time until all of these, sent together, are answered with so many tokens."""
        bodies = [
            {
                "model": self.model,
                "prompt": prompt,
                "max_tokens": tokens,
                "temperature": 0.0,
                "ignore_eos": True,
            }
            for prompt in prompts
        ]
        begin = time.perf_counter()
        with ThreadPoolExecutor(len(bodies)) as pool:
            answers = list(pool.map(lambda body: self._json("/completions", body), bodies))
        seconds = time.perf_counter() - begin
        for answer in answers:
            found = (answer.get("usage") or {}).get("completion_tokens")
            if found != tokens:
                raise SettingsError(
                    f"{self.url} was asked for {tokens} tokens with ignore_eos and says it made {found!r}; it must be "
                    "vLLM, SGLang, or another server that takes that"
                )
        return seconds

    def _json(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read(300).decode("utf-8", "replace")
            raise SettingsError(f"{self.url}{path}: HTTP {error.code}: {text}") from error
        except (OSError, ValueError) as error:
            raise SettingsError(f"{self.url}{path}: {error}; is the server running?") from error
        if not isinstance(found, dict):
            raise SettingsError(f"{self.url}{path}: a JSON object was expected, got {found!r:.80}")
        return found


def sweep(server: Server, rounds: int, seed: int, done: Callable[[], None]) -> Iterator[Point]:
    """Measure all points, round by round."""
    generator = np.random.default_rng(seed)

    def prompts(count: int, size: int) -> list[list[int]]:
        return [generator.integers(FIRST_ID, LAST_ID, size).tolist() for _ in range(count)]

    server.seconds(prompts(1, PROMPT_TOKENS), SHORT)
    for _ in range(rounds):
        tiny = plain = 0.0
        for requests in REQUESTS:
            given = prompts(requests, PROMPT_TOKENS)
            short, long = server.seconds(given, SHORT), server.seconds(given, LONG)
            step = (long - short) / (LONG - SHORT)
            if requests == 1:
                plain, tiny = step, server.seconds(prompts(1, 1), 1)
            yield Point("decode", requests, requests, step)
            done()
        for size in PROMPTS:
            # What travels between us and the server is in both.
            yield Point("prefill", 1, size, server.seconds(prompts(1, size), 1) - tiny + plain)
            done()


def points_of(rounds: int) -> int:
    """How many points a sweep has."""
    return rounds * (len(REQUESTS) + len(PROMPTS))
