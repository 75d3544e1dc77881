"""The agent's state as Prometheus metrics. A reading that is unavailable is an absent series, never a 0."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from perphd.control.render_host import PARTS
from perphd.domain.allocation import IDLE, KEEP, NO_LIMIT, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import Action, Health
from perphd.domain.reading import Reading, available
from perphd.domain.sample import READINGS
from perphd.domain.status import AgentStatus, WorkloadStatus
from perphd.domain.workload import Kind, Mode

CONTENT_TYPE = CONTENT_TYPE_LATEST
_MOST_GROUPS = 10
"""Undeclared groups that have a series: their names come and go."""


class StatusCollector(Collector):
    """Turns one ``AgentStatus`` into metrics at every scrape."""

    def __init__(self, status: Callable[[], AgentStatus]) -> None:
        self._status = status

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names need no status of an agent that may not run yet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics of the status now."""
        status = self._status()
        yield from _agent(status)
        yield from _host(status)
        yield from _samples(status.workloads)
        yield from _judgements(status.workloads)
        yield from _in_force(status.workloads)
        yield from _limited(status.workloads)


def exposition(status: Callable[[], AgentStatus]) -> Callable[[], bytes]:
    """A function that gives the metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(status))
    return lambda: generate_latest(registry)


def _agent(status: AgentStatus) -> Iterator[Metric]:
    info = GaugeMetricFamily("perphd_info", "Always 1; what is running.", labels=["version", "policy"])
    info.add_metric([status.version, status.policy], 1)
    yield info
    yield _plain("perphd_enforcing", "1 if the mode is enforce.", status.mode is Mode.ENFORCE)
    yield _plain("perphd_period_seconds", "Usual time between two samples.", status.period_s)
    yield _plain("perphd_pace_seconds", "Time to the next sample, as things are now.", status.pace_s)
    yield _plain("perphd_uptime_seconds", "Time since start.", status.uptime_s)
    yield _plain(
        "perphd_journal_entries", "Kernel files whose original value is kept.", status.journal_entries
    )
    yield _plain("perphd_problems", "Conditions that an operator should read.", len(status.problems))
    yield _counter("perphd_ticks", "Rounds of the loop.", status.tick)
    yield _counter("perphd_extra_ticks", "Rounds of them that something asked for.", status.extra_ticks)
    cost = status.cost
    yield _counter("perphd_missed_ticks", "Rounds that began too late.", cost.missed_ticks)
    readings: tuple[tuple[str, str, Reading], ...] = (
        ("perphd_self_cpu_percent", "CPU use of the daemon, percent of one CPU.", cost.cpu_pct),
        ("perphd_self_resident_bytes", "Memory of the daemon.", cost.rss_bytes),
        ("perphd_self_open_fds", "Descriptors that the daemon holds.", cost.open_fds),
        ("perphd_tick_p50_milliseconds", "Duration of a round, median.", cost.tick_ms_p50),
        ("perphd_tick_p99_milliseconds", "Duration of a round, 99th percentile.", cost.tick_ms_p99),
        (
            "perphd_decide_to_written_p99_milliseconds",
            "From detection to the last write, 99th percentile.",
            cost.decide_to_written_ms_p99,
        ),
    )
    for name, text, reading in (*readings, *_detector(status)):
        if available(reading):
            yield _plain(name, text, reading)


def _detector(status: AgentStatus) -> Iterator[tuple[str, str, Reading]]:
    test = status.detector_test
    if test is None:
        return
    yield (
        "perphd_detector_accepted_false_alarms_per_day",
        "False alarms per LRA and day that are configured.",
        test.accepted_per_day,
    )
    yield (
        "perphd_detector_test_expected_false_alarms_per_day",
        "False alarms per day that the detector's self-test at the start promises.",
        test.expected_per_day,
    )
    yield (
        "perphd_detector_test_found_after_samples",
        "Samples in which the self-test found a drop of two sigma, median.",
        test.found_after_samples,
    )


def _host(status: AgentStatus) -> Iterator[Metric]:
    """The account of the whole host; nothing before the second tick."""
    account = status.host
    if account is None:
        return
    cpu = GaugeMetricFamily(
        "perphd_host_cpu_cores", "CPUs used by each part; they add up to the capacity.", labels=["part"]
    )
    for part in PARTS:
        cpu.add_metric([part], getattr(account.cpu, part))
    groups = GaugeMetricFamily(
        "perphd_host_undeclared_cpu_cores", "CPUs used by control groups nobody declared.", labels=["group"]
    )
    for item in account.undeclared[:_MOST_GROUPS]:
        groups.add_metric([item.group], item.cpu_cores)
    yield from (cpu, groups)
    yield _plain("perphd_host_capacity_cores", "CPUs that workloads may be given.", account.cpu.capacity)
    readings: tuple[tuple[str, str, Reading], ...] = (
        ("perphd_host_cpu_some_pct", "Time in which some task waited for a CPU.", account.cpu_some_pct),
        (
            "perphd_host_memory_some_pct",
            "Time in which some task waited for memory.",
            account.memory_some_pct,
        ),
        ("perphd_host_io_some_pct", "Time in which some task waited for a disk.", account.io_some_pct),
        (
            "perphd_host_memory_available_bytes",
            "Memory that can still be given.",
            account.memory_available_bytes,
        ),
        ("perphd_host_disk_bytes_per_s", "Read and written by all disks.", account.disk_bytes_per_s),
        ("perphd_host_network_bytes_per_s", "Received and sent by all devices.", account.network_bytes_per_s),
    )
    for name, text, reading in readings:
        if available(reading):
            yield _plain(name, text, reading)


def _samples(workloads: Sequence[WorkloadStatus]) -> Iterator[Metric]:
    present = GaugeMetricFamily("perphd_workload_present", "1 if the cgroup exists.", labels=_LABELS)
    enforcing = GaugeMetricFamily(
        "perphd_workload_enforcing", "1 if perphd may write for it.", labels=_LABELS
    )
    families = {
        name: GaugeMetricFamily(
            f"perphd_workload_{name}", f"Reading {name} of the last sample.", labels=_LABELS
        )
        for name in READINGS
    }
    for workload in workloads:
        labels = _labels(workload)
        present.add_metric(labels, workload.present)
        enforcing.add_metric(labels, workload.mode is Mode.ENFORCE)
        if workload.sample is None:
            continue
        for name, family in families.items():
            reading = workload.sample.reading(name)
            if available(reading):
                family.add_metric(labels, reading)
    yield from (present, enforcing)
    yield from (family for family in families.values() if family.samples)
    yield from _domains(workloads)


def _domains(workloads: Iterable[WorkloadStatus]) -> Iterator[Metric]:
    """Cache occupancy and memory bandwidth in each last-level cache."""
    families = {
        name: GaugeMetricFamily(
            f"perphd_workload_domain_{name}",
            f"Reading {name} of the last sample in one last-level cache.",
            labels=[*_LABELS, "domain"],
        )
        for name in ("llc_occupancy_bytes", "mbw_bytes_per_s")
    }
    for workload in workloads:
        for use in workload.sample.domains if workload.sample is not None else ():
            for name, family in families.items():
                reading: Reading = getattr(use, name)
                if available(reading):
                    family.add_metric([*_labels(workload), str(use.domain)], reading)
    yield from (family for family in families.values() if family.samples)


def _judgements(workloads: Iterable[WorkloadStatus]) -> Iterator[Metric]:
    health = GaugeMetricFamily(
        "perphd_lra_health", "1 for the detector's present verdict.", labels=["workload", "health"]
    )
    action = GaugeMetricFamily(
        "perphd_lra_action", "1 for the last decision's action.", labels=["workload", "action"]
    )
    work = GaugeMetricFamily("perphd_lra_target_work", "Work rate that it is kept at.", labels=["workload"])
    delay = GaugeMetricFamily("perphd_lra_target_delay", "Delay that it is kept below.", labels=["workload"])
    alarms = GaugeMetricFamily(
        "perphd_lra_expected_false_alarms_per_day",
        "False alarms per day that its own noise promises of the detector.",
        labels=["workload"],
    )
    for workload in workloads:
        decision, name = workload.decision, workload.spec.name
        if available(workload.expected_false_alarms_per_day):
            alarms.add_metric([name], workload.expected_false_alarms_per_day)
        if workload.spec.kind is not Kind.LRA or decision is None:
            continue
        for verdict in Health:
            health.add_metric([name, verdict.value], verdict is decision.verdict.health)
        for choice in Action:
            action.add_metric([name, choice.value], choice is decision.action)
        for family, target in ((work, decision.target_work), (delay, decision.target_delay)):
            if available(target):
                family.add_metric([name], target)
    yield from (health, action, work, delay, alarms)


def _in_force(workloads: Iterable[WorkloadStatus]) -> Iterator[Metric]:
    families = {
        "cpus": "Logical CPUs that perphd keeps it on.",
        "cpu_weight": "CPU weight that perphd set, 1 to 10000; 0 is SCHED_IDLE.",
        "cpu_max_cores": "CPU limit that perphd set.",
        "memory_low_bytes": "Protected memory that perphd set.",
        "memory_high_bytes": "Memory throttle limit that perphd set; +Inf is no limit.",
    }
    for knob, text in families.items():
        family = GaugeMetricFamily(f"perphd_in_force_{knob}", text, labels=_LABELS)
        for workload in workloads:
            number = _number(workload.in_force, knob)
            if number is not None:
                family.add_metric(_labels(workload), number)
        if family.samples:
            yield family


def _limited(workloads: Iterable[WorkloadStatus]) -> Iterator[Metric]:
    family = GaugeMetricFamily(
        "perphd_limited",
        "1 for what was wanted and is not in force, or in part only, or not given back; perphctl status says why.",
        labels=[*_LABELS, "knob"],
    )
    for workload in workloads:
        for knob in dict.fromkeys(left.knob for left in workload.limited):
            family.add_metric([*_labels(workload), knob], 1)
    yield family


_LABELS = ["workload", "kind"]


def _labels(workload: WorkloadStatus) -> list[str]:
    return [workload.spec.name, workload.spec.kind.value]


def _number(settings: Settings, knob: str) -> float | None:
    value = getattr(settings, knob)
    if value is KEEP:
        return None
    if value is IDLE:
        return 0.0
    if value is NO_LIMIT:
        return float("inf")
    return float(len(value) if isinstance(value, CpuSet) else value)


def _plain(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)
