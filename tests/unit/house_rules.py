"""The house rules that no linter knows, as functions from source text to breaches."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from outbox.lifecycle import State

MODULE_LINES = 300
FUNCTION_LINES = 25
#: Wiring and the command line list what there is; a list may be longer than a thought.
COMPOSING_LINES = 40
COMPOSING = {"wiring", "cli", "__main__"}
LIFECYCLE = PurePath("outbox/lifecycle.py")

_STATE_IN_SQL = re.compile("'(" + "|".join(State) + ")'")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Breach:
    """One place that breaks a rule; ``name`` is what an exception is listed under: ``path`` or ``path::function``."""

    name: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.name}, line {self.line}: {self.what}"


def breaches(path: PurePath, source: str) -> Iterator[Breach]:
    """All breaches of one module."""
    tree = ast.parse(source)
    yield from _long_module(path, source)
    yield from _long_functions(path, tree)
    if path != LIFECYCLE:
        yield from _typed_states(path, tree)


def _long_module(path: PurePath, source: str) -> Iterator[Breach]:
    lines = len(source.splitlines())
    if lines > MODULE_LINES:
        yield Breach(str(path), MODULE_LINES + 1, f"{lines} lines, at most {MODULE_LINES}: split it by idea")


def _long_functions(path: PurePath, tree: ast.Module) -> Iterator[Breach]:
    most = COMPOSING_LINES if COMPOSING & {path.stem, *path.parts} else FUNCTION_LINES
    for node in ast.walk(tree):
        if isinstance(node, _Function) and (lines := _body_lines(node)) > most:
            yield Breach(f"{path}::{node.name}", node.lineno, f"body of {lines} lines, at most {most}: name its steps")


def _body_lines(function: _Function) -> int:
    """Lines from the first statement after the docstring to the last."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or body[-1].lineno) - body[0].lineno + 1 if body else 0


def _typed_states(path: PurePath, tree: ast.Module) -> Iterator[Breach]:
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docstrings:
            continue
        if node.value in set(State) or _STATE_IN_SQL.search(node.value):
            yield Breach(str(path), node.lineno, f"types the state {node.value!r}: derive it from outbox.lifecycle")


def exported(source: str) -> tuple[list[str], set[str]]:
    """``__all__`` of a package's ``__init__`` (empty without one), and the public names that it imports."""
    tree = ast.parse(source)
    declared: list[str] = []
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module != "typing":
            imported |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            declared = list(ast.literal_eval(node.value))
    return declared, {name for name in imported if not name.startswith("_")}
