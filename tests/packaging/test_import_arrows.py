"""Who may import whom. Read from the sources by path: walking an editable install sees only half of them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDERS = {
    "specplug": "specplug",
    "adapters": "specplug.adapters",
    "proposers": "specplug.proposers",
}


@dataclass(frozen=True)
class Row:
    """What one unit (a module, or a package with all below it) may import besides itself and the stdlib.

    Attributes:
        anywhere: prefixes of modules, ours or third party.
        lazily: the same, but only inside functions.
    """

    anywhere: frozenset[str] = frozenset()
    lazily: frozenset[str] = frozenset()


def _row(*anywhere: str, lazily: tuple[str, ...] = ()) -> Row:
    return Row(frozenset(anywhere), frozenset(lazily))


#: The bottom: no unit here knows a kernel, a proposer or an engine.
BASE = tuple(
    f"specplug.{name}"
    for name in (
        *("_version", "_host", "errors", "machine", "types", "protocols", "settings", "stats"),
        *("vocabulary", "files"),
    )
)

#: The longest matching prefix decides. A module that matches only "specplug" needs a row of its own.
ARROWS = {
    "specplug._version": _row(),
    "specplug.errors": _row(),
    "specplug.vocabulary": _row(),
    "specplug.files": _row(),
    "specplug._host": _row("specplug.errors"),
    "specplug.machine": _row("specplug.errors"),
    "specplug.types": _row("specplug.errors", "numpy"),
    "specplug.protocols": _row("specplug.types", "specplug.errors", "numpy"),
    "specplug.settings": _row("specplug.types", "specplug.errors", "numpy"),
    "specplug.stats": _row("specplug.types", "specplug.errors", "numpy"),
    "specplug.figures": _row("specplug.errors", lazily=("matplotlib",)),
    # llvmlite is what numba compiles with, and comes with it.
    "specplug.kernels": _row("llvmlite", "numba", "numpy"),
    "specplug.reference": _row("specplug.types", "specplug.errors", "numpy"),
    "specplug.verify": _row("specplug.kernels", "numpy", *BASE),
    "specplug.index": _row("specplug.kernels", "numpy", *BASE),
    "specplug.layers": _row("numpy", *BASE),
    "specplug.control": _row("specplug.kernels", "specplug.figures", "numpy", *BASE),
    "specplug.registry": _row(*BASE),
    "specplug.sources": _row("specplug.types", "numpy"),
    "specplug.safety": _row("numpy", *BASE),
    "specplug.steering": _row("specplug.control", "specplug.sources", "numpy", *BASE),
    "specplug.checksum": _row("numpy", *BASE),
    "specplug.session": _row(
        "specplug.checksum",
        "specplug.safety",
        "specplug.sources",
        "specplug.steering",
        "specplug.registry",
        "specplug.verify",
        "specplug.control",
        "numpy",
        *BASE,
    ),
    "specplug.testing": _row(
        *("specplug.session", "specplug.registry", "specplug.verify", "specplug.reference"),
        *("numpy", "hypothesis", *BASE),
    ),
    "specplug.testing.plugin": _row("specplug.testing", "pytest", *BASE),
    "specplug.proposers": _row("specplug.index", "specplug.kernels", "numpy", *BASE),
    "specplug.proposers.layerskip": _row(
        *("specplug.layers", "specplug.kernels", "specplug.registry", "numpy", *BASE),
    ),
    "specplug.adapters": _row(),
    "specplug.adapters.common": _row(
        *("specplug.session", "specplug.registry", "specplug.control", "numpy", *BASE),
    ),
    # For layer skipping alone: the others do not need the layers' names, heads and weights.
    "specplug.adapters.common.torch_layers": _row(
        "specplug.layers", "numpy", *BASE, lazily=("torch",)
    ),
    "specplug.adapters.offline_host": _row(),
    "specplug.adapters.device": _row(*BASE, lazily=("torch",)),
    # Loaded by the first look-up on a device: Triton's kernels cannot be defined without it.
    "specplug.adapters.device.kernels": _row("triton"),
    "specplug.adapters.vllm_v1": _row(
        *("specplug.adapters.common", "specplug.adapters.device", "specplug.adapters.offline_host"),
        *("specplug.session", "specplug.registry", "specplug.control"),
        *("specplug.steering", "specplug.sources", "specplug.layers"),
        *("numpy", *BASE),
        # The plugin's entry point is here; the V2 adapter stands on this one.
        lazily=(
            *("vllm", "torch", "prometheus_client", "specplug.kernels"),
            *("safetensors", "huggingface_hub"),
            "specplug.adapters.vllm_v2",
        ),
    ),
    "specplug.adapters.vllm_v2": _row(
        *("specplug.adapters.common", "specplug.adapters.device", "specplug.adapters.vllm_v1"),
        *("specplug.index.templates", "numpy", *BASE),
        lazily=("vllm", "torch"),
    ),
    "specplug.adapters.transformers_hf": _row(
        "specplug.adapters.common.torch_layers",
        *("specplug.layers", "specplug.verify", "specplug.session", "specplug.registry"),
        *("numpy", *BASE),
        lazily=("torch", "transformers", "specplug.replay", "specplug.datastore"),
    ),
    "specplug.adapters.sglang_srt": _row(
        *("specplug.adapters.common", "specplug.adapters.offline_host"),
        *("specplug.session", "specplug.registry", "specplug.control"),
        *("numpy", *BASE),
        lazily=("sglang", "torch", "prometheus_client", "specplug.verify"),
    ),
    "specplug.replay.warm": _row(*("specplug.index", "numpy", *BASE), lazily=("specplug.replay",)),
    "specplug.replay": _row(
        *("specplug.session", "specplug.registry", "numpy", *BASE),
        lazily=(
            *("tokenizers", "transformers", "zstandard", "tqdm", "pyarrow", "matplotlib"),
            "specplug.kernels",
        ),
    ),
    "specplug.calibrate": _row(
        *("specplug.replay", "specplug.testing", "specplug.control", "numpy", *BASE),
    ),
    "specplug.tune": _row(
        *("specplug.replay", "specplug.registry", "specplug.control", "numpy", *BASE),
    ),
    "specplug.checks": _row(
        *BASE, lazily=("specplug.kernels", "specplug.reference", "specplug.index", "numpy")
    ),
    "specplug.doctor": _row(
        *("specplug.checks", "specplug.registry", *BASE), lazily=("specplug.kernels", "numba")
    ),
    "specplug.datastore": _row(
        *("specplug.index", "specplug.kernels", "specplug.replay", "numpy", *BASE),
    ),
    "specplug.simulate": _row(
        *("specplug.control", "specplug.kernels", "specplug.figures", "numpy", *BASE),
        lazily=("specplug.session", "specplug.registry", "specplug.replay"),
    ),
    "specplug.cli": _row("specplug._version", lazily=("specplug",)),
    "specplug.__main__": _row("specplug.cli"),
    # The package itself: public names, loaded on first use.
    "specplug": _row(
        "specplug._version", "specplug.types", "specplug.protocols", "specplug.session"
    ),
}


def module_paths(root: Path) -> dict[str, Path]:
    """Map the installed name of every source module below ``root`` to its file."""
    found = {}
    for folder, package in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            found[".".join([package, *(part for part in parts if part != "__init__")])] = path
    return found


def _imports(path: Path, module: str, known: set[str]) -> Iterator[tuple[int, str, bool]]:
    """Yield line, imported module and whether the import stands inside a function."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def visit(node: ast.AST, lazy: bool) -> Iterator[tuple[int, str, bool]]:
        for child in ast.iter_child_nodes(node):
            yield from named(child, lazy)
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from visit(child, lazy or inside)

    def named(node: ast.AST, lazy: bool) -> Iterator[tuple[int, str, bool]]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, lazy
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join(
                [*(above if node.level else []), *([node.module] if node.module else [])]
            )
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield node.lineno, full if full in known else base, lazy
        elif isinstance(node, ast.Call) and node.args:
            # import_module("literal") would be the way around this test.
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            argument = node.args[0]
            if name in {"import_module", "__import__"} and isinstance(argument, ast.Constant):
                yield node.lineno, str(argument.value), lazy

    yield from visit(ast.parse(path.read_text(), str(path)), False)


