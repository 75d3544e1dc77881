"""The exported series: what the table, the page, the scrape and Prometheus' own checker say of each other."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from perphd.agent.tally import COUNTED, Tally, TallyHistogram
from perphd.config.file import Config, DaemonConfig
from perphd.control.metrics import Collector
from perphd.control.metrics.series import SERIES
from perphd.control.metrics.text import escaped, labels
from perphd.domain.decision import Health, Outcome
from perphd.domain.host_account import CpuAccount, HostAccount
from perphd.domain.plan import Stage, Write
from perphd.domain.reading import NOT_MEASURED, Awaited, Reading, available
from perphd.domain.sample import Sample
from perphd.domain.workload import Mode
from tests.unit.control_fake import CACHE, FakeAgent
from tests.unit.tools_found import prometheus_tool
from tools.reference.metrics import markdown

ROOT = Path(__file__).parents[2]
WALL_S = 1.7e9
CPU = CpuAccount(8.0, 2.0, 1.0, 1.5, 0.25, 0.0, 3.25)


def collector(agent: FakeAgent) -> Collector:
    return Collector(
        agent.status,
        lambda: agent.tally,
        lambda: agent.topology,
        agent.forecasts,
        agent.shaper,
        agent.memory_fits,
    )


def scraped(agent: FakeAgent) -> dict[str, Metric]:
    text = collector(agent).text().decode()
    return {metric.name: metric for metric in text_string_to_metric_families(text)}


@pytest.fixture
def agent(served_config: Config) -> FakeAgent:
    fake = FakeAgent(served_config)
    fake.tally = Tally(lambda: WALL_S)
    status = fake.status()
    for now_s in (1.0, 2.0, 3.0):
        samples = [item.sample for item in status.workloads if item.sample is not None]
        fake.tally.sampled(samples)
        fake.tally.host(HostAccount(now_s, 1.0, CPU, cpu_some_pct=25.0))
        fake.tally.host(HostAccount(now_s, 1.0, CPU, cpu_some_pct=25.0))  # asked twice in one round
        fake.tally.ticked(0.002)
        for item in status.workloads:
            if item.decision is not None:
                decision = replace(item.decision, at_s=now_s, mode=Mode.OBSERVE)
                fake.tally.decided(decision, item.spec, item.sample)
    fake.tally.wrote(Write("pi", "cpu.idle", "/x", "1", "0", Stage.SHRINK), "written")
    fake.tally.wrote(Write("pi", "cpu.idle", "/x", "1", "0", Stage.SHRINK), "failed: EBUSY: 7")
    fake.tally.outcome(Outcome(1.0, "db", 0.5, 0.9, 1.1, kept=True, text=""))
    return fake


@pytest.fixture
def served_config(tmp_path: Path) -> Config:
    return Config(daemon=DaemonConfig(state_dir=str(tmp_path)))


def base(name: str) -> str:
    return name.removesuffix("_total")


def test_every_series_of_a_scrape_is_in_the_table_with_its_type_and_labels(agent: FakeAgent):
    found = scraped(agent)
    known = {base(series.name): series for series in SERIES.values()}
    assert found.keys() <= known.keys()
    for name, metric in found.items():
        assert metric.type == known[name].type
        assert metric.documentation == known[name].text
        for sample in metric.samples:
            assert sample.labels.keys() - {"le"} == set(known[name].labels), sample


def test_names_follow_the_conventions():
    for series in SERIES.values():
        assert (series.type == "counter") == series.name.endswith("_total")
        assert series.text.endswith(".")
        assert not any(part in ("ms", "pct", "percent", "s") for part in series.name.split("_"))


def test_the_page_of_series_is_generated():
    anew = "run python -m tools.reference.metrics"
    assert (ROOT / "docs/metrics.md").read_text() == markdown(), anew


def test_promtool_has_nothing_to_say(agent: FakeAgent):
    promtool = prometheus_tool("promtool")
    text = collector(agent).text()
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_sizes_are_those_of_the_shaper_and_of_the_searches(agent: FakeAgent):
    agent.fits.append("pi")
    found = scraped(agent)
    (target,) = found["perphd_shaper_target_bytes"].samples
    assert (target.labels, target.value) == ({"workload": "pi"}, 2.0 * 2**30)
    (mode,) = found["perphd_shaper_info"].samples
    assert mode.labels == {"mode": "pessimistic"}
    phases = {each.labels["phase"]: each.value for each in found["perphd_memfit_phase"].samples}
    assert phases == {"pilot": 0, "search": 1, "bisect": 0, "converged": 0}
    assert found["perphd_memfit_limit_bytes"].samples[0].value == 2.0 * 2**30
    assert "perphd_memfit_recommended_bytes" not in found
    assert "perphd_shaper_makes_room" not in found


def test_counters_add_up_what_the_samples_say(agent: FakeAgent):
    found = scraped(agent)
    by = {s.labels["workload"]: s.value for s in found["perphd_workload_cpu_seconds"].samples}
    for item in agent.status().workloads:
        if item.sample is not None and available(item.sample.cpu_usage_cores):
            expected = 3 * item.sample.cpu_usage_cores * item.sample.interval_s
            assert by[item.spec.name] == pytest.approx(expected)


def test_the_host_s_parts_add_up_to_its_cpus(agent: FakeAgent):
    found = scraped(agent)
    parts = {s.labels["part"]: s.value for s in found["perphd_host_cpu_seconds"].samples}
    assert parts == {"lras": 6.0, "batch": 3.0, "undeclared": 4.5, "kernel": 0.75, "steal": 0.0, "idle": 9.75}
    assert sum(parts.values()) == pytest.approx(3 * CPU.capacity)
    (pressure,) = found["perphd_host_pressure_seconds"].samples
    assert (pressure.labels, pressure.value) == ({"resource": "cpu", "share": "some"}, 0.75)


def test_an_unchanged_wish_in_observe_is_one_decision(agent: FakeAgent):
    found = scraped(agent)
    decided = [s for s in found["perphd_decisions"].samples if s.labels["workload"] == "db"]
    assert [(s.labels["mode"], s.value) for s in decided] == [("observe", 1.0)]
    (unprotected,) = [
        s for s in found["perphd_lra_unprotected_seconds"].samples if s.labels["workload"] == "db"
    ]
    assert unprotected.value == pytest.approx(2.0)


def test_writes_are_counted_by_knob_and_result(agent: FakeAgent):
    found = scraped(agent)
    writes = {(s.labels["knob"], s.labels["result"]): s.value for s in found["perphd_writes"].samples}
    assert writes == {("cpu.idle", "written"): 1.0, ("cpu.idle", "failed"): 1.0}
    (changed,) = found["perphd_last_change_timestamp_seconds"].samples
    assert (changed.labels["workload"], changed.value) == ("pi", WALL_S)


def test_times_of_healths_add_up_to_the_time_that_passed(agent: FakeAgent):
    found = scraped(agent)
    spent = sum(s.value for s in found["perphd_lra_health_seconds"].samples if s.labels["workload"] == "db")
    assert spent == pytest.approx(2.0)
    (decision,) = [i.decision for i in agent.status().workloads if i.spec.name == "db"]
    assert decision is not None
    states = {
        s.labels["health"]: s.value
        for s in found["perphd_lra_health"].samples
        if s.labels["workload"] == "db"
    }
    assert states == {h.value: float(h is decision.verdict.health) for h in Health}


def test_a_workload_off_the_list_is_forgotten(agent: FakeAgent):
    agent.tally.follow((CACHE,))
    assert not agent.tally.used.keys() - {"cache"}
    assert not agent.tally.times.keys() - {"cache"}
    assert not [key for key in agent.tally.decisions if key[0] != "cache"]
    assert not agent.tally.last_change_unix_s


@given(st.lists(st.floats(0.0, 100.0), max_size=50))
def test_histograms_hold_every_duration(durations: list[float]):
    histogram = TallyHistogram()
    for duration_s in durations:
        histogram.add(duration_s)
    assert sum(histogram.counts) == len(durations)
    assert histogram.sum_s == pytest.approx(sum(durations))


@given(st.text())
def test_any_name_survives_the_format(name: str):
    line = f"# TYPE x gauge\nx{{{labels(workload=name)}}} 1\n"
    shown = name.encode("utf-8", "backslashreplace").decode()
    (metric,) = text_string_to_metric_families(line)
    if not {"\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"} & set(name):
        assert metric.samples[0].labels["workload"] == shown
    assert "\n" not in escaped(name)


@given(
    st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(0.0, 64.0) | st.none()), max_size=20),
)
def test_counters_never_fall(steps: list[tuple[float, float | None]]):
    tally, before = Tally(lambda: 0.0), 0.0
    for interval_s, cores in steps:
        reading = NOT_MEASURED if cores is None else cores
        tally.sampled([Sample("w", 0.0, interval_s, cpu_usage_cores=reading)])
        now = tally.used["w"].get("cpu_usage_cores", 0.0)
        assert now >= before
        before = now
    expected = sum(i * c for i, c in steps if c is not None)
    assert before == pytest.approx(expected)


def test_work_of_a_source_that_reports_seldom_is_counted_completely():
    tally = Tally(lambda: 0.0)
    awaited = Awaited("the source reports every 5 s")
    readings: list[Reading] = [NOT_MEASURED, *[awaited] * 4, 100.0, *[awaited] * 4, 200.0]
    for now_s, reading in enumerate(readings):
        tally.sampled([Sample("db", float(now_s), 1.0, work_rate_per_s=reading)])
    assert tally.used["db"]["work_rate_per_s"] == pytest.approx(5 * 100.0 + 5 * 200.0)


def test_work_that_no_reading_covers_is_not_counted():
    tally = Tally(lambda: 0.0)
    readings: list[Reading] = [Awaited("late"), Awaited("late"), NOT_MEASURED, 100.0]
    for now_s, reading in enumerate(readings):
        tally.sampled([Sample("db", float(now_s), 1.0, work_rate_per_s=reading)])
    assert tally.used["db"]["work_rate_per_s"] == pytest.approx(100.0)
    tally.sampled([Sample("db", 4.0, 1.0, work_rate_per_s=Awaited("late"))])
    tally.follow(())
    tally.sampled([Sample("db", 5.0, 1.0, work_rate_per_s=100.0)])
    assert tally.used["db"]["work_rate_per_s"] == pytest.approx(100.0)


def test_rates_that_are_counted_are_readings():
    assert all(hasattr(Sample("w", 0.0, 1.0), name) for name in COUNTED)
