"""Cache ways and memory bandwidth of workloads, by resctrl groups of perphd's own.

Every workload has a group of its own while CLOSIDs suffice; ``pools`` says who shares one where they do not. A value
that cannot be set now is not a value that nobody wants: the group stays, with the value in force. A group is removed
when nothing is wanted of it any more; its tasks fall to the default group, where they were before. The journal names
every group that was made. Threads that another program has put into a group of its own are left there and reported.

Planning takes no lock, so that nobody who holds resctrl's lock can keep it waiting; ``group_jobs`` writes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import rdt
from perphd.domain.allocation import KEEP, UNTOUCHED, Settings
from perphd.domain.plan import Key, NotEnforceable, Stage, Write
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup.group import Cgroups
from perphd.host.cgroup.knobs import RESCTRL_SETTINGS
from perphd.host.fs import KernelFs
from perphd.host.resctrl import (
    LOCK_WAIT_S,
    PREFIX,
    Mounted,
    check_schemata,
    resources,
    same_schemata,
    settings_of,
    wanted_schemata,
    why_not,
)
from perphd.isolation.group_jobs import CacheResult, GroupJobs, Job
from perphd.isolation.group_watch import GroupWatch, Seen
from perphd.isolation.journal import Journal
from perphd.isolation.journal_format import Original
from perphd.isolation.pools import Pool, Want, assign
from perphd.isolation.refusals import Refusals
from perphd.isolation.standing import Standing
from perphd.isolation.watch import Watch

KNOB: Final = "llc_masks"
"""The knob under which groups stand in the journal and in reports."""


@dataclass(frozen=True, slots=True)
class CachePlan:
    """What is to be done about groups, as writes for people.

    ``pending``: the knobs that these writes set. ``waiting``: the workloads whose writes wait for the lock.
    """

    writes: tuple[Write, ...] = ()
    skipped: tuple[NotEnforceable, ...] = ()
    limited: tuple[NotEnforceable, ...] = ()
    pending: tuple[Key, ...] = ()
    waiting: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Placement:
    """The control group that perphd has put a workload's threads into; ``shared``: another workload's are there too."""

    group: rdt.GroupRef
    shared: bool


@dataclass(slots=True)
class _Look:
    """What one plan has read."""

    groups: rdt.Groups
    seen: dict[str, Seen]
    shown: rdt.Schemata
    threads: dict[str, frozenset[int]]


@dataclass(slots=True)
class _Draft:
    """One plan in the making. ``locked``: who keeps perphd from changing anything; empty: nobody."""

    look: _Look
    targets: Mapping[str, Settings]
    locked: str
    writes: list[Write]
    skipped: list[NotEnforceable]
    limited: list[NotEnforceable]
    pending: list[Key]
    waiting: set[str]

    def wait(self, name: str) -> None:
        """This workload's settings are as wanted when the lock is free."""
        self.skip(name, self.locked)
        self.waiting.add(name)

    def skip(self, name: str, reason: str, settings: Iterable[str] = RESCTRL_SETTINGS) -> None:
        """These settings of the workload are not as wanted, for this reason."""
        target = self.targets.get(name, UNTOUCHED)
        self.skipped += [
            NotEnforceable(name, each, reason) for each in settings if getattr(target, each) is not KEEP
        ]


