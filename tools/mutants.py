"""The changes that ``tools/mutation.py`` tries: one syntax node of one function each, put into the running code.

A function keeps its identity and gets the code object of its changed source, so everything that imported it before
sees the change, and nothing has to be imported again for the next one.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

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
    #: The outermost function that holds the change, by its qualified name.
    function: str

    @property
    def key(self) -> str:
        """Stable as long as the changed code is: the list of equivalent mutants names them so."""
        return f"{self.path} | {self.before} | {self.after}"


def mutants_of(path: str) -> Iterator[Mutant]:
    """Every change of one module."""
    source = (ROOT / path).read_text(encoding="utf-8")
    tree = ast.parse(source)
    owners = dict(_owners(tree, ""))
    for index, (node, _) in enumerate(_places(tree)):
        for number in range(len(list(_changes(copy.deepcopy(node))))):
            changed = ast.parse(source)  # much faster than a copy
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
                owners[node],
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


def _owners(parent: ast.AST, prefix: str) -> Iterator[tuple[ast.AST, str]]:
    """Every node inside a function with the qualified name of the outermost one."""
    for child in ast.iter_child_nodes(parent):
        if isinstance(child, ast.ClassDef):
            yield from _owners(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef):
            yield from ((node, prefix + child.name) for node in ast.walk(child))


def apply(mutant: Mutant) -> None:
    """Give the function in the running code the changed code.

    Raises:
        LookupError: there is no such function, or it is compiled.
    """
    module = mutant.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    live: Any = import_module(module)
    code = compile(mutant.tree, str(ROOT / mutant.path), "exec")
    for name in mutant.function.split("."):
        live = vars(live)[name]
        code = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
    if isinstance(live, property):
        live = live.fget
    if not isinstance(live, FunctionType):
        raise LookupError(
            f"{module}.{mutant.function} is a {type(live).__name__}, expected plain Python"
        )
    live.__code__ = code


def unchanged(mutant: Mutant) -> Mutant:
    """The same function without the change."""
    return replace(mutant, tree=ast.parse((ROOT / mutant.path).read_text(encoding="utf-8")))
