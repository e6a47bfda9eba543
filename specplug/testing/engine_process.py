"""A serving engine in a process of its own, driven by JSON lines.

The process is the leader of its own process group, writes its logs to a file, and is always ended with everything
that it started: on ``close``, when the ``with`` block ends, when a command takes too long, and when our
own interpreter exits. One command is one JSON object on a line; so is its answer.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from specplug.testing.engine_protocol import (
    Batch,
    Completion,
    Counters,
    EngineProcessError,
    EngineRequestError,
    Params,
    Prompt,
    Result,
    Step,
)

#: The modules that host an engine: each runs ``python -m`` and speaks the protocol of this file.
HOSTS = {
    "vllm": "specplug.adapters.vllm_v1.offline_engine",
    "sglang": "specplug.adapters.sglang_srt.offline_engine",
}


def engine_environment(
    python: str = sys.executable,
    *,
    kv_cache_gb: int = 1,
    in_process: bool = True,
    extra: Mapping[str, str] | None = None,
    engine: str = "vllm",
) -> dict[str, str]:
    """The environment variables under which an engine on a CPU is fast, offline and reproducible.

    Args:
        python: the interpreter of the engine; its own ``lib/libiomp5.so`` is preloaded, if there.
        kv_cache_gb: size of the KV cache, GB.
        in_process: run scheduler and worker in one process (faster on few cores) instead of three.
        extra: what else to set.
        engine: a key of :data:`HOSTS`; the two arguments before ``extra`` are for vLLM only.
    """
    env = dict(os.environ)
    env.update(
        HF_HUB_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
        PYTHONUNBUFFERED="1",
        # vLLM's top-k log-probabilities and SGLang's repetition penalty are compiled on first use: minutes of gcc.
        TORCHDYNAMO_DISABLE="1",
    )
    if engine == "sglang":
        # Two threads per operation make each up to thirty times slower where other work runs too.
        return {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", **env, **(extra or {})}
    env.update(
        VLLM_CPU_KVCACHE_SPACE=str(kv_cache_gb),
        VLLM_ENABLE_V1_MULTIPROCESSING="0" if in_process else "1",
        VLLM_NO_USAGE_STATS="1",
    )
    # Not resolved: a virtual environment's python is a link to one outside of it.
    omp = Path(python).absolute().parent.parent / "lib" / "libiomp5.so"
    if omp.exists():
        preload = [str(omp), *env.get("LD_PRELOAD", "").split(":")]
        env["LD_PRELOAD"] = ":".join(dict.fromkeys(p for p in preload if p))
    env.update(extra or {})
    return env


class ManagedProcess:
    """A subprocess that leads a process group, logs to a file, and never outlives us; nor do its temporary files.

    Without ``log`` the log is a temporary file too; it stays only if :meth:`fail` has shown it.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        name: str,
        log: Path | None = None,
        piped: bool = False,
    ) -> None:
        self.name = name
        self._keeps_log = log is not None
        self._last_words: str | None = None
        if log is None:
            handle, path = tempfile.mkstemp(prefix=f"specplug-{name}-", suffix=".log")
            os.close(handle)
            log = Path(path)
        self.log = log
        # Sockets and other files of the processes, which cannot clean up when they are ended.
        self._scratch = tempfile.mkdtemp(prefix=f"specplug-{name}-")
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                list(command),
                env={**env, "TMPDIR": self._scratch},
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else sink,
                stderr=sink,
                start_new_session=True,
            )
        atexit.register(self.end)

    @property
    def log_tail(self) -> str:
        """The last 40 lines of the log."""
        return "\n".join(self.log_text.splitlines()[-40:])

    @property
    def log_text(self) -> str:
        """The whole log."""
        if self._last_words is not None:
            return self._last_words
        return self.log.read_text(errors="replace")

    def fail(self, what: str) -> EngineProcessError:
        """End the process; an error that shows what went wrong and the end of the log."""
        code = self.process.poll()
        self._keeps_log = True
        self.end()
        state = "did not exit" if code is None else f"exited with status {code}"
        return EngineProcessError(
            f"engine {self.name!r} {what} (process {state}); log {self.log}, last lines:\n"
            f"{self.log_tail}"
        )

    def end(self, grace_seconds: float = 5.0) -> None:
        """End the whole group: politely first, then for good."""
        atexit.unregister(self.end)
        for number, wait in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 10.0)):
            # The group can outlive its leader, so it is signalled even when the leader has gone.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(wait)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        shutil.rmtree(self._scratch, ignore_errors=True)
        if not self._keeps_log and self._last_words is None:
            self._last_words = self.log_text
            self.log.unlink(missing_ok=True)


