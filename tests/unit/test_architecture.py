"""The house keeps its shape: no circles of modules, names of the field and one owner each, files that fit a reading."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("perphd", "rdt")
MOST_LINES = 500
RETIRED = (
    "aftermath", "becomes", "beginning", "behind", "below", "crowd", "culprit", "ear", "eye", "home", "lessons",
    "looked", "offshoot", "pieces", "plight", "regret", "roster", "scene", "sequel", "spell", "standing", "strays",
    "turn",
)  # fmt: skip
"""Words that named modules and classes once; docs/glossary.md has the field's words."""
KNOWN_TWINS = {"Kept", "Look", "Step", "Trial"}
"""Classes in two modules of admission. Recordings name the classes of a policy's memory; none is added."""


@cache
def modules() -> Mapping[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text())


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def nodes(root: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs: what stands below TYPE_CHECKING never does."""
    for child in ast.iter_child_nodes(root):
        if not is_for_types(child):
            yield child
            yield from nodes(child)


def imported(name: str) -> set[str]:
    """The modules that this one imports, at its start or in a function."""
    found = set()
    for node in nodes(tree(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            of = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= of & modules().keys() or {node.module}
    return found & modules().keys() - {name}


def circles() -> list[list[str]]:
    """Strongly connected modules, by Tarjan."""
    graph = {name: sorted(imported(name)) for name in modules()}
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in graph[name]:
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            circle = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(circle) > 1:
                found.append(sorted(circle))

    for name in graph:
        if name not in order:
            visit(name)
    return found


def words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


def test_no_circle_of_modules_exists_also_not_by_imports_in_functions():
    assert circles() == []


def test_no_file_is_longer_than_a_reading():
    long = {
        str(path): count
        for path in modules().values()
        if (count := len(path.open().readlines())) > MOST_LINES
    }
    assert not long


@pytest.mark.parametrize("word", RETIRED)
def test_retired_words_name_no_module_and_no_class(word: str):
    used = [name for name in modules() if word in words(name.rpartition(".")[2])]
    for name in modules():
        classes = [node.name for node in ast.walk(tree(name)) if isinstance(node, ast.ClassDef)]
        used += [f"{name}:{one}" for one in classes if word in words(one)]
    assert not used


def test_no_two_public_classes_share_a_name():
    """The simulated host, which mirrors the real one, may use the same names; rdt is a library of its own."""
    homes: dict[str, list[str]] = {}
    for name in modules():
        if not name.startswith(("perphd.sim.", "rdt.")):
            for node in tree(name).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes.setdefault(node.name, []).append(name)
    twins = {name: found for name, found in homes.items() if len(found) > 1}
    assert twins.keys() <= KNOWN_TWINS, twins
    assert all(name.startswith("perphd.admission.") for found in twins.values() for name in found)
