"""Python environments outside the checkout: built once per lock file, used by any number of clones.

Two layers, and neither changes after its stamp is written, so a clone can never break another one:

* ``envs/<name>-<digest>`` holds the third-party packages of one lock file. The digest covers the lock,
  the Python version and the platform: a changed lock is a new folder beside the old one.
* ``checkouts/<name>-<digest>`` is a thin virtual environment on top, with only this checkout installed
  editable. Its digest covers the layer below, the checkout's path and its packaging metadata.

Usage (standard library and pip only)::

    python tools/environments.py run core -P -m pytest tests/unit
    python tools/environments.py python vllm         # prints the interpreter's path
    python tools/environments.py list
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cache_folder import cache_root, exclusive, say

CHECKOUT = Path(__file__).resolve().parents[1]
STAMP = "specplug-complete"
#: Seconds between two signs of life of a long step.
HEARTBEAT_S = 10.0
#: The Python that the lock files were made for.
LOCKED_PYTHON = (3, 11)
#: Raise when the way an environment is built changes although no lock file did.
RECIPE = 2


@dataclass(frozen=True)
class Environment:
    """One purpose. Adding one is a row in ``ENVIRONMENTS`` and a lock file."""

    lock: str
    #: What a person should expect before the first run, e.g. "1 minute"; with an empty download cache.
    expect: str
    #: Set for every command run inside, unless the caller has set them.
    variables: dict[str, str] = field(default_factory=dict)
    #: Folders of the checkout whose modules and entry points can be imported, before those of the lock.
    paths: tuple[str, ...] = ()


ENVIRONMENTS = {
    "core": Environment("requirements/core.txt", "about 1 minute, 0.6 GB of disk"),
    "docs": Environment("requirements/docs.txt", "10 seconds, 0.1 GB of disk"),
    "lowest": Environment("requirements/lowest.txt", "about 1 minute, 0.6 GB of disk"),
    "bench": Environment(
        "requirements/bench.txt",
        "5 to 10 minutes, most of it to build arctic-inference; 1 GB of disk",
    ),
    "vllm": Environment(
        "requirements/vllm.txt",
        "2 to 5 minutes, 2 GB of disk",
        {
            # Nothing may depend on a model hub being reachable.
            "HF_HUB_OFFLINE": "1",
            # Gigabytes; vLLM's own default would take half of the memory of a small machine.
            "VLLM_CPU_KVCACHE_SPACE": "2",
        },
    ),
    "sglang": Environment(
        "requirements/sglang.txt",
        "5 to 10 minutes, 7 GB of disk",
        {
            "HF_HUB_OFFLINE": "1",
            # Without it the speculative modules import CUDA and Triton operations.
            "SGLANG_USE_CPU_ENGINE": "1",
            # Where other work runs too, two threads per operation make each up to thirty times slower.
            "OMP_NUM_THREADS": "1",
            # The repetition penalty is compiled on first use: minutes of C++, or it hangs.
            "TORCHDYNAMO_DISABLE": "1",
            # One model family instead of 250 modules in each process: most of the time to start.
            "SGLANG_EXTERNAL_MODEL_PACKAGE": "sglang_cpu_models",
        },
        # The CPU operations that no published wheel has; see tests/sglang_cpu/README.md.
        ("tests/sglang_cpu",),
    ),
}


def _digest(*parts: bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "big") + part)
    return total.hexdigest()[:12]


def third_party_folder(name: str) -> Path:
    """Return the folder of the shared layer of environment ``name``; it need not exist yet."""
    python = f"{RECIPE} {sys.version} {platform.machine()}"
    lock = (CHECKOUT / ENVIRONMENTS[name].lock).read_bytes()
    return cache_root() / "envs" / f"{name}-{_digest(python.encode(), lock)}"


def checkout_folder(name: str) -> Path:
    """Return the folder of the thin layer that holds this checkout; it need not exist yet."""
    metadata = [CHECKOUT / "pyproject.toml", CHECKOUT / "specplug" / "_version.py"]
    above = "\n".join(ENVIRONMENTS[name].paths)
    below = f"{third_party_folder(name)}{above}".encode()
    digest = _digest(below, str(CHECKOUT).encode(), *(path.read_bytes() for path in metadata))
    return cache_root() / "checkouts" / f"{name}-{digest}"


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _site_packages(folder: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return folder / "lib" / version / "site-packages"


def _pip_into(folder: Path) -> list[str | Path]:
    """The pip that was there before; bootstrapping one per environment costs seconds, and is missing on Debian."""
    return [sys.executable, "-m", "pip", "--python", _python(folder), "install"]


def _run_quietly(
    command: Sequence[str | Path], log: Path, progress: Callable[[], str], layer: Path
) -> None:
    """Run ``command`` with its output in ``log``; say ``progress()`` now and then, and the log's end on failure."""
    # Packages that are built with CMake look for Python there first, and elsewhere may find one without headers.
    variables = {**os.environ, "VIRTUAL_ENV": str(layer)}
    started = time.monotonic()
    beat = started + HEARTBEAT_S
    with open(log, "ab") as output:
        arguments = [os.fspath(part) for part in command]
        process = subprocess.Popen(
            arguments, stdout=output, stderr=subprocess.STDOUT, cwd=CHECKOUT, env=variables
        )
        try:
            while process.poll() is None:
                time.sleep(0.1)
                if time.monotonic() >= beat:
                    beat += HEARTBEAT_S
                    say(f"  {time.monotonic() - started:.0f} s: {progress()}")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
        raise SystemExit(
            f"{tail}\nspecplug: pip failed with exit code {process.returncode}; the whole log is {log}"
        )


