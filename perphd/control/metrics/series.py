"""Every series that perphd exports: name, type, labels, and the meaning of its value.

docs/metrics.md is generated from this table, the dashboard and the rules are checked against it, and a series
that is not listed cannot be exported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Type = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """One metric. ``text``: its help, a sentence that describes the value."""

    name: str
    type: Type
    text: str
    labels: tuple[str, ...] = ()


_OF = ("workload", "kind")
_LRA = ("workload",)


def _gauge(name: str, text: str, *labels: str) -> MetricSeries:
    return MetricSeries(name, "gauge", text, labels)


def _counter(name: str, text: str, *labels: str) -> MetricSeries:
    return MetricSeries(name, "counter", text, labels)


GROUPS: Final[Mapping[str, tuple[MetricSeries, ...]]] = {
    "The daemon itself": (
        _gauge("perphd_info", "Always 1; the labels name the running version.", "version", "policy"),
        _gauge("perphd_enforcing", "1 if the general mode is enforce, 0 if it is observe."),
        _gauge("perphd_pauses", "Pauses in force: of individual workloads and of all together."),
        _gauge("perphd_problems", "Conditions that need an operator; perphctl status names them."),
        _gauge("perphd_conflicts", "Kernel settings left to another writer that changed them twice."),
        _gauge("perphd_journal_entries", "Kernel settings whose original value is kept, to be restored."),
        _gauge("perphd_sampling_period_seconds", "Configured time between two samples."),
        _gauge("perphd_sampling_pace_seconds", "Time to the next sample; shorter while something changes."),
        _counter("perphd_ticks_total", "Passes of sampling, deciding and writing."),
        _counter("perphd_extra_ticks_total", "Passes made early because of pressure or new batch."),
        _counter("perphd_missed_ticks_total", "Passes skipped because the daemon was late."),
        _gauge("perphd_last_tick_timestamp_seconds", "Unix time at which the last tick ended."),
        MetricSeries("perphd_tick_duration_seconds", "histogram", "Duration of a tick."),
        MetricSeries(
            "perphd_write_delay_seconds", "histogram", "Time from the start of a decision to its last write."
        ),
        _counter("process_cpu_seconds_total", "CPU time that the daemon has used, user and system."),
        _gauge("process_resident_memory_bytes", "Resident memory of the daemon."),
        _gauge("process_open_fds", "Open file descriptors of the daemon."),
        _gauge("process_start_time_seconds", "Unix time at which the daemon started."),
        _gauge(
            "perphd_detector_accepted_false_alarms_per_day", "Configured false alarms per LRA and day."
        ),
        _gauge(
            "perphd_detector_test_expected_false_alarms_per_day",
            "False alarms per day that the detector's self-test at start promises.",
        ),
        _gauge(
            "perphd_detector_test_found_after_samples",
            "Samples after which the self-test detects a drop of two standard deviations (median).",
        ),
    ),
    "The host": (
        _gauge("perphd_host_cpus", "Logical CPUs available to workloads."),
        _counter(
            "perphd_host_cpu_seconds_total",
            "CPU time of those CPUs by part: lras, batch, undeclared (groups that no configuration names), kernel, "
            "steal and idle add up to all of it.",
            "part",
        ),
        _gauge(
            "perphd_host_undeclared_cpu_cores", "CPUs used by each of the ten busiest undeclared control groups.",
            "group",
        ),
        _counter(
            "perphd_host_pressure_seconds_total",
            "Time in which some or all tasks of the host were stalled on a resource (PSI).",
            "resource", "share",
        ),
        _gauge("perphd_host_memory_bytes", "Memory of the host."),
        _gauge("perphd_host_memory_available_bytes", "Memory that the host still has available."),
        _counter("perphd_host_disk_bytes_total", "Bytes read and written by all disks."),
        _counter("perphd_host_network_bytes_total", "Bytes received and sent by all network devices."),
    ),
    "Every workload": (
        _gauge("perphd_workload_present", "1 if the control group exists.", *_OF),
        _gauge("perphd_workload_enforcing", "1 if perphd may write for this workload.", *_OF),
        _gauge(
            "perphd_workload_condition",
            "1 for the state of batch (running, starved, throttled, frozen, idle, gone), and for an LRA's state "
            "in addition to its health (no load, stalled, below target).",
            *_OF,
            "condition",
        ),
        _gauge("perphd_workload_paused", "1 if a pause applies to this workload.", *_OF),
        _counter("perphd_workload_cpu_seconds_total", "CPU time used.", *_OF),
        _counter(
            "perphd_workload_run_delay_seconds_total", "Time that threads waited for a CPU, summed.", *_OF
        ),
        _counter(
            "perphd_workload_cpu_throttled_seconds_total", "Time throttled by its own CPU limit.", *_OF
        ),
        _counter(
            "perphd_workload_pressure_seconds_total",
            "Time in which some or all of its tasks were stalled on a resource (PSI).",
            *_OF, "resource", "share",
        ),
        _counter("perphd_workload_read_bytes_total", "Bytes read from disks.", *_OF),
        _counter("perphd_workload_written_bytes_total", "Bytes written to disks.", *_OF),
        _counter("perphd_workload_refaults_total", "Pages read again shortly after they were evicted.", *_OF),
        _counter("perphd_workload_major_faults_total", "Page faults that needed a disk.", *_OF),
        _counter("perphd_workload_context_switches_total", "Context switches.", *_OF),
        _counter("perphd_workload_instructions_total", "Instructions retired.", *_OF),
        _counter(
            "perphd_workload_memory_traffic_bytes_total",
            "Bytes moved between memory and one last-level cache (domain).",
            *_OF, "domain",
        ),
        _gauge("perphd_workload_threads", "Threads of the workload.", *_OF),
        _gauge("perphd_workload_memory_bytes", "Memory charged to the control group.", *_OF),
        _gauge("perphd_workload_memory_working_set_bytes", "Memory without inactive file pages.", *_OF),
        _gauge(
            "perphd_workload_llc_occupancy_bytes", "Space used in one last-level cache (domain).",
            *_OF, "domain",
        ),
        _gauge("perphd_workload_cycles_per_instruction", "CPU cycles per instruction retired.", *_OF),
        _gauge(
            "perphd_workload_llc_misses_per_instruction", "Last-level cache misses per instruction.", *_OF
        ),
        _gauge("perphd_workload_backend_stall_ratio", "Share of cycles in which nothing executed.", *_OF),
        _gauge(
            "perphd_workload_memory_stall_ratio", "Share of cycles that waited for memory.", *_OF
        ),
    ),
    "LRAs: performance and health": (
        _counter("perphd_lra_work_total", "Units of work done, by the application's own indicator.", *_LRA),
        _counter("perphd_lra_load_total", "Units of work requested from the application.", *_LRA),
        _gauge(
            "perphd_lra_latency_seconds", "Latency reported by the application, by percentile.",
            *_LRA, "percentile",
        ),
        _gauge(
            "perphd_lra_sli_up",
            "1 while the indicator's source gives numbers, 0 if it is silent; absent without a source.", *_LRA,
        ),
        _counter(
            "perphd_lra_sli_missing_samples_total", "Samples for which the source had no answer.", *_LRA
        ),
        _gauge("perphd_lra_sli_window_seconds", "Time that the latest reading of the source covers.", *_LRA),
        _gauge("perphd_lra_sli_resolution_seconds", "Reporting interval of the source.", *_LRA),
        _gauge(
            "perphd_lra_work_rate",
            "Work rate signal per second; signal: sli (units), mips (millions of instructions), cpu (cores).",
            *_LRA, "signal",
        ),
        _gauge("perphd_lra_work_rate_target", "Minimum work rate, in the same unit.", *_LRA, "signal"),
        _gauge(
            "perphd_lra_delay_seconds",
            "Delay signal, if it is a time: latency, or waiting for a CPU per unit of work.",
            *_LRA, "signal",
        ),
        _gauge("perphd_lra_delay_target_seconds", "Greatest delay that meets the target.", *_LRA, "signal"),
        _gauge(
            "perphd_lra_delay_ratio",
            "Delay signal, if it is a ratio: waiting per CPU time, or 1 + CPU pressure.",
            *_LRA, "signal",
        ),
        _gauge("perphd_lra_delay_target_ratio", "Greatest ratio that meets the target.", *_LRA, "signal"),
        _gauge(
            "perphd_lra_score_ratio",
            "Performance divided by target, the worse of work and delay: 1 and above meets the target.",
            *_LRA,
        ),
        _gauge("perphd_lra_health", "1 for the present health, 0 for the others.", *_LRA, "health"),
        _counter("perphd_lra_health_seconds_total", "Time spent in each health.", *_LRA, "health"),
        _gauge(
            "perphd_lra_contended", "1 for the resource that the LRA lacks; absent otherwise.",
            *_LRA, "resource",
        ),
        _counter(
            "perphd_lra_judged_seconds_total", "Time in which both performance and target were known.", *_LRA
        ),
        _counter(
            "perphd_lra_below_target_seconds_total",
            "Time spent below the target, while performance and target were known.",
            *_LRA,
        ),
        _gauge(
            "perphd_lra_target_reachable",
            "0 if no setting is predicted to meet a missed target, 1 if one is; absent while the target is kept.",
            *_LRA,
        ),
        _gauge(
            "perphd_lra_expected_false_alarms_per_day",
            "Expected false alarms of the detector per day, given this LRA's noise.",
            *_LRA,
        ),
    ),
    "Batch": (
        _gauge("perphd_batch_recent_cores", "CPU time of the last ten seconds, per second.", *_LRA),
        _gauge("perphd_batch_guaranteed_cores", "CPU time that min_cores guarantees, per second.", *_LRA),
        _gauge(
            "perphd_batch_starved_seconds", "Time for which batch has waited for a CPU without getting any.", *_LRA
        ),
        _gauge("perphd_batch_given_cores", "CPUs that batch really used in the last sample.", *_LRA),
        _gauge(
            "perphd_batch_wanted_cores", "CPUs that batch used or waited for in the last sample.", *_LRA
        ),
    ),
    "Decisions and writes": (
        _counter(
            "perphd_decisions_total",
            "Decided changes. In observe mode they were not written.",
            *_LRA, "action", "mode",
        ),
        _counter(
            "perphd_outcomes_total", "Judged changes; result is kept or rolled_back.", *_LRA, "result"
        ),
        _counter(
            "perphd_writes_total", "Kernel writes; result is written, undone, restored or failed.",
            "knob", "result",
        ),
        _gauge(
            "perphd_last_change_timestamp_seconds", "Unix time of the last write for this workload.", *_OF
        ),
        _counter(
            "perphd_lra_unprotected_seconds_total",
            "Time in observe mode in which enforce would have protected this LRA.",
            *_LRA,
        ),
        _counter(
            "perphd_lra_would_take_core_seconds_total",
            "CPU time that enforce would have taken from batch for this LRA, as predicted, in mode observe.",
            *_LRA,
        ),
    ),
    "Forecasts (with [forecast] enabled)": (
        _gauge("perphd_forecast_made_timestamp_seconds", "Unix time at which forecasts were made last."),
        _gauge("perphd_forecast_series", "Series of workloads that the forecast worker follows."),
        _gauge(
            "perphd_forecast_series_forecast", "Followed series for which a model's 99 % bound is trusted."
        ),
        _gauge("perphd_forecast_worker_cpu_cores", "CPU use of the forecast worker, over the last hour."),
        _gauge("perphd_forecast_worker_resident_bytes", "Resident memory of the forecast worker."),
        _gauge(
            "perphd_forecast_mean", "Expected greatest value of the next minute, in the unit of the series.",
            "workload", "series",
        ),
        _gauge(
            "perphd_forecast_p99", "Calibrated 99 % bound of the greatest value of the next minute.",
            "workload", "series",
        ),
        _gauge(
            "perphd_forecast_covered_ratio", "Share of recent values that the bound of that time covered.",
            "workload", "series",
        ),
        _gauge(
            "perphd_host_peak",
            "Greatest use of all workloads within the next hour, cores or bytes, by the selected predictor.",
            "resource",
        ),
        _gauge(
            "perphd_host_peak_predicted",
            "Greatest use of all workloads within the next hour, by each predictor.",
            "resource",
            "predictor",
        ),
        _gauge(
            "perphd_host_peak_under_ratio",
            "Share of a predictor's past predictions that were more than 10 % below the peak that followed.",
            "resource", "predictor",
        ),
    ),
    "Sizes (with [sizing] shaper, and while memfit searches)": (
        _gauge("perphd_shaper_info", "Always 1; the label is the shaper's mode.", "mode"),
        _gauge("perphd_shaper_capacity_bytes", "Memory for all workloads with reserved_memory together."),
        _gauge(
            "perphd_shaper_reclaimable_bytes", "Part of the capacity that could be lent: capacity less all targets.",
        ),
        _gauge("perphd_shaper_reserved_bytes", "Memory that is reserved for the workload.", *_LRA),
        _gauge(
            "perphd_shaper_used_bytes", "Working set that the shaper compares with the reservation.", *_LRA
        ),
        _gauge(
            "perphd_shaper_target_bytes", "Memory that the workload should hold until the next forecast.", *_LRA
        ),
        _counter("perphd_shaper_crashes_total", "Out-of-memory kills that restarted sizing.", *_LRA),
        _gauge(
            "perphd_shaper_makes_room",
            "1 while the workload makes room, or would in mode enforce: reclaim, freeze or end.",
            "workload", "by",
        ),
        _gauge("perphd_memfit_phase", "1 for the phase of the search: pilot, search, bisect, converged.",
               "workload", "phase"),
        _counter("perphd_memfit_epochs_total", "Epochs of the search.", *_LRA),
        _counter(
            "perphd_memfit_crash_epochs_total",
            "Epochs of the search in which memory made the workload slow.",
            *_LRA,
        ),
        _gauge("perphd_memfit_limit_bytes", "memory.high that the search keeps in force.", *_LRA),
        _gauge("perphd_memfit_recommended_bytes", "memory.high that the search recommends so far.", *_LRA),
        _gauge("perphd_memfit_applied", "1 if the result of the search is applied.", *_LRA),
    ),
    "The batch queue ([queue])": (
        _gauge("perphd_queue_jobs", "Stored jobs, by state.", "state"),
        _gauge("perphd_queue_copper_share", "Share of its offer that copper gets; below 1 in an event."),
        _gauge("perphd_copper_offer_generation", "Number of the offer to copper; 0: there is none yet."),
        _gauge("perphd_copper_offer_cpus", "CPUs that copper may use in the next five minutes."),
        _gauge("perphd_copper_offer_bytes", "Memory that copper may use in the next five minutes."),
        _counter("perphd_copper_offer_windows_total", "Offers that were evaluated.", "resource"),
        _gauge(
            "perphd_copper_offer_exceeded_ratio",
            "Share of offers in which everything except copper used more than was left to it.",
            "resource",
        ),
        _gauge(
            "perphd_copper_offer_given_ratio",
            "Share of the host that the evaluated offers gave to copper.",
            "resource",
        ),
    ),
    "In force (absent: as perphd found it)": (
        _gauge("perphd_in_force_cpus", "Logical CPUs to which perphd confines the workload.", *_OF),
        _gauge("perphd_in_force_cpu_weight", "CPU weight, 1 to 10000; 0 is the idle class.", *_OF),
        _gauge("perphd_in_force_cpu_max_cores", "CPU limit in cores.", *_OF),
        _gauge("perphd_in_force_memory_low_bytes", "Memory that is protected from reclaim.", *_OF),
        _gauge("perphd_in_force_memory_min_bytes", "Memory that is never reclaimed.", *_OF),
        _gauge(
            "perphd_in_force_memory_high_bytes",
            "Limit above which the kernel slows the workload; +Inf: none.",
            *_OF,
        ),
        _gauge(
            "perphd_in_force_memory_max_bytes", "Limit above which the kernel kills processes; +Inf: none.", *_OF
        ),
        _gauge("perphd_in_force_llc_ways", "Ways of one last-level cache.", *_OF, "domain"),
        _gauge(
            "perphd_in_force_memory_bandwidth_ratio", "Share of one cache's memory bandwidth.",
            *_OF, "domain",
        ),
        _gauge("perphd_in_force_io_weight", "Disk weight, 1 to 10000.", *_OF),
        _gauge("perphd_in_force_frozen", "1 if its processes are stopped.", *_OF),
        _gauge(
            "perphd_limited",
            "1 for a setting that is planned but not fully in force; perphctl status says why.",
            *_OF, "knob",
        ),
    ),
}  # fmt: skip

SERIES: Final[Mapping[str, MetricSeries]] = {item.name: item for group in GROUPS.values() for item in group}
