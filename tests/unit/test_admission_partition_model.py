"""Value of own cores to an LRA: its model's prediction, with the queue estimate as prior, and experience."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.arbiter import partition
from perphd.admission.arbiter.member import Look, Member
from perphd.admission.arbiter.partition import Anchor, ScoreBands, Seen
from perphd.admission.arbiter.partition_cores import SharedCores
from perphd.admission.arbiter.partition_model import CoreCurve, CoreModels, likeness, rising, with_prior
from perphd.admission.detector.judge import DetectorState, Judgement, Target
from perphd.admission.settings import PolicySettings
from perphd.commands.explain import explain_parts
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Action, Cause, Health, Prediction, Verdict
from perphd.domain.policy import Band, HostView, ModelContext, Snapshot, WorkloadView
from perphd.domain.reading import Reading
from perphd.domain.sample import Sample
from perphd.domain.workload import Kind, WorkloadSpec
from tests.unit.admission_partition_world import LIMIT_MS, CrowdWorld, NoModel, Service
from tests.unit.test_admission_partition import SEEN, machine

TOTAL, THREADS = 12, 2
BANDS = st.builds(Band, st.floats(0.05, 5.0), st.floats(0.0, 1.0), st.floats(0.0, 40.0))


class Told(NoModel):
    """Answers these delays (over an undisturbed one of 5 ms) for 1, 2, ... own cores; the last one for more."""

    def __init__(self, delays: Sequence[Band]) -> None:
        self.delays, self.questions = delays, 0

    def reference(self, signal: str, load: Reading) -> Band | None:
        return Band(LIMIT_MS / 2.0, 0.05, 100.0) if signal == "delay:latency_p95_ms" else None

    def predict_delay(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Band, ...]:
        self.questions += 1
        return tuple(self.delays[min(a.cpu.lra_cores, len(self.delays)) - 1] for a in allocations)


def shared(model: Told, *, total: int = TOTAL) -> tuple[SharedCores, Look]:
    """The cores of a host whose LRA ``a`` has this model, and the LRA now."""
    spec = WorkloadSpec("a", Kind.LRA, "/a")
    view = WorkloadView(spec, Sample("a", 1.0, 1.0, cpu_usage_cores=2.0), model)
    target = Target(1.0, LIMIT_MS, None, Band(LIMIT_MS / 2.0, 0.05, 100.0))
    judged = Judgement(Verdict(Health.HEALTHY, Cause.NONE, 0.0, ()), DetectorState(), 1.2)
    snapshot = Snapshot(1, 1.0, 1.0, HostView(machine(1, total, THREADS), 4.0), (view,))
    cores = SharedCores(total, THREADS, floor=1, lras=2, has_batch=True, can_lend=False, now_s=0.0)
    models = CoreModels(snapshot, total, cores.most, 100)
    return replace(cores, models=models), Look(view, target, judged, True, PolicySettings())


@given(
    st.lists(BANDS, min_size=1, max_size=TOTAL), SEEN, st.floats(0.1, 20.0),
    st.none() | st.builds(Anchor, st.floats(1.0, 3.0), st.floats(0.1, 0.9), st.integers(1, 8), st.floats(0.0, 1.0)),
    st.lists(st.floats(0.0, 1.2), max_size=3), st.integers(0, TOTAL - 2),
)  # fmt: skip
def test_more_cores_never_have_less_chance_whatever_the_model_answers(
    delays: list[Band], seen: list[Seen], demand: float, anchor: Anchor | None, busy: list[float], has: int
) -> None:
    cores, look = shared(Told(delays))
    member = Member(has, demand=demand, seen=tuple(seen), anchor=anchor, busy=tuple(busy))
    chances = [cores.chance_of(look, member, n) for n in range(1, TOTAL + 1)]
    assert all(partition.NEVER <= each <= partition.KNOWN for each in chances)
    assert all(more >= less for less, more in pairwise(chances))
    assert all(math.isfinite(cores.score_of(look, member, n)) for n in range(1, TOTAL + 1))
    for wanted in (0.3, 0.6, 0.9):
        first = next((n for n in range(1, cores.most) if chances[n - 1] >= wanted), cores.most)
        assert cores.fewest(look, member, wanted) == first


@given(st.lists(BANDS, min_size=1, max_size=TOTAL), SEEN, st.floats(0.1, 20.0), st.integers(1, TOTAL))
def test_without_samples_the_queue_estimate_remains(
    delays: list[Band], seen: list[Seen], demand: float, count: int
) -> None:
    cores, look = shared(Told([replace(band, support=0.0) for band in delays]))
    member = Member(2, demand=demand, seen=tuple(seen))
    prior = partition.queue_estimates(seen, partition.busy_shares(demand, TOTAL, THREADS), THREADS, 0.0)
    assert cores.bands_of(look, member).band(count) == prior.band(count)
    by_queue = partition.chances(seen, demand, 0.0, TOTAL, lambda: prior)[count - 1]
    assert cores.chance_by_queue(member, count) == by_queue
    alone = replace(cores, models=None)
    assert cores.chance_of(look, member, count) == alone.chance_of(look, member, count)


def combined(room: Band, prior: Band, work: Band | None = None, alike: float = 1.0) -> Band:
    """The combined estimate for one number of cores."""
    told = CoreCurve(ScoreBands.of([room]), None if work is None else ScoreBands.of([work]))
    return with_prior(told, ScoreBands.of([prior]), alike).band(1)


@given(st.floats(0.1, 8.0), st.floats(0.0, 0.3), st.floats(0.1, 8.0), st.floats(0.1, 1.0))
def test_with_ample_samples_the_model_decides(told: float, sd: float, queue: float, queue_sd: float) -> None:
    prior = Band(queue, queue_sd, 0.0)
    found = combined(Band(told, sd, 1e7), prior)
    assert found.value == pytest.approx(told, rel=1e-3)
    assert found.sd <= max(sd, 0.02) + 0.02
    few, more = combined(Band(told, sd, 0.5), prior), combined(Band(told, sd, 5.0), prior)
    assert abs(math.log(more.value / told)) <= abs(math.log(few.value / told)) + 1e-9


@given(st.floats(0.2, 4.0), st.floats(0.05, 0.5), st.floats(0.0, 1.0))
def test_disagreement_is_uncertainty(told: float, sd: float, alike: float) -> None:
    """Two bands of one width that say different things leave a wider one than two that agree."""
    apart = combined(Band(told, sd, 5.0), Band(1.0, sd, 0.0), alike=alike)
    same = combined(Band(1.0, sd, 5.0), Band(1.0, sd, 0.0), alike=alike)
    assert apart.sd >= same.sd - 1e-9


def test_work_that_is_predicted_to_miss_its_target_counts_beside_the_delay() -> None:
    prior = Band(1.5, 0.3, 0.0)
    room = Band(1.5, 0.05, 20.0)
    assert combined(room, prior, Band(1.1, 0.02, 20.0)) == combined(room, prior)
    assert combined(room, prior, Band(0.8, 0.02, 20.0)).value < 0.85


def test_answers_without_samples_or_certainty_leave_the_prior_where_they_are() -> None:
    prior = ScoreBands.of([Band(1.5, 0.3, 0.0)] * 3)
    told = ScoreBands.of([Band(0.5, 0.05, 20.0), Band(0.5, 0.05, 0.0), Band(0.5, math.inf, 20.0)])
    found = with_prior(CoreCurve(told), prior)
    assert found.band(1).value < 0.6
    assert found.band(2) == found.band(3) == prior.band(1)


def test_samples_count_where_own_cores_are_as_busy() -> None:
    busy = np.array([0.5, 0.75])
    assert likeness(busy, ()).tolist() == [0.0, 0.0]
    assert likeness(busy, (0.2, 0.5))[0] == 1.0
    assert likeness(busy, (0.2, 0.5))[1] < 0.01
    told = Told([Band(0.5, 0.01, 30.0)])  # twice the target, it says, with any number of cores
    cores, look = shared(told)
    tried = partition.busy_share(4.0, 6, THREADS)
    member = Member(6, demand=4.0, anchor=Anchor(1.3, tried, 6, 0.5), busy=(tried,))
    found = cores.bands_of(look, member)
    busy = partition.busy_shares(4.0, TOTAL, THREADS)
    prior = partition.queue_estimates((), busy, THREADS, 0.0, member.anchor)
    assert found.band(6).value > 3.5
    assert found.band(3).value == pytest.approx(prior.band(3).value, rel=0.01)


@given(st.lists(BANDS, min_size=1, max_size=20))
def test_contradicting_predictions_are_pooled_and_others_stay(bands: list[Band]) -> None:
    found = rising(ScoreBands.of(bands))
    assert all(more >= less * (1.0 - 1e-9) for less, more in pairwise(found.value.tolist()))
    in_order = ScoreBands.of(sorted(bands, key=lambda band: band.value))
    assert rising(in_order).value.tolist() == pytest.approx(in_order.value.tolist())
    assert found.sd.tolist() == [band.sd for band in bands]
    assert found.support.tolist() == [band.support for band in bands]


def test_each_model_is_asked_once_for_all_numbers() -> None:
    told = Told([Band(1.5, 0.1, 10.0)])
    cores, look = shared(told, total=128)
    member = Member(20, demand=20.0, busy=(0.5,))
    for count in range(1, 128):
        cores.chance_of(look, member, count)
        cores.score_of(look, member, count)
    cores.predictions(look, [20, 21])
    assert told.questions == 1


def test_a_model_is_not_asked_while_its_samples_say_nothing_about_own_cores() -> None:
    told = Told([Band(1.5, 0.1, 10.0)])
    cores, look = shared(told)
    cores.chance_of(look, Member(6, demand=4.0), 5)
    assert told.questions == 0
    cores.chance_of(look, Member(0, demand=4.0), 5)
    assert told.questions == 1


def test_explain_of_a_divided_host_lists_the_bands_of_each_model() -> None:
    delays = [Band(4.0 / cores, 0.1, 3.0) for cores in range(1, 13)]
    world = CrowdWorld(machine(1, 12), {"a": Service(1.0), "b": Service(3.0)})
    world.models = {name: Told(delays) for name in world.services}
    world.step(60)
    moved = [
        d for row in world.history for d in row
        if d.action is not Action.HOLD and d.chosen.cpu.own_cores not in (None, d.current.cpu.own_cores)
    ]  # fmt: skip
    assert {d.workload for d in moved} == {"a", "b"}
    z = PolicySettings().confidence_z
    for decision in moved:
        shown = {c.allocation.cpu.own_cores: c for c in decision.candidates}
        assert shown[decision.chosen.cpu.own_cores].allocation == decision.chosen
        assert shown[decision.chosen.cpu.own_cores].verdict == "chosen"
        for cores, item in shown.items():
            assert cores is not None
            delay = delays[min(cores, 12) - 1]
            expected = Prediction(2.0 / delay.value, 2.0 / delay.at(z), 2.0 / delay.at(-z), delay.support)
            assert item.prediction == expected
    text = str(explain_parts(moved[-1:], 0.0, verbose=True))
    best = 2.0 / delays[(moved[-1].chosen.cpu.own_cores or 1) - 1].value
    assert f"{best:.2f} [" in text


def test_without_an_undisturbed_performance_no_band_is_made_up() -> None:
    world = CrowdWorld(machine(1, 12), {"a": Service(1.0), "b": Service(3.0)})
    world.step(60)
    shown = [c for row in world.history for d in row for c in d.candidates if d.chosen.cpu.own_cores]
    assert shown
    assert all(c.prediction is None and c.estimate is not None for c in shown)
