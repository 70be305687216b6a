"""`python -O` drops assertions, so that none may guard memory that compiled code reads or writes."""

import ast
from pathlib import Path

import elmokit

PACKAGE = Path(elmokit.__file__).parent


def informs_type_checkers(test: ast.expr) -> bool:
    """Whether a condition only says that something is not None, alone or joined by `and`."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return all(map(informs_type_checkers, test.values))
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot) and len(test.ops) == 1


def test_assertions_of_the_package_only_inform_type_checkers() -> None:
    """Checks that guard memory are calls of `ops.native.library.require`."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assert):
                assert informs_type_checkers(node.test), f"{path}, line {node.lineno}"
