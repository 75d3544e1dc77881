"""Cache and bandwidth trouble by resctrl's counters alone: no PMU, batch confined by perphd, an SLI that suffers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from perphd.admission.detector.cause import Surroundings, cause, counted, ledger, surroundings, unacquitted
from perphd.admission.inference.inferer import untouched
from perphd.admission.settings import PolicySettings
from perphd.commands.explain import explain_parts
from perphd.control.table import plain
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Action, Cause, Decision, Evidence, Health, Verdict
from perphd.domain.policy import Band, HostView, Snapshot, WorkloadView
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable
from perphd.domain.sample import Sample
from perphd.domain.signals import performance
from perphd.domain.workload import Kind, WorkloadSpec
from tests.unit.admission_world import topology

SETTINGS = PolicySettings()
NO_PMU = Unavailable("no PMU")
MIB = float(1 << 20)
USUAL = {
    "work:sli": 60.0,
    "delay:latency_p95_ms": 20.0,
    "cpu_usage_cores": 0.3,
    "in_flight": 0.32,
    "cpu_some_pct": 1.0,
    "memory_some_pct": 1.0,
    "io_some_pct": 1.0,
    "llc_occupancy_bytes": 12 * MIB,
    "mbw_bytes_per_s": 3e8,
}


@dataclass
class Known:
    """A model that knows its references and nothing else."""

    values: dict[str, float] = field(default_factory=lambda: dict(USUAL))
    is_closed: bool = False

    def reference(self, signal: str, load: Reading) -> Band | None:
        return Band(self.values[signal], 0.02, 100.0) if signal in self.values else None


def app(**readings: object) -> Sample:
    """The LRA while batch takes its cache: as much work, 2.5 times the CPU time for it, no wait for processors."""
    suffering: dict[str, object] = {
        "cpu_usage_cores": 0.75, "run_delay_cores": 0.05, "cpu_some_pct": 4.0, "memory_some_pct": 0.0,
        "io_some_pct": 0.0, "work_rate_per_s": 60.0, "load_per_s": 60.0, "latency_p95_ms": 75.0, "mips": NO_PMU,
        "cpi": NO_PMU, "llc_mpki": NO_PMU, "llc_occupancy_bytes": 4 * MIB, "mbw_bytes_per_s": 6e8,
    }  # fmt: skip
    return Sample("app", 100.0, 1.0, **(suffering | readings))  # type: ignore[arg-type]


AROUND = Surroundings(
    siblings_busy=False,
    batch_waits=True,
    confined=True,
    traffic_bytes_per_s=0.6e9,
    batch_traffic_bytes_per_s=1.8e9,
    batch_occupancy_bytes=11 * MIB,
)


def found(sample: Sample, around: Surroundings, model: Known | None = None) -> tuple[Cause, list[Evidence]]:
    model = model or Known()
    perf = performance(sample)
    evidence: list[Evidence] = []
    hierarchy, _ = counted(sample, perf, model, around, SETTINGS, evidence)  # type: ignore[arg-type]
    extra = ledger(sample, perf, model)  # type: ignore[arg-type]
    return cause(extra, hierarchy, sample, around, SETTINGS, evidence), evidence


def test_cache_that_batch_holds_now_is_named_and_not_cpu() -> None:
    named, evidence = found(app(), AROUND)
    assert named is Cause.LLC
    assert "llc_occupancy_bytes" in {item.signal for item in evidence}


def test_a_crowded_bus_without_lost_cache_is_bandwidth() -> None:
    around = replace(AROUND, traffic_bytes_per_s=2.5e9, batch_traffic_bytes_per_s=9e9)
    assert found(app(llc_occupancy_bytes=12 * MIB), around)[0] is Cause.MBW
    # Cache was lost as well, but a unit of work fetches no more than it did: dearer misses, not more of them.
    assert found(app(mbw_bytes_per_s=3e8), around)[0] is Cause.MBW
    assert found(app(), around)[0] is Cause.LLC


@pytest.mark.parametrize(
    "around",
    [
        replace(AROUND, batch_occupancy_bytes=NOT_MEASURED, batch_traffic_bytes_per_s=NOT_MEASURED),
        replace(AROUND, batch_occupancy_bytes=1 * MIB),
    ],
)
def test_batch_that_only_waits_where_perphd_keeps_it_proves_no_lack_of_cpu(around: Surroundings) -> None:
    assert found(app(), around)[0] is Cause.UNKNOWN


def test_batch_that_competes_freely_is_still_lack_of_cpu_where_nothing_counts() -> None:
    around = Surroundings(siblings_busy=False, batch_waits=True)
    bare = app(llc_occupancy_bytes=NOT_MEASURED, mbw_bytes_per_s=NOT_MEASURED)
    assert found(bare, around)[0] is Cause.CPU


def test_who_waits_for_processors_most_is_short_of_them_whatever_the_cache_says() -> None:
    named, _ = found(app(run_delay_cores=2.0, cpu_usage_cores=0.4), replace(AROUND, confined=False))
    assert named is Cause.CPU


def test_no_loss_is_seen_where_the_same_cpu_time_does_the_same_work() -> None:
    evidence: list[Evidence] = []
    quick = app(cpu_usage_cores=0.3)
    assert counted(quick, performance(quick), Known(), AROUND, SETTINGS, evidence) == (Cause.NONE, 0.0)  # type: ignore[arg-type]
    assert evidence == []


def test_cpu_time_as_work_says_nothing_about_the_cache() -> None:
    blind = app(work_rate_per_s=NOT_MEASURED, latency_p95_ms=NOT_MEASURED)
    model = Known(USUAL | {"work:cpu": 0.3})
    assert counted(blind, performance(blind), model, AROUND, SETTINGS, [])[0] is Cause.NONE  # type: ignore[arg-type]


def test_surroundings_add_up_batch_and_tell_whether_perphd_confines_it() -> None:
    lra, batch = WorkloadSpec("app", Kind.LRA, "/app"), WorkloadSpec("hog", Kind.BATCH, "/hog")
    hog = Sample("hog", 100.0, 1.0, cpu_some_pct=60.0, mbw_bytes_per_s=1.8e9, llc_occupancy_bytes=11 * MIB)
    free = untouched(4)
    kept = Allocation(replace(free.cpu, batch_cores=1))

    def around(allocation: Allocation) -> Surroundings:
        views = (WorkloadView(lra, app(), protection=allocation), WorkloadView(batch, hog))
        return surroundings(Snapshot(1, 100.0, 1.0, HostView(topology(4)), views))

    assert not around(free).confined
    confined = around(kept)
    assert confined.confined
    assert confined.traffic_bytes_per_s == pytest.approx(2.4e9 / 4)
    assert (confined.batch_traffic_bytes_per_s, confined.batch_occupancy_bytes) == (1.8e9, 11 * MIB)


def test_traffic_is_not_known_while_a_running_workload_is_not_measured() -> None:
    lra, batch = WorkloadSpec("app", Kind.LRA, "/app"), WorkloadSpec("hog", Kind.BATCH, "/hog")

    def traffic(cores: float) -> Reading:
        hog = Sample("hog", 100.0, 1.0, cpu_usage_cores=cores)
        views = (WorkloadView(lra, app()), WorkloadView(batch, hog))
        return surroundings(Snapshot(1, 100.0, 1.0, HostView(topology(4)), views)).traffic_bytes_per_s

    assert traffic(0.0) == pytest.approx(0.6e9 / 4)
    assert traffic(3.0) is NOT_MEASURED


def test_explain_shows_bytes_as_people_read_them() -> None:
    named, evidence = found(app(), AROUND)
    verdict = Verdict(Health.DEGRADED, named, 90.0, tuple(evidence))
    nothing = untouched(4)
    decision = Decision(
        100.0, "app", verdict, Action.HOLD, 60.0, 23.0, nothing, nothing, (), "it waits", "perph"
    )  # fmt: skip
    text = plain(explain_parts([decision], 0.0))
    assert "short of cache (LLC)" in text
    assert "last-level cache held: 4.0 MiB" in text


LLC_BYTES = 22 * MIB


def suspected(sample: Sample, around: Surroundings) -> Cause:
    evidence: list[Evidence] = []
    here, perf = replace(around, llc_bytes=LLC_BYTES), performance(sample)
    found = unacquitted(sample, perf, Known(), here, SETTINGS, evidence)  # type: ignore[arg-type]
    assert bool(evidence) == (found is not Cause.NONE and not around.relieving)
    return found


def test_batch_that_uses_much_of_the_cache_or_of_the_bus_is_not_acquitted_by_cpu_time() -> None:
    """Its latency grew, and neither do its threads wait nor run longer: elsewhere, or in what nobody counts here."""
    late = app(cpu_usage_cores=0.3)
    assert suspected(late, AROUND) is Cause.LLC
    crowded = replace(
        AROUND, batch_occupancy_bytes=1 * MIB, traffic_bytes_per_s=2.5e9, batch_traffic_bytes_per_s=9e9
    )
    assert suspected(late, crowded) is Cause.MBW


@pytest.mark.parametrize(
    ("sample", "around"),
    [
        (app(), replace(AROUND, batch_occupancy_bytes=4 * MIB)),  # it holds little, and moves little
        (app(llc_occupancy_bytes=12 * MIB), AROUND),  # the LRA has what it usually has
        (app(cpi=1.0), AROUND),  # the processor's own counters tell
        (app(), replace(AROUND, batch_occupancy_bytes=NOT_MEASURED, batch_traffic_bytes_per_s=NOT_MEASURED)),
    ],
)
def test_batch_is_not_suspected_without_evidence(sample: Sample, around: Surroundings) -> None:
    assert suspected(sample, around) is Cause.NONE


def test_relief_that_has_helped_is_evidence_of_its_own() -> None:
    """Where less cache or bandwidth for batch stands, it has helped: what is left of the trouble is of that kind."""
    assert suspected(app(), replace(AROUND, batch_occupancy_bytes=1 * MIB, relieving=True)) is Cause.LLC
