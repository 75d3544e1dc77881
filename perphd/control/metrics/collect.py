"""Fills a page of metrics from the agent's status and tally. An unavailable reading has no series."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from perphd.agent.tally import Tally
from perphd.control.metrics.forecasts import add_forecasts
from perphd.control.metrics.sizing import add_memory_fits, add_shaper
from perphd.control.metrics.text import Page, labels
from perphd.domain.allocation import IDLE, KEEP, NO_LIMIT, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import Cause, Decision, Health, target_reachable
from perphd.domain.host_account import HostAccount
from perphd.domain.queue import QueueSummary
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable, available
from perphd.domain.sample import Quality, Sample
from perphd.domain.signals import Performance, performance, score
from perphd.domain.status import AgentStatus, WorkloadStatus
from perphd.domain.topology import Topology
from perphd.domain.workload import Kind, Mode
from perphd.sizing.memory_fit import FitView
from perphd.sizing.shaper_view import ShaperView

_COUNTERS: Final = {
    "cpu_usage_cores": "perphd_workload_cpu_seconds_total",
    "run_delay_cores": "perphd_workload_run_delay_seconds_total",
    "cpu_throttled_pct": "perphd_workload_cpu_throttled_seconds_total",
    "read_bytes_per_s": "perphd_workload_read_bytes_total",
    "write_bytes_per_s": "perphd_workload_written_bytes_total",
    "refaults_per_s": "perphd_workload_refaults_total",
    "major_faults_per_s": "perphd_workload_major_faults_total",
    "context_switches_per_s": "perphd_workload_context_switches_total",
    "mips": "perphd_workload_instructions_total",
}
_PRESSURES: Final = {
    f"{resource}_{share}_pct": f'resource="{resource}",share="{share}"'
    for resource, share in (
        ("cpu", "some"), ("memory", "some"), ("memory", "full"), ("io", "some"), ("io", "full"),
    )
}  # fmt: skip
_GAUGES: Final = {
    "threads": ("perphd_workload_threads", 1.0),
    "memory_current_bytes": ("perphd_workload_memory_bytes", 1.0),
    "memory_working_set_bytes": ("perphd_workload_memory_working_set_bytes", 1.0),
    "cpi": ("perphd_workload_cycles_per_instruction", 1.0),
    "llc_mpki": ("perphd_workload_llc_misses_per_instruction", 0.001),
    "backend_stall_ratio": ("perphd_workload_backend_stall_ratio", 1.0),
    "memory_stall_ratio": ("perphd_workload_memory_stall_ratio", 1.0),
}
_IN_FORCE: Final = (
    "cpus", "cpu_weight", "cpu_max_cores", "memory_low_bytes", "memory_min_bytes", "memory_high_bytes",
    "memory_max_bytes", "io_weight", "frozen",
)  # fmt: skip
_MOST_GROUPS: Final = 10
"""Maximum number of undeclared groups with a series of their own. The limit exists because groups come and go."""
_NO_CAUSE: Final = (Cause.NONE, Cause.UNKNOWN)


class Collector:
    """Renders the metrics of one agent.

    Args:
        status: the agent's present status.
        tally: counters since the start.
        topology: the host's present processors.
        forecasts: the forecast worker's latest publication.
        shaper: the resource shaper's present state.
        memory_fits: present searches for memory limits.
    """

    def __init__(
        self,
        status: Callable[[], AgentStatus],
        tally: Callable[[], Tally],
        topology: Callable[[], Topology],
        forecasts: Callable[[], bytes | Unavailable] = lambda: NOT_MEASURED,
        shaper: Callable[[], ShaperView] | None = None,
        memory_fits: Callable[[], tuple[FitView, ...]] = tuple,
    ) -> None:
        self._status, self._tally, self._topology = status, tally, topology
        self._forecasts = forecasts
        self._shaper, self._memory_fits = shaper, memory_fits
        self._began_s = time.time()

    def text(self) -> bytes:
        """The metrics in Prometheus' text format."""
        page, status, tally = Page(), self._status(), self._tally()
        _agent(page, status, tally, self._began_s)
        page.add("perphd_host_cpus", len(self._topology().usable))
        _host(page, status.host, tally)
        for item in status.workloads:
            _workload(page, item, tally)
        _changes(page, tally)
        add_forecasts(page, self._forecasts())
        if self._shaper is not None:
            add_shaper(page, self._shaper())
        add_memory_fits(page, self._memory_fits())
        add_queue(page, status.queue)
        return page.text()


