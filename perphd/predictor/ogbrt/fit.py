"""Batch training: gradient boosting with squared loss on histograms, with monotone constraints, in numpy.

For k = 1..T (Friedman, "Greedy function approximation", 2001, with squared or Huber loss):
    r_i = psi(y_i - F_{k-1}(x_i))                      residual, clipped by Huber's psi on request
    h_k = the tree that greedily minimises  sum_i w_i (r_i - h(x_i))^2 + l2 * (sum of squared leaf values)
    F_k = F_{k-1} + rate * h_k

This replaces equations 1, 3, 5, 8 and 9 of the Perph paper, where every stage fits y itself, so that M stages sum to
M*y, and its equation 2, a loss for two classes. Split points are the edges of quantile histograms. A split on a
monotone feature is refused if the values of its children are in the wrong order. Values further down are bounded by
the mean of the two children's values. This suffices for a monotone tree, and a sum of monotone trees is monotone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perphd.predictor.ogbrt.trees import Floats, Trees

Codes = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class FitSettings:
    """Training settings.

    Attributes:
        trees: number of stages.
        depth: levels of a tree; it has at most 2**depth leaves.
        rate: shrinkage of every stage.
        bins: histogram bins per feature.
        min_weight: minimum sum of weights in a leaf, above 0.
        l2: penalty on leaf values.
        subsample: share of the rows used by each stage.
        huber_sds: robust standard deviations at which residuals are clipped; 0: no clipping.
    """

    trees: int = 100
    depth: int = 4
    rate: float = 0.12
    bins: int = 32
    min_weight: float = 3.0
    l2: float = 1.0
    subsample: float = 0.7
    huber_sds: float = 0.0


def fit(
    x: Floats,
    y: Floats,
    features: Sequence[str],
    monotone: Sequence[int],
    rng: np.random.Generator,
    weight: Floats | None = None,
    settings: FitSettings = FitSettings(),
) -> Trees:
    """Train on rows ``x`` (n, F), NaN where a value is missing, and finite targets ``y`` (n,).

    ``weight`` (n,) is non-negative; default 1. Without rows the result is the constant 0.

    Raises:
        ValueError: shapes do not match, or a target or weight is not finite.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    w = np.ones(len(y)) if weight is None else np.asarray(weight, dtype=np.float64)
    if x.shape != (len(y), len(features)) or w.shape != y.shape:
        raise ValueError(
            f"shapes do not match: {x.shape} rows, {y.shape} targets, {w.shape} weights, {len(features)} features"
        )
    if not (np.isfinite(y).all() and np.isfinite(w).all() and (w >= 0).all()):
        raise ValueError("targets and weights must be finite, and weights non-negative")
    total = float(w.sum())
    if total <= 0:
        return Trees.constant(features, monotone, 0.0)
    base = float(w @ y) / total
    grower = _Grower(x, monotone, settings)
    builder = _Builder()
    current = np.full(len(y), base)
    for _ in range(settings.trees):
        residual = y - current
        if settings.huber_sds > 0:
            scale = 1.4826 * float(np.median(np.abs(residual - np.median(residual))))
            if scale > 0:
                residual = np.clip(residual, -settings.huber_sds * scale, settings.huber_sds * scale)
        rows = (
            np.flatnonzero(rng.random(len(y)) < settings.subsample)
            if settings.subsample < 1
            else np.arange(len(y))
        )
        tree = grower.grow(rows, residual[rows], w[rows])
        if tree is None:
            break
        current += builder.add(tree, grower, settings.rate)
    return builder.finish(features, monotone, base).validate()


@dataclass(slots=True, eq=False)
class _Heap:
    """A tree in heap order: the children of node i are 2i+1 and 2i+2. ``feature``: -1 for a node without a split."""

    feature: NDArray[np.intp]
    cut: NDArray[np.intp]  # codes <= cut go left
    missing_left: NDArray[np.bool_]
    value: Floats