class Caches:
    """Plans and applies; remembers only who is in which group, which can be found out again.

    Args:
        lock_wait_s: how long a change waits for a program that holds resctrl's lock.
    """

    def __init__(
        self,
        fs: KernelFs,
        cgroups: Cgroups,
        journal: Journal,
        watch: Watch,
        standing: Standing,
        refusals: Refusals,
        lock_wait_s: float = LOCK_WAIT_S,
    ) -> None:
        self._fs, self._cgroups, self._journal = fs, cgroups, journal
        self._standing, self._refusals = standing, refusals
        self._mounted = Mounted(fs)
        self._changes = GroupWatch(watch)
        self._jobs = GroupJobs(cgroups, journal, self._changes, refusals, self._note, lock_wait_s)
        self._targets: dict[str, Settings] = {}
        self._members: dict[str, frozenset[str]] = {}
        self._anew = False
        self._leaving: dict[str, WorkloadSpec] = {}
        self._last = CachePlan()
        self._pools: tuple[object, tuple[Pool, ...]] = (None, ())

    # -- what can be set -----------------------------------------------------------------------------------------

    def missing(self, setting: str, now_s: float) -> str:
        """Why this setting cannot be set here; empty if it can."""
        groups = self.groups(now_s)
        return groups if isinstance(groups, str) else why_not(groups, setting)

    def groups(self, now_s: float) -> rdt.Groups | str:
        """The mounted resctrl with perphd's groups, or why there is none."""
        self.look(now_s)
        return self._mounted.groups(now_s)

    def look(self, now_s: float) -> bool:
        """True if another resctrl (or none) is mounted than at the last look. Costs one stat(2)."""
        changed = self._mounted.look(now_s)
        if changed:
            self._changes.forget_all()
            self._members.clear()
            self._anew = True
        return changed

    def mounted_anew(self, now_s: float) -> bool:
        """As ``look``, but of all looks since this was last asked: a plan may have been the first to see it."""
        self.look(now_s)
        anew, self._anew = self._anew, False
        return anew

    def disturbed(self) -> bool:
        """True if a group is gone, or has other values, since it was last read or written: the next plan says more."""
        groups = self._mounted.found
        return groups is not None and self._changes.disturbed(groups.resctrl)

    def placement(self) -> Mapping[str, Placement]:
        """The control group of every workload that perphd has put into one; all others are in the default group."""
        homes = self._changes.homes()
        crowd = Counter(homes.values())
        named = rdt.Prefix(PREFIX)
        return {name: Placement(rdt.GroupRef(named.name(key)), crowd[key] > 1) for name, key in homes.items()}

    # -- plan ----------------------------------------------------------------------------------------------------

    def plan(
        self, targets: Mapping[str, Settings], specs: Sequence[WorkloadSpec], now_s: float, held: bool = False
    ) -> CachePlan:
        """What leads to these targets. Reads nothing where nothing is wanted and nothing was made.

        ``held``: no group is removed yet.
        """
        self._jobs.begin(now_s)
        asked = [spec for spec in specs if _asks(targets.get(spec.name, UNTOUCHED))]
        self._targets = {spec.name: targets.get(spec.name, UNTOUCHED) for spec in specs}
        made = self._made()
        if not asked and not made and not self._changes.homes():
            self._forget_in_force(specs)
            self._last = CachePlan()
            return self._last
        groups = self.groups(now_s)
        if isinstance(groups, str):
            self._forget_in_force(specs)
            self._last = CachePlan((), tuple(_nothing_of(targets, asked, groups)))
            return self._last
        try:
            self._last = self._plan(groups, targets, asked, specs, made, now_s, held)
        except rdt.ResctrlError as exc:
            self._last = CachePlan((), tuple(_nothing_of(targets, asked, str(exc))))
        return self._last

    def waiting(self, targets: Mapping[str, Settings], specs: Sequence[WorkloadSpec]) -> CachePlan:
        """The plan while the writes of the last one are still being made: nothing new; what changed is pending too."""
        changed = [
            (spec.name, setting)
            for spec in specs
            for setting in RESCTRL_SETTINGS
            if getattr(targets.get(spec.name, UNTOUCHED), setting)
            != getattr(self._targets.get(spec.name, UNTOUCHED), setting)
        ]
        last = self._last
        pending = dict.fromkeys((*last.pending, *changed))
        held = self._held_by_others()
        told = tuple(NotEnforceable(*key, held) for key in pending) if held else ()
        return CachePlan((), (*last.skipped, *told), last.limited, tuple(pending), last.waiting)

    def waits(self, name: str) -> bool:
        """True if what was last planned for this workload waits for the lock."""
        return name in self._last.waiting

    def _held_by_others(self) -> str:
        """Whom the writes wait for; empty if nobody else holds resctrl's lock."""
        groups = self._mounted.found
        if groups is None:
            return ""
        access = groups.resctrl.access
        holders = [
            holder for holder in rdt.lock_holders(access.fs, access.path()) if holder.pid != os.getpid()
        ]
        return f"waits for the lock of {access.path()}: {', '.join(map(str, holders))}" if holders else ""

    def _forget_in_force(self, specs: Sequence[WorkloadSpec]) -> None:
        for spec in specs:
            for setting in RESCTRL_SETTINGS:
                self._standing.drop((spec.name, setting))

    def _plan(
        self,
        groups: rdt.Groups,
        targets: Mapping[str, Settings],
        asked: Sequence[WorkloadSpec],
        specs: Sequence[WorkloadSpec],
        made: Sequence[Original],
        now_s: float,
        held: bool,
    ) -> CachePlan:
        look = self._read(groups, asked, specs, made)
        self._changes.look(look.seen, self._members, look.threads, self._jobs.foreign)
        self._find_homes(look)
        draft = _Draft(look, targets, self._jobs.locked(look.groups), [], [], [], [], set())
        there = [spec for spec in asked if spec.name in look.threads]
        left_alone = {spec.name for spec in specs if self._changes.yielded(spec.name)}
        theirs = {key: names & left_alone for key, names in self._members.items() if key in look.seen}
        kept = {key for key, names in theirs.items() if names}
        kept |= {home for name in left_alone if (home := self._changes.home(name))}
        wanted: dict[str, Want] = {}
        for spec in there:
            want = self._want(draft, spec, now_s)
            if spec.name in left_alone:
                self._leave_alone(draft, spec, want)
            elif want is not None:
                wanted[spec.name] = want
        pools = self._assign(look, wanted, kept)
        by_name = {spec.name: spec for spec in there}
        for pool in pools:
            self._one_group(draft, pool, [by_name[name] for name in pool.names], wanted, now_s)
        used = {pool.key for pool in pools} | kept
        if not held:
            self._give_back(draft, specs, used, made, now_s)
        self._members = {pool.key: frozenset(pool.names) for pool in pools}
        for key in kept:
            inside = {name for name in left_alone if self._changes.home(name) == key}
            self._members[key] = frozenset(theirs.get(key, frozenset()) | inside)
        for spec in specs:
            self._note(spec.name)
        return CachePlan(
            tuple(draft.writes),
            tuple(draft.skipped),
            tuple(draft.limited),
            tuple(draft.pending),
            frozenset(draft.waiting),
        )

    def _read(
        self,
        groups: rdt.Groups,
        asked: Sequence[WorkloadSpec],
        specs: Sequence[WorkloadSpec],
        made: Sequence[Original],
    ) -> _Look:
        """Groups before threads: a thread that ends in between is not taken for one that was moved out."""
        resctrl = groups.resctrl
        seen: dict[str, Seen] = {}
        for entry in made:
            group = rdt.GroupRef(entry.path.rsplit("/", 1)[1])
            key = groups.key(group)
            if key is None:
                continue
            try:
                identity = resctrl.identity(group)
                found = Seen(group, entry.path, identity, resctrl.schemata(group), resctrl.tasks(group))
            except rdt.Gone:
                continue
            seen[key] = found
        shown = next((one.schemata for one in seen.values()), None)
        shown = resctrl.schemata() if shown is None else shown
        groups = self._mounted.follow(shown) or groups
        threads: dict[str, frozenset[int]] = {}
        homes = self._changes.homes()
        asks = {spec.name for spec in asked}
        leaving = [spec for spec in self._leaving.values() if spec.name not in self._targets]
        # Groups of an earlier run: whoever may be in them is looked for, once.
        unknown = any(self._changes.left(key) is None for key in seen)
        for spec in (*specs, *leaving):
            if unknown or spec.name in asks or spec.name in homes:
                group_of = self._cgroups.group(spec.cgroup)
                if group_of.exists():
                    threads[spec.name] = group_of.threads()
        return _Look(groups, seen, shown, threads)

    def _find_homes(self, look: _Look) -> None:
        """Who is in which group, where that is not known: after a restart, or of a workload that came back."""
        for name, tids in look.threads.items():
            if tids and not self._changes.home(name):
                best = max(look.seen, key=lambda key: len(tids & look.seen[key].tasks), default="")
                if best and (inside := tids & look.seen[best].tasks):
                    self._changes.filled(name, best, inside)

    # -- what one workload is to have ----------------------------------------------------------------------------

    def _want(self, draft: _Draft, spec: WorkloadSpec, now_s: float) -> Want | None:
        """Its schemata in the domains that are there; what cannot be set keeps the value in force. None: nothing."""
        look, target = draft.look, draft.targets[spec.name]
        info = look.groups.resctrl.info
        home = look.seen.get(self._changes.home(spec.name))
        wanted, _ = info.default().present_in(look.shown)
        blocked = 0
        settings = [setting for setting in RESCTRL_SETTINGS if getattr(target, setting) is not KEEP]
        for setting in settings:
            part, absent = wanted_schemata(info, target, setting).present_in(look.shown)
            reason = why_not(look.groups, setting)
            reason = reason or self._refusals.why_not((spec.name, setting), getattr(target, setting), now_s)
            if absent and not part:
                has = ", ".join(map(str, look.shown.domains(absent[0].resource))) or "none"
                domain = f"{absent[0].resource} has no domain {absent[0].domain} now; it has {has}"
                reason = reason or domain
            elif absent and not reason:
                where = ", ".join(map(str, absent))
                text = f"{where} is offline: it gets its value when it is back"
                draft.limited.append(NotEnforceable(spec.name, setting, text))
            reason = reason or (check_schemata(info, part, look.shown) if part else "")
            if reason:
                draft.skip(spec.name, reason, [setting])
                blocked += 1
                if home is not None:
                    cells = [
                        cell for cell, _ in home.schemata.cells() if cell.resource in resources(info, setting)
                    ]
                    wanted = wanted.merged(home.schemata.only(frozenset(cells)))
            else:
                wanted = wanted.merged(part)
        if blocked == len(settings) and home is None:
            return None
        return Want(wanted, spec.kind is Kind.LRA)

    def _leave_alone(self, draft: _Draft, spec: WorkloadSpec, want: Want | None) -> None:
        """Somebody else has interfered with its group twice: it keeps what it has."""
        conflict = self._changes.yielded(spec.name)
        home = draft.look.seen.get(self._changes.home(spec.name))
        info = draft.look.groups.resctrl.info
        if home is None or want is None or not same_schemata(info, want.schemata, home.schemata):
            draft.skip(spec.name, str(conflict))

    def _assign(self, look: _Look, wanted: Mapping[str, Want], kept: set[str]) -> tuple[Pool, ...]:
        present: dict[str, set[str]] = {key: set() for key in look.seen if key not in kept}
        at_home = self._changes.homes()
        for name, key in at_home.items():
            if key in present:
                present[key].add(name)
        for key, names in self._members.items():  # emptied, or nothing runs in it just now
            if key in present:
                present[key] |= names - at_home.keys()
        room = len(wanted)
        if room > len(present):  # a new group is needed, or some are shared: are there CLOSIDs?
            closids = look.groups.resctrl.info.usable_closids
            room = max(1, closids - 1 - len(kept) - self._others(look.groups))
        homes = {key: frozenset(names) for key, names in present.items()}
        asked = (tuple(wanted.items()), homes, room)
        if self._pools[0] != asked:
            self._pools = (asked, assign(wanted, homes, room))
        return self._pools[1]

    @staticmethod
    def _others(groups: rdt.Groups) -> int:
        """How many control groups are not perphd's."""
        access = groups.resctrl.access
        names = [name for name in access.listdir() if groups.prefix.key(name) is None]
        return sum(access.exists(name, "tasks") for name in names)

    # -- the writes of one group ---------------------------------------------------------------------------------

    def _one_group(
        self,
        draft: _Draft,
        pool: Pool,
        members: Sequence[WorkloadSpec],
        wanted: Mapping[str, Want],
        now_s: float,
    ) -> None:
        look = draft.look
        info = look.groups.resctrl.info
        now = look.seen.get(pool.key)
        group = look.groups.control(pool.key)
        path = look.groups.resctrl.access.path(group.relative)
        keys = [
            (spec.name, setting)
            for spec in members
            for setting in RESCTRL_SETTINGS
            if getattr(draft.targets[spec.name], setting) is not KEEP
        ]
        if now is None or not same_schemata(info, pool.schemata, now.schemata):
            if draft.locked:
                for spec in members:
                    draft.wait(spec.name)
                return
            text, before = str(pool.schemata), "" if now is None else str(now.schemata)
            write = Write(members[0].name, KNOB, f"{path}/schemata", text, before, Stage.SHRINK)
            values = {key: getattr(draft.targets[key[0]], key[1]) for key in keys}
            self._jobs.add(write, Job(pool.key, tuple(keys), values, self._jobs.making(look.groups, pool)))
            draft.writes.append(write)
            draft.pending += keys
        inside = frozenset[int]() if now is None else now.tasks
        for spec in members:
            threads = look.threads[spec.name]
            foreign = threads & self._jobs.foreign.get(spec.name, frozenset())
            if foreign:
                why = f"{len(foreign)} of its threads are in groups of another program and left there"
                draft.limited.append(NotEnforceable(spec.name, KNOB, why))
            if len(members) > 1:
                self._say_shared(draft, pool, spec, wanted[spec.name])
            if not threads - inside - foreign:
                continue
            if draft.locked:
                draft.wait(spec.name)
                continue
            own = [key for key in keys if key[0] == spec.name]
            write = Write(spec.name, KNOB, f"{path}/tasks", spec.cgroup, "", Stage.SHRINK)
            values = {key: getattr(draft.targets[key[0]], key[1]) for key in own}
            job = Job(pool.key, tuple(own), values, self._jobs.filling(look.groups, pool.key, spec))
            self._jobs.add(write, job)
            draft.writes.append(write)
            if self._changes.home(spec.name) != pool.key:
                draft.pending += own

    @staticmethod
    def _say_shared(draft: _Draft, pool: Pool, spec: WorkloadSpec, want: Want) -> None:
        others = ", ".join(name for name in pool.names if name != spec.name)
        closids = draft.look.groups.resctrl.info.usable_closids
        why = (
            f"CLOSIDs are short ({closids} with the default group's): it shares a resctrl group with {others}"
        )
        if want.schemata != pool.schemata:
            why += f", which has {pool.schemata} instead of {want.schemata}"
        draft.limited.append(NotEnforceable(spec.name, KNOB, why))

    def _give_back(
        self,
        draft: _Draft,
        specs: Sequence[WorkloadSpec],
        used: set[str],
        made: Sequence[Original],
        now_s: float,
    ) -> None:
        """Groups that nobody is to have any more, and workloads that are to be in none.

        Groups that hold nobody who is to have another one go first: their CLOSIDs may be needed.
        """
        look = draft.look
        asks = {spec.name for spec in specs if _asks(draft.targets.get(spec.name, UNTOUCHED))}
        moving = {home for name, home in self._changes.homes().items() if name in asks}
        planned = draft.writes[:]
        draft.writes.clear()
        last: list[Write] = []
        leaving = {name: spec for name, spec in self._leaving.items() if name not in self._targets}
        self._leaving = {}
        for spec in (*specs, *leaving.values()):
            home = self._changes.home(spec.name)
            if spec.name in asks or home not in used or self._changes.yielded(spec.name):
                continue
            if not self._cgroups.group(spec.cgroup).exists():
                self._changes.released(spec.name)
                continue
            path = look.groups.resctrl.access.path("tasks")
            write = Write(spec.name, KNOB, path, spec.cgroup, "", Stage.GROW)
            if spec.name in leaving:
                self._leaving[spec.name] = spec
            job = Job(home, (), {}, self._jobs.releasing(look.groups, spec))
            self._returning(draft, write, job, now_s, last)
        for entry in made:
            group = rdt.GroupRef(entry.path.rsplit("/", 1)[1])
            key = look.groups.key(group)
            if key is None or key in used:
                continue
            # One that is there and cannot be read (a file of it is gone, says the kernel) is not forgotten.
            if key not in look.seen and not look.groups.resctrl.exists(group):
                self._jobs.forget(key, entry.path)
                continue
            write = Write(entry.workload, KNOB, entry.path, "", "group", Stage.GROW)
            job = Job(key, (), {}, self._jobs.removing(look.groups, key, entry.path))
            self._returning(draft, write, job, now_s, last if key in moving else draft.writes)
        draft.writes += [*planned, *last]

    def _returning(self, draft: _Draft, write: Write, job: Job, now_s: float, writes: list[Write]) -> None:
        """A write that gives back: waits as others do, and is never given up."""
        refused = draft.locked or self._refusals.why_not(write.key, KEEP, now_s)
        if refused:
            draft.skipped.append(NotEnforceable(write.workload, KNOB, f"not given back: {refused}"))
            return
        keys = tuple((write.workload, setting) for setting in RESCTRL_SETTINGS)
        self._jobs.add(write, Job(job.group, keys, {write.key: KEEP}, job.do))
        writes.append(write)
        draft.pending += keys

    # -- what is in force ----------------------------------------------------------------------------------------

    def _note(self, name: str) -> None:
        """What the kernel has for this workload, as last read back."""
        found = self._changes.left(self._changes.home(name))
        groups = self._mounted.found
        settings: Mapping[str, object] = {}
        if found is not None and groups is not None:
            target = self._targets.get(name, UNTOUCHED)
            settings = settings_of(groups.resctrl.info, target, found.schemata)
        for setting in RESCTRL_SETTINGS:
            self._standing.set((name, setting), settings.get(setting, KEEP))  # type: ignore[arg-type]

    # -- apply ---------------------------------------------------------------------------------------------------

    def owns(self, write: Write) -> bool:
        """True if this write of the last plan is about a group."""
        return self._jobs.has(write)

    def apply(self, writes: Sequence[Write]) -> CacheResult:
        """Do these writes of the last plan. A group that fails is taken back; the others stand."""
        return self._jobs.run(writes)

    # -- giving back ---------------------------------------------------------------------------------------------

    def release(self, names: frozenset[str], specs: Mapping[str, WorkloadSpec]) -> None:
        """Take these workloads out of their groups; a group that is then empty is removed. Does not wait for locks.

        Raises:
            KernelError: it could not be done; the next plans try again.
        """
        groups = self._mounted.found
        for name in names:
            self._jobs.foreign.pop(name, None)
        if groups is None:
            return
        homes = self._changes.homes()
        self._leaving |= {name: specs[name] for name in names if name in specs and name in homes}
        self._jobs.take_out(groups, names, self._leaving, homes)
        for name in names:
            self._leaving.pop(name, None)
            for key, members in list(self._members.items()):
                self._members[key] = members - {name}

    def removed(self, paths: Iterable[str]) -> None:
        """A restore removed these groups: that is no interference by another program."""
        prefix = rdt.Prefix(PREFIX)
        for path in paths:
            parent, _, name = path.rpartition("/")
            if self._mounted.root == parent and (key := prefix.key(name)) is not None:
                self._changes.removed(key)
                self._members.pop(key, None)

    def _made(self) -> list[Original]:
        return [entry for entry in self._journal.originals.values() if is_group(entry)]


def is_group(entry: Original) -> bool:
    """True for a journal entry that stands for a resctrl group which perphd made."""
    return entry.knob in RESCTRL_SETTINGS and entry.path.rsplit("/", 1)[1].startswith(f"{PREFIX}.")


def _asks(target: Settings) -> bool:
    return any(getattr(target, setting) is not KEEP for setting in RESCTRL_SETTINGS)


def _nothing_of(
    targets: Mapping[str, Settings], asked: Sequence[WorkloadSpec], reason: str
) -> Iterable[NotEnforceable]:
    for spec in asked:
        for setting in RESCTRL_SETTINGS:
            if getattr(targets[spec.name], setting) is not KEEP:
                yield NotEnforceable(spec.name, setting, reason)
