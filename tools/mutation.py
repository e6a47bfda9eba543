"""Mutation testing of the verification code: change one thing, and see whether a test notices.

    python -P tools/mutation.py                       # all of it, about half an hour on one core
    python -P tools/mutation.py specplug/verify/chain.py specplug/kernels/draw.py
    python -P tools/mutation.py --list                # only show what would be changed

Kernels run without their compiler here (the same source, interpreted), so that a mutant costs a second and
not a compilation. Each mutant is one syntax-tree change in one module, loaded in a forked process; nothing on
disk changes. A kernel is first compared with its slow twin, which ends most mutants in milliseconds. A mutant
survives if all tests pass. Survivors that cannot be told from the original are listed in
``tests/meta/equivalent_mutants.txt`` with the argument why; an entry there that matches no survivor is an
error. Exit code 1 if there is any other survivor.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ["NUMBA_DISABLE_JIT"] = "1"
os.environ["SPECPLUG_HYPOTHESIS_PROFILE"] = "dev"

ROOT = Path(__file__).resolve().parents[1]
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
#: Tests that notice most changes of a file run first: pytest stops at the first failure.
FIRST = {
    "draw": ["tests/unit/verify/test_chain.py", "tests/property/test_verify_twins.py"],
    "accept": ["tests/unit/verify/test_chain.py", "tests/property/test_verify_twins.py"],
    "accept_sampled": ["tests/unit/verify/test_sampled.py", "tests/property/test_verify_twins.py"],
    "accept_tree": ["tests/unit/verify/test_tree.py", "tests/property/test_tree_twins.py"],
    "topology": ["tests/unit/verify/test_tree.py", "tests/property/test_tree_twins.py"],
    "sampling": ["tests/unit/verify/test_transform.py", "tests/property/test_verify_twins.py"],
    "penalties": ["tests/unit/verify/test_transform.py", "tests/property/test_pipeline_laws.py"],
    "chain": ["tests/unit/verify/test_chain.py", "tests/unit/verify/test_checks.py"],
    "checks": ["tests/unit/verify/test_checks.py"],
    "sampled": ["tests/unit/verify/test_sampled.py"],
    "tree": ["tests/unit/verify/test_tree.py"],
    "params": ["tests/unit/verify/test_transform.py"],
    "transform": ["tests/unit/verify/test_transform.py"],
}
EQUIVALENT = ROOT / "tests/meta/equivalent_mutants.txt"
#: Seconds of processor time for the first tests and for all: a loop without end is a noticed change.
SECONDS = (6, 60)
#: Address space: a mutant that allocates without end is a noticed change too.
_BYTES = 4 * 2**30

_COMPARE: dict[type[ast.cmpop], list[type[ast.cmpop]]] = {
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}
_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_CALLS = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "zeros": "ones",
    "isneginf": "isposinf",
}


@dataclass(frozen=True)
class Mutant:
    """One change: in which file and line, and from what to what."""

    path: str
    line: int
    before: str
    after: str
    tree: ast.Module

    @property
    def key(self) -> str:
        """Stable as long as the changed code is: the list of equivalent mutants names them so."""
        return f"{self.path} | {self.before} | {self.after}"


def mutants_of(path: str) -> Iterator[Mutant]:
    """Every change of one module."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    places = list(_places(tree))
    for index, (node, _) in enumerate(places):
        for number in range(len(list(_changes(copy.deepcopy(node))))):
            changed = copy.deepcopy(tree)
            target, parent = list(_places(changed))[index]
            before = ast.unparse(parent)
            after = list(_changes(target))[number]
            _replace(changed, target, after)
            ast.fix_missing_locations(changed)
            shown = (
                ""
                if isinstance(after, ast.Pass)
                else ast.unparse(after if target is parent else parent)
            )
            yield Mutant(
                path,
                getattr(node, "lineno", 0),
                _first(before),
                _first(shown) or "(deleted)",
                changed,
            )


def _first(code: str) -> str:
    return code.strip().partition("\n")[0]


def _places(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Nodes that can be changed, each with the statement it belongs to, inside function bodies only."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body:
                yield from _inside(statement, statement)


def _inside(node: ast.AST, statement: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    if isinstance(node, (ast.Raise, ast.FunctionDef, ast.JoinedStr, ast.Assert)):
        return  # messages are tested by their words, nested functions are visited by themselves
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.stmt):
        statement = node
    if hasattr(node, "lineno"):
        yield node, statement
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _inside(child, statement)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """What a node can be changed into; may change it in place and yield it."""
    changed: Any
    if isinstance(node, ast.Compare):
        for position, operator in enumerate(node.ops):
            for other in _COMPARE[type(operator)]:
                changed = copy.deepcopy(node)
                changed.ops[position] = other()
                yield changed
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in _BINARY:
        changed = copy.deepcopy(node)
        changed.op = _BINARY[type(node.op)]()
        yield changed
    elif isinstance(node, ast.BoolOp):
        changed = copy.deepcopy(node)
        changed.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        yield changed
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Constant):
        yield from _constants(node)
    elif isinstance(node, (ast.Break, ast.Continue)):
        yield ast.Continue() if isinstance(node, ast.Break) else ast.Break()
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        changed = copy.deepcopy(node)
        changed.test = ast.UnaryOp(ast.Not(), node.test)
        yield changed
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr)):
        yield ast.Pass()


