"""A small client of an OpenAI-compatible server, for :mod:`specplug.testing.check_engine`.

Built on ``http.client`` on purpose: nothing is installed for it, no proxy of the environment comes between, and no
redirect leads to a server that the user did not name.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from specplug.errors import SpecplugError

#: What an answer is compared in, best first.
UNITS = ("token ids", "tokens", "words")
#: Stands at the end of an answer that ended by itself, so that ending has a probability too.
END = "<end>"
_FIELDS: dict[str, dict[str, Any]] = {
    "token ids": {"return_token_ids": True},
    "tokens": {"logprobs": 1},
    "words": {},
}
#: Counters that say whether there were drafts at all: drafted tokens (vLLM), verifications (SGLang).
_DRAFTED = ("vllm:spec_decode_num_draft_tokens_total", "sglang:spec_verify_calls_total")
#: Seconds to wait before the same request is sent again to a server that is busy.
_PAUSES = (1.0, 4.0, 16.0)
_BUSY = (429, 503)


class ServerError(SpecplugError, RuntimeError):
    """A server cannot be reached or does not answer as an OpenAI-compatible server does."""


@dataclass(frozen=True)
class Answer:
    """One answer, in units that can be compared."""

    items: tuple[Any, ...]


class Client:
    """One server. Safe to use from several threads: every request has its own connection.

    Args:
        url: ``http://host:port`` with or without a path; ``/v1`` is added where it is missing.
        name: how messages call the server.
        key: sent as bearer token.
        timeout: seconds that one request may take.

    Raises:
        ServerError: the URL is none.
    """

    def __init__(self, url: str, name: str, key: str | None = None, timeout: float = 120.0) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ServerError(
                f"{name}: expected an address like http://127.0.0.1:8000, got {url!r}"
            )
        path = parts.path.rstrip("/")
        self.name = name
        self._https = parts.scheme == "https"
        self._host, self._port = parts.hostname, port
        self._root = path.removesuffix("/v1")
        self._key, self._timeout = key, timeout
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._root}/v1"
        self.model = ""

    def choose_model(self, wanted: str | None) -> None:
        """Set the model that later requests ask for: ``wanted``, or the only one there is."""
        found = self._json("GET", "/v1/models").get("data")
        names = [str(m.get("id")) for m in found or [] if isinstance(m, dict)]
        if wanted is not None and wanted not in names:
            raise ServerError(
                f"{self} has no model {wanted!r}; it has: {', '.join(names) or 'none'}"
            )
        if wanted is None and len(names) != 1:
            raise ServerError(
                f"{self} has {len(names)} models ({', '.join(names)}); choose one with --model"
            )
        self.model = wanted or names[0]

    def offers(self, unit: str) -> bool:
        """Whether answers come in this unit; servers that refuse the field that asks for it do not."""
        body = {"prompt": "Hello", "max_tokens": 2, "temperature": 0, **_FIELDS[unit]}
        status, text = self._request("POST", "/v1/completions", {"model": self.model, **body})
        if status in (400, 422) and unit != "words":
            return False
        choices = self._parsed(status, text, "/v1/completions").get("choices")
        return isinstance(choices, list) and bool(choices) and bool(_items(choices[0], unit))

    def answers(self, prompt: str, params: Mapping[str, Any], unit: str, n: int) -> list[Answer]:
        """``n`` answers to one prompt.

        Raises:
            ServerError: no connection, a status other than 200, or not ``n`` answers in this unit.
        """
        body = {"model": self.model, "prompt": prompt, "n": n, **params, **_FIELDS[unit]}
        choices = self._json("POST", "/v1/completions", body).get("choices")
        if not isinstance(choices, list) or len(choices) != n:
            got = len(choices) if isinstance(choices, list) else "no"
            raise ServerError(
                f"{self} returned {got} answers where n={n} were asked for"
                + ("; use --batch 1 if it does not support n" if n > 1 and got else "")
            )
        found = [_items(choice, unit) for choice in choices]
        if not all(found):
            raise ServerError(f"{self} returned an answer without {unit}: {str(choices)[:200]}")
        return [Answer(items) for items in found if items]

    def gap(self, prompt: str, unit: str, at: int, pair: tuple[Any, Any]) -> float | None:
        """By how much the log-probabilities of two items at position ``at`` of the greedy answer differ.

        None where the server does not tell, or does not count both among its likeliest.
        """
        if unit == "words":
            return None
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": at + 1, "temperature": 0}
        body |= {"model": self.model, "logprobs": 5}
        if unit == "token ids":
            body["return_tokens_as_token_ids"] = True
            pair = (f"token_id:{pair[0]}", f"token_id:{pair[1]}")
        try:
            choice = self._json("POST", "/v1/completions", body)["choices"][0]
            likeliest = choice["logprobs"]["top_logprobs"][at]
            return abs(float(likeliest[pair[0]]) - float(likeliest[pair[1]]))
        except (ServerError, LookupError, TypeError, ValueError):
            return None

    def drafted(self) -> float | None:
        """The server's own count of drafts, or None if it publishes none."""
        try:
            status, text = self._request("GET", "/metrics")
        except ServerError:
            return None
        lines = text.splitlines() if status == 200 else []
        counts = [
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith(tuple(name + end for name in _DRAFTED for end in ("{", " ")))
        ]
        return sum(counts) if counts else None

    def __str__(self) -> str:
        return f"the {self.name} server {self.url}"

    def _json(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        for pause in _PAUSES:
            status, text = self._request(method, path, body)
            if status not in _BUSY:
                break
            time.sleep(pause)
        return self._parsed(status, text, path)

    def _parsed(self, status: int, text: str, path: str) -> dict[str, Any]:
        where = f"{self} answered {path} with status {status}"
        if status == 404:
            raise ServerError(f"{where}; is this an OpenAI-compatible server? {text[:200]}".strip())
        if status in (401, 403):
            raise ServerError(f"{where}; name the variable with its key in --api-key-env")
        if status in (400, 422) and re.search(r"\bn\b", text):
            raise ServerError(f"{where}: {text[:300]}; use --batch 1 if it does not support n")
        if status != 200:
            raise ServerError(f"{where}: {text[:300]}")
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ServerError(f"{where}, but not with a JSON object: {text[:200]!r}")
        return answer

    def _request(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        kind = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        connection = kind(self._host, self._port, timeout=self._timeout)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, self._root + path, data, headers)
            response = connection.getresponse()
            return response.status, response.read().decode("utf-8", "replace")
        except TimeoutError as error:
            raise ServerError(
                f"{self} did not answer {path} within {self._timeout:g} s; see --timeout"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise ServerError(f"{self} cannot be reached: {reason}") from error
        finally:
            connection.close()


def _items(choice: Any, unit: str) -> tuple[Any, ...] | None:
    """What one choice said; None if it does not say it in this unit."""
    if not isinstance(choice, dict):
        return None
    if unit == "token ids":
        found = choice.get("token_ids")
    elif unit == "tokens":
        found = (choice.get("logprobs") or {}).get("tokens")
    else:
        text = choice.get("text")
        found = re.findall(r"\s*\S+|\s+$", text) if isinstance(text, str) else None
    if not isinstance(found, list):
        return None
    return (*found, END) if choice.get("finish_reason") == "stop" else tuple(found)
