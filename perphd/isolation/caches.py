"""Cache ways and memory bandwidth of workloads, enforced through perphd's own resctrl groups.

Every workload has its own group while CLOSIDs suffice; otherwise ``pools`` decides which workloads share one. If a new
value cannot be set, the group stays and keeps the value in force. A group is removed once no workload uses it; the
kernel then moves its tasks to the default group. The journal names every group that perphd created. Threads that
another program has put into its own groups are left there and reported.

Planning takes no lock, so a program that holds resctrl's lock cannot block it. ``group_jobs`` does the writes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import rdt
from perphd.domain.allocation import KEEP, UNTOUCHED, Settings
from perphd.domain.plan import NotEnforceable, Stage, Write
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
from perphd.isolation.backends.resctrl import is_control_group
from perphd.isolation.cache_plan import KNOB, CacheDraft, CacheLook, CachePlan, Placement, has_any, left_out
from perphd.isolation.engine import Result
from perphd.isolation.group_jobs import GroupJobs, Job
from perphd.isolation.group_watch import GroupWatch, SeenGroup
from perphd.isolation.journal import Journal
from perphd.isolation.journal_format import Original
from perphd.isolation.knob_states import KnobStates
from perphd.isolation.pools import Pool, Want, assign
from perphd.isolation.refusals import Refusals


class Caches:
    """Plans and applies resctrl settings. Its only state, the group of each workload, can be read back from the kernel.

    Args:
        lock_wait_s: time that a change waits for a program that holds resctrl's lock.
    """

    def __init__(
        self,
        fs: KernelFs,
        cgroups: Cgroups,
        journal: Journal,
        knobs: KnobStates,
        refusals: Refusals,
        lock_wait_s: float = LOCK_WAIT_S,
    ) -> None:
        self._fs, self._cgroups, self._journal = fs, cgroups, journal
        self._knobs, self._refusals = knobs, refusals
        self._mounted = Mounted(fs)
        self._changes = GroupWatch(knobs)
        self._jobs = GroupJobs(cgroups, journal, self._changes, refusals, self._note, lock_wait_s)
        self._targets: dict[str, Settings] = {}
        self._members: dict[str, frozenset[str]] = {}
        self._anew = False
        self._default: rdt.Schemata | None = None
        self._leaving: dict[str, WorkloadSpec] = {}
        self._last = CachePlan()
        self._pools: tuple[object, tuple[Pool, ...]] = (None, ())

    # -- what can be set -----------------------------------------------------------------------------------------

    def missing(self, setting: str, now_s: float) -> str:
        """The reason why this setting cannot be set here; empty if it can."""
        groups = self.groups(now_s)
        return groups if isinstance(groups, str) else why_not(groups, setting)

    def groups(self, now_s: float) -> rdt.Groups | str:
        """The mounted resctrl with perphd's groups, or the reason why there is none."""
        self.look(now_s)
        return self._mounted.found_or_why

    def look(self, now_s: float) -> bool:
        """True if a different resctrl mount (or none) is found than at the last call. Costs one stat(2)."""
        changed = self._mounted.look(now_s)
        if changed:
            self._changes.forget_all()
            self._members.clear()
            self._anew = True
        return changed

    def mounted_anew(self, now_s: float) -> bool:
        """True if the mount has changed since the last call of this method, no matter which check noticed it."""
        self.look(now_s)
        anew, self._anew = self._anew, False
        return anew

    def disturbed(self) -> bool:
        """True if a group is gone or its values differ from those last read or written."""
        groups = self._mounted.found
        return groups is not None and self._changes.disturbed(groups.resctrl)

    def placement(self) -> Mapping[str, Placement]:
        """The control group of every workload that has one; workloads not listed are in the default group."""
        if not (homes := self._changes.homes()):
            return {}
        members = Counter(homes.values())
        named = rdt.Prefix(PREFIX)
        return {
            name: Placement(rdt.GroupRef(named.name(key)), members[key] > 1) for name, key in homes.items()
        }

    # -- plan ----------------------------------------------------------------------------------------------------

    def plan(
        self, targets: Mapping[str, Settings], specs: Sequence[WorkloadSpec], now_s: float, held: bool = False
    ) -> CachePlan:
        """The writes that lead to these targets.

        Does not read the kernel if no setting is wanted and no group exists. ``held``: remove no groups yet.
        """
        self._jobs.begin(now_s)
        asked = [spec for spec in specs if has_any(targets.get(spec.name, UNTOUCHED))]
        self._targets = {spec.name: targets.get(spec.name, UNTOUCHED) for spec in specs}
        made = self._made()
        if not asked and not made and not self._changes.homes():
            self._forget_in_force(specs)
            self._last = CachePlan()
            return self._last
        groups = self.groups(now_s)
        if isinstance(groups, str):
            self._forget_in_force(specs)
            self._last = CachePlan((), tuple(left_out(targets, asked, groups)))
            return self._last
        try:
            self._last = self._plan(groups, targets, asked, specs, made, now_s, held)
        except rdt.ResctrlError as exc:
            self._last = CachePlan((), tuple(left_out(targets, asked, str(exc))))
        return self._last

    def waiting(self, targets: Mapping[str, Settings], specs: Sequence[WorkloadSpec]) -> CachePlan:
        """The plan while the last one is still being written: no new writes; changed settings are pending."""
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
        """True if the last planned change of this workload waits for resctrl's lock."""
        return name in self._last.waiting

    def _held_by_others(self) -> str:
        """Message that names the processes that hold resctrl's lock; empty if no other process holds it."""
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
            self._knobs.drop(spec.name, *RESCTRL_SETTINGS)

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
        self._changes.find_homes(look.seen, look.threads)
        draft = CacheDraft(look, targets, self._jobs.locked(look.groups), [], [], [], [], set())
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
        self._default = look.default
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
    ) -> CacheLook:
        """Read groups before threads, so that a thread ending in between is not mistaken for one moved out."""
        resctrl = groups.resctrl
        seen: dict[str, SeenGroup] = {}
        for entry in made:
            group = rdt.GroupRef(entry.path.rsplit("/", 1)[1])
            key = groups.key(group)
            if key is None:
                continue
            try:
                identity = resctrl.identity(group)
                found = SeenGroup(group, entry.path, identity, resctrl.schemata(group), resctrl.tasks(group))
            except rdt.Gone:
                continue
            seen[key] = found
        shown = next((one.schemata for one in seen.values()), None)
        default = resctrl.schemata() if shown is None else None
        shown = default if shown is None else shown
        assert shown is not None
        groups = self._mounted.follow(shown) or groups
        threads: dict[str, frozenset[int]] = {}
        homes = self._changes.homes()
        asks = {spec.name for spec in asked}
        leaving = [spec for spec in self._leaving.values() if spec.name not in self._targets]
        # Groups left by an earlier run may hold any workload, so search all of them once.
        unknown = any(self._changes.left(key) is None for key in seen)
        for spec in (*specs, *leaving):
            if unknown or spec.name in asks or spec.name in homes:
                group_of = self._cgroups.group(spec.cgroup)
                if group_of.exists():
                    threads[spec.name] = group_of.threads()
        return CacheLook(groups, seen, shown, threads, default)

    # -- the settings of one workload ----------------------------------------------------------------------------

    def _want(self, draft: CacheDraft, spec: WorkloadSpec, now_s: float) -> Want | None:
        """Schemata for online domains; settings that cannot be applied keep their value. None: no setting can."""
        look, target = draft.look, draft.targets[spec.name]
        info = look.groups.resctrl.info
        home = look.seen.get(self._changes.home(spec.name))
        wanted = rdt.Schemata()
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
                text = f"{where} is offline: the value is set when it returns"
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
        return Want(look.completed(wanted), spec.kind is Kind.LRA)

    def _leave_alone(self, draft: CacheDraft, spec: WorkloadSpec, want: Want | None) -> None:
        """Leave the group of a workload as it is, since another program has interfered with it twice."""
        conflict = self._changes.yielded(spec.name)
        home = draft.look.seen.get(self._changes.home(spec.name))
        info = draft.look.groups.resctrl.info
        if home is None or want is None or not same_schemata(info, want.schemata, home.schemata):
            draft.skip(spec.name, str(conflict))

    def _assign(self, look: CacheLook, wanted: Mapping[str, Want], kept: set[str]) -> tuple[Pool, ...]:
        present: dict[str, set[str]] = {key: set() for key in look.seen if key not in kept}
        at_home = self._changes.homes()
        for name, key in at_home.items():
            if key in present:
                present[key].add(name)
        for key, names in self._members.items():  # members whose group is empty or that have no process now
            if key in present:
                present[key] |= names - at_home.keys()
        room, info = len(wanted), look.groups.resctrl.info
        if room > len(present):  # new groups are needed: count the free CLOSIDs
            room = max(1, info.usable_closids - 1 - len(kept) - look.foreign_groups())
        homes = {key: frozenset(names) for key, names in present.items()}
        asked = (tuple(wanted.items()), homes, room)
        if self._pools[0] != asked:
            least_bits = max((cache.min_cbm_bits for cache in info.caches.values()), default=1)
            self._pools = (asked, assign(wanted, homes, room, least_bits))
        return self._pools[1]

    # -- the writes of one group ---------------------------------------------------------------------------------

    def _one_group(
        self,
        draft: CacheDraft,
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
                why = f"{len(foreign)} of its threads are in groups of another program and stay there"
                draft.limited.append(NotEnforceable(spec.name, KNOB, why))
            if len(members) > 1:
                draft.say_shared(pool, spec, wanted[spec.name])
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

    def _give_back(
        self,
        draft: CacheDraft,
        specs: Sequence[WorkloadSpec],
        used: set[str],
        made: Sequence[Original],
        now_s: float,
    ) -> None:
        """Plan the removal of unused groups and the release of workloads that want no group.

        Groups whose members do not move to another one are removed first, since their CLOSIDs may be needed.
        """
        look = draft.look
        asks = {spec.name for spec in specs if has_any(draft.targets.get(spec.name, UNTOUCHED))}
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
            # Keep the record of a group that exists but cannot be read.
            if key not in look.seen and not look.groups.resctrl.exists(group):
                self._jobs.forget(key, entry.path)
                continue
            write = Write(entry.workload, KNOB, entry.path, "", "group", Stage.GROW)
            job = Job(key, (), {}, self._jobs.removing(look.groups, key, entry.path))
            self._returning(draft, write, job, now_s, last if key in moving else draft.writes)
        draft.writes += [*planned, *last]

    def _returning(self, draft: CacheDraft, write: Write, job: Job, now_s: float, into: list[Write]) -> None:
        """Add a write that restores. It waits for the lock and for retries like other writes, but is never dropped."""
        refused = draft.locked or self._refusals.why_not(write.key, KEEP, now_s)
        if refused:
            draft.skipped.append(NotEnforceable(write.workload, KNOB, f"not restored: {refused}"))
            return
        keys = tuple((write.workload, setting) for setting in RESCTRL_SETTINGS)
        self._jobs.add(write, Job(job.group, keys, {write.key: KEEP}, job.do))
        into.append(write)
        draft.pending += keys

    def _note(self, name: str) -> None:
        """Record the values last read back for this workload."""
        found = self._changes.left(self._changes.home(name))
        groups = self._mounted.found
        settings: Mapping[str, object] = {}
        if found is not None and groups is not None:
            target = self._targets.get(name, UNTOUCHED)
            fresh = groups.resctrl.info.default() if self._default is None else self._default
            settings = settings_of(groups.resctrl.info, target, found.schemata, fresh)
        for setting in RESCTRL_SETTINGS:
            self._knobs.set((name, setting), settings.get(setting, KEEP))  # type: ignore[arg-type]

    # -- apply ---------------------------------------------------------------------------------------------------

    def owns(self, write: Write) -> bool:
        """True if this write of the last plan concerns a resctrl group."""
        return self._jobs.has(write)

    def apply(self, writes: Sequence[Write]) -> Result:
        """Execute these writes of the last plan. A group whose write fails is rolled back; other groups are kept."""
        return self._jobs.run(writes)

    # -- restoring -----------------------------------------------------------------------------------------------

    def release(self, names: frozenset[str], specs: Mapping[str, WorkloadSpec]) -> None:
        """Move these workloads out of their groups and remove groups that become empty. Does not wait for locks.

        Raises:
            KernelError: a step failed; the next plans retry it.
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
        """Note that a restore removed these groups, which is not a conflict."""
        prefix = rdt.Prefix(PREFIX)
        for path in paths:
            parent, _, name = path.rpartition("/")
            if self._mounted.root == parent and (key := prefix.key(name)) is not None:
                self._changes.removed(key)
                self._members.pop(key, None)

    def _made(self) -> list[Original]:
        return [entry for entry in self._journal.originals.values() if is_control_group(entry)]