def _agent(page: Page, status: AgentStatus, tally: Tally, began_s: float) -> None:
    cost = status.cost
    page.add("perphd_info", 1, labels(version=status.version, policy=status.policy))
    page.add("perphd_enforcing", status.mode is Mode.ENFORCE)
    page.add("perphd_pauses", len(status.pauses))
    page.add("perphd_problems", len(status.problems))
    page.add("perphd_conflicts", len(tally.conflicts))
    page.add("perphd_journal_entries", status.journal_entries)
    page.add("perphd_sampling_period_seconds", status.period_s)
    page.add("perphd_sampling_pace_seconds", status.pace_s)
    page.add("perphd_ticks_total", status.tick)
    page.add("perphd_extra_ticks_total", status.extra_ticks)
    page.add("perphd_missed_ticks_total", cost.missed_ticks)
    page.add("perphd_last_tick_timestamp_seconds", tally.last_tick_unix_s)
    page.add_histogram("perphd_tick_duration_seconds", tally.ticks)
    page.add_histogram("perphd_write_delay_seconds", tally.write_delays)
    page.add("process_cpu_seconds_total", time.process_time())
    page.add("process_resident_memory_bytes", cost.rss_bytes)
    page.add("process_open_fds", cost.open_fds)
    page.add("process_start_time_seconds", began_s)
    test = status.detector_test
    if test is not None:
        page.add("perphd_detector_accepted_false_alarms_per_day", test.accepted_per_day)
        page.add("perphd_detector_test_expected_false_alarms_per_day", test.expected_per_day)
        page.add("perphd_detector_test_found_after_samples", test.found_after_samples)


def _host(page: Page, account: HostAccount | None, tally: Tally) -> None:
    for part, spent_s in tally.host_cpu_s.items():
        page.add("perphd_host_cpu_seconds_total", spent_s, f'part="{part}"')
    used = tally.host_used
    for reading, pairs in _PRESSURES.items():
        page.add("perphd_host_pressure_seconds_total", used.get(reading, NOT_MEASURED), pairs)
    page.add("perphd_host_disk_bytes_total", used.get("disk_bytes_per_s", NOT_MEASURED))
    page.add("perphd_host_network_bytes_total", used.get("network_bytes_per_s", NOT_MEASURED))
    if account is None:
        return
    page.add("perphd_host_memory_bytes", account.memory_total_bytes)
    page.add("perphd_host_memory_available_bytes", account.memory_available_bytes)
    for item in account.undeclared[:_MOST_GROUPS]:
        page.add("perphd_host_undeclared_cpu_cores", item.cpu_cores, labels(group=item.group))


