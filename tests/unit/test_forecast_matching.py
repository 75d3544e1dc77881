"""The matching of least weight, against exhaustive search and against an integer program."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse  # type: ignore[import-untyped]
from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]

from perphd.forecast.matching import minimum_weight_pairs


def _cost(weights: np.ndarray, pairs: tuple[tuple[int, int], ...]) -> float:
    assert sorted(v for pair in pairs for v in pair) == list(range(len(weights)))
    return float(sum(weights[i, j] for i, j in pairs))


def _exhaustive(weights: np.ndarray) -> float:
    @cache
    def least(left: frozenset[int]) -> float:
        if not left:
            return 0.0
        first = min(left)
        rest = left - {first}
        return min(float(weights[first, other]) + least(rest - {other}) for other in rest)

    return least(frozenset(range(len(weights))))


def _symmetric(n: int, seed: int, levels: int | None) -> np.ndarray:
    random = np.random.default_rng(seed)
    drawn = (
        random.uniform(-1, 5, (n, n)) if levels is None else random.integers(0, levels, (n, n)).astype(float)
    )
    return np.triu(drawn, 1) + np.triu(drawn, 1).T


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 5), st.integers(0, 10**6), st.sampled_from([None, 2, 3, 10]))
def test_as_cheap_as_the_best_of_all_matchings(half: int, seed: int, levels: int | None) -> None:
    weights = _symmetric(2 * half, seed, levels)
    assert _cost(weights, minimum_weight_pairs(weights.tolist())) == pytest.approx(
        _exhaustive(weights), abs=1e-6
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("levels", [None, 4])
def test_as_cheap_as_an_integer_program_finds_it(seed: int, levels: int | None) -> None:
    n = 34
    weights = _symmetric(n, seed, levels)
    edges = [(i, j) for i in range(n) for j in range(i + 1, n)]
    incidence = sparse.lil_matrix((n, len(edges)))
    for place, (i, j) in enumerate(edges):
        incidence[i, place] = incidence[j, place] = 1
    best = milp(
        [weights[i, j] for i, j in edges],
        constraints=LinearConstraint(incidence.tocsr(), 1, 1),
        bounds=Bounds(0, 1),
        integrality=np.ones(len(edges)),
    )
    assert _cost(weights, minimum_weight_pairs(weights.tolist())) == pytest.approx(best.fun, abs=1e-6)


def test_what_cannot_be_matched() -> None:
    with pytest.raises(ValueError, match="even number"):
        minimum_weight_pairs([[0.0]])
    with pytest.raises(ValueError, match="finite"):
        minimum_weight_pairs([[0.0, math.inf], [math.inf, 0.0]])