class EngineProcess:
    """A :class:`~specplug.testing.engine_protocol.Driver` for an engine in a subprocess.

    Args:
        options: what the engine's constructor takes (``model``, ``dtype``, ``speculative_config``, ...).
        name: how messages and the log file call it.
        engine: which host module, a key of :data:`HOSTS`.
        python: the interpreter that has the engine installed.
        env: more environment variables.
        start_seconds, command_seconds: limits, wall clock.
        wait: block until the engine is ready; otherwise call :meth:`ready` before the first command.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        name: str = "engine",
        engine: str = "vllm",
        python: str = sys.executable,
        kv_cache_gb: int = 1,
        in_process: bool = True,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
        start_seconds: float = 300.0,
        command_seconds: float = 300.0,
        wait: bool = True,
    ) -> None:
        if engine not in HOSTS:
            raise ValueError(f"unknown engine {engine!r}; there are {sorted(HOSTS)}")
        self._seconds = command_seconds
        self._deadline = time.monotonic() + start_seconds
        self._buffer = b""
        self._info: dict[str, Any] = {}
        environment = engine_environment(
            python, kv_cache_gb=kv_cache_gb, in_process=in_process, extra=env, engine=engine
        )
        self._managed = ManagedProcess(
            [python, "-P", "-m", HOSTS[engine]], environment, name=name, log=log, piped=True
        )
        self._send({"options": dict(options)})
        if wait:
            self.ready()

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def log_tail(self) -> str:
        """The last lines of the engine's own log."""
        return self._managed.log_tail

    @property
    def log_text(self) -> str:
        """The engine's whole log."""
        return self._managed.log_text

    @property
    def pid(self) -> int:
        """The process, which is also the number of its group."""
        return self._managed.process.pid

    def ready(self) -> None:
        """Wait until the engine has loaded its model.

        Raises:
            EngineRequestError: the engine refused its options.
            EngineProcessError: it died or took too long.
        """
        if not self._info:
            try:
                self._info = self._receive(self._deadline - time.monotonic(), "starting")
            except EngineRequestError:
                self.close()
                raise

    def info(self) -> dict[str, Any]:
        """See :meth:`Driver.info`."""
        self.ready()
        return dict(self._info)

    def tokenize(self, prompt: Prompt) -> list[int]:
        """See :meth:`Driver.tokenize`."""
        return [int(t) for t in self.call("tokenize", prompt=prompt)["token_ids"]]

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: Params | Sequence[Params],
        *,
        abort_after: Mapping[int, int] | None = None,
        raw_seed: int | None = None,
    ) -> Batch:
        """See :meth:`Driver.generate`."""
        each = [dict(params)] * len(prompts) if isinstance(params, Mapping) else list(params)
        if len(each) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts but {len(each)} sets of sampling parameters")
        answer = self.call(
            "generate",
            prompts=list(prompts),
            params=[dict(p) for p in each],
            abort_after={str(i): n for i, n in (abort_after or {}).items()},
            raw_seed=raw_seed,
        )
        return _batch(answer)

    def metrics(self) -> Counters:
        """See :meth:`Driver.metrics`."""
        answer = self.call("metrics")
        answer["accepted_per_position"] = tuple(answer["accepted_per_position"])
        return Counters(**answer)

    def close(self) -> None:
        """End the engine and everything it started."""
        self._managed.end()

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send one command and wait for its answer."""
        self.ready()
        self._send({"command": command, **arguments})
        return self._receive(self._seconds, f"answering {command!r}")

    def _send(self, message: Mapping[str, Any]) -> None:
        pipe = self._managed.process.stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(message).encode() + b"\n")
            pipe.flush()
        except (OSError, ValueError) as error:
            raise self._managed.fail(f"takes no commands ({error})") from error

    def _receive(self, seconds: float, doing: str) -> dict[str, Any]:
        try:
            answer = json.loads(self._line(seconds, doing))
        except KeyboardInterrupt:
            self.close()
            raise
        if "error" in answer:
            raise EngineRequestError(answer["kind"], answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _line(self, seconds: float, doing: str) -> bytes:
        pipe = self._managed.process.stdout
        assert pipe is not None
        end = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0:
                raise self._managed.fail(f"took more than {seconds:.0f} s {doing}")
            # In slices: a child of a dead engine can hold the pipe open, so that its end never comes.
            dead = self._managed.process.poll() is not None
            if not select.select([pipe], [], [], min(left, 0.5))[0]:
                if dead:
                    raise self._managed.fail(f"died while {doing}")
                continue
            piece = os.read(pipe.fileno(), 1 << 16)
            if not piece:
                # The pipe closes a moment before the status can be collected.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._managed.process.wait(5)
                raise self._managed.fail(f"died while {doing}")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def _batch(answer: Mapping[str, Any]) -> Batch:
    results = tuple(
        Result(
            prompt_token_ids=tuple(r["prompt_token_ids"]),
            completions=tuple(_completion(c) for c in r["completions"]),
            cached_tokens=r["cached_tokens"],
        )
        for r in answer["results"]
    )
    return Batch(results, float(answer["seconds"]), int(answer["engine_steps"]))


def _completion(raw: Mapping[str, Any]) -> Completion:
    logprobs = raw["logprobs"]
    return Completion(
        token_ids=tuple(raw["token_ids"]),
        text=raw["text"],
        finish_reason=raw["finish_reason"],
        stop_reason=raw["stop_reason"],
        logprobs=None
        if logprobs is None
        else tuple({int(t): float(v) for t, v in position.items()} for position in logprobs),
        steps=tuple(Step(tuple(draft), tuple(sampled)) for draft, sampled in raw["steps"]),
    )
