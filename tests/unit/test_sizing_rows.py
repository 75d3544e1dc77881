"""Rows of sizes: what other programs read of a recommendation."""

from __future__ import annotations

import numpy as np
import pytest

from perphd.domain.reading import Unavailable, available
from perphd.sizing.recommendation import Reservation
from perphd.sizing.rows import SizeHistory, SizeRow, recommendation, saved, size_rows
from perphd.sizing.shaper import Resource


def history(reserved: float | Unavailable, windows: int = 200, missing: str = "") -> SizeHistory:
    values = (1 + 0.1 * np.random.default_rng(1).random(windows)).tolist()
    return SizeHistory("db", Resource.CPU, range(windows), values, 1.0, Reservation(reserved), missing)


def test_a_row_has_what_the_recommendation_has() -> None:
    (found,) = size_rows([history(4.0)])
    sized = recommendation(history(4.0))
    assert (found.workload, found.resource, found.reserved) == ("db", "cpu", 4.0)
    assert (found.recommended, found.reclaimable, found.size_now) == (
        sized.recommended, sized.reclaimable, sized.next_window,
    )  # fmt: skip
    assert available(found.p50)
    assert available(found.greatest)
    assert found.p50 < found.greatest <= 1.1
    assert available(found.mean)
    assert available(found.bound)
    assert found.mean <= found.bound


def test_what_is_missing_says_why() -> None:
    short, unmeasured = size_rows([history(4.0, 12), history(4.0, 0, "not measured")])
    assert short.recommended == Unavailable("12 of 60 windows: 48 more minutes of samples")
    assert available(short.p99)
    assert unmeasured.p99 == unmeasured.mean == Unavailable("not measured")


def test_savings_count_rows_that_know_both_sides() -> None:
    rows: list[SizeRow] = [*size_rows([history(4.0), history(Unavailable("none set"))])]
    assert available(rows[0].recommended)
    assert saved(rows) == {"cpu": pytest.approx(4.0 - rows[0].recommended)}
    assert saved([]) == {}