def _install_progress(lock: str, folder: Path, log: Path) -> str:
    """Say how far pip is: packages in place, and before the first one what it fetches."""
    lines = (CHECKOUT / lock).read_text().splitlines()
    wanted = sum(1 for line in lines if line and not line.startswith("#"))
    done = len(list(_site_packages(folder).glob("*.dist-info")))
    fetched = log.read_text(errors="replace").count("Collecting ")
    return (
        f"{done} of {wanted} packages installed"
        if done
        else f"{fetched} of {wanted} packages found"
    )


def _build_third_party(name: str, folder: Path) -> None:
    environment = ENVIRONMENTS[name]
    say(f"building environment '{name}' (once; {environment.expect}) in {folder}")
    started = time.monotonic()
    # Built in place, because scripts of a virtual environment hold absolute paths; a folder without
    # its stamp was interrupted and is thrown away.
    shutil.rmtree(folder, ignore_errors=True)
    log = folder.with_name(folder.name + ".log")
    log.write_bytes(b"")
    venv.create(folder, with_pip=False, symlinks=True)
    # The lock names every package, so the resolver has nothing to decide: --no-deps also keeps out
    # packages that a dependency asks for but that break it (see the head of requirements/vllm.txt).
    install = [*_pip_into(folder), "--no-deps", "--progress-bar", "off"]
    _run_quietly(
        [*install, "-r", environment.lock],
        log,
        lambda: _install_progress(environment.lock, folder, log),
        folder,
    )
    (folder / STAMP).write_text(f"{environment.lock}\n")
    say(f"environment '{name}' ready after {time.monotonic() - started:.0f} s")


def _mirror(below: Path, folder: Path) -> None:
    """Make the programs and libraries of the layer below reachable from the thin layer.

    Scripts get this layer's interpreter in their first line; binaries, shared libraries and data folders
    are linked. Without it ``ruff`` would not be found, and ``pytest`` would not see this checkout.
    """
    old, new = (f"#!{_python(layer)}".encode() for layer in (below, folder))
    for source in sorted((below / "bin").iterdir()):
        target = folder / "bin" / source.name
        ours = source.name.startswith(("python", "activate", "Activate"))
        if ours or target.exists() or not source.is_file():
            continue
        content = source.read_bytes()
        if content.startswith(old):
            target.write_bytes(new + content[len(old) :])
            target.chmod(0o755)
        else:
            target.symlink_to(source)
    for parent in ("lib", "."):
        for source in sorted((below / parent).iterdir()):
            target = folder / parent / source.name
            if source.name != STAMP and not target.exists() and not target.is_symlink():
                target.symlink_to(source)


