"""What an adapter says about its host engine: is it active, and if not, why.

The shared shape lets ``specplug doctor`` print every adapter without knowing one. An adapter registers a
function without parameters, returning a :class:`HostReport`, under the entry-point group ``specplug.adapters``.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path

GROUP = "specplug.adapters"


@dataclass(frozen=True)
class HostSymbol:
    """A name of the host that an adapter touches.

    Attributes:
        module: dotted module, for example ``vllm.engine.arg_utils``.
        name: dotted name inside it: a function, a class, or a method or attribute of a class.
        parameters: parameter names that must exist, in this order, at the front; empty for attributes.
        process: where it is used: ``front end``, ``engine core`` or ``worker``.
        purpose: what the adapter does with it, for a human who reads the report.
        required: without it the adapter refuses; otherwise one feature is off.
    """

    module: str
    name: str
    parameters: tuple[str, ...] = ()
    process: str = "worker"
    purpose: str = ""
    required: bool = True

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class SymbolReport:
    """Whether a host symbol is there; ``problem`` is empty if it is."""

    symbol: HostSymbol
    problem: str = ""


@dataclass(frozen=True)
class HostReport:
    """The state of one adapter in this environment.

    Attributes:
        host: the engine's name.
        version: the installed version, or None if the engine is not installed.
        tested: versions that the adapter was run with.
        active: whether a ``specplug.*`` method would work.
        reason: why not, or what to know although it is active; empty if there is nothing to say.
        symbols: the host symbols that were looked for.
        notes: further facts, one sentence each.
    """

    host: str
    version: str | None
    tested: tuple[str, ...]
    active: bool
    reason: str = ""
    symbols: tuple[SymbolReport, ...] = ()
    notes: tuple[str, ...] = field(default_factory=tuple)


def check_symbols(symbols: Sequence[HostSymbol]) -> tuple[SymbolReport, ...]:
    """Look for host symbols in the *source* of the host, importing nothing of it.

    Importing an engine's worker modules costs seconds and may initialise a device; parsing them costs a tenth of a
    second. Only what is written down can be found: names assigned at run time count as missing.
    """
    return tuple(SymbolReport(symbol, _problem(symbol)) for symbol in symbols)


def _problem(symbol: HostSymbol) -> str:
    names = _module_names(symbol.module)
    if names is None:
        return f"module {symbol.module} was not found"
    if symbol.name not in names:
        return f"{symbol.module} has no {symbol.name}"
    parameters = names[symbol.name]
    if parameters is None or not symbol.parameters:
        return ""
    found = tuple(p for p in parameters if p not in ("self", "cls"))
    if found[: len(symbol.parameters)] != symbol.parameters:
        return (
            f"{symbol} takes ({', '.join(found)}), expected it to start with "
            f"({', '.join(symbol.parameters)})"
        )
    return ""


@lru_cache(maxsize=32)
def _module_names(module: str) -> dict[str, tuple[str, ...] | None] | None:
    """Every top-level name and class member of a module, with parameters where it is a function."""
    path = source_path(module)
    if path is None:
        return None
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return None
    names: dict[str, tuple[str, ...] | None] = {}
    for node in tree.body:
        _collect(node, "", names)
        if isinstance(node, ast.ClassDef):
            for member in ast.walk(node):
                _collect_member(member, node, names)
    return names


def _collect(node: ast.AST, prefix: str, names: dict[str, tuple[str, ...] | None]) -> None:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        names[prefix + node.name] = tuple(a.arg for a in arguments)
    elif isinstance(node, ast.ClassDef):
        names[prefix + node.name] = None
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                names.setdefault(prefix + target.id, None)
    elif isinstance(node, ast.ImportFrom | ast.Import) and not prefix:
        for alias in node.names:
            names.setdefault(alias.asname or alias.name.partition(".")[0], None)


def _collect_member(
    node: ast.AST, owner: ast.ClassDef, names: dict[str, tuple[str, ...] | None]
) -> None:
    prefix = owner.name + "."
    if node in owner.body:
        _collect(node, prefix, names)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        # Attributes that a method gives to its instance: `self.name = ...`.
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if (
                isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and target.value.id == "self"
            ):
                names.setdefault(prefix + target.attr, None)


def source_path(module: str) -> Path | None:
    """The file of a module, found without importing its parents."""
    top, *below = module.split(".")
    spec = PathFinder.find_spec(top)
    if spec is None:
        return None
    found = Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    places = [Path(place) for place in spec.submodule_search_locations or []]
    for part in below:
        # By hand: the import system asks a folder without __init__ for its parent, which is not imported.
        folders = [place / part for place in places]
        files = [
            f for d in folders for f in (d / "__init__.py", d.with_suffix(".py")) if f.is_file()
        ]
        places = [d for d in folders if d.is_dir()]
        found = files[0] if files else None
        if found is None and not places:
            return None
    return found
