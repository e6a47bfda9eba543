"""Mutation testing of the verification code: change one thing, and see whether a test notices.

    python -P tools/mutation.py                       # all of it, some minutes on one core
    python -P tools/mutation.py specplug/verify/chain.py specplug/kernels/draw.py
    python -P tools/mutation.py --match "0.5)" FILE   # those whose line shows this text
    python -P tools/mutation.py --list                # only show what would be changed

Kernels run without their compiler here (the same source, interpreted), so that a mutant costs a fraction of a second
and not a compilation. pytest collects the tests once; each mutant is one syntax-tree change, put into the collected
code in a forked process, and nothing on disk changes. A kernel is first compared with its slow twin, which ends most
mutants in milliseconds; then the tests run, the one that noticed most changes of this file first, until one fails. A
mutant survives if all tests pass. Survivors that cannot be told from the original are listed in
``tests/meta/equivalent_mutants.txt`` with the argument why; an entry there that matches no survivor is an
error. Exit code 1 if there is any other survivor.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))  # run with -P, so that the installed package is tested

from mutants import ROOT, Mutant, apply, mutants_of, unchanged

os.environ["NUMBA_DISABLE_JIT"] = "1"
os.environ["SPECPLUG_HYPOTHESIS_PROFILE"] = "mutation"

KERNELS = ("draw", "accept", "accept_sampled", "accept_tree", "topology", "sampling", "penalties")
DEFAULT = [
    *(f"specplug/kernels/{name}.py" for name in KERNELS),
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "specplug/verify").glob("*.py")),
]
TESTS = [
    "tests/unit/verify",
    "tests/property/test_verify_twins.py",
    "tests/property/test_tree_twins.py",
    "tests/property/test_pipeline_laws.py",
    "tests/property/test_sampled_laws.py",
    "tests/property/test_tree_laws.py",
]
EQUIVALENT = ROOT / "tests/meta/equivalent_mutants.txt"
#: Seconds of processor time for the comparison with the twin, and for each test: a loop without end is a noticed
#: change. Without a change the comparison takes below one, and the longest test four.
SECONDS = (5, 20)
#: Address space: a mutant that allocates without end is a noticed change too.
_BYTES = 6 * 2**30
#: What a child's exit code says, besides the position of the test that failed plus this.
_SURVIVED, _TWIN, _FIRST_TEST = 0, 1, 10


class Server:
    """A pytest plugin that runs the collected tests once per mutant instead of once."""

    def __init__(self, mutants: list[Mutant]) -> None:
        self.mutants = mutants
        self.survivors: list[Mutant] = []
        self.by_twin = 0
        self.judged = 0

    def pytest_runtestloop(self, session: Any) -> bool:
        """Judge every mutant with ``session.items``."""
        begun = time.monotonic()
        items = list(session.items)
        # Every function gets its own code again: shows that the exchange finds all of them and breaks nothing.
        if in_fork(lambda: _judged([*map(unchanged, self.mutants)], items)) != _SURVIVED:
            raise SystemExit("a test fails without any change; nothing can be said about mutants")
        noticed: dict[str, Counter[int]] = {}
        for number, mutant in enumerate(self.mutants, 1):
            killers = noticed.setdefault(mutant.path, Counter())
            near = Path(mutant.path).stem
            order = sorted(
                range(len(items)),
                key=lambda i: (
                    -killers[i],
                    near not in items[i].path.stem,
                    "property" in str(items[i].path),
                ),
            )
            ordered = [items[i] for i in order]
            code = in_fork(lambda m=mutant, tests=ordered: _judged([m], tests))  # type: ignore[misc]
            if code == _SURVIVED:
                self.survivors.append(mutant)
                print(f"survived: {shown(mutant)}", flush=True)
            elif code == _TWIN:
                self.by_twin += 1
            elif code >= _FIRST_TEST:
                killers[order[code - _FIRST_TEST]] += 1
            self.judged = number
            if number % 50 == 0 or number == len(self.mutants):
                seconds = time.monotonic() - begun
                print(f"{number} of {len(self.mutants)} after {seconds:.0f} s", flush=True)
        return True


def _judged(mutants: list[Mutant], items: list[Any]) -> int:
    """Put changes into the code, and find out what notices them; see the exit codes above."""
    for mutant in mutants:
        apply(mutant)
    allow(SECONDS[0] * len({m.path for m in mutants}))
    if any(differs_from_twin(path) for path in dict.fromkeys(m.path for m in mutants)):
        return _TWIN
    for place, item in enumerate(items):
        item.session.testsfailed = 0
        allow(SECONDS[1])
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        if item.session.testsfailed:
            return _FIRST_TEST + place
    return _SURVIVED


def differs_from_twin(path: str) -> bool:
    """Whether a kernel gives other results than its twin on the seeded inputs."""
    if "/kernels/" not in path:
        return False
    stem, twins = Path(path).stem, _twins()
    expected = _expected(stem)
    return any(
        not twins.same([ref], twins.results(f"specplug.kernels.{stem}", [case]))
        for ref, case in zip(expected, twins.cases_of(stem), strict=True)
    )


def _twins() -> Any:
    """The inputs that both twins get, which live in the tests and are no package."""
    return import_module("test_seeded_twins")


@cache
def _expected(stem: str) -> Any:
    twins = _twins()
    return twins.results(f"specplug.reference.{stem}", twins.cases_of(stem))


def allow(seconds: int) -> None:
    """End this process once it has used that much more processor time."""
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 1 + seconds, hard))


def in_fork(run: Callable[[], int]) -> int:
    """What ``run`` returns in a forked process, at most 255; 2 if it raised or was ended."""
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
        code = 2
        try:
            code = min(run(), 255)
        finally:  # an exception too ends this process, and not the loop of its parent
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 2


def read_equivalent() -> dict[str, str]:
    """The survivors that are known to be equivalent, with the argument: ``path | before | after | why`` per line."""
    found = {}
    for line in EQUIVALENT.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            key, _, why = line.rpartition(" | ")
            found[key] = why
    return found


def shown(mutant: Mutant) -> str:
    """One line about a mutant."""
    return f"{mutant.path}:{mutant.line}: {mutant.before}  ->  {mutant.after}"


def main(arguments: Sequence[str]) -> int:
    """Run, and report; see the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", default=DEFAULT)
    parser.add_argument("--match", default="", help="only mutants whose line holds this text")
    parser.add_argument("--list", action="store_true", help="show the mutants and stop")
    options = parser.parse_args(arguments)
    os.chdir(ROOT)
    sys.path.append(str(ROOT / "tests/unit/verify"))  # for the seeded inputs
    mutants = [m for path in options.files for m in mutants_of(path) if options.match in shown(m)]
    if options.list:
        for mutant in mutants:
            print(shown(mutant))
        print(f"{len(mutants)} mutants")
        return 0
    keys = {mutant.key for mutant in mutants}
    known = {
        key: why
        for key, why in read_equivalent().items()
        if (key in keys if options.match else key.partition(" | ")[0] in options.files)
    }
    return _judge(mutants, known)


