"""The resident form of boosted trees: structure compiled to bit masks, leaf values in one array.

Prediction follows QuickScorer (Lucchese et al., SIGIR 2015). Leaves are numbered from left to right. A node whose test
is false (x > threshold) rules out the leaves of its left subtree; x falls into the leftmost leaf that no node rules
out. For every feature, the thresholds of all trees cut the axis into bins. A table holds, per bin and tree, the word of
leaves not ruled out. A row therefore costs one table row per feature, an AND over them, and the lowest set bit of each
tree's word, all vectorised, without walking any tree.

Leaf values are not part of the forest. They are arrays of shape (T, L), where L is the largest number of leaves, so
that several sets of values (the model and its bootstrap replicas) share one structure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perphd.predictor.ogbrt.trees import Bools, Floats, Ints, Trees

Indices = NDArray[np.intp]
Words = NDArray[Any]
"""Bit masks, one bit per leaf: uint16, uint32 or uint64."""

_CHUNK_ROWS = 256
"""Rows processed at once, so that the work arrays fit the processor's cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """The structure of T trees with at most L leaves each; immutable.

    Attributes:
        trees: the portable form, with leaves in their original order.
        edges: per feature the sorted distinct thresholds of all trees.
        row_start: per feature the first row of its part of ``table``.
        table: (rows, T) leaves that a bin of a feature does not rule out; each feature has len(edges) + 1 bins and
            one last row for NaN.
        place: (V,) position of each original leaf in a flat (T*L,) array.
        valid: (T, L) True where a leaf exists.
        above: (T, L) word of the leaves whose value must not be below this one's.
        below: (T, L) word of the leaves whose value must not be above this one's.
    """

    trees: Trees
    edges: tuple[Floats, ...]
    row_start: tuple[int, ...]
    table: Words
    place: Indices
    valid: Bools
    above: Words
    below: Words

    @classmethod
    def compile(cls, trees: Trees) -> Forest:
        """Compile validated trees in a few milliseconds.

        Raises:
            InvalidModel: the arrays do not form trees.
        """
        trees.validate()
        layout = _Layout.of(trees)
        word = _word(layout.width)
        edges, row_start, table = _table(trees, layout, word)
        above = _order(trees, layout)
        return cls(
            trees,
            edges,
            row_start,
            table,
            layout.place,
            layout.valid,
            _pack(above, word),
            _pack(above.transpose(0, 2, 1), word),
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(T, L), the shape of an array of leaf values."""
        return self.valid.shape[0], self.valid.shape[1]

    @property
    def nbytes(self) -> int:
        """Size of all arrays of the structure, in bytes."""
        t = self.trees
        plain: list[NDArray[Any]] = [
            t.node_start,
            t.leaf_start,
            t.feature,
            t.threshold,
            t.missing_left,
            t.left,
        ]
        plain += [t.right, t.value, self.table, self.place, self.valid, self.above, self.below, *self.edges]
        return sum(array.nbytes for array in plain)

    def values(self) -> Floats:
        """The trees' leaf values as an array of shape (T, L); zero where there is no leaf."""
        return self.scatter(self.trees.value)

    def scatter(self, value: Floats) -> Floats:
        """Leaf values in the portable order, shape (V,), as an array of shape (T, L)."""
        out = np.zeros(self.shape)
        out.reshape(-1)[self.place] = value
        return out

    def gather(self, values: Floats) -> Floats:
        """Inverse of ``scatter``: leaf values of shape (T, L) in the portable order, shape (V,)."""
        return np.asarray(values.reshape(-1)[self.place], dtype=np.float64)

    def leaves(self, x: Floats) -> Indices:
        """Leaf of every tree for rows (n, F), as positions in a flat (T*L,) array; shape (n, T)."""
        count, width = self.shape
        if len(x) > _CHUNK_ROWS:
            parts = [self.leaves(x[i : i + _CHUNK_ROWS]) for i in range(0, len(x), _CHUNK_ROWS)]
            return np.concatenate(parts)
        words: Words | None = None
        missing = np.isnan(x) if np.isnan(x.sum()) else None
        for column, (edges, start) in enumerate(zip(self.edges, self.row_start, strict=True)):
            if not len(edges):
                continue
            bins = edges.searchsorted(x[:, column])
            if missing is not None:
                bins[missing[:, column]] = len(edges) + 1
            alive = self.table.take(bins + start, axis=0)
            words = alive if words is None else np.bitwise_and(words, alive, out=words)
        if words is None:
            return np.broadcast_to(np.arange(count) * width, (len(x), count))
        # The lowest set bit is a power of two, so its index is the exponent of that number as a float.
        lowest = words & -words
        exponent = lowest.astype(np.float32).view(np.int32) >> 23
        return np.asarray(exponent + (np.arange(count) * width - 127), dtype=np.intp)

    def predict(self, x: Floats, values: Floats | None = None, base: float | None = None) -> Floats:
        """F for rows (n, F), shape (n,); by default with the trees' own leaf values and base."""
        used = self.values() if values is None else values
        total = used.reshape(-1).take(self.leaves(np.asarray(x, dtype=np.float64))).sum(axis=1)
        return np.asarray(total + (self.trees.base if base is None else base), dtype=np.float64)

    def export(self, values: Floats, base: float) -> Trees:
        """The portable form with these leaf values, shape (T, L)."""
        return self.trees.with_values(base, self.gather(values))


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """Positions of nodes and leaves: parents before children, leaves from left to right, and boxes in feature space."""

    width: int
    tree: Ints  # (N,) tree of a node
    first: Ints  # (N,) leftmost leaf of a node's subtree, numbered within its tree
    cleared: Ints  # (N,) leaves of its left subtree
    place: Indices
    valid: Bools
    low: Floats  # (T, L, F) a leaf's box is low < x <= high
    high: Floats

    @classmethod
    def of(cls, trees: Trees) -> _Layout:
        inner = np.diff(trees.node_start)
        tree = np.repeat(np.arange(trees.count, dtype=np.int32), inner)
        width = int(np.max(np.diff(trees.leaf_start), initial=1))
        levels = _levels(trees, tree)
        sizes = _subtree_sizes(trees, tree, levels)
        left_size = np.where(trees.left >= 0, sizes[trees.node_start[tree] + np.maximum(trees.left, 0)], 1)
        first = np.zeros(len(tree), np.int32)
        columns = len(trees.features)
        low_node = np.full((len(tree), columns), -np.inf)
        high_node = np.full((len(tree), columns), np.inf)
        low = np.full((trees.count, width, columns), -np.inf)
        high = np.full((trees.count, width, columns), np.inf)
        number = np.zeros(len(trees.value), np.int32)  # leaf numbers from the left, in portable order
        for nodes in levels:
            where, asked, cut = tree[nodes], trees.feature[nodes], trees.threshold[nodes]
            for child, is_left in ((trees.left[nodes], True), (trees.right[nodes], False)):
                begin = first[nodes] if is_left else first[nodes] + left_size[nodes]
                child_low, child_high = low_node[nodes].copy(), high_node[nodes].copy()
                rows = np.arange(len(nodes))
                if is_left:
                    child_high[rows, asked] = np.minimum(child_high[rows, asked], cut)
                else:
                    child_low[rows, asked] = np.maximum(child_low[rows, asked], cut)
                inside = child >= 0
                at = trees.node_start[where[inside]] + child[inside]
                first[at], low_node[at], high_node[at] = begin[inside], child_low[inside], child_high[inside]
                out = ~inside
                number[trees.leaf_start[where[out]] + ~child[out]] = begin[out]
                low[where[out], begin[out]], high[where[out], begin[out]] = child_low[out], child_high[out]
        leaf_tree = np.repeat(np.arange(trees.count), np.diff(trees.leaf_start))
        place = (leaf_tree * width + number).astype(np.intp)
        valid = np.zeros((trees.count, width), np.bool_)
        valid.reshape(-1)[place] = True
        return cls(width, tree, first, left_size.astype(np.int32), place, valid, low, high)


