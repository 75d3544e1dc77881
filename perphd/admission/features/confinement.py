"""Confinements of one batch job among others: the smallest cache mask, and a cap on its cores. Pure.

A cap takes part of batch's cores from one job. The other jobs keep all of batch's cores, also those of the capped
job. A cap counts whole cores, so its CPUs follow from the CPUs that the arbiter gives batch, whenever these change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from perphd.admission.context import STARVED_PCT
from perphd.admission.inference import way_layout
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import KEEP, Keep, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.policy import HostView, WorkloadView
from perphd.domain.quick import replace
from perphd.domain.reading import available, value_or
from perphd.domain.sample import Quality
from perphd.domain.topology import Topology

LEAST_CLASSES: Final = 4
"""Number of CLOSIDs needed for confinement: the default group's, batch's, the confined jobs', and a spare."""
FEWER: Final = 0.75
"""Share of its cores that a job keeps at each step of a cap."""

CORES_LOSS: Final = 3.0
"""Largest loss of a job with fewer cores, as a multiple of ``streaming_loss_pct``: others get the whole cores."""
MOST_LOSS: Final = 0.9
"""Upper limit of that loss."""
NEARLY: Final = 0.1
"""Use in cores that does not count as a further core."""


class Confinement(StrEnum):
    """Kinds of confinement of one batch job."""

    LEAST_CACHE = "least-cache"
    FEWER_CORES = "fewer-cores"


@dataclass(frozen=True, slots=True)
class CoreCap:
    """A cap on one job's cores.

    ``cores``: number of whole cores. ``change``: change of the logarithm of its rate since it had all of batch's cores.
    """

    name: str
    cores: int
    change: float = 0.0


def is_settable(view: WorkloadView) -> bool:
    """True if this job is present, and perphd may set its knobs."""
    return view.sample is not None and not view.sample.has(Quality.GONE) and view.enforced


def misses_per_s(view: WorkloadView) -> float:
    """Cache misses per second, in an arbitrary unit that is the same for all jobs; 0 if not counted."""
    sample = view.sample
    if sample is None or not available(sample.llc_mpki):
        return 0.0
    return sample.llc_mpki * value_or(sample.mips, 0.0)


def bearable_loss(policy: PolicySettings, kind: Confinement) -> float:
    """Largest share of its rate that a job confined in this way may lose."""
    share = policy.streaming_loss_pct / 100.0
    return share if kind is Confinement.LEAST_CACHE else min(CORES_LOSS * share, MOST_LOSS)


# -- the smallest cache mask ---------------------------------------------------------------------------


def can_have_least_cache(view: WorkloadView, host: HostView, settings: Settings) -> bool:
    """True if this job's ways can be set and exceed the minimum."""
    if not is_settable(view):
        return False
    if "llc_masks" not in view.enforceable or host.llc_ways <= host.min_cbm_bits:
        return False
    if 0 < host.llc_classes < LEAST_CLASSES:
        return False
    masks = settings.llc_masks
    return masks is KEEP or all(mask.bit_count() > host.min_cbm_bits for _, mask in masks)


def least_masks(host: HostView, settings: Settings) -> tuple[tuple[int, int], ...]:
    """The smallest mask within the job's mask, at the end that devices do not share (see ``ladder.batch_mask``)."""
    least = (1 << host.min_cbm_bits) - 1
    masks = {} if settings.llc_masks is KEEP else dict(settings.llc_masks)
    domains = (each.domain for each in host.topology.l3_domains)
    whole = (1 << host.llc_ways) - 1
    if way_layout.cache_domain(host).batch_end_is_low:
        return tuple((d, least << (masks.get(d, whole).bit_length() - host.min_cbm_bits)) for d in domains)
    return tuple(
        (d, least << ((masks.get(d, whole) & -masks.get(d, whole)).bit_length() - 1)) for d in domains
    )


# -- fewer cores ---------------------------------------------------------------------------------------


def core_masks(topology: Topology, cpus: CpuSet | Keep) -> tuple[int, ...]:
    """The CPUs of each of batch's cores, as bit masks reduced to batch's CPUs. KEEP: all usable cores."""
    allowed = topology.usable.mask if cpus is KEEP else cpus.mask
    masks = (core.cpus.mask & allowed for core in topology.usable_cores)
    return tuple(mask for mask in masks if mask)


