"""An OpenAI-compatible server that draws its tokens from a given law; loopback only."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

#: Token id = place in this list.
WORDS = (" red", " green", " blue", " grey", " white", " black", " pink", " brown")
LAW = (0.3, 0.2, 0.15, 0.1, 0.1, 0.08, 0.05, 0.02)


@dataclass
class Toy:
    """How the server behaves.

    Attributes:
        law: of every sampled token, in prompts of every name.
        greedy: ids of the greedy answer, repeated as needed.
        ids: whether ``return_token_ids`` is understood; else it is refused.
        logprobs: whether ``logprobs`` is answered.
        top_logprobs: what ``logprobs`` says of the likeliest tokens at every position.
        status: of every completion.
        choices: most answers per request.
        metrics: text of ``/metrics``.
        raw: what is sent in place of a completion.
        stop_after: sampled answers end by themselves after that many tokens with probability one half.
        requests: bodies of the completions asked for.
    """

    law: Sequence[float] = LAW
    seed: int = 0
    greedy: Sequence[int] = (0, 1, 2)
    models: Sequence[str] = ("toy",)
    ids: bool = True
    logprobs: bool = True
    top_logprobs: dict[str, float] = field(default_factory=dict)
    status: int = 200
    choices: int = 10_000
    metrics: str | None = None
    raw: bytes | None = None
    key: str | None = None
    busy: int = 0
    stop_after: int | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        self._generators: dict[str, np.random.Generator] = {}
        self._lock = threading.Lock()

    def get(self, path: str) -> tuple[int, bytes]:
        if path == "/v1/models":
            return 200, json.dumps({"data": [{"id": m} for m in self.models]}).encode()
        if path == "/metrics" and self.metrics is not None:
            return 200, self.metrics.format(len(self.requests)).encode()
        return 404, b"not found"

    def complete(self, body: dict[str, Any]) -> tuple[int, bytes]:
        with self._lock:
            self.requests.append(body)
            if self.busy > 0:
                self.busy -= 1
                return 503, b"busy"
            if self.status != 200:
                return self.status, b'{"error": "out of order"}'
            if self.raw is not None:
                return 200, self.raw
            if body.get("return_token_ids") and not self.ids:
                return 400, b'{"error": "unknown field return_token_ids"}'
            n = body.get("n", 1)
            choices = [self._choice(body) for _ in range(min(n, self.choices))]
        return 200, json.dumps({"choices": choices}).encode()

    def _coins(self, body: dict[str, Any]) -> np.random.Generator:
        """One stream per prompt and mode, so that the order in which requests arrive changes no set of answers."""
        key = json.dumps([body["prompt"], body["temperature"], body.get("top_p")])
        if key not in self._generators:
            self._generators[key] = np.random.default_rng([self.seed, zlib.crc32(key.encode())])
        return self._generators[key]

    def _choice(self, body: dict[str, Any]) -> dict[str, Any]:
        length, coins = body["max_tokens"], self._coins(body)
        if body["temperature"] == 0:
            ids = [self.greedy[i % len(self.greedy)] for i in range(length)]
        else:
            ids = coins.choice(len(self.law), length, p=self.law).tolist()
        reason = "length"
        if self.stop_after is not None and body["temperature"] > 0 and coins.random() < 0.5:
            ids, reason = ids[: self.stop_after], "stop"
        choice: dict[str, Any] = {"text": "".join(WORDS[i] for i in ids), "finish_reason": reason}
        if body.get("return_token_ids"):
            choice["token_ids"] = ids
        if body.get("logprobs") and self.logprobs:
            choice["logprobs"] = {
                "tokens": [WORDS[i] for i in ids],
                "top_logprobs": [self.top_logprobs] * length,
            }
        return choice


@contextmanager
def serving(*toys: Toy) -> Iterator[None]:
    """Start the servers and set their ``url``; they end with the block."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(toy)) for toy in toys]
    threads = [threading.Thread(target=s.serve_forever, args=(0.05,)) for s in servers]
    for toy, server, thread in zip(toys, servers, threads, strict=True):
        toy.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread.start()
    try:
        yield
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


def _handler(toy: Toy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(*toy.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if toy.key is not None and self.headers.get("Authorization") != f"Bearer {toy.key}":
                self._send(401, b"who are you?")
            else:
                self._send(*toy.complete(body))

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Silent."""

    return Handler