def _unit(module: str) -> str | None:
    prefixes = [unit for unit in ARROWS if module == unit or module.startswith(unit + ".")]
    best = max(prefixes, key=len, default=None)
    # "specplug" is the row of the package's own __init__, not of whatever lies below it.
    return None if best == "specplug" and module != "specplug" else best


def _covers(allowed: frozenset[str], target: str) -> bool:
    return any(target == prefix or target.startswith(prefix + ".") for prefix in allowed)


def violations(root: Path) -> list[str]:
    """Return one sentence per forbidden import below ``root``, and per module that no row covers."""
    paths = module_paths(root)
    found = []
    for module, path in paths.items():
        unit = _unit(module)
        if unit is None:
            found.append(f"{module} is in no row of ARROWS: add one")
            continue
        row = ARROWS[unit]
        for line, target, lazy in _imports(path, module, set(paths)):
            own = target == unit or (unit != "specplug" and target.startswith(unit + "."))
            if own or target.split(".")[0] in sys.stdlib_module_names:
                continue
            if not _covers(row.anywhere | row.lazily if lazy else row.anywhere, target):
                place = "inside a function" if lazy else "at module level"
                found.append(f"{path.relative_to(root)}:{line} {module} imports {target} {place}")
    return found


def test_imports_point_downwards(checkout: Path) -> None:
    assert len(module_paths(checkout)) > 20, "the sources were not found"
    assert violations(checkout) == []


