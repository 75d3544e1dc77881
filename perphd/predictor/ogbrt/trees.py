"""Boosted regression trees as plain arrays: the portable form in which models are stored and exchanged.

    F(x) = base + sum over trees t of v[t, leaf_t(x)]                  (leaf values include the shrinkage)

Nodes and leaves of all trees are laid out one tree after the other. A non-negative child is the index of a node of the
same tree; a negative child ``c`` is the leaf ``~c`` of the same tree (LightGBM's convention). At a node, x goes left if
x <= threshold; a missing x (NaN) goes where ``missing_left`` says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perphd.domain.errors import PerphError

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]

MAX_LEAVES = 64
"""Maximum number of leaves of one tree: each has one bit in a machine word."""
MAX_TREES = 2000
_MAX_FEATURES = 64


class InvalidModel(PerphError, ValueError):
    """The arrays do not form boosted trees; the message names the array and the problem."""


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """An ensemble of T trees with N inner nodes and V leaves in total over F named features.

    Attributes:
        features: names of the columns of x, in order.
        monotone: per feature +1 (the prediction must not fall as it grows), -1 (must not rise) or 0 (free).
        base: the constant part, in the units of the target.
        node_start: (T+1,) index at which each tree's nodes begin; a tree that is a single leaf has no nodes.
        leaf_start: (T+1,) index at which each tree's leaves begin.
        feature: (N,) column that a node tests.
        threshold: (N,) x <= threshold goes left.
        missing_left: (N,) NaN goes left.
        left, right: (N,) children: node of the same tree, or ~leaf.
        value: (V,) leaf values, in the units of the target.
    """

    features: tuple[str, ...]
    monotone: tuple[int, ...]
    base: float
    node_start: Ints
    leaf_start: Ints
    feature: Ints
    threshold: Floats
    missing_left: Bools
    left: Ints
    right: Ints
    value: Floats

    @classmethod
    def constant(cls, features: Sequence[str], monotone: Sequence[int], base: float) -> Trees:
        """An ensemble without trees that predicts ``base`` everywhere."""
        none = np.zeros(0, np.int32)
        start = np.zeros(1, np.int32)
        return cls(tuple(features), tuple(monotone), base, start, start, none, np.zeros(0), np.zeros(0, np.bool_),
                   none, none, np.zeros(0))  # fmt: skip

    @property
    def count(self) -> int:
        """Number of trees."""
        return len(self.leaf_start) - 1

    def validate(self) -> Trees:
        """Check that every tree is a proper binary tree in which each node and leaf is reached exactly once.

        Returns itself. With valid arrays, a prediction can neither fail nor loop.

        Raises:
            InvalidModel: a tree is not proper.
        """
        trees, nodes, leaves, columns = self.count, len(self.feature), len(self.value), len(self.features)
        _check(0 < columns <= _MAX_FEATURES, f"features: {columns} columns (1..{_MAX_FEATURES} are allowed)")
        _check(len(set(self.features)) == columns, "features: a name occurs twice")
        _check(
            len(self.monotone) == columns, f"monotone: {len(self.monotone)} entries for {columns} features"
        )
        _check(set(self.monotone) <= {-1, 0, 1}, "monotone: only -1, 0 and 1 are allowed")
        _check(math.isfinite(self.base), f"base: {self.base} is not finite")
        _check(0 <= trees <= MAX_TREES, f"leaf_start: {trees} trees (at most {MAX_TREES} are allowed)")
        for name, array, size in (
            ("node_start", self.node_start, trees + 1),
            ("threshold", self.threshold, nodes),
            ("missing_left", self.missing_left, nodes),
            ("left", self.left, nodes),
            ("right", self.right, nodes),
        ):
            _check(array.shape == (size,), f"{name}: shape {array.shape}, expected ({size},)")
        for name, start, total in (
            ("node_start", self.node_start, nodes),
            ("leaf_start", self.leaf_start, leaves),
        ):
            steps = np.diff(start)
            _check(int(start[0]) == 0 and int(start[-1]) == total and bool(np.all(steps >= 0)),
                   f"{name}: does not divide {total} entries")  # fmt: skip
        inner, outer = np.diff(self.node_start), np.diff(self.leaf_start)
        _check(bool(np.all(outer == inner + 1)), "leaf_start: a binary tree has one leaf more than nodes")
        _check(bool(np.all(outer <= MAX_LEAVES)), f"leaf_start: more than {MAX_LEAVES} leaves in a tree")
        _check(bool(np.all((self.feature >= 0) & (self.feature < columns))), "feature: no such column")
        _check(bool(np.all(np.isfinite(self.threshold))), "threshold: not finite")
        _check(bool(np.all(np.isfinite(self.value))), "value: not finite")
        # Every node but the root, and every leaf, is the child of exactly one node. Children come after parents, so
        # there are no cycles.
        owner = np.repeat(np.arange(trees), inner)
        own = np.arange(nodes) - self.node_start[:-1][owner]
        for name, child in (("left", self.left), ("right", self.right)):
            fits = np.where(child >= 0, (child > own) & (child < inner[owner]), ~child < outer[owner])
            _check(bool(np.all(fits)), f"{name}: a child is neither a later node nor a leaf of its tree")
        child = np.concatenate([self.left, self.right])
        both = np.concatenate([owner, owner])
        found_nodes = (self.node_start[:-1][both] + child)[child >= 0]
        found_leaves = (self.leaf_start[:-1][both] + ~child)[child < 0]
        once = len(np.unique(found_nodes)) == len(found_nodes) and len(np.unique(found_leaves)) == len(
            found_leaves
        )
        _check(once, "left, right: a node or leaf has two parents")
        return self

    def walk(self, x: Floats) -> Floats:
        """Prediction for rows ``x`` (n, F), computed node by node. It is slow and serves as a cross-check."""
        out = np.full(len(x), self.base)
        for i, row in enumerate(np.asarray(x, dtype=np.float64)):
            for tree in range(self.count):
                at, nodes = self.node_start[tree], self.node_start[tree + 1] - self.node_start[tree]
                child = 0 if nodes else -1
                while child >= 0:
                    node = at + child
                    asked = row[self.feature[node]]
                    left = self.missing_left[node] if np.isnan(asked) else asked <= self.threshold[node]
                    child = int(self.left[node] if left else self.right[node])
                out[i] += self.value[self.leaf_start[tree] + ~child]
        return out

    def with_values(self, base: float, value: Floats) -> Trees:
        """The same structure with these leaf values, shape (V,)."""
        return replace(self, base=base, value=np.array(value, dtype=np.float64))


def _check(holds: bool, problem: str) -> None:
    if not holds:
        raise InvalidModel(f"the model is refused: {problem}")