class _Grower:
    """Grows trees: holds rows as bin codes, and searches the splits of all nodes of a level at once."""

    def __init__(self, x: Floats, monotone: Sequence[int], settings: FitSettings) -> None:
        self._settings = settings
        self._sign = np.asarray(monotone, dtype=np.float64)
        self.edges = [_edges(x[:, column], settings.bins) for column in range(x.shape[1])]
        self._bins = max((len(edges) for edges in self.edges), default=0) + 1
        # A feature with fewer bins than the others has no cut beyond its last edge.
        self._is_cut = np.arange(self._bins - 1) < np.array([len(edges) for edges in self.edges])[:, None]
        self.codes: Codes = np.empty(x.shape, dtype=np.intp)
        for column, edges in enumerate(self.edges):
            self.codes[:, column] = np.searchsorted(edges, x[:, column])
            self.codes[np.isnan(x[:, column]), column] = self._bins  # an extra bin for missing values

    def grow(self, rows: NDArray[np.intp], residual: Floats, weight: Floats) -> _Heap | None:
        """Grow one tree; None if no split reduces the error."""
        depth = self._settings.depth
        size = 2 ** (depth + 1) - 1
        tree = _Heap(
            np.full(size, -1, np.intp), np.zeros(size, np.intp), np.zeros(size, np.bool_), np.zeros(size)
        )
        tree.value[0] = float(weight @ residual) / (float(weight.sum()) + self._settings.l2)
        low, high = np.full(size, -np.inf), np.full(size, np.inf)
        codes = self.codes[rows]
        node = np.zeros(len(rows), np.intp)
        for level in range(depth):
            first, count = 2**level - 1, 2**level
            split = self._split(codes, node - first, count, residual, weight, tree, first, low, high)
            if not split:
                break
            asked = tree.feature[np.maximum(node, 0)]
            inside = (node >= 0) & (asked >= 0)
            node = np.where(inside, _child(tree, node, codes, asked, self._bins), -1)
        return tree if tree.feature[0] >= 0 else None

    def _split(
        self, codes: Codes, node: NDArray[np.intp], count: int, residual: Floats, weight: Floats,
        tree: _Heap, first: int, low: Floats, high: Floats,
    ) -> bool:  # fmt: skip
        inside = node >= 0
        columns, bins, l2 = codes.shape[1], self._bins + 1, self._settings.l2
        flat = ((node[inside, None] * columns + np.arange(columns)) * bins + codes[inside]).ravel()
        used = np.repeat(weight[inside], columns)
        shape = (count, columns, bins)
        pulled = used * np.repeat(residual[inside], columns)
        mass = _sums(flat, used, shape)
        pull = _sums(flat, pulled, shape)
        left_mass, left_pull = np.cumsum(mass[:, :, :-2], axis=2), np.cumsum(pull[:, :, :-2], axis=2)
        # Missing values go right (0) or left (1).
        left_mass = np.stack([left_mass, left_mass + mass[:, :, -1:]])
        left_pull = np.stack([left_pull, left_pull + pull[:, :, -1:]])
        all_mass, all_pull = mass.sum(axis=2)[None, :, :, None], pull.sum(axis=2)[None, :, :, None]
        right_mass, right_pull = all_mass - left_mass, all_pull - left_pull
        own = slice(first, first + count)
        floor, ceiling = low[own][None, :, None, None], high[own][None, :, None, None]
        left_value = np.clip(left_pull / (left_mass + l2), floor, ceiling)
        right_value = np.clip(right_pull / (right_mass + l2), floor, ceiling)
        before = tree.value[own][None, :, None, None]
        gain = (
            _gain(left_pull, left_mass + l2, left_value)
            + _gain(right_pull, right_mass + l2, right_value)
            - _gain(all_pull, all_mass + l2, before)
        )
        allowed = (left_mass >= self._settings.min_weight) & (right_mass >= self._settings.min_weight)
        allowed &= self._sign[None, None, :, None] * (right_value - left_value) >= 0
        allowed &= self._is_cut[None, None]
        if not allowed.any():
            return False
        gain = np.where(allowed, gain, -np.inf).transpose(1, 0, 2, 3).reshape(count, -1)
        best = np.argmax(gain, axis=1)
        found = False
        for i in np.flatnonzero(gain[np.arange(count), best] > 1e-12):
            missing, column, cut = np.unravel_index(best[i], (2, columns, bins - 2))
            parent = first + int(i)
            left, right = 2 * parent + 1, 2 * parent + 2
            a, b = float(left_value[missing, i, column, cut]), float(right_value[missing, i, column, cut])
            tree.feature[parent], tree.cut[parent] = column, cut
            if mass[i, column, -1] > 0:
                tree.missing_left[parent] = missing == 1
            else:  # no value is missing here: follow the majority
                tree.missing_left[parent] = left_mass[0, i, column, cut] >= right_mass[0, i, column, cut]
            tree.value[left], tree.value[right] = a, b
            low[left] = low[right] = low[parent]
            high[left] = high[right] = high[parent]
            if self._sign[column]:
                middle = 0.5 * (a + b)
                lower, upper = (left, right) if self._sign[column] > 0 else (right, left)
                high[lower], low[upper] = middle, middle
            found = True
        return found

    def apply(self, tree: _Heap) -> NDArray[np.intp]:
        """The heap index of the leaf of every row."""
        node = np.zeros(len(self.codes), np.intp)
        for _ in range(self._settings.depth):
            asked = tree.feature[node]
            node = np.where(asked >= 0, _child(tree, node, self.codes, asked, self._bins), node)
        return node


