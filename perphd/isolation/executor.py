"""The engine of isolation: reads back, plans the difference, applies it as a transaction, and restores.

``plan`` only reads, so mode ``observe`` uses it too. All kernel writes go through ``apply`` and ``restore``.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from perphd.domain.allocation import KEEP, UNTOUCHED, Settings
from perphd.domain.errors import Broken, Busy, KernelError
from perphd.domain.plan import ChangeSet, Key, NotEnforceable, Write
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup.group import Cgroups
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.cgroup.knobs import CONTROLLERS, RESCTRL_SETTINGS
from perphd.host.fs import KernelFs
from perphd.host.kubelet import Kubelet
from perphd.host.resctrl import LOCK_WAIT_S
from perphd.host.resctrl_counters import CountedGroups
from perphd.host.systemd_bus import NoAnswer
from perphd.isolation.backends import Backends
from perphd.isolation.caches import Caches
from perphd.isolation.counting import Counting
from perphd.isolation.engine import Result
from perphd.isolation.gates import Gate, PlanContext, RateLimiter, TransactionSize, hold_unpaired
from perphd.isolation.journal import Journal
from perphd.isolation.knob_states import Applied, Conflict, KnobStates
from perphd.isolation.monitor_groups import Asked, MonitorGroups
from perphd.isolation.planner import Wanted, plan
from perphd.isolation.readback import ReadBack
from perphd.isolation.reclaim import RECLAIM, Reclaimer
from perphd.isolation.refusals import Refusals
from perphd.isolation.release import Release
from perphd.isolation.restore import restore_journal
from perphd.isolation.restore_report import RestoreReport
from perphd.isolation.survey import Refuse, Survey
from perphd.isolation.transaction import Transaction
from perphd.isolation.watch import ConflictWatch
from perphd.isolation.worker import GroupWriter, Worker
from perphd.isolation.write_audit import OnWrite, WriteAudit

DISKS_S = 10.0
"""Seconds between checks of the disks' I/O schedulers."""
_RECLAIM_FILE = f"/{RECLAIM}"


