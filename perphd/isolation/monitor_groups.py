"""Monitor groups: one resctrl group per workload, to measure its cache occupancy and memory traffic.

A workload with its own control group is counted there. Any other workload gets a monitor group
``mon_groups/perphd.NAME`` inside its threads' control group, which does not change what the threads may use. New
processes that do not inherit the group are moved into it within seconds.

Groups need monitoring ids (RMIDs), which the whole machine shares. LRAs come first, then the largest CPU users; if
RMIDs are short, the remaining workloads are measured in rotation. A freed RMID may stay in limbo for seconds (EBUSY),
so creating a group is retried with backoff.

The journal names every group before it is created. Groups of other programs, and threads in them, are left alone.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from posixpath import basename, dirname
from typing import Final, Protocol

import rdt
from perphd.domain.backoff import BackoffRule, RetryPause
from perphd.domain.errors import KernelError
from perphd.domain.reading import Unavailable
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup.group import Cgroups
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.fs import KernelFs
from perphd.host.resctrl import MONITORING_KNOB, open_monitoring
from perphd.host.resctrl_counters import CountedGroups, Counter
from perphd.isolation.journal import Journal
from perphd.isolation.journal_format import Original

FOLLOW_LRA_S: Final = 5.0
"""Seconds between two listings of an LRA's threads, the same as for control groups."""
FOLLOW_BATCH_S: Final = 10.0
VERIFY_S: Final = 60.0
"""Seconds between two readings of a group's own task list while the workload's threads are unchanged.

Only other programs could have moved them.
"""
WHOLE_SHARE: Final = 0.9
"""Minimum share of a workload's threads that must be in a group for its counts to be used."""
TURN_S: Final = 20.0
"""Seconds for which a choice of workloads stays when RMIDs are short."""
TURNING_SHARE: Final = 4
"""One in ``TURNING_SHARE`` RMIDs rotates among the workloads that have none of their own."""
SPARE_RMIDS: Final = 2
"""RMIDs left to other programs."""
LOOK_AGAIN_S: Final = 30.0
"""Seconds between two searches for resctrl monitoring while it is unavailable."""
LOCK_WAIT_S: Final = 0.2
"""Seconds that an update waits for resctrl's lock. Short, because updates repeat and a restore waits for them."""
REFUSED: Final = BackoffRule(1.0, 30.0)
"""Backoff after refusals; the kernel checks RMIDs in limbo once a second."""
FULL_S: Final = 60.0
"""Seconds after ENOSPC for which the number of groups does not grow."""

NOT_ASKED: Final = Unavailable(
    "the workload is only observed, and [tuning.resctrl] monitor_in_observe is false"
)
NO_THREADS: Final = Unavailable("the workload has no threads")
NOT_YET: Final = Unavailable("the workload's threads are not all in its resctrl group yet")
FOREIGN: Final = Unavailable("the workload's threads are in another program's resctrl group and stay there")
ELSEWHERE: Final = Unavailable("the workload's threads are not all in one resctrl group")
WAITS_FOR_TURN: Final = Unavailable(
    "too few monitoring ids (RMIDs): the workload waits for its turn to be measured"
)
NO_IDS: Final = Unavailable("all monitoring ids (RMIDs) are taken")
IN_LIMBO: Final = Unavailable("no monitoring id (RMID) is usable yet: freed ones are in limbo")


class Placed(Protocol):
    """The present or intended control group of a workload's threads."""

    @property
    def group(self) -> rdt.GroupRef:
        """The control group."""

    @property
    def shared(self) -> bool:
        """True if the group also holds other workloads' threads."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A workload to be counted. ``fresh``: its cgroup has (re)appeared."""

    spec: WorkloadSpec
    usage_cores: float = 0.0
    fresh: bool = False


@dataclass(slots=True)
class _State:
    """State of one workload.

    ``threads``: as last listed, at ``listed_s``. ``verified``: the threads when the group's task list was last read, at
    ``verified_s``. ``why_not``: why the group does not count the workload; None: it does. ``since``: number that
    changes whenever the counted threads change.
    """

    group: rdt.GroupRef
    threads: frozenset[int] = frozenset()
    listed_s: float = -math.inf
    verified_s: float = -math.inf
    verified: frozenset[int] = frozenset()
    why_not: Unavailable | None = NOT_YET
    since: int = 0