def _levels(trees: Trees, tree: Ints) -> list[Indices]:
    """Nodes (global indices) by depth, roots first."""
    has_nodes = np.diff(trees.node_start) > 0
    level: Indices = trees.node_start[:-1][has_nodes].astype(np.intp)
    levels = []
    while len(level):
        levels.append(level)
        start = trees.node_start[tree[level]]
        children = np.concatenate(
            [np.where(c >= 0, start + c, -1) for c in (trees.left[level], trees.right[level])]
        )
        level = children[children >= 0].astype(np.intp)
    return levels


def _subtree_sizes(trees: Trees, tree: Ints, levels: list[Indices]) -> Ints:
    """Number of leaves below every node."""
    sizes = np.zeros(len(tree), np.int32)
    for nodes in reversed(levels):
        start = trees.node_start[tree[nodes]]
        for child in (trees.left[nodes], trees.right[nodes]):
            sizes[nodes] += np.where(child >= 0, sizes[start + np.maximum(child, 0)], 1)
    return sizes


def _word(width: int) -> type[np.unsignedinteger[Any]]:
    return np.uint16 if width <= 16 else np.uint32 if width <= 32 else np.uint64


def _table(
    trees: Trees, layout: _Layout, word: type[np.unsignedinteger[Any]]
) -> tuple[tuple[Floats, ...], tuple[int, ...], Words]:
    one = np.uint64(1)
    cleared = ((one << layout.cleared.astype(np.uint64)) - one) << layout.first.astype(np.uint64)
    alive = (~cleared).astype(word)
    ones = word(np.iinfo(word).max)
    edges, starts, parts, rows = [], [], [], 0
    for column in range(len(trees.features)):
        nodes = np.flatnonzero(trees.feature == column)
        cuts = np.unique(trees.threshold[nodes])
        part = np.full((len(cuts) + 2, trees.count), ones, dtype=word)
        # In bin b, exactly the cuts before b are below x; their nodes send x to the right.
        bins = np.searchsorted(cuts, trees.threshold[nodes]) + 1
        np.bitwise_and.at(part, (bins, layout.tree[nodes]), alive[nodes])
        np.bitwise_and.accumulate(part[:-1], axis=0, out=part[:-1])
        to_right = nodes[~trees.missing_left[nodes]]
        part[-1] = ones
        np.bitwise_and.at(
            part, (np.full(len(to_right), len(cuts) + 1), layout.tree[to_right]), alive[to_right]
        )
        edges.append(cuts)
        starts.append(rows)
        parts.append(part)
        rows += len(part)
    return tuple(edges), tuple(starts), np.concatenate(parts)


