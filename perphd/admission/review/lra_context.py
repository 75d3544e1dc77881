"""Read-only context of one decision about one LRA."""

from __future__ import annotations

import math
from collections.abc import Sequence

from perphd.admission.context import (
    STARVED_PCT,
    batch_demand_cores,
    batch_use_cores,
    batches,
    beside_batch_cores,
    cores_per_cpu,
    giving,
    giving_now,
    idle_cores,
    least_batch_cores,
    model_context,
    settable,
    total_cores,
)
from perphd.admission.detector import origin
from perphd.admission.detector.judge import Target
from perphd.admission.inference import inferer, ladder
from perphd.admission.inference.inferer import Assessed, Knobs
from perphd.admission.review.outcomes import Setting
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import IDLE, Allocation, CpuGrant
from perphd.domain.decision import Candidate
from perphd.domain.policy import ResPerfModel, Snapshot, WorkloadView
from perphd.domain.quick import replace
from perphd.domain.reading import NOT_MEASURED, available, value_or
from perphd.domain.sample import Sample, lies_after
from perphd.domain.workload import Touch

SHOWN_CANDIDATES = 8
BUSY_SHARE = 0.9
"""Share of the host's CPUs in use from which CPU counts as contended."""


def stalls_for_memory(sample: Sample, settings: PolicySettings) -> bool:
    """True if a workload stalls for memory."""
    return value_or(sample.memory_some_pct, 0.0) >= settings.memory_pressure_pct


