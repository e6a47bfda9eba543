"""House rules that a reader would otherwise have to check by eye: sizes, one home for each privilege."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_KERNEL_PARAMETERS = 8
#: Modules in kernels/ that compute nothing, so there is nothing for a slow twin to define.
NO_TWIN = {"__init__", "_jit", "datastore_layout", "forms", "layout"}
#: Roots of absolute paths that exist on one machine only. Assembled, so that this file passes too.
MACHINE_PATH = re.compile(
    "(?<![\\w.~-])/(?:" + "|".join(("work", "root", "home", "Users", "opt")) + ")/\\w"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@pytest.fixture(scope="module")
def python_files(checkout: Path, tracked_files: list[str]) -> list[Path]:
    """Every tracked Python file."""
    return [checkout / name for name in tracked_files if name.endswith(".py")]


@pytest.fixture(scope="module")
def kernel_files(checkout: Path) -> list[Path]:
    """Every source of ``specplug.kernels``."""
    return sorted((checkout / "specplug" / "kernels").glob("*.py"))


def functions(path: Path) -> Iterator[Function]:
    """Yield every function and method of a file."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, Function):
            yield node


def length(function: Function) -> int:
    """Lines from ``def`` to the end, without the docstring: a thorough one must not cost code."""
    first = function.body[0]
    prose = 0
    if ast.get_docstring(function) is not None:
        prose = (first.end_lineno or first.lineno) - first.lineno + 1
    return (function.end_lineno or function.lineno) - function.lineno + 1 - prose


def names_in(path: Path) -> set[str]:
    """Identifiers in the code; comments and strings do not count."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def public_functions(path: Path) -> set[str]:
    """Names of the public functions at module level."""
    body = ast.parse(path.read_text(), str(path)).body
    return {node.name for node in body if isinstance(node, Function) and node.name[0] != "_"}


def test_files_are_short(checkout: Path, python_files: list[Path]) -> None:
    lengths = {
        path.relative_to(checkout): len(path.read_text().splitlines()) for path in python_files
    }
    assert {str(path): n for path, n in lengths.items() if n >= MAX_FILE_LINES} == {}


def test_functions_are_short(checkout: Path, python_files: list[Path]) -> None:
    long = [
        f"{path.relative_to(checkout)}:{function.lineno} {function.name}: {length(function)} lines"
        for path in python_files
        for function in functions(path)
        if length(function) >= MAX_FUNCTION_LINES
    ]
    assert long == []


def test_kernels_take_few_parameters(kernel_files: list[Path]) -> None:
    many = [
        f"{path.name}:{function.lineno} {function.name}"
        for path in kernel_files
        for function in functions(path)
        if len(function.args.args) + len(function.args.kwonlyargs) > MAX_KERNEL_PARAMETERS
    ]
    assert many == [], "group the state in a NamedTuple of arrays"


def test_one_file_compiles(checkout: Path, python_files: list[Path]) -> None:
    compilers = {"njit", "jit", "guvectorize", "cfunc"}
    users = [str(path.relative_to(checkout)) for path in python_files if names_in(path) & compilers]
    # One file per compiler: numba's, and Triton's for what runs on a device.
    assert users == ["adapters/device/kernels.py", "specplug/kernels/_jit.py"]


def test_no_fast_math(checkout: Path, python_files: list[Path]) -> None:
    users = [
        str(path.relative_to(checkout)) for path in python_files if "fastmath" in names_in(path)
    ]
    assert users == [], "verification maths must be the same to the last bit everywhere"


def test_every_kernel_has_a_slow_twin(checkout: Path, kernel_files: list[Path]) -> None:
    reference = checkout / "specplug" / "reference"
    differing = {}
    for path in kernel_files:
        if path.stem in NO_TWIN:
            continue
        twin = reference / path.name
        ref_names = public_functions(twin) if twin.exists() else set()
        if ref_names != public_functions(path):
            differing[path.name] = sorted(ref_names ^ public_functions(path))
    assert differing == {}, "kernels/X.py and reference/X.py must have the same public functions"


def test_no_machine_paths(checkout: Path, tracked_files: list[str]) -> None:
    found = []
    for name in tracked_files:
        try:
            text = (checkout / name).read_text()
        except UnicodeDecodeError:
            continue  # binary data holds no paths that anyone would read
        for number, line in enumerate(text.splitlines(), 1):
            if MACHINE_PATH.search(line):
                found.append(f"{name}:{number} {line.strip()[:80]}")
    assert found == []


def test_the_rules_see_what_they_are_about(tmp_path: Path) -> None:
    """The helpers above, on a file that breaks the rules."""
    body = "\n".join("    x += 1" for _ in range(MAX_FUNCTION_LINES))
    path = tmp_path / "bad.py"
    path.write_text(f'def long(x):\n    """Doc\n    string."""\n{body}\n\ndef _hidden(): ...\n')
    assert [length(function) for function in functions(path)] == [MAX_FUNCTION_LINES + 1, 1]
    assert public_functions(path) == {"long"}
    path.write_text("# njit\nfrom numba import njit as fast\nA = 'fastmath'\nf(fastmath=True)\n")
    assert {"njit", "fastmath"} <= names_in(path)
    path.write_text("# njit\nA = 'fastmath'\n")
    assert not {"njit", "fastmath"} & names_in(path)
    assert MACHINE_PATH.search("see /" + "work/main") is not None
    assert (
        MACHINE_PATH.search("a relative tests/" + "work/main, an URL https://x.org/" + "home/x")
        is None
    )
