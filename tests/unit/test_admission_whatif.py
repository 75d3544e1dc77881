"""Admission: predictions come from the model of the living policy, refusals from targets, doubt and memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.whatif import whatif
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Health
from perphd.domain.policy import Snapshot, WorkloadView
from perphd.domain.whatif import Arrival, WhatIf
from perphd.domain.workload import Kind, WorkloadSpec
from tests.unit.admission_world import KNOBS, World


class Asking(World):
    """A world that keeps its last snapshot, to be asked about."""

    def _learn(self, snapshot: Snapshot) -> None:
        self.last = snapshot
        super()._learn(snapshot)


def ask(world: Asking, text: str, **changes: object) -> WhatIf:
    return whatif(replace(world.last, **changes), Arrival.parse(text), world.settings)  # type: ignore[arg-type]


def known(cores: int = 8, demand: float = 3.0, **changes: object) -> Asking:
    world = Asking(cores=cores, lra_demand=demand, **changes)  # type: ignore[arg-type]
    world.step(20)
    return world


def test_work_that_can_be_kept_out_of_the_way_may_come() -> None:
    world = known()
    answer = ask(world, "batch:cpu=8")
    assert answer.accepted, answer.reasons
    effect = answer.effects[0]
    assert effect.bearable
    assert isinstance(effect.best, Allocation)
    assert isinstance(answer.batch_cores, float)
    assert answer.batch_cores > 1


def test_what_nobody_protects_is_not_risked() -> None:
    world = known(cores=2, demand=1.9, enforced=False)
    answer = ask(world, "batch:cpu=2")
    assert not answer.accepted
    assert "batch could not be restricted" in answer.reasons[0]


def test_batch_that_is_not_there_does_not_keep_the_rest_from_giving_way() -> None:
    world = known()
    batch = next(view for view in world.last.workloads if view.spec.kind is Kind.BATCH)
    absent = replace(
        batch,
        spec=WorkloadSpec("absent", Kind.BATCH, "/absent"),
        sample=None,
        enforceable=frozenset(),
        enforced=True,
    )
    views = (*world.last.workloads, absent)
    assert ask(world, "batch:cpu=8", workloads=views).accepted


def test_an_unknown_application_is_no_reason_to_say_yes() -> None:
    world = Asking()
    world.step(1)
    answer = ask(world, "batch:cpu=1")
    assert not answer.accepted
    assert "not known yet" in answer.reasons[0]


def test_an_application_below_its_target_takes_no_more_company() -> None:
    world = known(cores=2, demand=1.9, loss=lambda _: 0.4)
    world.antagonist(True)
    world.step(1)
    answer = ask(world, "batch:cpu=1")
    assert not answer.accepted
    assert answer.effects[0].health is Health.DEGRADED


def test_memory_that_others_need_is_not_given_away() -> None:
    world = known()
    assert ask(world, "batch:cpu=1,mem=8G").accepted
    refused = ask(world, "batch:cpu=1,mem=16G")
    assert not refused.accepted
    assert "16.0 GiB" in refused.reasons[0]


def test_nobody_there_can_be_harmed_by_nothing() -> None:
    world = known()
    gone = WorkloadView(WorkloadSpec("db", Kind.LRA, "/db"), None, enforceable=KNOBS)
    assert ask(world, "batch:cpu=4", workloads=(gone,)).accepted
    assert ask(world, "batch:cpu=4", workloads=()).accepted


@given(st.floats(0.1, 64.0), st.floats(1.0, 4.0))
def test_more_work_is_never_easier_to_bear(cores: float, factor: float) -> None:
    world = known(cores=4, demand=2.0)
    less, more = ask(world, f"cpu={cores:.3f}"), ask(world, f"cpu={cores * factor:.3f}")
    assert less.accepted or not more.accepted


@pytest.mark.parametrize(
    "text", ["", "batch", "lra:cpu=1", "cpu=", "cpu=0", "cpu=-1", "cpu=nan", "cpu=1,cpu=2", "mem=1G", "cpu=1,mem=1 G",
             "cpu=1,disk=2", "cpu=1e9"],
)  # fmt: skip
def test_questions_that_are_none_are_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match=r"cpu|mem|batch"):
        Arrival.parse(text)