def _build_checkout(name: str, below: Path, folder: Path) -> None:
    say(f"installing this checkout, editable, into {folder.name}")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=False, symlinks=True)
    # addsitedir, not a bare path: .pth files of the layer below must be obeyed too.
    # In this order: a folder of the checkout hides a module of the same name in the lock.
    lines = [str(CHECKOUT / path) for path in ENVIRONMENTS[name].paths]
    lines += [f"import site; site.addsitedir({str(_site_packages(below))!r})"]
    (_site_packages(folder) / "specplug-third-party.pth").write_text("\n".join(lines) + "\n")
    _mirror(below, folder)
    log = folder.with_name(folder.name + ".log")
    log.write_bytes(b"")
    install = [*_pip_into(folder), "--no-deps", "--no-build-isolation"]
    _run_quietly([*install, "--editable", CHECKOUT], log, lambda: "editable install", folder)
    (folder / STAMP).write_text(f"{CHECKOUT}\n")


def ensure(name: str) -> Path:
    """Build what is missing of environment ``name`` and return its interpreter.

    Costs milliseconds when both layers are there. Safe to call from several processes and clones at once.

    Raises:
        SystemExit: a build step failed; the message holds the end of its log.
    """
    if sys.version_info[:2] != LOCKED_PYTHON:
        wanted, found = (
            ".".join(map(str, version[:2])) for version in (LOCKED_PYTHON, sys.version_info)
        )
        raise SystemExit(
            f"specplug: requirements/*.txt are locked for Python {wanted}, but this is {found} "
            f"({sys.executable}); pass another one: make PYTHON=python{wanted}"
        )
    below, folder = third_party_folder(name), checkout_folder(name)
    if not (below / STAMP).exists():
        with exclusive(below):
            if not (below / STAMP).exists():
                _build_third_party(name, below)
    if not (folder / STAMP).exists():
        # One lock per checkout, not per layer: setuptools writes its egg-info into the checkout.
        with exclusive(folder.with_name("checkout-" + _digest(str(CHECKOUT).encode()))):
            if not (folder / STAMP).exists():
                _build_checkout(name, below, folder)
    return _python(folder)


def _show() -> None:
    for name in ENVIRONMENTS:
        for folder in (third_party_folder(name), checkout_folder(name)):
            state = "ready" if (folder / STAMP).exists() else "not built"
            print(f"{name:8} {state:10} {folder}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line; ``run`` replaces this process, so exit codes and signals pass through."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for command, text in (("run", "run Python inside"), ("python", "print the interpreter")):
        sub = commands.add_parser(command, help=text)
        sub.add_argument("name", choices=sorted(ENVIRONMENTS))
        if command == "run":
            sub.add_argument("arguments", nargs=argparse.REMAINDER)
    commands.add_parser("list", help="show the folders and whether they are built")
    options = parser.parse_args(arguments)
    if options.command == "list":
        _show()
        return
    interpreter = ensure(options.name)
    if options.command == "python":
        print(interpreter)
        return
    variables = {**ENVIRONMENTS[options.name].variables, **os.environ}
    # A caller's PYTHONPATH or PYTHONHOME could put another copy of the package in front of this one.
    for unwanted in ("PYTHONPATH", "PYTHONHOME"):
        variables.pop(unwanted, None)
    variables["PATH"] = f"{interpreter.parent}{os.pathsep}{variables.get('PATH', os.defpath)}"
    os.execve(interpreter, [str(interpreter), *options.arguments], variables)


if __name__ == "__main__":
    main()
