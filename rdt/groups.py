"""One program's groups: made, adopted, filled and removed without ever touching anybody else's.

A group is own by its name (``rdt.names.Prefix``), so ownership survives a restart and needs no record. Making tolerates
what exists, removing tolerates what is missing, and both say which it was. CLOSIDs and RMIDs belong to the whole
machine: who holds them is told when they run out.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from rdt.changes import Applied, CpusChanged
from rdt.errors import Busy, Denied, Full, Gone, Invalid, ResctrlError, Unsupported
from rdt.fill import Filled, Filler, TidSource
from rdt.names import DEFAULT_GROUP, GroupRef, Prefix
from rdt.resctrl import Resctrl
from rdt.schemata import Schemata
from rdt.survey import Survey


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of the machine's ids a program allows itself, and how long it waits."""

    spare_closids: int = 0
    """CLOSIDs left free for others: making a control group raises Full rather than take these."""
    rmid_share: float = 1.0
    """The part of all RMIDs that own groups (control and monitor) may take."""
    busy_wait_s: float = 3.0
    """How long to wait for an RMID in limbo; the kernel looks once a second whether one can be used again."""
    first_delay_s: float = 0.1
    longest_delay_s: float = 0.5
    fill_passes: int = 10
    """How often to look whether all threads are where they belong, as processes fork meanwhile."""


@dataclass(frozen=True, slots=True)
class Made:
    """A group that exists now; ``created`` tells a new one from one that was there already."""

    group: GroupRef
    created: bool
    identity: tuple[int, int]


