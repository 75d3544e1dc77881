from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.domain.allocation import Allocation, CpuGrant
from perphd.domain.errors import PerphError
from perphd.domain.policy import ModelContext
from perphd.domain.sample import Sample
from perphd.predictor import LraModel, Observation, Registry, features
from perphd.predictor.boosted import RESIDENT, Boosted
from perphd.predictor.features import COLUMNS, Covariates
from perphd.predictor.gate import Gate
from perphd.predictor.ogbrt.rebuild import RebuildJob
from perphd.predictor.persist import ModelFile, ModelState, Provenance, from_text, ranges_of, to_text
from perphd.predictor.rebuild_worker import (
    RebuildFailed,
    pack_jobs,
    pack_results,
    unpack_jobs,
    unpack_results,
)
from perphd.predictor.residual import Residual

SCALES = np.array([0.4, 0.45, 0.5, 0.35, 0.6, 0.4, 0.4])
FROM = Provenance("db", "/app/db", "push", "node1", 4, "1.2.3", 1e6)


def row(**values: float) -> features.Floats:
    x = np.array([0.5 * (c.low + c.high) for c in COLUMNS])
    for name, value in values.items():
        x[features.NAMES.index(name)] = value
    return x


def boosted() -> Boosted:
    return Boosted(SCALES, 0.2, 0.06, features.WORK_SIGNS)


def taught(samples: int, truth: float = 0.4) -> Boosted:
    """One that saw many places, where the correction follows a covariate that tells no cell from another."""
    made = boosted()
    rng = np.random.default_rng(1)
    for i in range(samples):
        share, stall = rng.integers(1, 9) / 8, rng.random()
        x = row(batch_core_share=share, io_stall=stall)
        made.update((share,), x, -truth * stall + 0.02 * rng.standard_normal(), float(i))
        if made.rebuild_due:
            made.offer(made.rebuild_job().run())
    return made


def test_before_there_are_trees_it_answers_as_the_cells_alone() -> None:
    one, other = boosted(), Residual(SCALES, 0.2, 0.06)
    rng = np.random.default_rng(0)
    for i in range(50):
        x = row(batch_core_share=rng.integers(1, 5) / 4)
        value = float(rng.normal(-0.2, 0.05))
        one.update((x[0],), x, value, float(i))
        other.update((x[0],), x, value, float(i))
    asked = np.stack([row(batch_core_share=share) for share in (0.1, 0.5, 1.0)])
    for got, wanted in zip(one.predict(asked, 60.0), other.predict(asked, 60.0), strict=True):
        assert np.array_equal(got, wanted)


def test_trees_learn_from_a_covariate_what_cells_cannot_tell_apart() -> None:
    made = taught(500)
    assert made.trusted
    calm, stalled = row(batch_core_share=0.5, io_stall=0.05), row(batch_core_share=0.5, io_stall=0.95)
    mean, sd, _ = made.predict(np.stack([calm, stalled]), 500.0)
    assert mean[0] - mean[1] > 0.2
    assert np.all(sd > 0)


def test_where_it_was_never_seen_trees_say_nothing() -> None:
    made = taught(500)
    far = row(batch_core_share=0.5, io_stall=0.5, batch_weight_log10=-1.6, exclusive=1.0, lra_load=0.0)
    mean, sd, support = made.predict(far[None], 500.0)
    plain, plain_sd, _ = made._local.above(far[None], 500.0, np.zeros(1))
    assert mean[0] == pytest.approx(plain[0], abs=1e-9)
    assert sd[0] == pytest.approx(plain_sd[0])
    assert support[0] < 1.0


