"""Every threshold, rate and delay of the policies: config table ``[policy]``, units in the names."""

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
        2, 1, 60, "samples", "samples below target, with a witness, that it takes at least before acting"
    )
    min_effect_pct: float = _key(
        5.0,
        0.0,
        50.0,
        "%",
        "shortfall below target that counts after confirm_ticks, unless it is chance; a smaller one must last 3 times "
        "longer",
    )
    witness_min_pct: float = _key(
        3.0,
        0.0,
        100.0,
        "%",
        "CPU, memory or I/O pressure that an LRA must show, above its reference, to count as contention",
    )
    delay_witness_ratio: float = _key(
        1.15,
        1.0,
        10.0,
        "ratio",
        "growth of delay against the reference that counts as a witness of contention",
    )
    cpi_witness_ratio: float = _key(
        1.08,
        1.0,
        10.0,
        "ratio",
        "growth of cycles per instruction from which cache, memory bandwidth or hyperthreads count as contended",
    )
    mpki_witness_ratio: float = _key(
        1.2,
        1.0,
        100.0,
        "ratio",
        "growth of cache misses per instruction that counts as a cache that was lost",
    )
    bandwidth_suspect_gbytes_per_s: float = _key(
        1.5,
        0.0,
        1000.0,
        "GB/s",
        "memory traffic of all workloads per core below which bandwidth is not called the cause",
    )
    network_full_pct: float = _key(
        80.0, 1.0, 100.0, "%", "use of the fullest link from which the network can be the cause"
    )
    throttled_witness_pct: float = _key(
        5.0,
        0.1,
        100.0,
        "%",
        "share of the periods in which an LRA's own CPU limit held it back, to be the cause",
    )
    unexplained_pct: float = _key(
        50.0,
        0.0,
        100.0,
        "%",
        "a growth of latency of which this host could explain less at most is made elsewhere: it gets no resources",
    )
    cusum_k: float = _key(
        0.5,
        0.1,
        2.0,
        "sigma",
        "slack of the CUSUM for large shifts; that for small ones has its target for slack",
    )
    false_alarms_per_day: float = _key(
        1.0,
        0.01,
        1000.0,
        "1/day",
        "times that an LRA may be called degraded, by all rules together, while it keeps its target with all its "
        "tolerance to spare",
        expert=False,
    )
    settle_s: float = _key(
        1.0, 0.0, 60.0, "s", "after an own change nothing is judged or learned for so long"
    )
    evaluate_ticks: int = _key(
        2,
        1,
        60,
        "samples",
        "samples after settling on which a change is judged; of samples that come faster so many that they cover 1.5 s",
    )
    shrink_after_s: float = _key(
        4.0,
        1.0,
        3600.0,
        "s",
        "how long the bound must stay above target plus margin before one step is given back; longer for every step "
        "that had to be undone of late",
    )
    shrink_sure_after_s: float = _key(
        2.0,
        0.0,
        3600.0,
        "s",
        "the same for a step that is as good as certain to keep the target; such a step may be a large one",
    )
    shrink_margin_pct: float = _key(
        3.0, 0.0, 50.0, "%", "margin above target that the smaller allocation must be predicted to keep"
    )
    gain_horizon_s: float = _key(
        300.0,
        1.0,
        86400.0,
        "s",
        "how long a step back to batch is expected to pay: the longer, the more is tried",
    )
    violation_price_hosts: float = _key(
        4.0,
        0.0,
        1000.0,
        "hosts",
        "what a missed target costs, in batch work of so many hosts like this: the more, the surer a step back must be",
        expert=False,
    )
    regret_s: float = _key(
        60.0,
        1.0,
        86400.0,
        "s",
        "after a step back had to be undone, none like it for so long; doubled every time, up to 64 times",
    )
    step_aside_per_h: float = _key(
        4.0,
        0.0,
        60.0,
        "1/h",
        "steps aside by one unit, made while there is slack so that the model knows what lies around: at most; 0: none",
        expert=False,
    )
    step_aside_calm_s: float = _key(
        300.0, 10.0, 86400.0, "s", "how long an LRA must be healthy, and nothing changed, before a step aside"
    )
    step_aside_slack_pct: float = _key(
        5.0, 0.0, 100.0, "%", "how far above target an LRA must be for a step aside"
    )
    confine_streaming: bool = field(
        default=True,
        metadata={
            "unit": "",
            "doc": "of several batch jobs, keep one that streams to the least cache, where all together do better so",
        },
    )
    streaming_gain_pct: float = _key(
        3.0,
        0.1,
        100.0,
        "%",
        "what batch jobs must gain in the mean for one of them to be kept to the least cache",
    )
    streaming_loss_pct: float = _key(10.0, 0.0, 90.0, "%", "what that job itself may lose by it")
    streaming_recheck_s: float = _key(
        600.0,
        10.0,
        86400.0,
        "s",
        "after so long what a trial has shown is tried anew; doubled every time it is still so, up to 64 times",
    )
    forecast: bool = field(
        default=False,
        metadata={
            "unit": "",
            "doc": "foresee growth of an LRA's load by its season or trend, and give it what is idle before it comes",
        },
    )
    forecast_horizon_s: float = _key(60.0, 10.0, 3600.0, "s", "how far ahead load is foreseen")
    forecast_growth: float = _key(
        1.3, 1.05, 10.0, "ratio", "expected growth of the load within the horizon that is prepared for"
    )
    quarantine_failures: int = _key(
        2,
        1,
        100,
        "",
        "changes by a model's advice that did not help, in a row, before it is not asked any more",
    )
    quarantine_s: float = _key(
        120.0,
        1.0,
        86400.0,
        "s",
        "a model whose advice failed is not asked for so long, doubled every time; a ladder of steps takes over",
    )
    release_after_s: float = _key(
        20.0, 1.0, 3600.0, "s", "how long batch must be gone or idle before everything is given back"
    )
    unknown_release_s: float = _key(
        120.0,
        1.0,
        86400.0,
        "s",
        "how long an LRA may be impossible to judge before its protection is given back",
    )
    batch_idle_cores: float = _key(
        0.05, 0.0, 8.0, "cores", "CPU use of all batch below which batch counts as idle"
    )
    confidence_z: float = _key(
        1.0, 0.0, 4.0, "sigma", "how many standard deviations the lower bound lies below the prediction"
    )
    min_reference_samples: int = _key(
        5, 1, 600, "samples", "undisturbed samples before an LRA's reference counts as known"
    )
    precaution: bool = field(
        default=True,
        metadata={
            "unit": "",
            "doc": "batch that has just come is held back before any harm is seen, where the model expects harm",
        },
    )
    probe_reference: bool = field(
        default=True,
        metadata={
            "unit": "",
            "doc": "when batch was there first: protect the LRA strongly for a few seconds to learn its reference",
        },
    )
    probe_after_s: float = _key(
        15.0,
        1.0,
        3600.0,
        "s",
        "how long to wait for undisturbed samples before probing; a missed absolute objective is not waited for",
    )
    memory_pressure_pct: float = _key(
        5.0, 0.1, 100.0, "%", "memory stall share of an LRA that calls for memory protection"
    )
    memory_margin_pct: float = _key(20.0, 0.0, 200.0, "%", "protected memory above the LRA's working set")
    memory_step_pct: float = _key(
        10.0,
        1.0,
        50.0,
        "%",
        "how far below batch's use its memory.high is aimed; it goes there in guarded steps",
    )
    memory_reserve_pct: float = _key(
        5.0, 0.0, 50.0, "%", "share of the host's memory given to nobody when memory is divided"
    )


TRIALS_OFF: Final[Mapping[str, Any]] = {
    "step_aside_per_h": 0.0,
    "probe_reference": False,
    "confine_streaming": False,
}
"""The values of keys that switch off what is tried without need."""


def without_trials(settings: PolicySettings) -> PolicySettings:
    """The settings for a time in which nothing may be tried."""
    return replace(settings, **TRIALS_OFF)


def settings_for(settings: PolicySettings, spec: WorkloadSpec) -> PolicySettings:
    """The settings that hold for one LRA: the host's, but for what its own table ``[lra.policy]`` says."""
    return replace(settings, **dict(spec.policy)) if spec.policy else settings  # type: ignore[arg-type]


EVIDENCE_S: Final = 1.5
"""Short samples scatter: a change is judged on so much time of them, however fast they come."""


def at_pace(settings: PolicySettings, period_s: float) -> PolicySettings:
    """The settings for samples every ``period_s``: ``evaluate_ticks`` of them cover ``EVIDENCE_S`` at least."""
    ticks = max(settings.evaluate_ticks, math.ceil(EVIDENCE_S / period_s - 1e-6))
    return settings if ticks == settings.evaluate_ticks else replace(settings, evaluate_ticks=ticks)
