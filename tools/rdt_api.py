"""The reference of ``rdt`` on one page, from its docstrings: ``python -m tools.rdt_api > rdt/docs/api.md``."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "rdt"
ORDER = (
    "resctrl", "groups", "fill", "names", "schemata", "cbm", "info", "describe", "mount",
    "masks", "layout", "pooling", "monitor", "reading", "calibrate", "probe", "curves", "errors", "fs",
    "access",
)  # fmt: skip
"""Modules in didactic order; others follow alphabetically."""


def main() -> int:
    """Write the page to standard output."""
    names = sorted(
        (path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__"),
        key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name),
    )
    sys.stdout.write(
        "# Reference of rdt\n\nMade from the docstrings by `python -m tools.rdt_api`; not to be edited.\n"
    )
    for name in names:
        if not name.startswith("__"):
            sys.stdout.write("\n".join(_module(name)) + "\n")
    return 0


def _module(name: str) -> Iterator[str]:
    tree = ast.parse((PACKAGE / f"{name}.py").read_text(encoding="utf-8"))
    yield from ("", f"## rdt.{name}", "", *_text(ast.get_docstring(tree)))
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and _public(node.name):
            yield from ("", f"### {node.name}{_bases(node)}", "", *_text(ast.get_docstring(node)))
            yield from _members(node)
        elif isinstance(node, ast.FunctionDef) and _public(node.name):
            yield from ("", f"### {_signature(node)}", "", *_text(ast.get_docstring(node)))


def _members(owner: ast.ClassDef) -> Iterator[str]:
    """Fields, each with the string that follows it, then methods."""
    first = True
    for index, node in enumerate(owner.body):
        if isinstance(node, ast.AnnAssign | ast.Assign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if not isinstance(target, ast.Name) or not _public(target.id):
                continue
            kind = f": {ast.unparse(node.annotation)}" if isinstance(node, ast.AnnAssign) else ""
            line = f"* `{target.id}{kind}`{_after(owner, index)}"
        elif isinstance(node, ast.FunctionDef) and _public(node.name):
            is_property = any(ast.unparse(each) == "property" for each in node.decorator_list)
            head = f"{node.name}{_returns(node)}" if is_property else _signature(node)
            line = _told(f"* `{head.strip('`')}`", ast.get_docstring(node))
        else:
            continue
        if first:
            yield ""
            first = False
        yield line


def _after(owner: ast.ClassDef, index: int) -> str:
    following = owner.body[index + 1] if index + 1 < len(owner.body) else None
    if (
        isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
        and isinstance(following.value.value, str)
    ):
        return _told("", inspect.cleandoc(following.value.value))
    return ""


def _told(head: str, docstring: str | None) -> str:
    return f"{head}: {' '.join((docstring or '').split())}" if docstring else head


def _signature(node: ast.FunctionDef) -> str:
    return (
        f"`{node.name}({ast.unparse(node.args).removeprefix('self, ').removeprefix('self')}){_returns(node)}`"
    )


def _returns(node: ast.FunctionDef) -> str:
    return f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""


def _bases(node: ast.ClassDef) -> str:
    bases = [ast.unparse(base) for base in node.bases]
    return f" ({', '.join(bases)})" if bases and bases != ["Protocol"] else ""


def _text(docstring: str | None) -> list[str]:
    return (docstring or "").splitlines()


def _public(name: str) -> bool:
    return not name.startswith("_")


if __name__ == "__main__":
    raise SystemExit(main())