class Groups:
    """The groups with one prefix.

    Args:
        resctrl: the mounted resctrl.
        prefix: the mark of own groups, 1 to 32 letters, digits, ``_`` or ``-``.
        limits: budgets and waiting times.
        change_default: may schemata, mode and CPUs of the default group be changed as well? It is everybody's, so
            only if an operator said so.
        sleep, clock: how to wait, in seconds.

    Changing a group that is not own raises Denied before anything is written.
    """

    def __init__(
        self,
        resctrl: Resctrl,
        prefix: str,
        *,
        limits: Limits | None = None,
        change_default: bool = False,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.resctrl = resctrl
        self.prefix = Prefix(prefix)
        self.limits = limits or Limits()
        self._change_default = change_default
        self._sleep, self._clock = sleep, clock

    # --- looking ------------------------------------------------------------------------------------------

    def control(self, key: str) -> GroupRef:
        """Where the control group of a key is, whether it exists or not."""
        return GroupRef(self.prefix.name(key))

    def monitor(self, within: GroupRef, key: str) -> GroupRef:
        """Where the monitor group of a key is in a control group."""
        return GroupRef(within.control, self.prefix.name(key))

    def key(self, group: GroupRef) -> str | None:
        """The key that an own group was made for; None for others' groups."""
        return self.prefix.key(group.monitor or group.control) if self.prefix.owns(group) else None

    def survey(self) -> Survey:
        """Which groups there are, own and others'."""
        own: list[GroupRef] = []
        others: list[GroupRef] = []
        for group in self.resctrl.list_groups():
            if not group.is_default:
                (own if self.prefix.owns(group) else others).append(group)
        info = self.resctrl.info
        rmids = info.monitoring.num_rmids if info.monitoring else None
        return Survey(tuple(own), tuple(others), info.usable_closids, rmids)

    # --- making and removing ------------------------------------------------------------------------------

    def make(self, key: str) -> Made:
        """A control group for a key: the one that exists, or a new one (which may use everything at first).

        Raises:
            Full: no CLOSID or RMID is left, or own budgets are used up; the text tells who holds them.
            Busy: RMIDs were still in limbo when the waiting time was over.
            Unsupported: this machine has nothing to give out.
        """
        if not self.resctrl.info.can_control:
            raise Unsupported(
                self.resctrl.access.path(), doing="making a group in", reason="nothing can be allocated here"
            )
        return self._make(self.control(key))

    def make_monitor(self, within: GroupRef, key: str) -> Made:
        """A monitor group for a key in an own control group or in the default group; see ``make``.

        Raises Gone if the control group does not exist: it comes first.
        """
        group = self.monitor(within, key)
        if self.resctrl.info.monitoring is None:
            path = self.resctrl.access.path(group.relative)
            raise Unsupported(
                path, doing="making the group", reason="this machine or mount has no monitoring"
            )
        return self._make(group)

    def remove(self, group: GroupRef, *, with_others_monitors: bool = False) -> bool:
        """Remove an own group; False if there was none. Its tasks and CPUs fall to the default group, those of a
        monitor group to its control group.

        Raises Denied if another program has monitor groups in it, unless told to remove these with it.
        """
        self._refuse_others(group, "removing the group")
        with self.resctrl.changing():
            inside = [each for each in self.survey().others if each.control == group.control and each.monitor]
            if inside and not group.monitor and not with_others_monitors:
                names = ", ".join(each.monitor for each in inside)
                path = self.resctrl.access.path(group.relative)
                raise Denied(
                    path, doing="removing the group", reason=f"others have monitor groups in it: {names}"
                )
            try:
                self.resctrl.access.rmdir(group.relative)
            except Gone:
                if self.resctrl.exists(group):
                    raise
                return False
            return True

    def sweep(self, keep: Collection[GroupRef] = ()) -> tuple[GroupRef, ...]:
        """Remove all own groups but these (and the control groups they lie in); tells which were removed.

        Control groups that hold other programs' monitor groups are left.
        """
        kept = {*keep, *(group.parent for group in keep)}
        removed = []
        with self.resctrl.changing():
            survey = self.survey()
            # Monitor groups first: what is counted in them leaves their control group's sum in any case.
            for group in sorted(survey.own, key=lambda each: (not each.monitor, each)):
                shared = any(each.control == group.control for each in survey.others) and not group.monitor
                if group not in kept and not shared and self.remove(group):
                    removed.append(group)
        return tuple(removed)

    def _make(self, group: GroupRef) -> Made:
        self._refuse_others(group, "making the group")
        deadline_s = self._clock() + self.limits.busy_wait_s
        delay_s = self.limits.first_delay_s
        while True:
            try:
                return self._make_once(group)
            except Busy as error:
                if error.errno != errno.EBUSY or self._clock() + delay_s > deadline_s:
                    raise
            self._sleep(delay_s)  # without the lock, so that others can give RMIDs back
            delay_s = min(delay_s * 2, self.limits.longest_delay_s)

    def _make_once(self, group: GroupRef) -> Made:
        access = self.resctrl.access
        with self.resctrl.changing():
            if self.resctrl.exists(group):
                return Made(group, False, self.resctrl.identity(group))
            self._refuse_over_budget(group)
            try:
                access.mkdir(group.relative)
            except Full as error:
                raise self._full(error.path, str(self.survey()), error) from error
            except Invalid as error:
                if error.errno == errno.EEXIST and self.resctrl.exists(group):
                    return Made(group, False, self.resctrl.identity(group))
                raise
            return Made(group, True, self.resctrl.identity(group))

    def _refuse_over_budget(self, group: GroupRef) -> None:
        survey = self.survey()
        path = self.resctrl.access.path(group.relative)
        spare = self.limits.spare_closids
        if not group.monitor and spare and survey.closids_free <= spare:
            raise self._full(path, f"{spare} CLOSIDs are kept free for others; {survey}")
        if survey.rmids is not None and len(survey.own) >= int(self.limits.rmid_share * survey.rmids):
            share = f"{self.limits.rmid_share:.0%} of {survey.rmids} RMIDs"
            raise self._full(path, f"own groups may take {share} and hold {len(survey.own)}")

    @staticmethod
    def _full(path: str, reason: str, error: ResctrlError | None = None) -> Full:
        number, status = (error.errno, error.status) if error else (None, "")
        return Full(path, doing="making the group", errno=number, status=status, reason=reason)

    # --- changing -----------------------------------------------------------------------------------------

    def apply(self, group: GroupRef, wanted: Schemata) -> Applied:
        """``Resctrl.apply`` on an own group."""
        self._refuse_settings_of_others(group, "writing the schemata of")
        return self.resctrl.apply(group, wanted)

    def ensure(self, group: GroupRef, wanted: Schemata) -> Applied:
        """``Resctrl.ensure`` on an own group."""
        self._refuse_settings_of_others(group, "writing the schemata of")
        return self.resctrl.ensure(group, wanted)

    def set_mode(self, group: GroupRef, mode: str) -> None:
        """``Resctrl.set_mode`` on an own group."""
        self._refuse_settings_of_others(group, "setting the mode of")
        self.resctrl.set_mode(group, mode)

    def set_cpus(self, group: GroupRef, cpus: Iterable[int]) -> CpusChanged:
        """``Resctrl.set_cpus`` on an own group: for tasks that have CPUs of their own, an alternative to moving
        each. Tasks in a control group other than the default one are not affected by it.

        Raises Denied if another program's group has one of these CPUs.
        """
        self._refuse_settings_of_others(group, "giving CPUs to")
        wanted = frozenset(cpus)
        with self.resctrl.changing():
            for other in self.survey().others:
                try:
                    taken = wanted & self.resctrl.cpus(other)
                except Gone:
                    if self.resctrl.exists(other):
                        raise
                    continue
                if taken and not (group.monitor and other == group.parent):
                    path = self.resctrl.access.path(group.relative, "cpus_list")
                    raise Denied(path, doing="writing", reason=f"CPUs {sorted(taken)} belong to {other}")
            return self.resctrl.set_cpus(group, wanted)

    def fill(
        self,
        group: GroupRef,
        tids: TidSource,
        *,
        take_from_others: bool = False,
        only_from: Iterable[GroupRef] | None = None,
    ) -> Filled:
        """Move threads into an own group until all are there: ``rdt.fill``.

        Args:
            group: an own group; for a monitor group, threads are moved into its control group first.
            tids: the thread ids, or a function that tells those of this moment (all threads of a cgroup, say).
            take_from_others: move threads out of other programs' groups, too; else they are left and told.
            only_from: if given, only threads that are in one of these groups (or in monitor groups of these) are
                moved; a control group lists the threads of its monitor groups as well.
        """
        self._refuse_others(group, "moving tasks to")

        def others() -> tuple[GroupRef, ...]:
            return () if take_from_others else self.survey().others

        passes = self.limits.fill_passes
        return Filler(self.resctrl, group, others, passes, only_from=only_from).fill(tids)

    def release(self, tids: TidSource, to: GroupRef = DEFAULT_GROUP) -> Filled:
        """Move threads from own groups back to where they were before, the default group or another program's.

        Only threads that are in own groups are moved, so that nobody else's placement is undone.
        """
        own = self.survey().own
        return Filler(self.resctrl, to, tuple, self.limits.fill_passes, only_from=own).fill(tids)

    def _refuse_others(self, group: GroupRef, doing: str) -> None:
        if not self.prefix.owns(group):
            path = self.resctrl.access.path(group.relative)
            raise Denied(path, doing=doing, reason=f"not a group of the prefix {self.prefix.text!r}")

    def _refuse_settings_of_others(self, group: GroupRef, doing: str) -> None:
        if not group.is_default:
            self._refuse_others(group, doing)
        elif not self._change_default:
            path = self.resctrl.access.path()
            raise Denied(
                path, doing=doing, reason="the default group is everybody's; to change it must be allowed"
            )
