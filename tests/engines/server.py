"""A small client for OpenAI-compatible servers, and the server as a managed process."""

from __future__ import annotations

import http.client
import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specplug.testing.engine_process import ManagedProcess, engine_environment

from .engines import VLLM, Engine


def free_port() -> int:
    """A port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """The engine's OpenAI-compatible server in its default form, several processes; ``arguments`` come last."""

    def __init__(
        self,
        model: str,
        log: Path,
        *arguments: str,
        engine: Engine = VLLM,
        env: dict[str, str] | None = None,
    ):
        self.port = free_port()
        command = [sys.executable, "-P", *engine.server, model, "--served-model-name", "test"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), *arguments]
        extra = {**engine.environment, **(env or {})}
        environment = engine_environment(in_process=False, extra=extra, engine=engine.name)
        self.process = ManagedProcess(command, environment, name="server", log=log)

    def wait(self, seconds: float = 300.0) -> None:
        """Until the server answers."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.process.poll() is not None:
                raise self.process.fail("died while starting")
            try:
                if self.request("GET", "/health")[0] == 200:
                    return
            except OSError:
                time.sleep(0.5)
        raise self.process.fail(f"took more than {seconds:.0f} s to start")

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Status and text of one request."""
        connection = self._send(method, path, body)
        try:
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """The parsed answer of a request that must succeed."""
        status, text = self.request("POST", path, {"model": "test", **body})
        assert status == 200, (status, text)
        answer: dict[str, Any] = json.loads(text)
        return answer

    def stream(self, path: str, **body: Any) -> Iterator[dict[str, Any]]:
        """The events of a streaming request; closing the iterator early hangs up."""
        connection = self._send("POST", path, {"model": "test", "stream": True, **body})
        try:
            response = connection.getresponse()
            assert response.status == 200, response.read()
            for raw in response:
                line = raw.decode().strip()
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield json.loads(line.removeprefix("data: "))
        finally:
            connection.close()

    def counter(self, name: str) -> float:
        """The sum of a Prometheus counter over its labels."""
        status, text = self.request("GET", "/metrics")
        assert status == 200
        values = [
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.startswith((f"{name}{{", f"{name} "))
        ]
        return sum(values)

    def _send(self, method: str, path: str, body: Any) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        return connection
