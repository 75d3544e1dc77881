"""Batch whose threads share cores with each other gets more done on more of them, at the same use of CPU."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.context import work_of
from perphd.admission.inference import inferer
from perphd.admission.inference.inferer import Assessed, Stakes
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


@given(st.integers(1, 64), st.integers(1, 100), st.floats(0.0, 64.0), st.floats(0.0, 64.0), st.integers(1, 4))
def test_a_weight_alone_gains_no_more_than_the_fair_share_or_the_idle_cpu(
    cores: int, weight: int, used: float, idle: float, groups: int
) -> None:
    """The kernel's division: a group's fair share of its CPUs, and beyond it what nobody else takes."""
    known = replace(stakes(1.0), used_cores=used, idle_cores=idle, batch_groups=groups)
    here, there = CpuGrant(64, cores, IDLE), CpuGrant(64, cores, weight)
    share = cores * groups * weight / (groups * weight + 100.0)
    assert known.most_gain_cores(here, there) == pytest.approx(max(0.0, share - used) + idle)
    assert known.most_gain_cores(here, replace(there, batch_cores=cores + 1)) == math.inf
    assert stakes(1.0).most_gain_cores(here, there) == math.inf, "its use is not measured"


def test_a_doubtful_prediction_of_batchs_use_is_no_reason_for_a_greater_weight() -> None:
    """Batch uses 1.3 of two CPUs beside an LRA that takes little: no weight can gain it what the doubt promises."""
    idle = Assessed(Allocation(CpuGrant(2, 2, IDLE)), SURE, 1.3, 0.3)
    heavier = Assessed(Allocation(CpuGrant(2, 2, 6)), SURE, 1.31, 0.4)
    unknown = replace(stakes(1.0), threads_per_core=1.0)
    full = replace(unknown, used_cores=1.3, idle_cores=0.0)
    assert inferer.cheaper([idle, heavier], idle, unknown, ()) is heavier
    assert inferer.cheaper([idle, heavier], idle, full, ()) is None
    surely = replace(heavier, batch_cores=1.45)
    assert inferer.cheaper([idle, surely], idle, full, ()) is surely, "the expected gain itself still counts"
    assert inferer.cheaper([idle, heavier], idle, replace(full, used_cores=0.01), ()) is heavier
