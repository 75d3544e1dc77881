"""Every threshold, rate and delay of the policies: config tables ``[policy]`` and ``[tuning.policy]``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from perphd.domain.workload import WorkloadSpec


def _key(default: float, low: float, high: float, unit: str, doc: str, *, expert: bool = True) -> Any:
    metadata = {"min": low, "max": high, "unit": unit, "doc": doc, "expert": expert}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Settings of the perph policy. Field metadata: ``min``, ``max``, ``unit``, ``doc``, ``expert``."""

    confirm_ticks: int = _key(
        2,
        1,
        60,
        "samples",
        "minimum number of samples below target, with a corroborating signal, before acting",
    )
    min_effect_pct: float = _key(
        5.0,
        0.0,
        50.0,
        "%",
        "shortfall below target that counts after confirm_ticks if it is significant; a smaller one must last 3 times "
        "longer",
    )
    witness_min_pct: float = _key(
        3.0,
        0.0,
        100.0,
        "%",
        "CPU, memory or I/O pressure of an LRA above its reference from which it counts as contended",
    )
    delay_witness_ratio: float = _key(
        1.15,
        1.0,
        10.0,
        "ratio",
        "growth of delay over the reference that corroborates contention",
    )
    cpi_witness_ratio: float = _key(
        1.08,
        1.0,
        10.0,
        "ratio",
        "growth of cycles per instruction from which cache, memory bandwidth or SMT siblings count as contended",
    )
    mpki_witness_ratio: float = _key(
        1.2,
        1.0,
        100.0,
        "ratio",
        "growth of cache misses per instruction that counts as lost cache",
    )
    bandwidth_suspect_gbytes_per_s: float = _key(
        1.5,
        0.0,
        1000.0,
        "GB/s",
        "memory traffic of all workloads per core below which bandwidth is not considered the cause",
    )
    network_full_pct: float = _key(
        80.0, 1.0, 100.0, "%", "utilisation of the fullest link from which the network can be the cause"
    )
    throttled_witness_pct: float = _key(
        5.0,
        0.1,
        100.0,
        "%",
        "share of periods throttled by an LRA's own CPU limit from which that limit can be the cause",
    )
    unexplained_pct: float = _key(
        50.0,
        0.0,
        100.0,
        "%",
        "if this host can explain less than this share of a latency increase, the cause is external and no "
        "resources are given",
    )
    cusum_k: float = _key(
        0.5,
        0.1,
        2.0,
        "sigma",
        "slack of the CUSUM for large shifts; the slack of the one for small shifts follows from the target",
    )
    false_alarms_per_day: float = _key(
        1.0,
        0.01,
        1000.0,
        "1/day",
        "number of times a day that all rules together may call an LRA degraded although it performs as well as "
        "its reference",
        expert=False,
    )
    settle_s: float = _key(
        1.0, 0.0, 60.0, "s", "time after a change by perphd in which nothing is evaluated or learned"
    )
    evaluate_ticks: int = _key(
        2,
        1,
        60,
        "samples",
        "number of samples after settling that decide about a change; more if they are short, to cover 1.5 s",
    )
    shrink_after_s: float = _key(
        4.0,
        1.0,
        3600.0,
        "s",
        "how long the model must predict that one step less keeps target plus margin before that step is given back; "
        "longer for every recent step that was rolled back",
    )
    shrink_sure_after_s: float = _key(
        2.0,
        0.0,
        3600.0,
        "s",
        "like shrink_after_s, for a step that is almost certain to keep the target; such a step may be large",
    )
    shrink_margin_pct: float = _key(
        3.0,
        0.0,
        50.0,
        "%",
        "margin above target that the smaller allocation must keep according to the model",
    )
    gain_horizon_s: float = _key(
        300.0,
        1.0,
        86400.0,
        "s",
        "horizon over which a reduction is assumed to benefit batch; larger values favour more attempts",
    )
    violation_price_hosts: float = _key(
        4.0,
        0.0,
        1000.0,
        "hosts",
        "penalty for missing a target, in host-equivalents of batch work; higher values make reductions more cautious",
    )
    regret_s: float = _key(
        60.0,
        1.0,
        86400.0,
        "s",
        "cooldown after a reduction was rolled back; doubles every time, up to 64 times this value",
    )
    step_aside_per_h: float = _key(
        4.0,
        0.0,
        60.0,
        "1/h",
        "maximum number of exploration steps per hour, of one unit each, made while there is slack; 0: none",
    )
    step_aside_calm_s: float = _key(
        300.0,
        10.0,
        86400.0,
        "s",
        "how long an LRA must be healthy without a change before an exploration step",
    )
    step_aside_slack_pct: float = _key(
        5.0, 0.0, 100.0, "%", "how far above target an LRA must be for an exploration step"
    )
    confine_streaming: bool = field(
        default=True,
        metadata={
            "unit": "",
            "expert": True,
            "doc": "confine a streaming batch job to the smallest cache mask, and to fewer of batch's cores, if the "
            "batch jobs together gain by it",
        },
    )
    streaming_gain_pct: float = _key(
        3.0,
        0.1,
        100.0,
        "%",
        "minimum mean gain of the batch jobs for which one of them is confined to the smallest cache mask or to "
        "fewer cores",
    )
    streaming_loss_pct: float = _key(
        10.0,
        0.0,
        90.0,
        "%",
        "largest loss of the confined job itself with the smallest cache mask; with fewer cores three times as much",
    )
    streaming_recheck_s: float = _key(
        600.0,
        10.0,
        86400.0,
        "s",
        "time after which such a trial is repeated; doubles with every equal result, up to 64 times this value",
    )
    forecast: bool = field(
        default=False,
        metadata={
            "unit": "",
            "expert": True,
            "doc": "forecast load growth of an LRA by season or trend, and give it idle resources in advance",
        },
    )
    forecast_horizon_s: float = _key(60.0, 10.0, 3600.0, "s", "horizon of load forecasts")
    forecast_growth: float = _key(
        1.3,
        1.05,
        10.0,
        "ratio",
        "minimum expected growth of the load within the horizon that triggers preparation",
    )
    quarantine_failures: int = _key(
        2,
        1,
        100,
        "",
        "consecutive changes by a model's advice without effect after which the model is suspended",
    )
    quarantine_s: float = _key(
        120.0,
        1.0,
        86400.0,
        "s",
        "how long a model is suspended, while a ladder of steps takes over; doubles every time",
    )
    release_after_s: float = _key(
        20.0, 1.0, 3600.0, "s", "how long batch must be gone or idle before everything is given back"
    )
    unknown_release_s: float = _key(
        120.0,
        1.0,
        86400.0,
        "s",
        "how long an LRA may be without a verdict before its protection is given back",
    )
    batch_idle_cores: float = _key(
        0.05, 0.0, 8.0, "cores", "CPU use of all batch below which batch counts as idle"
    )
    confidence_z: float = _key(
        1.0, 0.0, 4.0, "sigma", "standard deviations between a prediction and its lower bound"
    )
    min_reference_samples: int = _key(
        5, 1, 600, "samples", "undisturbed samples from which an LRA's reference counts as known"
    )
    precaution: bool = field(
        default=True,
        metadata={
            "unit": "",
            "expert": True,
            "doc": "restrict newly started batch pre-emptively if the model predicts harm",
        },
    )
    probe_reference: bool = field(
        default=True,
        metadata={
            "unit": "",
            "expert": True,
            "doc": "if batch ran before an LRA's reference was learned, protect the LRA strongly for a few seconds to "
            "learn it",
        },
    )
    probe_after_s: float = _key(
        15.0,
        1.0,
        3600.0,
        "s",
        "how long to wait for undisturbed samples before probing; a missed absolute objective is probed at once",
    )
    memory_pressure_pct: float = _key(
        5.0, 0.1, 100.0, "%", "share of time stalled on memory from which an LRA's memory is protected"
    )
    memory_margin_pct: float = _key(
        20.0, 0.0, 200.0, "%", "margin of protected memory above the LRA's working set"
    )
    memory_step_pct: float = _key(
        10.0,
        1.0,
        50.0,
        "%",
        "how far below batch's use perphd lowers batch's memory.high, in guarded steps",
    )
    memory_reserve_pct: float = _key(
        5.0, 0.0, 50.0, "%", "share of the host's memory left unassigned when memory is divided"
    )


TRIALS_OFF: Final[Mapping[str, Any]] = {
    "step_aside_per_h": 0.0,
    "probe_reference": False,
    "confine_streaming": False,
}
"""Values of settings that switch off all trials."""


def without_trials(settings: PolicySettings) -> PolicySettings:
    """The settings while trials are off."""
    return replace(settings, **TRIALS_OFF)


def settings_for(settings: PolicySettings, spec: WorkloadSpec) -> PolicySettings:
    """The settings for one LRA: the host's, overridden by its own table ``[lra.tuning]``."""
    return replace(settings, **dict(spec.policy)) if spec.policy else settings  # type: ignore[arg-type]


EVIDENCE_S: Final = 1.5
"""Minimum total time of the samples that decide about a change, because short samples scatter."""


def at_pace(settings: PolicySettings, period_s: float) -> PolicySettings:
    """The settings for samples every ``period_s``: ``evaluate_ticks`` of them cover at least ``EVIDENCE_S``."""
    ticks = max(settings.evaluate_ticks, math.ceil(EVIDENCE_S / period_s - 1e-6))
    return settings if ticks == settings.evaluate_ticks else replace(settings, evaluate_ticks=ticks)
