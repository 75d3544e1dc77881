"""What surrounds a sample reaches the model: contention that perphd cannot control is not booked to allocations."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.admission.inference.inferer import untouched
from perphd.agent.learning import ObservationMerger, observations
from perphd.domain.host_account import CpuAccount, HostAccount
from perphd.domain.policy import HostView, Snapshot, WorkloadView
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable, available
from perphd.domain.sample import Quality, Sample
from perphd.domain.workload import Kind, Objective, WorkloadSpec
from perphd.predictor import LraModel, Observation, features
from tests.unit.admission_world import topology

NO_MBM = Unavailable("no memory bandwidth monitoring")


def lra(name: str, gigabytes: Reading = 2.0, cpus: Reading = 1.5, kind: Kind = Kind.LRA) -> WorkloadView:
    bandwidth = gigabytes * 1e9 if available(gigabytes) else gigabytes
    sample = Sample(
        name, 10.0, 1.0, cpu_usage_cores=cpus, mbw_bytes_per_s=bandwidth, io_some_pct=40.0, mips=6000.0, cpi=0.75,
        work_rate_per_s=1000.0,
    )  # fmt: skip
    return WorkloadView(
        WorkloadSpec(name, kind, f"/{name}"), sample, LraModel() if kind is Kind.LRA else None
    )


def seen(*views: WorkloadView) -> dict[str, Observation]:
    snapshot = Snapshot(1, 10.0, 1.0, HostView(topology(4), busy_cores=3.0), views, None)
    return dict(observations(snapshot, (), 0.05))


def test_neighbours_are_the_other_lras_and_not_batch() -> None:
    found = seen(lra("db", 2.0), lra("web", 3.0, 0.5), lra("mq", 4.0, 1.0), lra("job", 50.0, 9.0, Kind.BATCH))
    assert found["db"].neighbours_bytes_per_s == pytest.approx(7e9)
    assert found["db"].neighbours_cores == pytest.approx(1.5)
    assert found["mq"].neighbours_bytes_per_s == pytest.approx(5e9)


def test_what_is_not_measured_is_said_and_alone_means_none() -> None:
    found = seen(lra("db", 2.0), lra("web", NO_MBM))
    assert found["db"].neighbours_bytes_per_s == NO_MBM
    assert found["web"].neighbours_bytes_per_s == pytest.approx(2e9)
    assert seen(lra("db"))["db"].neighbours_bytes_per_s == 0.0
    assert seen(lra("db", NO_MBM))["db"].neighbours_bytes_per_s == NO_MBM


def test_every_covariate_reaches_the_models_features() -> None:
    views = (lra("db", 2.0, 1.5), lra("web", 3.0, 0.5))
    one = seen(*views)["db"]
    model = LraModel()
    for t in range(6):
        model.observe(replace(one, undisturbed=True, sample=replace(one.sample, at_s=float(t))))
    model.observe(replace(one, undisturbed=False))
    (cell,) = model.to_state().work.cells
    x = dict(zip(features.NAMES, cell.x, strict=True))
    assert x["neighbours_gb_per_s"] == pytest.approx(3.0)
    assert x["neighbours_load"] == pytest.approx(0.5 / 4)
    assert x["io_stall"] == pytest.approx(0.4)
    assert x["frequency_ghz"] == pytest.approx(6000.0 * 0.75 / 1.5 / 1000.0)
    assert x["other_load"] == pytest.approx((3.0 - 2.0) / 4)
    assert None not in x.values()


@pytest.mark.parametrize(
    ("objective", "ways", "shielded"),
    [
        (Objective(), 0, False),
        (Objective(), 10, True),  # all that batch can be kept from
        (Objective(min_work_rate_per_s=900.0), 0, True),  # it is met all the same
        (Objective(min_work_rate_per_s=1100.0), 0, False),
        (Objective(min_work_rate_per_s=900.0, max_latency_ms=5.0), 0, False),  # one of them is not measured
    ],
)
def test_a_sample_beside_batch_is_shielded_if_batch_has_little_cache_or_is_spared(
    objective: Objective, ways: int, shielded: bool
) -> None:
    db, job = lra("db"), lra("job", 50.0, 9.0, Kind.BATCH)
    held = replace(untouched(4), llc_ways=ways)
    db = replace(db, spec=replace(db.spec, objective=objective), protection=held)
    job = replace(job, enforceable=frozenset({"llc_masks"}), enforced=True)
    snapshot = Snapshot(1, 10.0, 1.0, HostView(topology(4), 3.0, llc_ways=11), (db, job), None)
    assert dict(observations(snapshot, (held,), 0.05))["db"].shielded is shielded


@pytest.mark.parametrize(
    ("ways", "levels", "settable", "expected"),
    [
        (11, (10, 100), {"llc_masks", "mba_pct"}, 2),
        (11, (100,), {"llc_masks", "mba_pct"}, 1),
        (11, (10, 100), set[str](), 0),  # somebody insists on masks of his own
        (0, (100,), {"llc_masks", "mba_pct"}, 0),
        (0, (100,), None, None),
    ],
)
def test_an_observation_says_what_batch_can_be_kept_from(
    ways: int, levels: tuple[int, ...], settable: set[str] | None, expected: int | None
) -> None:
    views = [lra("db")]
    if settable is not None:
        job = lra("job", 50.0, 9.0, Kind.BATCH)
        views.append(replace(job, enforceable=frozenset(settable), enforced=True))
    host = HostView(topology(4), 3.0, llc_ways=ways, mba_levels_pct=levels)
    snapshot = Snapshot(1, 10.0, 1.0, host, tuple(views), None)
    assert dict(observations(snapshot, (untouched(4),), 0.05))["db"].cache_knobs == expected


def slow(at_s: float, answered: int, **changes: object) -> Snapshot:
    """A second of an application that answers few requests."""
    view = lra("olap")
    assert view.sample is not None
    sample = replace(
        view.sample, at_s=at_s, work_rate_per_s=float(answered), work_events=float(answered),
        latency_p95_ms=900.0 if answered else Unavailable("nothing was answered"),
    )  # fmt: skip
    view = replace(view, sample=replace(sample, **changes))  # type: ignore[arg-type]
    return Snapshot(round(at_s), at_s, 1.0, HostView(topology(4), busy_cores=3.0), (view,), None)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.6, 3.0), st.integers(0, 1000))
def test_few_requests_a_second_teach_their_rate_and_not_that_of_seconds_with_requests(
    rate: float, seed: int
) -> None:
    random, lessons, model, left, total = Random(seed), ObservationMerger(), LraModel(), 0.0, 0
    for t in range(1, 121):
        left += random.expovariate(1.0) * rate  # about as many as Poisson's
        answered, left = int(left), left - int(left)
        total += answered
        for name, one in lessons.of(slow(float(t), answered), (), 0.05):
            assert name == "olap"
            assert one.count > 1
            model.observe(replace(one, undisturbed=True))
    found = model.reference("work:sli", NOT_MEASURED)
    assert found is not None
    # Of the latest samples, which count for more. Of the seconds with requests alone it would be up to twice as many.
    assert 0.6 * total / 120 <= found.value <= 1.2 * total / 120
    assert found.support >= 60.0 * 0.9, "as much as of as many seconds"


def test_samples_with_enough_requests_are_learned_one_by_one() -> None:
    lessons = ObservationMerger()
    for t in (1.0, 2.0, 3.0):
        ((_, one),) = lessons.of(slow(t, 25), (), 0.05)
        assert (one.count, one.sample.at_s, one.sample.interval_s) == (1, t, 1.0)
    ((_, silent),) = lessons.of(
        Snapshot(1, 4.0, 1.0, HostView(topology(4), 3.0), (lra("db"),), None), (), 0.05
    )
    assert silent.count == 1, "how many events it holds is not known"


def test_what_was_taken_under_other_circumstances_is_not_merged() -> None:
    lessons = ObservationMerger()
    assert [*lessons.of(slow(1.0, 10), (), 0.05)] == []
    held = replace(slow(2.0, 10).workloads[0], protection=replace(untouched(4), llc_ways=3))
    assert [*lessons.of(replace(slow(2.0, 10), workloads=(held,)), (), 0.05)] == []
    held = replace(slow(3.0, 16).workloads[0], protection=replace(untouched(4), llc_ways=3))
    ((_, one),) = lessons.of(replace(slow(3.0, 16), workloads=(held,)), (), 0.05)
    assert (one.count, one.sample.work_events, one.sample.work_rate_per_s) == (2, 26.0, 13.0)
    assert [*lessons.of(slow(4.0, 10), (), 0.05)] == []
    ((_, flagged),) = lessons.of(slow(5.0, 30, quality=(Quality.SETTLING,)), (), 0.05)
    assert flagged.count == 1


@pytest.mark.parametrize("undeclared", [1.5, 0.0])
def test_while_perphd_itself_starts_a_full_host_teaches_nothing(undeclared: float) -> None:
    cpu = CpuAccount(4.0, 2.0, 0.0, undeclared, 0.1, 0.0, 1.9 - undeclared)
    lessons, taught = ObservationMerger(start_s=3.0), []
    for t in (10.0, 11.0, 12.0, 13.0, 14.0, 15.0):
        snapshot = slow(t, 50)
        host = replace(snapshot.host, account=HostAccount(t, 1.0, cpu))
        taught += [one.sample.at_s for _, one in lessons.of(replace(snapshot, host=host), (), 0.05)]
    # A host with CPUs to spare has some for perphd's start.
    assert taught == ([14.0, 15.0] if undeclared else [10.0, 11.0, 12.0, 13.0, 14.0, 15.0])


def test_without_a_start_a_full_host_teaches_from_the_first_sample_on() -> None:
    cpu, snapshot = CpuAccount(4.0, 2.0, 0.0, 1.5, 0.1, 0.0, 0.4), slow(10.0, 50)
    host = replace(snapshot.host, account=HostAccount(10.0, 1.0, cpu))
    assert len([*ObservationMerger().of(replace(snapshot, host=host), (), 0.05)]) == 1


def test_a_model_doubts_rates_that_few_events_tell() -> None:
    def band(events: float, count: int) -> float:
        model = LraModel()
        one = seen(lra("db"))["db"]
        for t in range(8):
            model.observe(replace(one, undisturbed=True, sample=replace(one.sample, at_s=float(t))))
        beside = replace(one.sample, at_s=9.0, work_events=events)
        model.observe(replace(one, undisturbed=False, sample=beside, count=count))
        return model.predict_work([one.allocation], one.context)[0].sd

    assert band(12.0, 10) > 1.5 * band(12.0, 1)
    assert band(4.0, 10) > band(12.0, 10) > band(400.0, 10)