class Executor:
    """Applies target settings to the named workloads, and restores the original values.

    Args:
        refuse: returns why a cgroup must not be written directly; called for every workload to be changed.
        on_plan: called at the start of every plan, to refresh the state behind ``refuse``.
        kubelet: returns the CPUs that the kubelet assigned exclusively, which perphd leaves alone; None: no kubelet.
        on_write: called with every kernel write and its outcome (``written``, ``undone``, ``restored``, ``failed:
            ...``), after the transaction, in the event loop's thread.
        clock: time in seconds, for ``duration_s``, the deadline and retries.
        deadline_s: time for the writes of one transaction; after it the transaction is rolled back and later ones are
            smaller.
        changes_per_s: sustained rate at which one knob may change after a burst; None: no limit.
        adopt_s: time for which settings found in the journal at start stay in force until a policy decides otherwise.
        background: True maintains monitor groups beside the ticks; False within them.
        in_thread: write in a worker thread, since a write can block in the kernel; False writes inline (simulated
            hosts).
    """

    def __init__(
        self,
        fs: KernelFs,
        hierarchies: Hierarchies,
        journal: Journal,
        *,
        refuse: Refuse | None = None,
        on_plan: Callable[[], None] | None = None,
        kubelet: Kubelet | None = None,
        on_write: OnWrite | None = None,
        clock: Callable[[], float] = time.monotonic,
        deadline_s: float = 2.0,
        changes_per_s: float | None = None,
        adopt_s: float = 0.0,
        background: bool = True,
        in_thread: bool = True,
    ) -> None:
        self._fs, self._journal, self._backends = fs, journal, Backends(fs)
        self._cgroups = Cgroups(fs, hierarchies)
        self._disks_s = -math.inf
        self._audit, self._on_plan = WriteAudit(on_write), on_plan
        self._clock, self._deadline_s = clock, deadline_s
        self._planned_s = 0.0
        self._worker = Worker(in_thread, 2 * deadline_s)
        self._lock = asyncio.Lock()
        self._read = ReadBack(fs, journal)
        self._knobs = KnobStates()
        self._watch = ConflictWatch(fs, journal, self._knobs)
        self._refusals, self._rates = Refusals(self._knobs), RateLimiter(self._knobs, changes_per_s)
        self._reclaimer = Reclaimer(fs, in_thread)
        lock_wait_s = LOCK_WAIT_S if in_thread else 0.0
        self._caches = Caches(fs, self._cgroups, journal, self._knobs, self._refusals, lock_wait_s)
        self._size = TransactionSize(deadline_s, lambda write: _is_reclaim(write) or self._caches.owns(write))
        self._gates: tuple[Gate, ...] = (
            self._refusals.hold,
            hold_unpaired,
            self._rates.hold,
            self._size.hold,
            self._watch.hold,
        )
        self._groups = GroupWriter(in_thread)
        self._counting = Counting(
            MonitorGroups(fs, hierarchies, journal),
            self._caches.placement,
            in_thread=in_thread,
            background=background,
        )
        self._release = Release(
            fs, self._backends, journal, self._read, self._watch, self._knobs, self._caches
        )
        self._release.forget_unwritten()
        self._adopt_s, self._adopted_s = adopt_s, -1.0
        self._adopted = {entry.workload for entry in journal.originals.values()} if adopt_s > 0 else set()
        self._specs: dict[str, WorkloadSpec] = {}
        self._unsettled: Callable[[], None] | None = None
        self._untold: list[Result] = []
        self._nobody_waits = False
        read, watch, knobs, refusals = self._read, self._watch, self._knobs, self._refusals
        self._survey = Survey(
            fs, self._backends, self._cgroups, hierarchies, read, watch, knobs, refusals, refuse, kubelet
        )

    # -- questions -----------------------------------------------------------------------------------------------

    def enforceable(
        self, spec: WorkloadSpec, now_s: float | None = None
    ) -> tuple[frozenset[str], tuple[NotEnforceable, ...]]:
        """Fields of ``Settings`` that can be set for this workload now, and the others with their reasons.

        ``now_s``: as for ``plan``.
        """
        now_s = self._clock() if now_s is None else now_s
        self._look_at_disks(self._clock())
        group = self._cgroups.group(spec.cgroup)
        if reason := self._survey.why_closed(group):
            names = (*CONTROLLERS, *RESCTRL_SETTINGS)
            return frozenset(), tuple(NotEnforceable(spec.name, name, reason) for name in names)
        found = dict(group.enforceable())
        for setting in RESCTRL_SETTINGS:
            found[setting] = self._caches.missing(setting, now_s) or None
        refused = tuple(
            NotEnforceable(spec.name, name, why) for name, why in found.items() if why is not None
        )
        return frozenset(name for name, why in found.items() if why is None), refused

    def _look_at_disks(self, now_s: float) -> None:
        if not 0 <= now_s - self._disks_s < DISKS_S:
            self._cgroups.look_at_disks()
            self._disks_s = now_s

    def in_force(self, name: str) -> Settings:
        """Settings that perphd has set on this workload, as last read back; KEEP for all others."""
        return self._knobs.in_force(name)

    def not_enforceable(self, name: str) -> tuple[NotEnforceable, ...]:
        """Settings of the last plan that could not be applied to this workload or restored, with the reason."""
        return self._knobs.not_enforceable(name)

    def limited(self, name: str) -> tuple[NotEnforceable, ...]:
        """Settings of the last plan that are only partly in force, with the reason (a step, a bound, a guard)."""
        return self._knobs.limited(name)

    def blocked(self, name: str) -> tuple[str, ...]:
        """Fields of ``Settings`` of this workload that differ from what the last plan wanted.

        They cannot be set here, were refused, were yielded to another program, or their write is outstanding: not
        applied, failed and rolled back, or stuck in the kernel.
        """
        return self._knobs.blocked(name)

    def waiting(self, name: str) -> frozenset[str]:
        """Cache and bandwidth settings of this workload whose writes are outstanding.

        The writer is late, or another program holds resctrl's lock.
        """
        if self._caches.waits(name):
            return frozenset(RESCTRL_SETTINGS)
        return self._knobs.pending(name).intersection(RESCTRL_SETTINGS)

    def groups_disturbed(self) -> bool:
        """True if another program has removed or changed one of perphd's resctrl groups since the last check."""
        return not self._groups.is_busy and self._caches.disturbed()

    def conflicts(self) -> tuple[Conflict, ...]:
        """Knobs that another program has written since perphd did."""
        return self._knobs.conflicts

    def forget_conflicts(self, workload: str | None = None) -> None:
        """Forget conflicts and refusals of one workload (None: of all), after a mode change or a reload."""
        self._watch.reset(workload)
        self._refusals.reset(workload)
        self._adopted -= self._adopted if workload is None else {workload}

    def follow_mount(self, now_s: float) -> bool:
        """True if the resctrl mount has changed since the last call; monitor groups are then looked at again."""
        if not self._caches.mounted_anew(now_s):
            return False
        self._counting.look_anew()
        return True

    @property
    def caches(self) -> Caches:
        """The resctrl groups: the mount, and the group of every workload."""
        return self._caches

    @property
    def journal_entries(self) -> int:
        """Number of files whose original value is recorded and not restored."""
        return len(self._journal.originals)

    # -- monitor groups ------------------------------------------------------------------------------------------

    @property
    def counted(self) -> CountedGroups:
        """The resctrl groups that count workloads now, and why others are not counted."""
        return self._counting.counted

    async def follow_counted(self, asked: Sequence[Asked], now_s: float) -> None:
        """Keep a monitor group for each of these workloads and for no others.

        Waits for neither the lock nor an RMID.
        """
        await self._counting.follow(asked, now_s)

    def let_exact(self, workloads: frozenset[str]) -> None:
        """Let the ceilings of these workloads reach their targets in one step, because a trial observes the effect."""
        self._survey.exact = workloads

    # -- plan ----------------------------------------------------------------------------------------------------

    def plan(
        self, targets: Mapping[str, Settings], specs: Sequence[WorkloadSpec], now_s: float | None = None
    ) -> ChangeSet:
        """The writes that lead from the values read back to these targets; empty if nothing differs.

        Workloads without a target get their original values back; those not in ``specs`` are not touched. ``now_s``:
        monotonic time, which paces steps; None reads the clock.
        """
        now_s = self._planned_s = self._clock() if now_s is None else now_s
        self._audit.reclaimed(self._reclaimer.outcomes())
        if (late := self._groups.late()) is not None:
            self._knobs.written(late.through)
            self._audit.transaction(late)
        if self._worker.is_busy:
            self._knobs.waiting(targets, specs)
            return ChangeSet((), (), "an earlier change is still being written")
        self._settle_now()
        self._look_at_disks(self._clock())
        if self._on_plan is not None:
            self._on_plan()
        changed = {(entry.path.rpartition("/")[0], entry.knob) for entry in self._journal.originals.values()}
        held = self._still_adopted(targets, now_s)
        self._survey.begin({spec.cgroup for spec in specs}, changed, now_s, held, self._size.unfinished)
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
        skipped += caches.skipped
        changes = plan(wanted, skipped)
        unattainable = {left.key for left in changes.skipped[len(skipped) :]}
        if caches.writes:
            changes = ChangeSet((*changes.writes, *caches.writes), changes.skipped)
        if self._survey.reclaims and not self._reclaimer.is_busy:
            changes = ChangeSet((*changes.writes, *self._survey.reclaims), changes.skipped)
        context = PlanContext(
            targets,
            self._survey.planned,
            unattainable,
            {spec.name for spec in specs if spec.kind is Kind.LRA},
            self._survey.stuck,
            lambda key: self._survey.is_bound(self._specs[key[0]], key[1]),
            now_s,
            self._clock(),
        )
        for gate in self._gates:
            changes = gate(changes, context)
        limited = (*self._survey.limited, *caches.limited)
        self._knobs.planned(targets, changes.writes, changes.skipped, limited, caches.pending)
        return changes

    def _still_adopted(self, targets: Mapping[str, Settings], now_s: float) -> frozenset[str]:
        """Workloads that keep settings of the previous process, because no policy has decided about them yet."""
        self._adopted_s = now_s if self._adopted_s < 0 else self._adopted_s
        if now_s - self._adopted_s >= self._adopt_s:
            self._adopted.clear()
        self._adopted = {name for name in self._adopted if targets.get(name, UNTOUCHED).is_untouched()}
        return frozenset(self._adopted)

    def keep(self) -> None:
        """Record that the settings in force are kept on purpose when the daemon stops.

        Raises KernelError if the journal cannot be written.
        """
        self._journal.keep()

    # -- apply ---------------------------------------------------------------------------------------------------

    async def apply(self, changes: ChangeSet, *, settle: bool = True) -> Applied:
        """Write a planned change set, completely or not at all; a cancelled call finishes first.

        Does not raise if the kernel refuses: see ``Applied.failed``. ``settle``: False returns as soon as the last
        write has been read back, and the caller calls ``settle`` next.
        """
        for key in dict.fromkeys(write.key for write in changes.writes):
            self._rates.changed(key, self._planned_s)
        reclaims: list[Write] = []
        groups: list[Write] = []
        writes: list[Write] = []
        for write in changes.writes:
            kind = reclaims if _is_reclaim(write) else groups if self._caches.owns(write) else writes
            kind.append(write)
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
                self._survey.adopted,
            )
            done = transaction.result
            if writes:
                self._nobody_waits = False
                answer = await self._worker.run(lambda: self._transact(transaction, writes))
                if isinstance(answer, Busy):
                    self._nobody_waits = True
                    return Applied(False, failed=answer, duration_s=self._clock() - started)
            late = False
            if groups and done.failed is None:
                # Files before groups, so that a refused group does not roll back a confinement.
                written = await self._groups.run(lambda: self._caches.apply(groups))
                late = written is None
                if written is not None:
                    self._knobs.written(written.through)
                    done.add(written)
            took = self._clock() - started
        self._untold.append(done)
        if settle:
            await self.settle()
        if done.failed is None:
            self._reclaim(reclaims)
        return Applied(
            done.failed is None,
            tuple(done.written),
            tuple(done.undone),
            done.failed,
            took,
            tuple(sorted(done.gone)),
            tuple(done.undo_problems),
            done.failed is None and (self._size.more or late),
        )

    async def settle(self) -> None:
        """Finish the last transaction: record its files' texts, close restored originals, call ``on_write``.

        None of this is needed for the written values to take effect, nor to restore them after a crash. ``plan`` and
        ``restore`` do the same if this was not called.
        """
        if self._unsettled is not None:
            async with self._lock:
                await self._worker.run(self._settle_now)
        untold, self._untold = self._untold, []
        for done in untold:
            self._audit.transaction(done)

    def _settle_now(self) -> None:
        unsettled, self._unsettled = self._unsettled, None
        if unsettled is not None:
            unsettled()

    def _reclaim(self, requests: Sequence[Write]) -> None:
        self._reclaimer.submit(requests, dict(self._read.identities))
        self._knobs.written((request.workload, request.knob) for request in requests)

    def _transact(self, transaction: Transaction, writes: Sequence[Write]) -> Result:
        self._settle_now()
        started = self._clock()
        result = transaction.run(writes)
        if result.failed is not None and result.at_fault is None:
            self._watch.unrecorded(self._knobs.targets, self._clock(), result.failed)
            return result  # nothing was written
        self._watch.recorded()
        touched = {write.path for write in result.written}
        planned = self._survey.planned
        if result.too_slow:
            self._size.too_slow(len(result.written))
        elif result.at_fault is not None and result.failed is not None:
            touched.add(result.at_fault.path)
            for key in self._refused(result.at_fault, result.failed, writes):
                target = planned[key][1] if key in planned else KEEP
                self._refusals.failed(key, target, result.failed, self._planned_s)
        else:
            self._size.in_time(len(writes), self._clock() - started)
            self._refusals.succeeded({write.key for write in result.written}, planned)
            self._knobs.written(write.key for write in writes)
        # A failed request to systemd may still take effect, so a file that holds its original proves nothing.
        asked = isinstance(result.failed, Busy | Broken) and not result.too_slow
        at_fault = result.at_fault
        unclear = asked and at_fault is not None and self._backends.of(at_fault.path).answers_late
        late = at_fault if unclear else None
        keys = {write.key for write in writes}
        self._unsettled = lambda: self._release.settle(keys, touched, result.texts, planned, late)
        if self._nobody_waits:
            self._settle_now()
        return result

    def _refused(self, at_fault: Write, error: KernelError, writes: Sequence[Write]) -> set[Key]:
        """The knobs affected by this failure: if systemd does not answer for one unit, it answers for none."""
        about = [at_fault]
        if isinstance(error, NoAnswer):
            about += [write for write in writes if self._backends.of(write.path).persists(write.path)]
        return {write.key for write in about}

    # -- restore -------------------------------------------------------------------------------------------------

    async def restore(
        self, names: Iterable[str] | None = None, force: bool = False, ignore_lock: bool = False
    ) -> RestoreReport:
        """Restore everything, or only these workloads; see ``perphd.isolation.restore``.

        Named workloads are about to leave, so their conflicts and refusals are forgotten.
        """
        chosen = None if names is None else frozenset(names)
        await self._counting.idle()
        async with self._lock:
            if chosen is None:  # otherwise a group that is being created would remain
                await self._groups.idle(2 * LOCK_WAIT_S)
            done = await self._worker.run(lambda: self._give_back(chosen, force, ignore_lock))
        if isinstance(done, Busy):
            return self._release.not_given_back(chosen, done)
        self._counting.forget()
        self._audit.restored(done)
        return done

    def _give_back(self, names: frozenset[str] | None, force: bool, ignore_lock: bool) -> RestoreReport:
        self._settle_now()
        busy = self._groups.is_busy
        report = self._release.give_back(names, self._specs, force, ignore_lock, groups_busy=busy)
        for name in names or ():  # bounds memory on hosts where many workloads come and go
            self._watch.reset(name)
            self._refusals.reset(name)
            self._survey.forget(name)
            self._knobs.forget(name)
        return report

    async def release_gone(self) -> RestoreReport | None:
        """Remove the traffic classes of cgroups that are gone, which only a full restore would otherwise remove.

        Other settings end with their cgroup, or are needed when it returns. Failures are retried at the next call.
        Returns a report; None if an earlier write is still stuck in the kernel.
        """
        if self._worker.is_busy:
            return None
        self._settle_now()
        gone = self._release.left_by_gone()
        if not gone:
            return RestoreReport()
        async with self._lock:
            done = await self._worker.run(lambda: restore_journal(self._fs, self._journal, gone))
        if isinstance(done, Busy):
            return None
        for file in (*done.restored, *done.already, *done.gone):
            self._watch.forget(file.path)
            self._knobs.drop(file.workload, file.knob)
        self._audit.restored(done)
        return done

    def close(self) -> None:
        """End the threads. The caller closes the journal."""
        self._counting.close()
        self._worker.close()
        self._groups.close()
        self._reclaimer.close()


def _is_reclaim(write: Write) -> bool:
    return write.path.endswith(_RECLAIM_FILE)
