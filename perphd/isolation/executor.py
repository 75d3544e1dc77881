"""The one writer: reads back, plans the difference, applies it as a transaction, and gives back what it took.

``plan`` reads and never writes (it serves ``observe`` as well); ``apply`` is the only way to a kernel write.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from posixpath import basename

from perphd.domain.allocation import KEEP, UNTOUCHED, Settings
from perphd.domain.errors import Broken, Busy, KernelError
from perphd.domain.plan import ChangeSet, Key, NotEnforceable, Stage, Write
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup.group import Cgroups
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.cgroup.knobs import CONTROLLERS, RESCTRL_SETTINGS
from perphd.host.fs import KernelFs
from perphd.host.kubelet import Kubelet
from perphd.host.resctrl import LOCK_WAIT_S
from perphd.host.resctrl_counters import CountedGroups
from perphd.host.systemd_bus import NoAnswer
from perphd.host.systemd_fs import Lasting
from perphd.isolation.allowance import Allowance
from perphd.isolation.applied import Applied
from perphd.isolation.caches import Caches
from perphd.isolation.counting import Counting
from perphd.isolation.giving_back import GivingBack
from perphd.isolation.group_jobs import CacheResult
from perphd.isolation.group_writer import GroupWriter
from perphd.isolation.journal import Journal
from perphd.isolation.monitor_groups import Asked, MonitorGroups
from perphd.isolation.pieces import Pieces
from perphd.isolation.planner import Wanted, plan, unless_stuck
from perphd.isolation.readback import ReadBack
from perphd.isolation.reclaim import RECLAIM, Reclaimer
from perphd.isolation.refusals import Refusals
from perphd.isolation.restore import restore_journal
from perphd.isolation.restore_report import RestoreReport
from perphd.isolation.standing import Standing
from perphd.isolation.survey import Refuse, Survey
from perphd.isolation.transaction import Result, Transaction
from perphd.isolation.watch import Conflict, Watch
from perphd.isolation.worker import Worker

DISKS_S = 10.0
"""Disks are asked for their schedulers so often."""


class Executor:
    """Brings target settings into force on the named workloads, and gives everything back.

    Args:
        refuse: says why a cgroup must not be written directly; asked for every workload that is to be changed.
        kubelet: whose exclusive CPUs are given to nobody else; None: there is none on this host.
        on_write: told of every kernel write and its outcome (``written``, ``undone``, ``restored``, ``failed: ...``),
            after the transaction, in the event loop's thread.
        clock: seconds, for ``duration_s``, the deadline, and the waits after failures.
        deadline_s: how long the writes of one transaction may take together before the rest is given up and undone; the
            next ones make fewer.
        changes_per_s: how often one knob may change after a burst; None: as often as it is asked for.
        adopt_s: what the journal names at first stays in force so long where nothing else is wanted: one before this
            kept it, and whoever decides has yet to look.
        background: what only measures (monitor groups) is looked after beside the rounds; False: within them.
        in_thread: write in a worker thread (a write can block in the kernel); False runs inline (simulated hosts).
    """

    def __init__(
        self,
        fs: KernelFs,
        hierarchies: Hierarchies,
        journal: Journal,
        *,
        refuse: Refuse | None = None,
        kubelet: Kubelet | None = None,
        on_write: Callable[[Write, str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        deadline_s: float = 2.0,
        changes_per_s: float | None = None,
        adopt_s: float = 0.0,
        background: bool = True,
        in_thread: bool = True,
    ) -> None:
        self._fs, self._journal = fs, journal
        self._cgroups = Cgroups(fs, hierarchies)
        self._disks_s = -math.inf
        self._on_write = on_write
        self._clock, self._deadline_s = clock, deadline_s
        self._allowance = None if changes_per_s is None else Allowance(changes_per_s)
        self._planned_s = 0.0
        self._worker = Worker(in_thread, 2 * deadline_s)
        self._lock = asyncio.Lock()
        self._read = ReadBack(fs, journal)
        self._watch = Watch(journal)
        self._refusals, self._pieces = Refusals(), Pieces(deadline_s)
        self._standing = Standing()
        self._reclaimer = Reclaimer(fs, in_thread)
        lock_wait_s = LOCK_WAIT_S if in_thread else 0.0
        self._caches = Caches(
            fs, self._cgroups, journal, self._watch, self._standing, self._refusals, lock_wait_s
        )
        self._groups = GroupWriter(in_thread)
        self._counting = Counting(
            MonitorGroups(fs, hierarchies, journal),
            self._caches.placement,
            in_thread=in_thread,
            background=background,
        )
        self._giving_back = GivingBack(fs, journal, self._read, self._watch, self._standing, self._caches)
        self._giving_back.forget_unwritten()
        self._adopt_s, self._adopted_s = adopt_s, -1.0
        self._adopted = {entry.workload for entry in journal.originals.values()} if adopt_s > 0 else set()
        self._specs: dict[str, WorkloadSpec] = {}
        read, watch, standing, refusals = self._read, self._watch, self._standing, self._refusals
        self._survey = Survey(
            fs, self._cgroups, hierarchies, read, watch, standing, refusals, refuse, kubelet
        )

    # -- questions -----------------------------------------------------------------------------------------------

    def enforceable(self, spec: WorkloadSpec) -> tuple[frozenset[str], tuple[NotEnforceable, ...]]:
        """Fields of ``Settings`` that can be set for this workload now, and the others with their reasons."""
        self._look_at_disks(self._clock())
        group = self._cgroups.group(spec.cgroup)
        if reason := self._survey.why_closed(group):
            names = (*CONTROLLERS, *RESCTRL_SETTINGS)
            return frozenset(), tuple(NotEnforceable(spec.name, name, reason) for name in names)
        found = dict(group.enforceable())
        for setting in RESCTRL_SETTINGS:
            found[setting] = self._caches.missing(setting, self._clock()) or None
        refused = tuple(
            NotEnforceable(spec.name, name, why) for name, why in found.items() if why is not None
        )
        return frozenset(name for name, why in found.items() if why is None), refused

    def _look_at_disks(self, now_s: float) -> None:
        if not 0 <= now_s - self._disks_s < DISKS_S:
            self._cgroups.look_at_disks()
            self._disks_s = now_s

    def in_force(self, name: str) -> Settings:
        """What perphd has set on this workload, as last read back; KEEP where nothing."""
        return self._standing.in_force(name)

    def not_enforceable(self, name: str) -> tuple[NotEnforceable, ...]:
        """What the last plan wanted for this workload and could not have, or could not give back."""
        return self._standing.not_enforceable(name)

    def limited(self, name: str) -> tuple[NotEnforceable, ...]:
        """What of the last plan is in force in part only, with the reason: steps on the way, bounds, guards."""
        return self._standing.limited(name)

    def blocked(self, name: str) -> tuple[str, ...]:
        """Fields of ``Settings`` of this workload that are not as the last plan wanted them.

        Because they cannot be set here, were refused, are yielded to somebody else, or because their write (or the
        one that gives them back) is not made yet: not applied, failed and undone, or stuck in the kernel.
        """
        return self._standing.blocked(name)

    def waiting(self, name: str) -> frozenset[str]:
        """Cache ways and bandwidth of this workload that are still to be written as the last plan wanted them.

        Their writer is late, or somebody holds resctrl's lock.
        """
        waits = RESCTRL_SETTINGS if self._caches.waits(name) else ()
        return self._standing.pending(name).intersection(RESCTRL_SETTINGS) | frozenset(waits)

    def groups_disturbed(self) -> bool:
        """True if somebody has removed or changed a resctrl group of perphd's since it was last looked at."""
        return not self._groups.is_busy and self._caches.disturbed()

    def conflicts(self) -> tuple[Conflict, ...]:
        """Knobs that somebody else has written to since perphd did."""
        return self._watch.conflicts

    def forget_conflicts(self, workload: str | None = None) -> None:
        """Forget conflicts and refused values, of one workload or of all: after a mode change or a reload."""
        self._watch.reset(workload)
        self._refusals.reset(workload)
        self._adopted -= self._adopted if workload is None else {workload}

    def follow_mount(self, now_s: float) -> bool:
        """True if another resctrl (or none) is mounted than when this was last asked; counting looks at it at once."""
        if not self._caches.mounted_anew(now_s):
            return False
        self._counting.look_anew()
        return True

    @property
    def caches(self) -> Caches:
        """The resctrl groups: what is mounted, and who is in which group."""
        return self._caches

    @property
    def journal_entries(self) -> int:
        """How many files are changed and not given back."""
        return len(self._journal.originals)

    # -- monitor groups ------------------------------------------------------------------------------------------

    @property
    def counted(self) -> CountedGroups:
        """The resctrl groups that count workloads now, and why others are not counted."""
        return self._counting.counted

    async def follow_counted(self, asked: Sequence[Asked], now_s: float) -> None:
        """Keep a resctrl group for each of these workloads, and none for others; waits for no lock and no id."""
        await self._counting.follow(asked, now_s)

    def let_exact(self, workloads: frozenset[str]) -> None:
        """Ceilings of these workloads go to their targets in one step: somebody watches what comes of it."""
        self._survey.exact = workloads

    # -- plan ----------------------------------------------------------------------------------------------------

    def plan(
        self, targets: Mapping[str, Settings], specs: Sequence[WorkloadSpec], now_s: float | None = None
    ) -> ChangeSet:
        """The writes that lead from what the kernel reads back to these targets; empty: nothing to do.

        Workloads without a target are given back what perphd had changed; those not in ``specs`` are not touched.
        ``now_s``: monotonic time, which paces steps; None asks the clock.
        """
        now_s = self._planned_s = self._clock() if now_s is None else now_s
        self._tell_reclaimed()
        if (late := self._groups.late()) is not None:
            self._took_groups(late)
            self._tell_groups(late)
        if self._worker.is_busy:
            self._standing.waiting(targets, specs)
            return ChangeSet((), (), "an earlier change is still being written")
        self._look_at_disks(self._clock())
        changed = {(entry.path.rpartition("/")[0], entry.knob) for entry in self._journal.originals.values()}
        held = self._still_adopted(targets, now_s)
        self._survey.begin({spec.cgroup for spec in specs}, changed, now_s, held, self._pieces.unfinished)
        wanted: list[Wanted] = []
        skipped: list[NotEnforceable] = []
        for spec in specs:
            for item in self._survey.look(spec, targets.get(spec.name, UNTOUCHED)):
                if isinstance(item, Wanted):
                    wanted.append(item)
                else:
                    skipped.append(item)
        if self._groups.is_busy:
            caches = self._caches.waiting(targets, specs)
        else:
            caches = self._caches.plan(targets, specs, now_s, bool(held))
        self._specs = {spec.name: spec for spec in specs}
        changes = plan(wanted, (*skipped, *caches.skipped))
        if caches.writes:
            changes = ChangeSet((*changes.writes, *caches.writes), changes.skipped)
        if self._survey.reclaims and not self._reclaimer.is_busy:
            changes = ChangeSet((*changes.writes, *self._survey.reclaims), changes.skipped)
        changes, refused = self._refusals.hold(changes, self._survey.planned, now_s)
        loose = [left for left in (*skipped, *refused) if _is_wanted(targets, left)]
        bound = [
            left.workload for left in refused if self._survey.is_bound(self._specs[left.workload], left.knob)
        ]
        lras = {spec.name for spec in specs if spec.kind is Kind.LRA}
        changes = unless_stuck(changes, loose, lras, [*self._survey.stuck, *bound])
        if self._allowance is not None:
            changes = self._allowance.hold(changes, targets, now_s)
        changes = self._pieces.cut(changes, lambda write: _is_reclaim(write) or self._caches.owns(write))
        writes = changes.writes
        if changes and (reason := self._watch.waits(targets, self._clock())):
            keys = dict.fromkeys(write.key for write in changes.writes)
            waiting = tuple(NotEnforceable(*key, reason) for key in keys)
            changes = ChangeSet((), (*changes.skipped, *waiting), reason)
            writes = ()
        limited = (*self._survey.limited, *caches.limited)
        self._standing.planned(targets, writes, changes.skipped, limited, caches.pending)
        return changes

    def _still_adopted(self, targets: Mapping[str, Settings], now_s: float) -> frozenset[str]:
        """Workloads that keep what they had before this process, since nobody has decided about them yet."""
        self._adopted_s = now_s if self._adopted_s < 0 else self._adopted_s
        if now_s - self._adopted_s >= self._adopt_s:
            self._adopted.clear()
        self._adopted = {name for name in self._adopted if targets.get(name, UNTOUCHED).is_untouched()}
        return frozenset(self._adopted)

    def keep(self) -> None:
        """Before the end: what is in force stays so on purpose. Raises KernelError if that cannot be written down."""
        self._journal.keep()

    # -- apply ---------------------------------------------------------------------------------------------------

    async def apply(self, changes: ChangeSet) -> Applied:
        """Write a planned change set, all of it or nothing; a cancelled call finishes before it is cancelled.

        Does not raise for what the kernel refuses: see ``Applied.failed``.
        """
        if self._allowance is not None:
            for key in dict.fromkeys(write.key for write in changes.writes):
                self._allowance.changed(key, self._planned_s)
        reclaims = [write for write in changes.writes if _is_reclaim(write)]
        groups = [write for write in changes.writes if self._caches.owns(write)]
        writes = [write for write in changes.writes if write not in reclaims and write not in groups]
        if not writes and not groups:
            self._reclaim(reclaims)
            return Applied(True)
        async with self._lock:
            started = self._clock()
            transaction = Transaction(
                self._fs,
                self._journal,
                dict(self._read.identities),
                self._clock,
                self._deadline_s,
                self._survey.unrecorded,
            )
            done = transaction.result
            if writes:
                answer = await self._worker.run(lambda: self._transact(transaction, writes))
                if isinstance(answer, Busy):
                    return Applied(False, failed=answer, duration_s=self._clock() - started)
            late = False
            if groups and done.failed is None:
                # The files first, then the groups: what a group cannot have does not take a confinement back.
                written = await self._groups.run(lambda: self._caches.apply(groups))
                late = written is None
                if written is not None:
                    self._took_groups(written)
                    done.failed, done.at_fault = written.failed, written.at_fault
                    done.written += written.written
                    done.undone += written.undone
                    done.undo_problems += written.problems
            took = self._clock() - started
        self._tell(done)
        if done.failed is None:
            self._reclaim(reclaims)
        more = done.failed is None and (self._pieces.more or late)
        return Applied(
            done.failed is None,
            tuple(done.written),
            tuple(done.undone),
            done.failed,
            took,
            tuple(sorted(done.gone)),
            tuple(done.undo_problems),
            more,
        )

    def _took_groups(self, done: CacheResult) -> None:
        self._standing.written(done.through)

    def _tell_groups(self, done: CacheResult) -> None:
        """Group writes that a round did not wait for."""
        if self._on_write is None:
            return
        for write in done.written:
            self._on_write(write, "written")
        if done.at_fault is not None:
            self._on_write(done.at_fault, f"failed: {done.failed}")
        for write in done.undone:
            self._on_write(write, "undone")

    def _reclaim(self, requests: Sequence[Write]) -> None:
        self._reclaimer.submit(requests, dict(self._read.identities))
        self._standing.written((request.workload, request.knob) for request in requests)

    def _tell_reclaimed(self) -> None:
        for request, outcome in self._reclaimer.outcomes():
            if self._on_write is not None:
                self._on_write(request, outcome)

    def _transact(self, transaction: Transaction, writes: Sequence[Write]) -> Result:
        started = self._clock()
        result = transaction.run(writes)
        if result.failed is not None and result.at_fault is None:
            self._watch.unrecorded(self._standing.targets, self._clock(), result.failed)
            return result  # nothing was written
        self._watch.recorded()
        touched = {write.path for write in result.written}
        planned = self._survey.planned
        if result.too_slow:
            self._pieces.too_slow(len(result.written))
        elif result.at_fault is not None and result.failed is not None:
            touched.add(result.at_fault.path)
            for key in self._refused(result.at_fault, result.failed, writes):
                target = planned[key][1] if key in planned else KEEP
                self._refusals.failed(key, target, result.failed, self._planned_s)
        else:
            self._pieces.in_time(len(writes), self._clock() - started)
            self._refusals.succeeded({write.key for write in result.written}, planned)
            self._standing.written(write.key for write in writes)
        # systemd may yet do what it was asked in vain: then a file that holds its original proves nothing.
        asked = isinstance(result.failed, Busy | Broken) and not result.too_slow
        unclear = asked and isinstance(self._fs, Lasting)
        late = result.at_fault if unclear else None
        keys = {write.key for write in writes}
        self._giving_back.settle(keys, touched, result.texts, planned, late)
        return result

    def _refused(self, at_fault: Write, error: KernelError, writes: Sequence[Write]) -> set[Key]:
        """The knobs that this was about: a systemd that does not answer for one unit does not for the next either."""
        about = [at_fault]
        if isinstance(error, NoAnswer) and isinstance(self._fs, Lasting):
            about += [write for write in writes if self._fs.outlives(write.path)]
        return {write.key for write in about}

    def _tell(self, result: Result) -> None:
        if self._on_write is None:
            return
        for write in result.written:
            self._on_write(write, "written")
        if result.at_fault is not None:
            self._on_write(result.at_fault, f"failed: {result.failed}")
        for write in result.undone:
            self._on_write(write, "undone")

    # -- restore -------------------------------------------------------------------------------------------------

    async def restore(
        self, names: Iterable[str] | None = None, force: bool = False, ignore_lock: bool = False
    ) -> RestoreReport:
        """Give back everything, or what these workloads had; see ``perphd.isolation.restore``.

        Of workloads that are named nothing is remembered then: they are about to leave.
        """
        chosen = None if names is None else frozenset(names)
        await self._counting.idle()
        async with self._lock:
            if chosen is None:  # a group that is being made would be left behind
                await self._groups.idle(2 * LOCK_WAIT_S)
            done = await self._worker.run(lambda: self._give_back(chosen, force, ignore_lock))
        if isinstance(done, Busy):
            return self._giving_back.not_given_back(chosen, done)
        self._counting.forget()
        self._tell_restored(done)
        return done

    def _tell_restored(self, done: RestoreReport) -> None:
        if self._on_write is not None:
            for file in done.restored:
                write = Write(file.workload, file.knob, file.path, file.now, file.found, Stage.GROW)
                self._on_write(write, "restored")

    def _give_back(self, names: frozenset[str] | None, force: bool, ignore_lock: bool) -> RestoreReport:
        busy = self._groups.is_busy
        report = self._giving_back.give_back(names, self._specs, force, ignore_lock, groups_busy=busy)
        for name in names or ():  # off the list: a host where many workloads come and go must not fill up
            self._watch.reset(name)
            self._refusals.reset(name)
            self._survey.forget(name)
            if self._allowance is not None:
                self._allowance.forget(name)
        return report

    async def release_gone(self) -> RestoreReport | None:
        """Take the traffic classes away of groups that have gone: nothing else would, until everything is given back.

        Other settings end with their group, or are to be there when it comes back. What fails is tried again at the
        next call. Returns what became of them; None: that is not known, an earlier write is still stuck in the kernel.
        """
        if self._worker.is_busy:
            return None
        gone = self._giving_back.left_by_gone()
        if not gone:
            return RestoreReport()
        async with self._lock:
            done = await self._worker.run(lambda: restore_journal(self._fs, self._journal, gone))
        if isinstance(done, Busy):
            return None
        for file in (*done.restored, *done.already, *done.gone):
            self._watch.forget(file.path)
            self._standing.drop((file.workload, file.knob))
        self._tell_restored(done)
        return done

    def close(self) -> None:
        """End the threads; the journal is the caller's to close."""
        self._counting.close()
        self._worker.close()
        self._groups.close()
        self._reclaimer.close()


def _is_reclaim(write: Write) -> bool:
    return basename(write.path) == RECLAIM


def _is_wanted(targets: Mapping[str, Settings], left: NotEnforceable) -> bool:
    """False of what is only to be given back."""
    return getattr(targets.get(left.workload, UNTOUCHED), left.knob) is not KEEP