def can_cap_cores(view: WorkloadView, settings: Settings) -> bool:
    """True if this job's CPUs can be set, and batch has more than one CPU."""
    return (
        is_settable(view) and "cpus" in view.enforceable and (settings.cpus is KEEP or len(settings.cpus) > 1)
    )


def may_begin(view: WorkloadView, topology: Topology, settings: Settings) -> bool:
    """False if a cap might leave the CPUs of the job's owner: these are restricted, and batch is not confined."""
    return settings.cpus is not KEEP or view.allowed is None or topology.usable <= view.allowed


def next_cap(view: WorkloadView, topology: Topology, settings: Settings, now: CoreCap | None) -> int | None:
    """The number of cores of the next step of a cap, or None if no step would restrict the job further.

    While other jobs compete for its CPUs, the first step leaves the job one CPU per thread. All other steps take a
    quarter of the cores that it fills.
    """
    sample, masks = view.sample, core_masks(topology, settings.cpus)
    if sample is None or not masks:
        return None
    has = len(masks) if now is None else min(now.cores, len(masks))
    cpus_per_core = sum(mask.bit_count() for mask in masks) / len(masks)
    wanted = value_or(sample.cpu_usage_cores, 0.0)
    competes = value_or(sample.cpu_some_pct, 0.0) >= STARVED_PCT
    if competes:
        wanted = max(wanted, value_or(sample.threads, math.inf))
    least = max(1, math.ceil(view.spec.least_cores))
    filled = math.ceil(min(wanted / cpus_per_core - NEARLY, float(has)))
    if competes and now is None and least <= filled < has:
        return filled
    fewer = max(least, math.floor(FEWER * filled))
    return fewer if fewer < has and fewer * cpus_per_core < wanted else None


def capped_cpus(topology: Topology, cpus: CpuSet | Keep, count: int) -> CpuSet | Keep:
    """The CPUs of ``count`` of batch's cores, in each L3 domain the same share; ``cpus`` if batch has no more.

    The last cores of each domain count first, because batch keeps these longest.
    """
    masks = core_masks(topology, cpus)
    if count >= len(masks):
        return cpus
    homes = [(each.domain, each.cpus.mask) for each in topology.l3_domains]
    by_domain: dict[int, list[int]] = {}
    for mask in masks:
        home = next((domain for domain, those in homes if those & mask), -1)
        by_domain.setdefault(home, []).append(mask)
    chosen = 0
    for domain, quota in _quotas({d: len(found) for d, found in by_domain.items()}, max(1, count)).items():
        for mask in by_domain[domain][len(by_domain[domain]) - quota :]:
            chosen |= mask
    return CpuSet(chosen)


def _quotas(sizes: Mapping[int, int], count: int) -> dict[int, int]:
    """``count`` divided in proportion to the sizes, by largest remainders; the last domains win ties."""
    total = sum(sizes.values())
    found = {domain: count * size // total for domain, size in sizes.items()}
    order = sorted(sizes, key=lambda domain: (count * sizes[domain] % total, domain), reverse=True)
    for domain in order[: count - sum(found.values())]:
        found[domain] += 1
    return found


def confined_settings(
    host: HostView, settings: Settings, *, least_cache: bool, cap: CoreCap | None
) -> Settings:
    """``settings`` of one job with its confinements."""
    if least_cache:
        settings = replace(settings, llc_masks=least_masks(host, settings))
    if cap is not None:
        settings = replace(settings, cpus=capped_cpus(host.topology, settings.cpus, cap.cores))
    return settings


def caches_and_cores(settings: Settings) -> Settings:
    """The part of ``settings`` that affects a job's speed at once: CPUs, cache and bandwidth."""
    return Settings(
        cpus=settings.cpus,
        cpu_weight=settings.cpu_weight,
        cpu_max_cores=settings.cpu_max_cores,
        llc_masks=settings.llc_masks,
        mba_pct=settings.mba_pct,
    )