def test_every_row_is_about_a_module_that_exists(checkout: Path) -> None:
    modules = module_paths(checkout)
    assert sorted(unit for unit in ARROWS if unit not in modules) == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("specplug/session.py", "import numba"),
        ("specplug/session.py", "from specplug.adapters import common"),
        ("specplug/session.py", "from .adapters import common"),
        ("specplug/registry.py", "def f():\n    from specplug.proposers.null import NullProposer"),
        (
            "specplug/registry.py",
            "import importlib\nimportlib.import_module('specplug.adapters.common')",
        ),
        ("specplug/kernels/match.py", "from specplug.types import Request"),
        ("specplug/kernels/match.py", "from ..types import Request"),
        ("specplug/reference/match.py", "from specplug.kernels.match import longest_match"),
        ("specplug/reference/match.py", "import numba"),
        ("specplug/control/fixed.py", "from specplug import session"),
        ("proposers/suffix.py", "import specplug.session"),
        ("proposers/suffix.py", "import torch"),
        ("adapters/vllm_v1/door.py", "import vllm"),
        ("adapters/vllm_v1/door.py", "def f():\n    import specplug.proposers.suffix"),
        ("adapters/common/__init__.py", "def f():\n    import vllm"),
        ("specplug/cli.py", "from specplug import doctor"),
        ("specplug/__init__.py", "from specplug import registry"),
        ("specplug/newcomer.py", "import os"),
    ],
)
def test_a_forbidden_import_is_caught(tmp_path: Path, path: str, line: str) -> None:
    """The checker itself: one bad line in an otherwise clean tree gives exactly one complaint."""
    for clean in (
        *(
            "specplug/__init__.py",
            "specplug/session.py",
            "specplug/registry.py",
            "specplug/types.py",
        ),
        *(
            "specplug/doctor.py",
            "adapters/__init__.py",
            "adapters/common/__init__.py",
            "proposers/null.py",
        ),
        *("proposers/suffix.py", "specplug/kernels/match.py", "adapters/vllm_v1/door.py"),
    ):
        (tmp_path / clean).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / clean).write_text("import os\nfrom __future__ import annotations\n")
    (tmp_path / "adapters/vllm_v1/door.py").write_text("def f():\n    import torch, vllm.config\n")
    (tmp_path / "proposers/null.py").write_text("import numpy as np\nfrom specplug import types\n")
    assert violations(tmp_path) == []
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(line + "\n")
    [complaint] = violations(tmp_path)
    assert path in complaint or "newcomer" in complaint