def _order(trees: Trees, layout: _Layout) -> Bools:
    """(T, L, L): True at (t, a, b) if monotonicity requires value(b) >= value(a) in tree t.

    It does if some x in a's box and some z in b's box agree in every free feature, and z is at least as good as x in
    every monotone one, or if that follows through other leaves. This is exact for one tree: values obey the order if
    and only if the tree's function is monotone.
    """
    low, high = layout.low, layout.high
    before = layout.valid[:, :, None] & layout.valid[:, None, :]
    for column, sign in enumerate(trees.monotone):
        lo, hi = low[:, :, column], high[:, :, column]
        up = lo[:, :, None] < hi[:, None, :]  # some x of a is <= some z of b
        down = lo[:, None, :] < hi[:, :, None]
        before &= up if sign > 0 else down if sign < 0 else up & down
    own = np.arange(layout.width)
    before[:, own, own] = False
    reach = before.astype(np.float32)
    for _ in range(max(1, int(np.ceil(np.log2(layout.width + 1))))):
        reach = np.minimum(reach + reach @ reach, 1.0, dtype=np.float32)
    closed: Bools = reach > 0
    closed[:, own, own] = False
    return closed


def _pack(relation: Bools, word: type[np.unsignedinteger[Any]]) -> Words:
    """(T, L, L) booleans as (T, L) words: bit b of (t, a) is relation[t, a, b]."""
    bits = np.left_shift(np.uint64(1), np.arange(relation.shape[2], dtype=np.uint64))
    return np.asarray((relation * bits).sum(axis=2, dtype=np.uint64).astype(word))
