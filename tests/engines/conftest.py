"""Processes shared by the tests of this folder, started once per session (each takes 15 to 90 seconds).

``SPECPLUG_TEST_MODEL`` names the model folder; without it ``tools/model.py`` makes one.
``SPECPLUG_TEST_METHOD`` is a key of the engine's ``methods``: with the engine's own ``ngram`` the suite tells a fault
of ours from a fault of the engine, with ``copy`` a fault of the adapter from one of the proposer.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specplug.testing.engine_process import EngineProcess

from .compare import Tally
from .engines import ENGINES, Engine, installed, path, together
from .remember import Remembering

REPOSITORY = Path(__file__).resolve().parents[2]
METHOD = os.environ.get("SPECPLUG_TEST_METHOD", "specplug.suffix")

#: Files about the other engine cannot be imported here.
collect_ignore_glob = [
    f"test_{name}_*.py" for name in ENGINES if importlib.util.find_spec(name) is None
]

if importlib.util.find_spec("vllm") is not None:
    # Triton decides as it is imported, for its own library too, whether it is interpreted, as `three_lookups` needs it.
    # Whatever imports it later in this process gets the same; engines are processes of their own and do not inherit it.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        import triton.language  # noqa: F401

#: For an engine that should find the modules and the proposers in ``plugin/``.
WITH_PLUGINS = {"PYTHONPATH": path(str(Path(__file__).parent / "plugin"))}
TALLY = pytest.StashKey[Tally]()
Start = Callable[..., EngineProcess]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Everything here needs a real engine: mark it with the installed one, and skip it where there is none."""
    here = Path(__file__).parent
    engine = installed()
    for item in items:
        if here in item.path.parents:
            item.add_marker(engine.name if engine else "vllm")
            if engine is None:
                item.add_marker(pytest.mark.skip(reason="neither vLLM nor SGLang is installed"))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how often the near-tie rule was needed."""
    tally = config.stash.get(TALLY, None)
    if tally is not None and tally.compared:
        terminalreporter.write_line(
            f"greedy outputs compared with plain decoding: {tally.compared}, "
            f"near-ties accepted: {len(tally.near_ties)}"
        )
        for line in tally.near_ties:
            terminalreporter.write_line(f"  {line}")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tiny models run in this process; where other work goes on, two threads make them forty times slower than one."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def tally(pytestconfig: pytest.Config) -> Tally:
    """Counts comparisons and near-ties over the whole session."""
    return pytestconfig.stash.setdefault(TALLY, Tally())


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The engine under test."""
    found = installed()
    assert found is not None
    return found


@pytest.fixture(scope="session")
def model() -> str:
    """The folder of SmolLM2-135M-Instruct."""
    given = os.environ.get("SPECPLUG_TEST_MODEL")
    if given:
        return str(Path(given).expanduser())
    made = subprocess.run(
        [sys.executable, str(REPOSITORY / "tools" / "model.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, f"tools/model.py failed:\n{made.stderr}"
    return made.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="session")
def start(engine: Engine, model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start the engine under test in float32; whatever was started is ended with the session."""
    logs = tmp_path_factory.mktemp("engines")
    running: list[EngineProcess] = []

    def begin(name: str, *, process: dict[str, Any] | None = None, **options: Any) -> EngineProcess:
        process = dict(process or {})
        process["env"] = together(engine.environment, process.get("env", {}))
        defaults = {"model": model, "dtype": "float32", "max_model_len": 2048, "max_num_seqs": 64}
        started = EngineProcess(
            {**defaults, **engine.options, **options},
            name=name,
            engine=engine.name,
            log=logs / f"{name}.log",
            **{"wait": False, "command_seconds": engine.command_seconds, **process},
        )
        running.append(started)
        return started

    yield begin
    for started in running:
        started.close()


@pytest.fixture(scope="session")
def pair(start: Start, engine: Engine) -> tuple[Remembering, EngineProcess]:
    """The plain and the speculating engine; started together, because both are needed by almost every test."""
    plain = start("plain", process={"env": engine.plain})
    spec = start("spec", **engine.methods[METHOD])
    plain.ready()
    spec.ready()
    return Remembering(plain), spec


@pytest.fixture(scope="session")
def plain(pair: tuple[Remembering, EngineProcess]) -> Remembering:
    """An engine without speculation; greedy answers are remembered."""
    return pair[0]


@pytest.fixture(scope="session")
def spec(pair: tuple[Remembering, EngineProcess]) -> EngineProcess:
    """An engine that speculates, otherwise the same."""
    return pair[1]


@pytest.fixture(scope="session")
def scripted(start: Start, engine: Engine) -> EngineProcess:
    """Runs the proposer of ``plugin/``, found by its entry point; it drafts what a test tells it."""
    running = start("scripted", process={"env": WITH_PLUGINS}, **engine.scripted)
    running.ready()
    return running
