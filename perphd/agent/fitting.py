"""Runs the memory fit: collects epochs, and keeps the requested limits in force.

A search starts only on request. Its limits are ``memory.high``; ``memory.max`` is never changed. A result
stays in force only if an operator applies it. No limit survives the daemon: limits are restored like all
settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from perphd.agent.shaping import lower
from perphd.domain.allocation import Settings
from perphd.domain.decision import TROUBLED
from perphd.domain.errors import ConfigError, KernelError
from perphd.domain.policy import Snapshot, TargetState, WorkloadView
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable
from perphd.domain.sample import Quality, Sample
from perphd.domain.units import format_bytes
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup.group import descendants
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.fs import KernelFs, read_text
from perphd.host.hsperfdata import CollectionShare
from perphd.sizing.memory_fit import (
    LEAST_SAMPLES,
    STEP,
    FitEpoch,
    FitPhase,
    FitView,
    MemoryFit,
    after_epoch,
    after_harm,
    estimate_of_container,
    is_crash,
)

BIN_BYTES: Final = 4 << 20
RELIEF_S: Final = 60.0
"""Seconds without a limit after an LRA was degraded under a limit."""
SKIPPED_SAMPLES: Final = 3
"""Number of samples skipped after a new limit, because the kernel is still reclaiming memory."""
RECLAIMED_SAMPLES: Final = 20
"""Maximum number of further samples to skip while use still falls by more than ``FALL_SHARE`` per sample."""
FALL_SHARE: Final = 0.005
WITNESSES: Final = ("work_rate_per_s", "mips", "cpu_usage_cores")
"""Readings of performance, best first."""
PROCESSES_KEPT_S: Final = 5.0
"""Age in seconds at which a group's list of processes is read again."""
_KNOB: Final = "memory_high_bytes"
LARGEST_PAGE_BYTES: Final = 1 << 16


@dataclass(slots=True)
class _Sums:
    """Sums and extremes of one epoch so far."""

    samples: int = 0
    footprint: dict[float, int] = field(default_factory=dict)
    totals: dict[str, tuple[float, int]] = field(default_factory=dict)
    greatest_working_set: Reading = NOT_MEASURED
    least: Reading = NOT_MEASURED

    def add(self, name: str, reading: Reading) -> None:
        """Add one reading of this name."""
        if not isinstance(reading, Unavailable):
            total, count = self.totals.get(name, (0.0, 0))
            self.totals[name] = (total + reading, count + 1)

    def count(self, name: str) -> int:
        """The number of readings of this name."""
        return self.totals.get(name, (0.0, 0))[1]

    def mean(self, name: str) -> Reading:
        """The mean of the readings of this name."""
        total, count = self.totals.get(name, (0.0, 0))
        return total / count if count else Unavailable(f"{name} was not measured in this epoch")


@dataclass(slots=True)
class _Search:
    """The search for one workload's memory limit. ``place``: see ``_place``."""

    fit: MemoryFit
    collection: CollectionShare
    place: tuple[Kind, str]
    sums: _Sums = field(default_factory=_Sums)
    skip: int = 0
    settling: int = 0
    held: Reading = NOT_MEASURED
    witness: str = ""
    epochs: int = 0
    applied: bool = False
    estimate: Reading = NOT_MEASURED
    settable: bool = True
    relieved_until_s: float | None = None
    pids: tuple[int, ...] = ()
    pids_since_s: float = -math.inf

    @property
    def has_ended(self) -> bool:
        """True if the search has converged."""
        return self.fit.phase is FitPhase.CONVERGED