def test_drift_is_noticed_and_what_other_cells_knew_counts_little() -> None:
    made = taught(500)
    before = {cell.key: cell.count for cell in made.to_state(500.0).cells}
    x = row(batch_core_share=0.5, io_stall=0.5)
    for i in range(12):
        made.update((0.5,), x, -1.2, 500.0 + i)
    assert made.alarms >= 1
    after = {cell.key: cell.count for cell in made.to_state(512.0).cells}
    assert max(count for key, count in after.items() if key != (0.5,)) <= 3.0 < max(before.values())
    assert made.predict(x[None], 512.0)[0][0] < -0.9


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.floats(-5, 5), st.sampled_from([0.1, 1.0, -50.0, 1e7, math.nan])),
        max_size=40,
    )
)
def test_odd_streams_never_break_it(samples: list[tuple[int, float, float]]) -> None:
    made, at_s = boosted(), 0.0
    for cell, value, more in samples:
        at_s += more if math.isfinite(more) else 0.0  # the clock jumps, too
        x = row(batch_core_share=cell / 4, io_stall=more, frequency_ghz=math.nan)
        made.update((cell,), x, value, at_s)
        if made.rebuild_due:
            made.offer(None if cell == 0 else made.rebuild_job().run())
    mean, sd, support = made.predict(np.stack([row(), row(io_stall=math.nan)]), at_s)
    assert np.all(np.isfinite(mean))
    assert np.all(sd > 0)
    assert np.all(support >= 0)


def test_a_constant_stream_leaves_a_band() -> None:
    made = boosted()
    for i in range(200):
        made.update(("here",), row(), -0.1, float(i))
        if made.rebuild_due:
            made.offer(made.rebuild_job().run())
    mean, sd, _ = made.predict(row()[None], 200.0)
    assert mean[0] == pytest.approx(-0.1, abs=0.01)
    assert 0 < sd[0] < 0.1


# -- keeping -----------------------------------------------------------------------------------------------


def observation(t: float, batch: bool, work: float, **more: object) -> Observation:
    readings: dict[str, object] = {"cpu_usage_cores": 2.0, "run_delay_cores": 1.0, "work_rate_per_s": work}
    sample = Sample("db", t, 1.0, **(readings | more))  # type: ignore[arg-type]
    cores = 4 if t % 40 < 20 else 2
    context = ModelContext(2.0, 4.0 if batch else 0.0, 4.0)
    return Observation(sample, Allocation(CpuGrant(4, cores, 100)), context, not batch, batch_cores=1.9)


def grown(seconds: int = 110) -> LraModel:
    registry = Registry("ogbrt")
    model = registry.model("db")
    rng = np.random.default_rng(2)
    for t in range(seconds):
        batch = t >= 15
        stall = 40.0 * rng.random()
        work = (600.0 - 3 * stall if batch else 1000.0) * math.exp(0.02 * rng.standard_normal())
        model.observe(observation(float(t), batch, work, io_some_pct=stall))
        registry.rebuild_here()
    return model


@functools.cache
def state_of_one() -> ModelState:
    return grown().to_state()


def file_of(model: LraModel) -> ModelFile:
    state = model.to_state()
    return ModelFile(FROM, ranges_of(state), state)


def test_trees_survive_a_restart_exactly() -> None:
    model = grown()
    state = model.to_state()
    assert state.work.boosted is not None
    assert state.work.boosted.trees.value, "there should be trees by now"
    again = LraModel.from_state(from_text(to_text(file_of(model))).state, 109.0, learner="ogbrt")
    asked, context = [Allocation(CpuGrant(4, n, 100)) for n in (4, 2, 1)], ModelContext(2.0, 4.0, 4.0)
    # What was measured last is not kept: it comes with the next sample.
    for one in (model, again):
        one.observe(observation(110.0, True, 580.0, io_some_pct=10.0))
    assert again.predict_work(asked, context) == model.predict_work(asked, context)
    assert again.predict_delay(asked, context) == model.predict_delay(asked, context)
    assert again.to_state() == model.to_state()


def test_a_file_without_trees_is_read_and_another_learner_reads_one_with_them() -> None:
    state = state_of_one()
    bare = replace(state, work=replace(state.work, boosted=None), delay=replace(state.delay, boosted=None))
    for learner, kept in (("ogbrt", bare), ("residual", state)):
        model = LraModel.from_state(kept, 110.0, learner=learner)  # type: ignore[arg-type]
        model.observe(observation(111.0, True, 580.0))
        (band,) = model.predict_work([Allocation(CpuGrant(4, 4, 100))], ModelContext(2.0, 4.0, 4.0))
        assert 0.4 < band.value < 0.8


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"values": (1.0,)}, "values: 1 entries"),
        ({"typical": (0.0,)}, "typical: 1 entries"),
        ({"rows": (0.0,)}, "rows: 1 entries"),
        ({"features": ("a", "a")}, "a name occurs twice"),
    ],
)
def test_a_state_whose_parts_do_not_fit_is_refused(change: dict[str, object], says: str) -> None:
    state = state_of_one()
    assert state.work.boosted is not None
    broken = replace(state, work=replace(state.work, boosted=replace(state.work.boosted, **change)))  # type: ignore[arg-type]
    with pytest.raises(PerphError, match=says):
        LraModel.from_state(broken, learner="ogbrt")