def _constants(node: ast.Constant) -> Iterator[ast.AST]:
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield ast.Constant(node.value + 1)
    elif isinstance(node.value, float):
        yield ast.Constant(node.value + 1.0)
        if node.value:
            yield ast.Constant(node.value * 0.5)


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name in _CALLS:
        changed: Any = copy.deepcopy(node)
        if isinstance(changed.func, ast.Attribute):
            changed.func.attr = _CALLS[name]
        else:
            changed.func = ast.Name(_CALLS[name], ast.Load())
        yield changed


def _replace(tree: ast.Module, old: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
                return
            if isinstance(value, list) and any(item is old for item in value):
                setattr(parent, name, [new if item is old else item for item in value])
                return


class Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a changed syntax tree."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant
        self.name = mutant.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """See :class:`importlib.abc.MetaPathFinder`."""
        if fullname != self.name:
            return None
        package = self.mutant.path.endswith("__init__.py")
        spec = importlib.machinery.ModuleSpec(fullname, self, is_package=package)
        if package and spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(str((ROOT / self.mutant.path).parent))
        return spec

    def exec_module(self, module: object) -> None:
        """See :class:`importlib.abc.Loader`."""
        code = compile(self.mutant.tree, str(ROOT / self.mutant.path), "exec")
        exec(code, vars(module))


def differs(mutant: Mutant) -> bool:
    """Whether a mutated kernel gives other results than its twin, found out in a forked process."""
    twins = _twins()
    stem = Path(mutant.path).stem
    cases = twins.cases_of(stem) if "/kernels/" in mutant.path else []
    if not cases:
        return False
    expected = _expected(stem)

    def compare() -> int:
        return 0 if twins.same(expected, twins.results(f"specplug.kernels.{stem}", cases)) else 1

    return not _succeeds(mutant, compare, SECONDS[0])


def _twins() -> Any:
    """The inputs that both twins get, which live in the tests and are no package."""
    return import_module("test_seeded_twins")


@cache
def _expected(stem: str) -> Any:
    twins = _twins()
    return twins.results(f"specplug.reference.{stem}", twins.cases_of(stem))


def survives(mutant: Mutant) -> bool:
    """Compare with the twin, then run the tests, those that are likely to notice first."""
    if differs(mutant):
        return False
    first = FIRST.get(Path(mutant.path).stem, [])
    return all(
        _passes(mutant, tests, limit) for tests, limit in zip((first, TESTS), SECONDS, strict=True)
    )


def _passes(mutant: Mutant, tests: list[str], seconds: int) -> bool:
    def run() -> int:
        import pytest

        return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))

    return not tests or _succeeds(mutant, run, seconds)


def _succeeds(mutant: Mutant, run: Callable[[], int], seconds: int) -> bool:
    """Whether ``run`` returns 0 in a forked process in which the mutant is what its module's name stands for."""
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
        sys.meta_path.insert(0, Loader(mutant))
        code = 70
        try:
            code = run()
        finally:  # an exception too ends this process, and not the loop of its parent
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0


def read_equivalent() -> dict[str, str]:
    """The survivors that are known to be equivalent, with the argument: ``path | before | after | why`` per line."""
    found = {}
    for line in EQUIVALENT.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            key, _, why = line.rpartition(" | ")
            found[key] = why
    return found


def main(arguments: Sequence[str]) -> int:
    """Run, and report; see the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", default=DEFAULT)
    parser.add_argument("--list", action="store_true", help="show the mutants and stop")
    options = parser.parse_args(arguments)
    os.chdir(ROOT)
    sys.path.append(str(ROOT / "tests/unit/verify"))  # for the seeded inputs
    mutants = [mutant for path in options.files for mutant in mutants_of(path)]
    if options.list:
        for mutant in mutants:
            print(f"{mutant.path}:{mutant.line}: {mutant.before}  ->  {mutant.after}")
        print(f"{len(mutants)} mutants")
        return 0
    return _judge(mutants, options.files)


def _judge(mutants: list[Mutant], files: Sequence[str]) -> int:
    import hypothesis  # noqa: F401  shared by all forks, so that none has to import it
    import numba  # noqa: F401
    import numpy  # noqa: F401
    import pytest  # noqa: F401

    import specplug.testing.strategies  # noqa: F401

    known = {key: why for key, why in read_equivalent().items() if key.partition(" | ")[0] in files}
    begun, survivors = time.monotonic(), []
    for number, mutant in enumerate(mutants, 1):
        if survives(mutant):
            survivors.append(mutant)
            mark = "equivalent" if mutant.key in known else "SURVIVED"
            print(
                f"{mark}: {mutant.path}:{mutant.line}: {mutant.before}  ->  {mutant.after}",
                flush=True,
            )
        if number % 25 == 0:
            print(f"{number} of {len(mutants)} after {time.monotonic() - begun:.0f} s", flush=True)
    unknown = [mutant for mutant in survivors if mutant.key not in known]
    rotten = set(known) - {mutant.key for mutant in survivors}
    for key in sorted(rotten):
        print(f"listed as equivalent, but no such mutant survives: {key}")
    killed, equivalent = len(mutants) - len(survivors), len(survivors) - len(unknown)
    possible = len(mutants) - equivalent
    print(
        f"{len(mutants)} mutants: {killed} killed, {equivalent} equivalent, {len(unknown)} survived; score "
        f"{100 * killed / max(1, possible):.1f} % of {possible} that can be told apart"
    )
    return 1 if unknown or rotten else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
