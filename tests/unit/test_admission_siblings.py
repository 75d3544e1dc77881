"""Batch whose threads share cores with each other gets more done on more of them, at the same use of CPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.admission import inferer
from perphd.admission.context import work_of
from perphd.admission.inferer import Assessed, Stakes
from perphd.domain.allocation import IDLE, Allocation, CpuGrant
from perphd.domain.decision import Prediction
from perphd.domain.smt import SMT_SLOWER

SURE = Prediction(1.5, 1.45, 1.55, 10.0)


def grant(cores: int, used: float) -> Assessed:
    """Idle-class batch on so many of ten cores; what it uses of them does not change."""
    return Assessed(Allocation(CpuGrant(10, cores, IDLE)), SURE, used)


def stakes(threads_per_core: float) -> Stakes:
    return Stakes(
        need=1.03, win_s=300.0, loss_s=4.0, price_cores=40.0, z=1.0, wanted_cores=4.0,
        threads_per_core=threads_per_core,
    )  # fmt: skip


def test_threads_that_have_a_core_to_themselves_do_more() -> None:
    assert work_of(4.0, 4.0, 2.0) == pytest.approx(4.0)
    assert work_of(4.0, 400.0, 2.0) == pytest.approx(4.0 * SMT_SLOWER, rel=1e-3)
    assert work_of(4.0, 8.0, 1.0) == 4.0


@given(st.floats(0.0, 64.0), st.floats(1.0, 64.0), st.floats(0.0, 64.0))
def test_more_cores_never_mean_less_work(used: float, cores: float, more: float) -> None:
    assert work_of(used, cores, 2.0) <= work_of(used, cores + more, 2.0) + 1e-9
    assert used - 1e-9 <= work_of(used, cores, 2.0) <= SMT_SLOWER * used + 1e-9


def test_a_step_back_is_worth_its_cores_only_where_siblings_meet() -> None:
    here, wider = grant(4, 4.0), grant(5, 4.0)
    assert inferer.cheaper([here, wider], here, stakes(1.0), ()) is None
    assert inferer.cheaper([here, wider], here, stakes(2.0), ()) is wider


def test_siblings_that_others_use_are_not_free() -> None:
    """On all cores beside an LRA that fills the rest, batch does what it does on as many full cores of its own."""
    beside = Stakes(
        need=1.03, win_s=300.0, loss_s=4.0, price_cores=40.0, z=1.0, beside_cores=5.0, threads_per_core=2.0
    )  # fmt: skip
    own = Assessed(Allocation(CpuGrant(10, 5, 100, exclusive=True)), SURE, 5.0)
    assert beside.batch_work(grant(10, 5.0)) == pytest.approx(beside.batch_work(own)) == pytest.approx(5.0)
    assert beside.batch_work(grant(10, 2.0)) > 2.0