class LraContext:
    """One LRA in one snapshot.

    ``nothing``: the allocation without protection. ``current``: the allocation in force.
    """

    def __init__(self, settings: PolicySettings, snapshot: Snapshot, view: WorkloadView) -> None:
        self.settings, self.snapshot, self.view = settings, snapshot, view
        self.now_s = snapshot.at_s
        self.nothing = inferer.untouched(total_cores(snapshot))
        current = view.protection if view.protection is not None else self.nothing
        self.current = replace(current, cpu=current.cpu.without_own_cores(), own_ways=0)
        self._knobs: Knobs | None = None

    @property
    def stakes(self) -> inferer.Stakes:
        """Possible gain and loss of a reduction here."""
        settings = self.settings
        return inferer.Stakes(
            need=1.0 + settings.shrink_margin_pct / 100.0,
            win_s=settings.gain_horizon_s,
            loss_s=settings.settle_s + (settings.evaluate_ticks + 1) * self.snapshot.period_s,
            price_cores=settings.violation_price_hosts * self.nothing.cpu.total_cores,
            z=settings.confidence_z,
            wanted_cores=batch_demand_cores(self.snapshot),
            beside_cores=beside_batch_cores(self.snapshot),
            threads_per_core=1.0 / cores_per_cpu(self.snapshot),
            used_cores=value_or(batch_use_cores(self.snapshot), math.inf),
            idle_cores=0.0 if self.batch_is_starved() else value_or(idle_cores(self.snapshot), math.inf),
            batch_groups=max(1, len(batches(self.snapshot))),
        )

    def knobs(self) -> Knobs:
        """CPU knobs that can be set; those of batch according to ``settable``."""
        if self._knobs is None:
            batch = settable(self.snapshot)
            self._knobs = Knobs(
                batch_cpus="cpus" in batch,
                batch_weight="cpu_weight" in batch,
                lra_cpus="cpus" in self.view.enforceable and self.may_part(),
                siblings=cores_per_cpu(self.snapshot) < 1.0,
            )
        return self._knobs

    def may_part(self) -> bool:
        """True if perphd may set the LRA's own cores, and no undeclared work would share them."""
        return self.view.spec.touch is Touch.ALL and not origin.is_shared(self.snapshot.host.account)

    def can_set(self, allocation: Allocation) -> bool:
        """True if present knobs, cache, bandwidth steps and guarantees to batch allow this allocation."""
        knobs, cpu, host = self.knobs(), allocation.cpu, self.snapshot.host
        batch, ways = giving_now(self.snapshot), allocation.llc_ways
        return (
            cpu.total_cores == self.nothing.cpu.total_cores
            and cpu.batch_cores >= self.floor_cores()
            and (knobs.batch_cpus or cpu.batch_cores == cpu.total_cores)
            and (knobs.batch_weight or cpu.batch_weight == 100)
            and (knobs.lra_cpus or not cpu.exclusive)
            and (
                not ways
                or (ladder.can_protect_llc(host, batch) and ways <= host.llc_ways - host.min_cbm_bits)
            )
            and (
                allocation.mbw_pct == 100
                or (ladder.can_protect_mbw(host, batch) and allocation.mbw_pct in host.mba_levels_pct)
            )
        )

    def giving(self) -> tuple[WorkloadView, ...]:
        """The enforced batch workloads, or all batch workloads if none is enforced."""
        return giving(self.snapshot)

    def floor_cores(self) -> int:
        """Cores that batch always keeps."""
        return min(max(1, least_batch_cores(self.snapshot)), self.nothing.cpu.total_cores)

    def probe_allocation(self) -> Allocation:
        """The strongest demotion of batch that does not restrict the LRA's cores."""
        knobs, total = self.knobs(), self.nothing.cpu.total_cores
        cores = self.floor_cores() if knobs.batch_cpus else total
        return replace(self.nothing, cpu=CpuGrant(total, cores, IDLE if knobs.batch_weight else 100))

    def cache_waits(self) -> bool:
        """True if batch's ways or bandwidth are not yet written."""
        return any(view.waiting & {"llc_masks", "mba_pct"} for view in self.giving())

    def shield_allocation(self) -> Allocation:
        """``probe_allocation`` with the strongest restriction of batch's cache and bandwidth."""
        return self.with_shield(self.probe_allocation())

    def with_shield(self, allocation: Allocation) -> Allocation:
        """This allocation with the strongest restriction of batch's cache and bandwidth."""
        return ladder.strongest(allocation, self.snapshot.host, giving_now(self.snapshot))

    def setting(self) -> Setting:
        """Circumstances of the LRA: the batch workloads present, and its load."""
        sample = self.view.sample
        return Setting(self.beside(), sample.load_per_s if sample is not None else NOT_MEASURED)

    def beside(self) -> frozenset[str]:
        """Names of the batch workloads that are present."""
        return frozenset(view.spec.name for view in batches(self.snapshot) if view.sample is not None)

    def is_clean(self) -> bool:
        """True if the sample's whole interval lies after the last change plus the settle time."""
        sample = self.view.sample
        if sample is None or self.view.protection is None:
            return True
        return lies_after(
            sample, self.view.protected_since_s + self.settings.settle_s, self.snapshot.period_s
        )

    def cpu_is_contended(self) -> bool:
        """True if the host has almost no idle CPU, or batch has to wait for one.

        In that case the controller may try CPU, whatever resource stalls the LRA: I/O is also late if its threads
        do not run.
        """
        busy = self.snapshot.host.busy_cores
        if available(busy) and busy >= BUSY_SHARE * len(self.snapshot.host.topology.usable):
            return True
        return self.batch_is_starved()

    def batch_is_starved(self) -> bool:
        """True if a batch workload waits for CPU, so that a split may give it more than free competition."""
        waits = (v.sample.cpu_some_pct for v in batches(self.snapshot) if v.sample is not None)
        return any(value_or(w, 0.0) >= STARVED_PCT for w in waits)

    def memory_pressed(self) -> bool:
        """True if the LRA stalls for memory."""
        sample = self.view.sample
        return sample is not None and stalls_for_memory(sample, self.settings)

    def assess(self, model: ResPerfModel, target: Target) -> tuple[Assessed, ...]:
        """Every enforceable CPU grant, with its prediction."""
        allocations = inferer.lattice(self.current, self.floor_cores(), self.knobs())
        return self.assess_these(allocations, model, target)

    def assess_these(
        self, allocations: Sequence[Allocation], model: ResPerfModel, target: Target
    ) -> tuple[Assessed, ...]:
        """These allocations, with their predictions."""
        context = model_context(self.snapshot, self.view, model)
        return inferer.assess(allocations, model, context, target, self.settings.confidence_z)

    def batch_value(self, item: Assessed) -> float:
        """Assumed batch work, in cores of undisturbed work."""
        return ladder.batch_value(item.allocation, item.batch_cores, self.snapshot.host)

    def candidates(
        self, assessed: tuple[Assessed, ...], chosen: Assessed, current: Assessed
    ) -> tuple[Candidate, ...]:
        """Records of the allocations considered, for the explanation."""
        most = max(a.batch_cores for a in assessed)
        ranked = sorted(assessed, key=lambda a: (a.prediction.lower >= 1.0, a.prediction.lower), reverse=True)
        shown = dict.fromkeys([chosen, current, *ranked])
        records = []
        for item in list(shown)[:SHOWN_CANDIDATES]:
            if item == chosen:
                verdict = "chosen"
            elif item == current:
                verdict = "in force"
            elif item.prediction.lower >= 1.0:
                verdict = "enough, but costlier"
            else:
                verdict = "not certain to be enough"
            records.append(inferer.as_candidate(item, most, verdict))
        return tuple(records)