def _workload(page: Page, item: WorkloadStatus, tally: Tally) -> None:
    name, kind, sample = item.spec.name, item.spec.kind, item.sample
    pairs = labels(workload=name, kind=kind.value)
    page.add("perphd_workload_present", item.present, pairs)
    page.add("perphd_workload_enforcing", item.mode is Mode.ENFORCE, pairs)
    page.add("perphd_workload_paused", item.pause is not None, pairs)
    if item.condition:
        page.add("perphd_workload_condition", 1, f"{pairs},{labels(condition=item.condition)}")
    used = tally.used.get(name, {})
    for reading, total in _COUNTERS.items():
        page.add(total, used.get(reading, NOT_MEASURED), pairs)
    for reading, more in _PRESSURES.items():
        page.add("perphd_workload_pressure_seconds_total", used.get(reading, NOT_MEASURED), f"{pairs},{more}")
    page.add("perphd_last_change_timestamp_seconds", tally.last_change_unix_s.get(name, NOT_MEASURED), pairs)
    if sample is not None:
        for reading, (gauge, factor) in _GAUGES.items():
            value: Reading = getattr(sample, reading)
            if available(value):
                page.add(gauge, value * factor, pairs)
        for use in sample.domains:
            domain = f'{pairs},domain="{use.domain}"'
            page.add("perphd_workload_llc_occupancy_bytes", use.llc_occupancy_bytes, domain)
            moved = tally.traffic_bytes.get((name, use.domain), NOT_MEASURED)
            page.add("perphd_workload_memory_traffic_bytes_total", moved, domain)
    _in_force(page, item.in_force, pairs)
    for knob in dict.fromkeys(left.knob for left in item.limited):
        page.add("perphd_limited", 1, f"{pairs},{labels(knob=knob)}")
    if kind is Kind.LRA:
        _lra(page, item, tally, labels(workload=name))
    elif sample is not None:
        _batch(page, item, sample, labels(workload=name))


def _batch(page: Page, item: WorkloadStatus, sample: Sample, pairs: str) -> None:
    page.add("perphd_batch_recent_cores", item.recent_cores, pairs)
    page.add("perphd_batch_starved_seconds", item.starved_s, pairs)
    page.add("perphd_batch_guaranteed_cores", item.spec.guaranteed_cores, pairs)
    given, waiting = sample.cpu_usage_cores, sample.run_delay_cores
    page.add("perphd_batch_given_cores", given, pairs)
    if available(given) and available(waiting):
        page.add("perphd_batch_wanted_cores", given + waiting, pairs)


def _lra(page: Page, item: WorkloadStatus, tally: Tally, pairs: str) -> None:
    name, decision, sample = item.spec.name, item.decision, item.full_sample or item.sample
    page.add("perphd_lra_expected_false_alarms_per_day", item.expected_false_alarms_per_day, pairs)
    used, times = tally.used.get(name, {}), tally.times.get(name)
    page.add("perphd_lra_work_total", used.get("work_rate_per_s", NOT_MEASURED), pairs)
    page.add("perphd_lra_load_total", used.get("load_per_s", NOT_MEASURED), pairs)
    if item.spec.sli is not None:
        page.add("perphd_lra_sli_missing_samples_total", tally.sli_missing.get(name, 0), pairs)
        if sample is not None:
            page.add("perphd_lra_sli_up", not (item.sli_problem or sample.has(Quality.SLI_MISSING)), pairs)
            page.add("perphd_lra_sli_window_seconds", sample.sli_window_s, pairs)
            page.add("perphd_lra_sli_resolution_seconds", sample.sli_resolution_s, pairs)
    if times is not None:
        for health, spent_s in times.by_health_s.items():
            page.add("perphd_lra_health_seconds_total", spent_s, f'{pairs},health="{health}"')
        page.add("perphd_lra_judged_seconds_total", times.judged_s, pairs)
        page.add("perphd_lra_below_target_seconds_total", times.below_s, pairs)
        page.add("perphd_lra_unprotected_seconds_total", times.wanted_s, pairs)
        page.add("perphd_lra_would_take_core_seconds_total", times.wanted_core_s, pairs)
    if decision is not None:
        _verdict(page, decision, pairs)
    if sample is not None and item.present:
        for percentile in ("50", "95", "99"):
            latency_ms: Reading = getattr(sample, f"latency_p{percentile}_ms")
            if available(latency_ms):
                page.add("perphd_lra_latency_seconds", latency_ms / 1e3, f'{pairs},percentile="{percentile}"')
        _performance(page, performance(sample, item.spec.objective.latency_percentile), decision, pairs)


