"""Koordinator's CPU suppression, and Algorithm 2 of the Perph paper as printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from perphd.admission.detector.judge import Target
from perphd.domain.allocation import Allocation
from perphd.domain.policy import Band, ModelContext
from perphd.domain.reading import NOT_MEASURED
from tests.unit.peers_world import Play, batch, cores_of, cpus_of, host, lra
from tools.bench.policies.peers import perph_literal
from tools.bench.policies.peers.koordinator import KoordinatorPolicy
from tools.bench.policies.peers.perph_literal import MAX_ITERATIONS, PerphLiteralPolicy, Quota


@pytest.mark.parametrize(
    ("used", "busy", "cpus"), [(0.0, None, 10), (4.0, None, 6), (4.0, 9.0, 3), (16.0, None, 2)]
)
def test_koordinator_gives_batch_what_the_threshold_leaves(used, busy, cpus):
    world = Play(KoordinatorPolicy(), host(cores=16, busy=busy))  # 65 % of 16 are 10.4
    settings = world.step(lra(usage=used), batch(usage=2.0))
    assert cores_of(settings["be"]) == cpus
    assert "lc" not in settings


def test_koordinator_grows_by_a_tenth_at_a_time_and_shrinks_at_once():
    world = Play(KoordinatorPolicy(), host(cores=20))
    assert cores_of(world.step(lra(usage=10.0), batch())["be"]) == 3
    assert cores_of(world.step(lra(usage=0.0), batch())["be"]) == 5
    assert cores_of(world.step(lra(usage=0.0), batch())["be"]) == 7
    assert cores_of(world.step(lra(usage=10.0), batch())["be"]) == 3


def test_koordinator_keeps_hardware_threads_of_a_core_together():
    world = Play(KoordinatorPolicy(), host(cores=8, threads=2))
    cpus = cpus_of(world.step(lra(usage=0.5), batch())["be"])
    assert {cpu % 8 for cpu in cpus} == {cpu % 8 for cpu in cpus if cpu >= 8}


class Model:
    """Work grows with cores up to a knee; nothing else matters."""

    is_closed = False

    def __init__(self, knee: float) -> None:
        self.knee = knee

    def reference(self, signal: str, load: object) -> Band | None:
        return Band(100.0, 0.01, 50.0) if signal == "work:sli" else None

    def predict_work(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Band, ...]:
        return tuple(
            Band(min(1.0, (a.cpu.total_cores - a.cpu.batch_cores) / self.knee), 0.1, 1.0) for a in allocations
        )

    predict_delay = predict_work
    batch_cores = predict_work


CONTEXT = ModelContext(2.0, 8.0, 8.0)
TARGET = Target(90.0, NOT_MEASURED, work_band=Band(100.0, 0.01, 50.0))


def test_algorithm_2_walks_up_the_gradient_and_stops_within_epsilon():
    found, count = perph_literal.infer(Quota(2.0, 1e9, 5.0, 50.0), TARGET, Model(5.55), CONTEXT, 8)
    assert count < MAX_ITERATIONS
    assert 4.0 < found.cpu <= 5.0
    assert (found.memory_bytes, found.ways, found.mbw_pct) == (1e9, 5.0, 50.0), "no gradient, no change"


def test_algorithm_2_never_stops_where_the_target_lies_between_two_steps():
    found, count = perph_literal.infer(Quota(2.0, 1e9, 5.0, 50.0), TARGET, Model(3.2), CONTEXT, 8)
    assert count == MAX_ITERATIONS, "two-sided stop: 2 cores are 0.69 of the target, 3 are 1.04"
    assert found.cpu > 8.0, "and nothing bounds it"


def test_literal_acts_after_two_bad_samples_and_caps_the_lra_itself():
    view = replace(
        lra("lc", 20.0, load=50.0), model=Model(5.55),
        spec=replace(lra("lc").spec, objective=replace(lra("lc").spec.objective, max_latency_ms=None)),
    )  # fmt: skip
    world = Play(PerphLiteralPolicy(), host())
    assert world.step(view, batch()) == {}
    settings = world.step(view, batch())
    assert settings["lc"].mba_pct == ((0, 50),), "the throttle is put on the one to be rescued"
    assert not cpus_of(settings["lc"]) & cpus_of(settings["be"])
    assert isinstance(settings["lc"].memory_high_bytes, int)
    kept = settings
    assert view.sample is not None
    well = replace(view, sample=replace(view.sample, work_rate_per_s=100.0))
    for _ in range(5):
        kept = world.step(well, batch())
    assert kept == settings, "nothing is ever given back"