@dataclass(slots=True)
class _Rotation:
    """Rotation state when RMIDs are short.

    ``names`` and ``slots``: the workloads and the number of RMIDs of this rotation. ``chosen``: workloads counted
    now. ``ring``: workloads that rotate. ``counted_s``: when each of them was last chosen.
    """

    until_s: float = -math.inf
    names: frozenset[str] = frozenset()
    slots: int = -1
    chosen: frozenset[str] = frozenset()
    ring: frozenset[str] = frozenset()
    counted_s: dict[str, float] = field(default_factory=dict)


class MonitorGroups:
    """Creates, fills and removes monitor groups. Every call may block in the kernel, so run it in a thread."""

    def __init__(self, fs: KernelFs, hierarchies: Hierarchies, journal: Journal) -> None:
        self._fs, self._journal = fs, journal
        self._cgroups = Cgroups(fs, hierarchies)
        self._groups: rdt.Groups | str | None = None
        self._looked_s = -math.inf
        self._mount: tuple[int, int] | None = None
        self._domains: tuple[str, ...] = ()
        self._epoch = 0
        self._since = 0
        self._states: dict[str, _State] = {}
        self._rotation = _Rotation()
        self._limbo, self._locked = RetryPause(REFUSED), RetryPause(REFUSED)
        self._full: tuple[int, float] = (0, -math.inf)
        self._there: set[rdt.GroupRef] = set()
        self._last = CountedGroups(otherwise=NOT_ASKED)
        self.next_s = -math.inf
        """Time at which ``look`` must run again even if nothing changes."""
        self.stopping = False
        """True makes an update end at its next workload."""

    def look(
        self, asked: Sequence[Asked], placement: Mapping[str, Placed], now_s: float, anew: bool = False
    ) -> CountedGroups:
        """Bring the groups in line with the workloads to be counted; returns the groups in use.

        Kernel errors are reported in the result.

        Args:
            asked: the workloads to count; perphd's other monitor groups are removed.
            placement: the control groups into which perphd has put workloads.
            now_s: monotonic time.
            anew: the resctrl mount may have changed since the last update.
        """
        if anew and isinstance(self._groups, str):
            self._groups = None
        try:
            self._last = self._look(asked, placement, now_s)
            self._locked.succeeded()
        except rdt.Busy as exc:
            self._locked.failed(now_s)
            self.next_s = self._locked.until_s
            return self._noted(f"monitor groups are not updated now: {exc}; perphd retries")
        except (rdt.ResctrlError, KernelError) as exc:
            self._groups = None
            self.next_s = now_s + LOOK_AGAIN_S
            self._last = CountedGroups(otherwise=Unavailable(str(exc)), notes=(str(exc),))
        return self._last

    def _noted(self, note: str) -> CountedGroups:
        """The last result with a note for the operator."""
        last = self._last
        self._last = CountedGroups(
            last.resctrl, last.counters, last.missing, last.otherwise, last.in_turns, last.epoch, (note,)
        )
        return self._last

    # -- the tree ------------------------------------------------------------------------------------------------

    def _open(self, now_s: float) -> rdt.Groups | str:
        if isinstance(self._groups, rdt.Groups) and self._identity(self._groups) != self._mount:
            self._groups = None  # unmounted or remounted
        stale = isinstance(self._groups, str) and not 0 <= now_s - self._looked_s < LOOK_AGAIN_S
        if self._groups is None or stale:
            self._groups, self._looked_s = open_monitoring(self._fs, LOCK_WAIT_S), now_s
            self._states.clear()
            self._domains = ()
            if isinstance(self._groups, rdt.Groups):
                self._mount = self._identity(self._groups)
        return self._groups

    @staticmethod
    def _identity(groups: rdt.Groups) -> tuple[int, int] | None:
        access = groups.resctrl.access
        try:
            return access.identity() if access.exists("tasks") else None
        except rdt.ResctrlError:
            return None

    def _see_domains(self, groups: rdt.Groups) -> None:
        """Let counter files be reopened after a cache domain has gone offline or come online."""
        domains = tuple(groups.resctrl.access.listdir("mon_data"))
        if self._domains and domains != self._domains:
            self._epoch += 1
        self._domains = domains

    # -- one update ----------------------------------------------------------------------------------------------

    def _look(self, asked: Sequence[Asked], placement: Mapping[str, Placed], now_s: float) -> CountedGroups:
        groups = self._open(now_s)
        if isinstance(groups, str):
            self.next_s = now_s + LOOK_AGAIN_S
            return CountedGroups(otherwise=Unavailable(groups))
        if not asked and not self._made():
            self._states.clear()
            self.next_s = math.inf
            return CountedGroups(otherwise=NOT_ASKED)
        self._see_domains(groups)
        names = {one.spec.name for one in asked}
        self._states = {name: state for name, state in self._states.items() if name in names}
        for one in asked:
            self._follow(groups, one, placement.get(one.spec.name), now_s)
        survey = groups.survey()
        needing = [
            one for one in asked if self._states[one.spec.name].group.monitor and self._has_threads(one.spec)
        ]
        slots = self._slots(groups, survey, now_s)
        chosen = self._choose(needing, slots, now_s)
        self._remove_others(groups, {self._states[name].group for name in chosen})
        self._there = {group for group in survey.own if group.monitor}
        if max(self._limbo.until_s, self._full[1]) <= now_s:
            self._record(groups, {name: self._states[name].group for name in chosen})
        counters: dict[str, Counter] = {}
        missing: dict[str, Unavailable] = {}
        for one in self._ranked(asked):
            if self.stopping:
                break
            name = one.spec.name
            state = self._states[name]
            why = self._why_idle(one.spec, state, chosen, slots)
            if why is None:
                why = self._count(groups, one.spec, state, now_s)
            if why is None:
                counters[name] = Counter(state.group, state.since)
            else:
                missing[name] = why
        self._set_next(asked, now_s)
        return CountedGroups(
            groups.resctrl,
            counters,
            missing,
            NOT_ASKED,
            self._rotation.ring,
            self._epoch,
            self._notes(needing, slots, now_s),
        )

    def _follow(self, groups: rdt.Groups, one: Asked, placed: Placed | None, now_s: float) -> None:
        """Determine the group that counts a workload, and list its threads if that is due."""
        name = one.spec.name
        if placed is not None and not groups.resctrl.exists(placed.group):
            placed = None
        if placed is not None and not placed.shared:
            group = placed.group
        else:
            group = groups.monitor(rdt.DEFAULT_GROUP if placed is None else placed.group, name)
        state = self._states.get(name)
        if state is None or state.group != group:
            self._since += 1
            state = self._states[name] = _State(group, since=self._since)
        every_s = FOLLOW_LRA_S if one.spec.kind is Kind.LRA else FOLLOW_BATCH_S
        if one.fresh or state.why_not is NOT_YET or not 0 <= now_s - state.listed_s < every_s:
            state.threads, state.listed_s = self._cgroups.group(one.spec.cgroup).threads(), now_s

    def _has_threads(self, spec: WorkloadSpec) -> bool:
        return bool(self._states[spec.name].threads)

    def _why_idle(
        self, spec: WorkloadSpec, state: _State, chosen: frozenset[str], slots: int
    ) -> Unavailable | None:
        if not state.threads:
            state.why_not, state.verified_s = NO_THREADS, -math.inf
            return NO_THREADS
        if state.group.monitor and spec.name not in chosen:
            state.why_not, state.verified_s = WAITS_FOR_TURN, -math.inf
            return WAITS_FOR_TURN if slots > 0 else NO_IDS
        return None

    def _set_next(self, asked: Sequence[Asked], now_s: float) -> None:
        due = [
            self._states[one.spec.name].listed_s
            + (FOLLOW_LRA_S if one.spec.kind is Kind.LRA else FOLLOW_BATCH_S)
            for one in asked
        ]
        waits = [self._limbo.until_s, *([self._rotation.until_s] if self._rotation.ring else [])]
        self.next_s = min([*due, *(wait_s for wait_s in waits if wait_s > now_s)], default=math.inf)

    # -- who has a group -----------------------------------------------------------------------------------------

    def _slots(self, groups: rdt.Groups, survey: rdt.Survey, now_s: float) -> int:
        """Number of monitor groups allowed. Control groups that may still be created keep one RMID each."""
        info = groups.resctrl.info
        assert info.monitoring is not None
        controls = sum(not group.monitor for group in survey.own)
        kept = survey.closids_free if info.can_control else 0
        slots = info.monitoring.num_rmids - 1 - len(survey.others) - controls - kept - SPARE_RMIDS
        ceiling, until_s = self._full
        return max(0, min(slots, ceiling) if now_s < until_s else slots)

    @staticmethod
    def _ranked(asked: Sequence[Asked]) -> list[Asked]:
        """LRAs first, then the largest CPU users."""
        return sorted(asked, key=lambda one: (one.spec.kind is not Kind.LRA, -one.usage_cores))

    def _choose(self, needing: Sequence[Asked], slots: int, now_s: float) -> frozenset[str]:
        """The workloads to count now; all of them if there are enough RMIDs."""
        names = frozenset(one.spec.name for one in needing)
        turns = self._rotation
        if len(needing) <= slots:
            self._rotation = _Rotation()
            return names
        if now_s < turns.until_s and names == turns.names and slots == turns.slots:
            return turns.chosen
        ranked = [one.spec.name for one in self._ranked(needing)]
        turning = max(1, slots // TURNING_SHARE) if slots else 0
        fixed, ring = ranked[: slots - turning], ranked[slots - turning :]
        waited = sorted(ring, key=lambda name: turns.counted_s.get(name, -math.inf))
        chosen = frozenset([*fixed, *waited[:turning]])
        turns.until_s, turns.names, turns.slots = now_s + TURN_S, names, slots
        turns.chosen, turns.ring = chosen, frozenset(ring)
        turns.counted_s = {name: turns.counted_s[name] for name in ring if name in turns.counted_s}
        turns.counted_s.update(dict.fromkeys(waited[:turning], now_s))
        return chosen

    # -- making and removing -------------------------------------------------------------------------------------

    def _made(self) -> list[Original]:
        return [entry for entry in self._journal.originals.values() if is_monitor_group(entry)]

    def _remove_others(self, groups: rdt.Groups, kept: set[rdt.GroupRef]) -> None:
        """Remove perphd's monitor groups that count no workload; their threads stay in the control group."""
        access = groups.resctrl.access
        closed = []
        for entry in self._made():
            group = group_of(entry.path, access.root)
            if group in kept:
                continue
            if group is not None and groups.prefix.owns(group):
                groups.remove(group)
            closed.append(entry.path)
        if closed:
            with suppress(KernelError):  # otherwise the journal still names the removed groups
                self._journal.close_out(closed)

    def _record(self, groups: rdt.Groups, chosen: Mapping[str, rdt.GroupRef]) -> None:
        """Record all groups about to be created in the journal, in one write."""
        access = groups.resctrl.access
        new: list[Original] = []
        for name, group in chosen.items():
            with suppress(rdt.Gone):
                path, identity = access.path(group.relative), access.identity(group.control, "mon_groups")
                known = self._journal.originals.get(path)
                if known is None or known.identity != identity:
                    new.append(Original(path, b"", identity, MONITORING_KNOB, name))
        self._journal.record(new)

    def _make(self, groups: rdt.Groups, name: str, group: rdt.GroupRef, now_s: float) -> Unavailable | None:
        """Create a recorded group; returns why that is impossible now, or None."""
        if now_s < self._limbo.until_s:
            return IN_LIMBO
        if now_s < self._full[1]:
            return NO_IDS
        if groups.resctrl.access.path(group.relative) not in self._journal.originals:
            return NOT_YET
        try:
            groups.make_monitor(group.parent, name)
        except rdt.Busy as exc:
            if exc.errno != errno.EBUSY:
                raise
            self._limbo.failed(now_s)
            return IN_LIMBO
        except rdt.Full:
            self._full = (len(self._there), now_s + FULL_S)
            return NO_IDS
        self._limbo.succeeded()
        self._there.add(group)
        return None

    # -- filling -------------------------------------------------------------------------------------------------

    def _count(
        self,
        groups: rdt.Groups,
        spec: WorkloadSpec,
        state: _State,
        now_s: float,
    ) -> Unavailable | None:
        """Make sure that the group holds the workload's threads; returns why it does not count them, or None."""
        try:
            if state.group.monitor and state.group not in self._there:
                if (why := self._make(groups, spec.name, state.group, now_s)) is not None:
                    state.why_not, state.verified_s = why, -math.inf
                    return why
                state.verified_s = -math.inf
            fresh = now_s - state.verified_s < VERIFY_S
            if not fresh or state.threads != state.verified:
                was, state.why_not = state.why_not, self._fill(groups, spec, state)
                state.verified, state.verified_s = state.threads, now_s
                if was is not None:
                    self._begin(state)
        except rdt.Gone:  # the control group was removed; the next placement names the new one
            state.why_not, state.verified_s = NOT_YET, -math.inf
        return state.why_not

    def _begin(self, state: _State) -> None:
        """Start a new series of counts, so that no rate spans the change of threads."""
        self._since += 1
        state.since = self._since

    def _fill(self, groups: rdt.Groups, spec: WorkloadSpec, state: _State) -> Unavailable | None:
        """Move threads from the control group into the monitor group."""
        outside = state.threads - groups.resctrl.tasks(state.group)
        if outside:
            # Threads that ended since they were listed are in no group.
            state.threads = self._cgroups.group(spec.cgroup).threads()
            outside &= state.threads
        foreign: frozenset[int] = frozenset()
        if outside and state.group.monitor:
            source = self._cgroups.group(spec.cgroup).threads
            # Never move threads out of another control group. A kernel without allocation has one control group, and
            # lists no threads in it.
            only_from = (state.group.parent,) if groups.resctrl.info.can_control else None
            filled = groups.fill(state.group, source, only_from=only_from)
            if len(filled.moved) > (1.0 - WHOLE_SHARE) * len(state.threads):
                self._begin(state)
            foreign = filled.left_to_others
            state.threads = source()
            outside = state.threads - groups.resctrl.tasks(state.group) - filled.gone - filled.zombies
        if len(outside) <= (1.0 - WHOLE_SHARE) * len(state.threads):
            return None
        return FOREIGN if foreign & outside else ELSEWHERE if state.group.monitor else NOT_YET

    # -- words ---------------------------------------------------------------------------------------------------

    def _notes(self, needing: Sequence[Asked], slots: int, now_s: float) -> tuple[str, ...]:
        notes = []
        if self._rotation.ring:
            notes.append(
                f"{len(needing)} workloads need a monitoring id (RMID) and {slots} are available: cache occupancy and "
                f"memory bandwidth of {len(self._rotation.ring)} of them are measured in rotation, {TURN_S:g} s each"
                if slots
                else f"{len(needing)} workloads need a monitoring id (RMID) and none is left by other programs: "
                "cache occupancy and memory bandwidth are not measured"
            )
        if self._limbo.until_s > now_s:
            notes.append(f"{IN_LIMBO.reason}; retried in {self._limbo.pause_s:g} s")
        return tuple(notes)


def is_monitor_group(entry: Original) -> bool:
    """True if this journal entry records a monitor group that perphd created."""
    return entry.knob == MONITORING_KNOB


def group_of(path: str, root: str) -> rdt.GroupRef | None:
    """The group of a directory of this mount; None if it is not a monitor group."""
    parent = dirname(path)
    if not path.startswith(f"{root}/") or basename(parent) != "mon_groups":
        return None
    control = dirname(parent)
    return rdt.GroupRef("" if control == root else basename(control), basename(path))
