"""Type-check the package as users get it: installed, because the checkout hides the mapped folders.

Inside the checkout ``mypy -p specplug`` reports success without ever reading ``adapters/`` and
``proposers/``. So the package is installed into ``build/types``, checked there, and the number of files
that mypy read is compared with the number of sources. Runs in the core environment (``make lint``).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGE_FOLDERS = ("specplug", "adapters", "proposers")


def install(target: Path) -> None:
    """Install the checkout into ``target``; leftovers of an older build would bring back deleted modules."""
    # Not all of build/: results of benchmarks lie there too.
    for folder in (target, CHECKOUT / "build" / "lib"):
        shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    # The installed files are only read, so byte code would be wasted time.
    subprocess.run([*pip, "--no-compile", "--target", str(target), str(CHECKOUT)], check=True)


def check_package(target: Path) -> str:
    """Run mypy on the package in ``target`` and return what it printed.

    Raises:
        SystemExit: mypy found errors, or did not read every source file.
    """
    command = [sys.executable, "-P", "-m", "mypy", "--strict", "-p", "specplug"]
    environment = {**os.environ, "MYPYPATH": str(target)}
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        print(done.stdout.replace(f"{target.relative_to(CHECKOUT)}/", ""), end="")
        raise SystemExit("specplug: mypy failed on the installed package, see above")
    expected = sum(len(list((CHECKOUT / name).rglob("*.py"))) for name in PACKAGE_FOLDERS)
    found = re.search(r"no issues found in (\d+) source files?", done.stdout)
    if found is None or int(found[1]) != expected:
        raise SystemExit(f"specplug: mypy was to read {expected} files, but said: {done.stdout}")
    return done.stdout


def main() -> None:
    """Check the installed package, then the scripts in ``tools/``."""
    target = CHECKOUT / "build" / "types"
    install(target)
    print("package:", check_package(target), end="")
    scripts = [path.name for path in sorted((CHECKOUT / "tools").glob("*.py"))]
    command = [sys.executable, "-P", "-m", "mypy", "--strict", *scripts]
    print("tools:", end=" ", flush=True)
    environment = {**os.environ, "MYPYPATH": str(target)}
    raise SystemExit(subprocess.run(command, cwd=CHECKOUT / "tools", env=environment).returncode)


if __name__ == "__main__":
    main()