class Fitting:
    """Runs all searches for memory limits, once per tick, like the shaper."""

    def __init__(self, fs: KernelFs, hierarchies: Hierarchies) -> None:
        self._fs, self._hierarchies = fs, hierarchies
        self._searches: dict[str, _Search] = {}
        self._round = 0

    @property
    def names(self) -> frozenset[str]:
        """Workloads whose ``memory.high`` is controlled by a search at present."""
        return frozenset(name for name, search in self._searches.items() if _limit(search) is not None)

    @property
    def sized(self) -> frozenset[str]:
        """Workloads that a search sizes, until it ends and while its result is applied; the shaper leaves
        them alone.
        """
        return frozenset(name for name, each in self._searches.items() if not each.has_ended or each.applied)

    def start(self, view: WorkloadView, samples: int = LEAST_SAMPLES, step: float = STEP) -> None:
        """Start a search.

        Raises:
            ConfigError: the workload is an LRA that may not be limited, is only observed or is not running, or a
                search for it is running.
        """
        spec = view.spec
        problem, allowed = "", ""
        if spec.kind is Kind.LRA and spec.shape == "no":
            problem = f"{spec.name} is an LRA, and its owner does not allow a memory limit"
            allowed = 'shape = "core" or "elastic" in its table'
        elif not view.enforced:
            problem, allowed = (
                f"{spec.name} is only observed",
                f"perphctl mode enforce --workload {spec.name}",
            )
        elif view.sample is None or view.sample.has(Quality.GONE):
            problem, allowed = f"{spec.name} is not running", "a workload whose control group exists"
        elif spec.name in self._searches and not self._searches[spec.name].has_ended:
            problem, allowed = (
                f"a search for {spec.name} is already running",
                f"perphctl memfit stop {spec.name}",
            )
        if problem:
            raise ConfigError("request", "workload", problem, allowed)
        fit = MemoryFit(step=step, epoch_samples=samples)
        self._searches[spec.name] = _Search(fit, CollectionShare(self._fs), _place(spec))

    def apply(self, name: str) -> int:
        """Keep the recommended limit in force. Returns the limit in bytes.

        Raises:
            ConfigError: there is no result yet.
        """
        search = self._search(name)
        found = search.fit.recommended_bytes
        if not search.has_ended or found is None or not search.settable:
            problem = f"the search for {name} has no result yet: {search.fit.reason}"
            raise ConfigError("request", "workload", problem, "a converged search (perphctl memfit status)")
        search.applied = True
        return int(found)

    def stop(self, name: str) -> None:
        """End a search, or remove an applied limit. Raises ConfigError if there is none."""
        self._search(name)
        del self._searches[name]

    def _search(self, name: str) -> _Search:
        if name not in self._searches:
            known = ", ".join(self._searches) or f"perphctl memfit start {name}"
            raise ConfigError("request", "workload", f"no search was started for {name}", known)
        return self._searches[name]

    def look(
        self, snapshot: Snapshot, target: TargetState, in_force: Callable[[str], Settings]
    ) -> tuple[tuple[str, str], ...]:
        """Process one tick for every search.

        Returns notes to announce. ``in_force``: settings in force by workload.
        """
        troubled = {each.workload for each in target.decisions if each.verdict.health in TROUBLED}
        notes = self._end_outdated(snapshot.workloads)
        self._round += 1
        running = [name for name, each in self._searches.items() if not each.has_ended]
        whose_turn = running[self._round % len(running)] if running else ""
        for view in snapshot.workloads if running else ():
            search = self._searches.get(view.spec.name)
            if search is None or search.has_ended or view.sample is None:
                continue
            search.settable = _KNOB in view.enforceable
            before = search.fit
            if not view.enforced:
                self._begin_again(search)
                continue
            if view.spec.kind is Kind.LRA and self._relieves(
                search, view.spec.name in troubled, snapshot.at_s
            ):
                if search.fit is not before:
                    notes.append(
                        (view.spec.name, f"memory fit: {search.fit.phase.value}, {search.fit.reason}")
                    )
                continue
            if not _is_in_force(_limit(search), in_force(view.spec.name)):
                search.fit = replace(before, reason="the limit is not in force: perphctl status says why")
                self._begin_epoch(search)
                continue
            is_troubled, is_turn = view.spec.name in troubled, view.spec.name == whose_turn
            self._look(search, view, view.sample, is_troubled, is_turn, snapshot.at_s)
            if search.fit.phase is not before.phase or search.fit.limit_bytes != before.limit_bytes:
                notes.append((view.spec.name, f"memory fit: {search.fit.phase.value}, {search.fit.reason}"))
        return tuple(notes)

    def _end_outdated(self, workloads: Sequence[WorkloadView]) -> list[tuple[str, str]]:
        """End searches whose limit does not apply to the present declaration. Returns notes to announce."""
        notes: list[tuple[str, str]] = []
        for view in workloads if self._searches else ():
            spec, search, why = view.spec, self._searches.get(view.spec.name), ""
            if search is None:
                continue
            if search.place != _place(spec):
                why = "another workload has this name now"
            elif spec.kind is Kind.LRA and spec.shape == "no":
                why = "its owner does not allow a memory limit any more"
            if why:
                del self._searches[spec.name]
                notes.append((spec.name, f"memory fit: ended, {why}"))
        return notes

    def over(self, name: str, settings: Settings) -> Settings:
        """The settings of this workload with the limit of its search."""
        search = self._searches.get(name)
        limit = None if search is None else _limit(search)
        if limit is None:
            return settings
        return replace(settings, memory_high_bytes=lower(settings.memory_high_bytes, limit))

    def views(self) -> tuple[FitView, ...]:
        """All searches, for display."""
        return tuple(self._view(name, search) for name, search in self._searches.items())

    def _look(
        self, search: _Search, view: WorkloadView, sample: Sample, troubled: bool, turn: bool, now_s: float
    ) -> None:
        if search.skip > 0 or _is_reclaimed(search, sample):
            search.skip = max(0, search.skip - 1)
            search.settling -= 1
            search.held = sample.memory_current_bytes
            return
        search.settling = 0
        self._collect(search, sample)
        if turn:
            self._collect_jvms(search, view.spec.cgroup, now_s)
        epoch = _epoch(search)
        crash = is_crash(search.fit, epoch)
        if troubled and view.spec.kind is Kind.LRA and not crash:
            self._begin_epoch(search)
            search.fit = replace(search.fit, reason="the application is degraded: the epoch restarts")
            return
        full = epoch.samples >= search.fit.epoch_samples
        if not full and not crash:
            return
        search.epochs += 1
        search.estimate = estimate_of_container(epoch.footprint)
        if not search.settable:
            search.fit = replace(
                search.fit, phase=FitPhase.CONVERGED, reason=_untried(epoch, search.estimate)
            )
            return
        search.fit = after_epoch(search.fit, epoch, urgent=crash)
        self._begin_epoch(search)
        search.skip, search.settling = SKIPPED_SAMPLES, SKIPPED_SAMPLES + RECLAIMED_SAMPLES

    @staticmethod
    def _begin_again(search: _Search) -> None:
        """Restart with the pilot epoch, because an observed workload runs without the limits that an epoch tests."""
        before = search.fit
        reason = "only observed now: the search restarts when the workload is enforced"
        search.fit = MemoryFit(step=before.step, epoch_samples=before.epoch_samples, reason=reason)
        search.sums = _Sums()

    def _relieves(self, search: _Search, troubled: bool, now_s: float) -> bool:
        """True if the limit must be lifted because the LRA is, or recently was, degraded. The limit counts as bad."""
        until_s, limit = search.relieved_until_s, _limit(search)
        if until_s is None and not (troubled and limit is not None):
            return False
        if until_s is not None and not troubled and now_s >= until_s:
            search.relieved_until_s, search.skip = None, SKIPPED_SAMPLES
            search.settling = SKIPPED_SAMPLES + RECLAIMED_SAMPLES
            return False
        if until_s is None:
            search.fit = after_harm(search.fit)
        if search.has_ended:
            return True  # the search has ended, and its limit is no longer in force
        if troubled:
            search.relieved_until_s = now_s + RELIEF_S
        self._begin_epoch(search)
        return True

    @staticmethod
    def _begin_epoch(search: _Search) -> None:
        search.sums = _Sums()

    @staticmethod
    def _collect(search: _Search, sample: Sample) -> None:
        sums = search.sums
        if isinstance(sample.memory_current_bytes, Unavailable):
            return
        current, limit = sample.memory_current_bytes, search.fit.limit_bytes
        sums.samples += 1
        for name in WITNESSES:
            sums.add(name, sample.reading(name))
        # the best signal that is present in most samples; the first sample may lack one
        if search.fit.pilot is None:
            search.witness = next((name for name in WITNESSES if 2 * sums.count(name) > sums.samples), "")
        place = (current // BIN_BYTES + 1) * BIN_BYTES
        place = place if limit is None else min(place, max(limit, current))
        sums.footprint[place] = sums.footprint.get(place, 0) + 1
        sums.least = current if isinstance(sums.least, Unavailable) else min(sums.least, current)
        working = sample.memory_working_set_bytes
        if not isinstance(working, Unavailable):
            seen = sums.greatest_working_set
            sums.greatest_working_set = working if isinstance(seen, Unavailable) else max(seen, working)
        sums.add("current", current)
        sums.add("full", sample.memory_full_pct)
        sums.add("refaults", sample.refaults_per_s)

    def _collect_jvms(self, search: _Search, cgroup: str, now_s: float) -> None:
        """Collect garbage-collection figures of the workload's JVMs.

        Only one search per tick does this, because it costs more than everything else.
        """
        if now_s - search.pids_since_s >= PROCESSES_KEPT_S:
            search.pids, search.pids_since_s = self._pids(cgroup), now_s
        search.sums.add("collection", search.collection.read(search.pids, now_s))

    def _pids(self, cgroup: str) -> tuple[int, ...]:
        tree = self._hierarchies.of("memory") or self._hierarchies.unified
        if tree is None:
            return ()
        found: list[int] = []
        directory = tree.path(cgroup)
        try:
            for each in (directory, *descendants(self._fs, directory)):
                found += [int(line) for line in read_text(self._fs, f"{each}/cgroup.procs").split()]
        except (KernelError, ValueError):
            return ()
        return tuple(found)

    def _view(self, name: str, search: _Search) -> FitView:
        fit = search.fit
        return FitView(
            workload=name,
            phase=fit.phase.value,
            epochs=search.epochs,
            samples=search.sums.samples,
            epoch_samples=fit.epoch_samples,
            limit_bytes=_limit(search),
            last_good_bytes=fit.last_good_bytes,
            first_bad_bytes=fit.first_bad_bytes,
            recommended_bytes=fit.recommended_bytes if search.settable else None,
            estimate_bytes=search.estimate,
            crashes=fit.crashes,
            witness=search.witness or "none",
            applied=search.applied,
            reason=fit.reason,
        )


def _place(spec: WorkloadSpec) -> tuple[Kind, str]:
    """Tells a workload from others of the same name. A workload that is searched for may move to another group."""
    return spec.kind, spec.match or spec.declared_by or spec.cgroup


def _is_reclaimed(search: _Search, sample: Sample) -> bool:
    """True while the kernel still reclaims memory after a new limit. This cost does not belong to the limit."""
    held, current = search.held, sample.memory_current_bytes
    if search.settling <= 0 or isinstance(held, Unavailable) or isinstance(current, Unavailable):
        return False
    return current < (1 - FALL_SHARE) * held


def _untried(epoch: FitEpoch, estimate: float) -> str:
    return (
        f"this workload has no memory.high, so no limit can be tried: it used {format_bytes(max(epoch.footprint))} "
        f"at most; the published estimate, {format_bytes(estimate)}, may be too little"
    )


def _limit(search: _Search) -> int | None:
    """The limit in bytes that should be in force for a search; None: no limit."""
    fit = search.fit
    if not search.settable or fit.limit_bytes is None or search.relieved_until_s is not None:
        return None
    if fit.phase is FitPhase.CONVERGED and not search.applied:
        return None
    return int(fit.limit_bytes)


def _is_in_force(limit: int | None, settings: Settings) -> bool:
    """True if this limit is in force, up to the kernel's rounding to whole pages."""
    found = settings.memory_high_bytes
    return limit is None or (isinstance(found, int) and abs(found - limit) < LARGEST_PAGE_BYTES)


def _epoch(search: _Search) -> FitEpoch:
    sums, full = search.sums, search.sums.mean("full")
    return FitEpoch(
        sums.samples,
        sums.footprint,
        sums.greatest_working_set,
        sums.mean(search.witness) if search.witness else Unavailable("no performance signal"),
        full if isinstance(full, Unavailable) else full / 100.0,
        sums.mean("refaults"),
        sums.mean("collection"),
        sums.mean("current"),
        sums.least,
        is_work=search.witness == WITNESSES[0],
    )