def _sums(where: NDArray[np.intp], values: Floats, shape: tuple[int, int, int]) -> Floats:
    """Sums of values by cell of an array of this shape."""
    return np.asarray(np.bincount(where, values, math.prod(shape)), dtype=np.float64).reshape(shape)


def _gain(pull: Floats, mass: Floats, value: Floats) -> Floats:
    """Reduction of the squared error by this leaf value compared with the value 0."""
    return np.asarray(2.0 * pull * value - mass * value * value)


def _child(tree: _Heap, node: NDArray[np.intp], codes: Codes, asked: NDArray[np.intp], missing: int) -> Codes:
    code = codes[np.arange(len(codes)), np.maximum(asked, 0)]
    left = np.where(code == missing, tree.missing_left[node], code <= tree.cut[node])
    return np.asarray(2 * node + np.where(left, 1, 2), dtype=np.intp)


def _edges(column: Floats, bins: int) -> Floats:
    """Thresholds halfway between neighbouring values, or between quantiles if there are many."""
    values = np.unique(column[~np.isnan(column)])
    if len(values) > bins:
        known = np.sort(column[~np.isnan(column)])
        values = np.unique(known[np.linspace(0, len(known) - 1, bins).astype(int)])
    return np.asarray(0.5 * (values[1:] + values[:-1]), dtype=np.float64)


class _Builder:
    """Collects trees in the portable form."""

    def __init__(self) -> None:
        self._node_start, self._leaf_start = [0], [0]
        self._feature: list[int] = []
        self._threshold: list[float] = []
        self._missing: list[bool] = []
        self._children: tuple[list[int], list[int]] = ([], [])
        self._value: list[float] = []

    def add(self, tree: _Heap, grower: _Grower, rate: float) -> Floats:
        """Append a tree; returns its contribution to the prediction of every row."""
        inner = [i for i in range(len(tree.feature)) if tree.feature[i] >= 0]
        number = {heap: n for n, heap in enumerate(inner)}
        leaves = 0
        for heap in inner:
            column = int(tree.feature[heap])
            self._feature.append(column)
            self._threshold.append(float(grower.edges[column][tree.cut[heap]]))
            self._missing.append(bool(tree.missing_left[heap]))
            for side, child in enumerate((2 * heap + 1, 2 * heap + 2)):
                if child in number:
                    self._children[side].append(number[child])
                else:
                    self._children[side].append(~leaves)
                    self._value.append(rate * float(tree.value[child]))
                    leaves += 1
        self._node_start.append(len(self._feature))
        self._leaf_start.append(len(self._value))
        return np.asarray(rate * tree.value[grower.apply(tree)], dtype=np.float64)

    def finish(self, features: Sequence[str], monotone: Sequence[int], base: float) -> Trees:
        """All trees added so far."""

        def ints(values: list[int]) -> NDArray[np.int32]:
            return np.array(values, dtype=np.int32)

        return Trees(
            tuple(features), tuple(monotone), base, ints(self._node_start), ints(self._leaf_start),
            ints(self._feature), np.array(self._threshold, dtype=np.float64), np.array(self._missing, dtype=np.bool_),
            ints(self._children[0]), ints(self._children[1]), np.array(self._value, dtype=np.float64),
        )  # fmt: skip