def _verdict(page: Page, decision: Decision, pairs: str) -> None:
    for health in Health:
        page.add("perphd_lra_health", health is decision.verdict.health, f'{pairs},health="{health}"')
    if decision.verdict.cause not in _NO_CAUSE:
        page.add("perphd_lra_contended", 1, f'{pairs},resource="{decision.verdict.cause}"')
    reachable = target_reachable(decision)
    if reachable is not None:
        page.add("perphd_lra_target_reachable", reachable, pairs)


def _performance(page: Page, perf: Performance, decision: Decision | None, pairs: str) -> None:
    work_of, delay_of = f'{pairs},signal="{perf.work_source}"', f'{pairs},signal="{perf.delay_source}"'
    in_time = "_ms" in perf.delay_source
    unit, factor = ("seconds", 1e-3) if in_time else ("ratio", 1.0)
    page.add("perphd_lra_work_rate", perf.work, work_of)
    if available(perf.delay):
        page.add(f"perphd_lra_delay_{unit}", perf.delay * factor, delay_of)
    if decision is None:
        return
    page.add("perphd_lra_work_rate_target", decision.target_work, work_of)
    if available(decision.target_delay) and available(perf.delay):
        page.add(f"perphd_lra_delay_target_{unit}", decision.target_delay * factor, delay_of)
    page.add("perphd_lra_score_ratio", score(perf, decision.target_work, decision.target_delay), pairs)


def _in_force(page: Page, settings: Settings, pairs: str) -> None:
    if settings.is_untouched():
        return
    for knob in _IN_FORCE:
        value = getattr(settings, knob)
        if value is not KEEP:
            page.add(f"perphd_in_force_{knob}", _number(value), pairs)
    if settings.llc_masks is not KEEP:
        for domain, mask in settings.llc_masks:
            page.add("perphd_in_force_llc_ways", mask.bit_count(), f'{pairs},domain="{domain}"')
    if settings.mba_pct is not KEEP:
        for domain, percent in settings.mba_pct:
            page.add("perphd_in_force_memory_bandwidth_ratio", percent / 100, f'{pairs},domain="{domain}"')


def _number(value: object) -> float:
    if value is IDLE:
        return 0.0
    if value is NO_LIMIT:
        return float("inf")
    if isinstance(value, CpuSet):
        return float(len(value))
    assert isinstance(value, int | float)
    return float(value)


def _changes(page: Page, tally: Tally) -> None:
    for (name, action, mode), count in tally.decisions.items():
        pairs = labels(workload=name, action=action.value, mode=mode.value)
        page.add("perphd_decisions_total", count, pairs)
    for (name, kept), count in tally.outcomes.items():
        page.add(
            "perphd_outcomes_total", count, labels(workload=name, result="kept" if kept else "rolled_back")
        )
    for (knob, result), count in tally.writes.items():
        page.add("perphd_writes_total", count, labels(knob=knob, result=result))


def add_queue(page: Page, summary: QueueSummary | None) -> None:
    """Add the queue's metrics; none without a queue."""
    if summary is None:
        return
    from perphd.batch.job import JobState  # loaded only on hosts with a queue

    for state in JobState:
        page.add("perphd_queue_jobs", summary.counts.get(state.value, 0), labels(state=state.value))
    page.add("perphd_queue_copper_share", 1.0 if summary.event is None else summary.event.share)
    offer = summary.offer
    if offer is None:
        return
    page.add("perphd_copper_offer_generation", offer.generation)
    page.add("perphd_copper_offer_cpus", offer.cpus.copper)
    page.add("perphd_copper_offer_bytes", offer.memory.copper)
    for name, given in (("cpu", offer.cpus), ("memory", offer.memory)):
        pairs = labels(resource=name)
        page.add("perphd_copper_offer_windows_total", given.windows, pairs)
        page.add("perphd_copper_offer_exceeded_ratio", given.exceeded_ratio, pairs)
        page.add("perphd_copper_offer_given_ratio", given.given_ratio, pairs)