# -- the gate ----------------------------------------------------------------------------------------------


def test_the_gate_closes_on_what_is_clearly_wrong_and_opens_again() -> None:
    gate = Gate(0.2)
    rng = np.random.default_rng(3)
    for error in rng.normal(0.0, 0.1, 200):  # scatter is no error
        gate.update(float(error))
        assert gate.is_open
    sd, support = np.array([0.05, 0.05]), np.array([10.0, 0.0])
    assert np.array_equal(gate.widen(sd, support, 0.2), sd)
    for _ in range(5):
        gate.update(-0.5)
    gate.update(math.nan)
    assert not gate.is_open
    assert gate.widen(sd, support, 0.2).tolist() == [0.05, 0.2]
    for _ in range(20):
        gate.update(0.0)
    assert gate.is_open


def test_no_gate_never_closes() -> None:
    gate = Gate(0.0)
    for _ in range(20):
        gate.update(3.0)
    assert gate.is_open


# -- what the columns are ------------------------------------------------------------------------------------


def test_frequency_is_cycles_per_second_of_cpu_time() -> None:
    sample = Sample("db", 1.0, 1.0, cpu_usage_cores=2.0, mips=5000.0, cpi=1.2, io_some_pct=25.0)
    around = Covariates.of(sample, 3e9)
    assert around.io_stall == 0.25
    assert isinstance(around.frequency_ghz, float)
    assert around.frequency_ghz == pytest.approx(3.0)
    assert around.neighbours_gb_per_s == 3.0
    assert Covariates.of(Sample("db", 1.0, 1.0)) == Covariates()
    x = features.features([Allocation(CpuGrant(4, 2, 100))], ModelContext(2.0, 4.0, 4.0))
    assert x.shape == (1, len(COLUMNS))
    assert np.isnan(x[0, features.NAMES.index("io_stall")])


# -- the worker's language -----------------------------------------------------------------------------------


def test_jobs_and_results_are_the_same_on_the_other_side() -> None:
    made = taught(59)
    made.update((9,), row(), 0.0, 60.0)
    job = made.rebuild_job()
    (read,) = unpack_jobs(pack_jobs([job]))
    here, there = job.run(), unpack_results(pack_results([read.run()]))[0]
    assert isinstance(read, RebuildJob)
    assert read.settings == RESIDENT.fit
    assert np.array_equal(here.values, there.values)
    asked = np.stack([row(), row(io_stall=0.9)])
    assert np.array_equal(here.forest.predict(asked), there.forest.predict(asked))


@pytest.mark.parametrize("data", [b"", b"nonsense", pack_jobs([])[:40]])
def test_nonsense_from_a_worker_is_refused(data: bytes) -> None:
    with pytest.raises(RebuildFailed, match="cannot be read"):
        unpack_results(data)


def test_a_model_kept_before_a_column_was_added_goes_on_with_it() -> None:
    made = taught(400)
    state = made.to_state(400.0)
    assert state.boosted is not None
    had = len(COLUMNS) - 1

    def fewer(values: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(np.array(values).reshape(-1, len(COLUMNS))[:, :had].ravel().tolist())

    b = state.boosted
    old = replace(
        b, features=b.features[:had], typical=b.typical[:had], rows=fewer(b.rows), places=fewer(b.places)
    )
    again = boosted()
    again.restore(replace(state, boosted=old), 400.0)
    asked = np.stack([row(batch_core_share=0.5, io_stall=s, neighbours_load=0.0) for s in (0.1, 0.9)])
    mean = again.predict(asked, 400.0)[0]
    assert mean[1] < mean[0] - 0.2  # what was learned is still known
    again.update((0.5,), asked[0], -0.1, 401.0)
    with pytest.raises(PerphError):
        again.restore(replace(state, boosted=replace(old, typical=old.typical[:-1])), 400.0)