def _judge(mutants: list[Mutant], known: dict[str, str]) -> int:
    import pytest

    for path in dict.fromkeys(m.path for m in mutants):  # before the forks, so that they share it
        if "/kernels/" in path:
            _expected(Path(path).stem)
    begun, server = time.monotonic(), Server(mutants)
    flags = [
        "-q",
        "--no-header",
        "--no-summary",
        "--tb=no",
        "-s",
        "-p",
        "no:cacheprovider",
        "--timeout=0",
    ]
    pytest.main([*flags, *TESTS], plugins=[server])
    if server.judged != len(mutants):
        print(f"only {server.judged} of {len(mutants)} mutants were judged, see above")
        return 2
    return _report(mutants, server, known, time.monotonic() - begun)


def _report(mutants: list[Mutant], server: Server, known: dict[str, str], seconds: float) -> int:
    """Print the table and what is left to do; the exit code."""
    unknown = [mutant for mutant in server.survivors if mutant.key not in known]
    print(
        f"\n{'file':<38} {'mutants':>8} {'killed':>7} {'equivalent':>11} {'survived':>9} {'score':>7}"
    )
    for path in [*dict.fromkeys(m.path for m in mutants), ""]:
        count = Counter(
            "survived" if m in unknown else "equivalent" if m in server.survivors else "killed"
            for m in mutants
            if path in ("", m.path)
        )
        possible = count["killed"] + count["survived"]
        print(
            f"{path or 'all':<38} {count.total():>8} {count['killed']:>7} {count['equivalent']:>11} "
            f"{count['survived']:>9} {100 * count['killed'] / max(1, possible):>6.1f}%"
        )
    print(f"{server.by_twin} were noticed by the comparison with the twin; {seconds:.0f} s in all")
    for mutant in unknown:
        print(f"SURVIVED: {shown(mutant)}")
    rotten = set(known) - {mutant.key for mutant in server.survivors}
    for key in sorted(rotten):
        print(f"listed as equivalent, but no such mutant survives: {key}")
    return 1 if unknown or rotten else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
