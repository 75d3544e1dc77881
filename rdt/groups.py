"""Make, adopt, fill and remove one program's resctrl groups without touching those of other programs.

The name shows whose group it is (``rdt.names.Prefix``), so ownership survives a restart without a record.
Making accepts an existing group, removing accepts a missing one, and both report it. All programs share the
machine's CLOSIDs and RMIDs; the error names their holders when they run out.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rdt.errors import Busy, Denied, Full, Gone, Invalid, ResctrlError, Unsupported
from rdt.fill import Filled, Filler, TidSource
from rdt.names import DEFAULT_GROUP, GroupRef, Prefix
from rdt.schemata import Applied, CpusChanged, Schemata

if TYPE_CHECKING:
    from rdt.resctrl import Resctrl


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the ids that a program takes, and on its waiting times."""

    spare_closids: int = 0
    """CLOSIDs to leave free for other programs; making a control group raises Full instead of taking them."""
    rmid_share: float = 1.0
    """Maximum share of all RMIDs for the program's own groups (control and monitor)."""
    busy_wait_s: float = 3.0
    """Seconds to wait for an RMID in limbo; the kernel checks once a second whether it can be reused."""
    first_delay_s: float = 0.1
    longest_delay_s: float = 0.5
    fill_passes: int = 10
    """Maximum number of passes that move threads; processes may fork between passes."""


@dataclass(frozen=True, slots=True)
class Made:
    """A group that exists now. ``created``: it was created by this call. ``identity``: its (device, inode)."""

    group: GroupRef
    created: bool
    identity: tuple[int, int]


class Groups:
    """The groups with one prefix.

    Args:
        resctrl: the mounted resctrl.
        prefix: prefix of the program's group names, 1 to 32 letters, digits, ``_`` or ``-``.
        limits: budgets and waiting times.
        change_default: allow changes of schemata, mode and CPUs of the default group. Every program uses it,
            so this requires an operator's permission.
        sleep: waits for a number of seconds.
        clock: monotonic time in seconds.

    Changing another program's group raises Denied before anything is written.
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
        """Reference to the control group of a key, whether it exists or not."""
        return GroupRef(self.prefix.name(key))

    def monitor(self, within: GroupRef, key: str) -> GroupRef:
        """Reference to the monitor group of a key in a control group, whether it exists or not."""
        return GroupRef(within.control, self.prefix.name(key))

    def key(self, group: GroupRef) -> str | None:
        """The key of one of the program's own groups; None for other programs' groups."""
        return self.prefix.key(group.monitor or group.control) if self.prefix.owns(group) else None

    def survey(self) -> Survey:
        """List all groups except the default one, whoever owns them."""
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
        """Make the control group of a key, or adopt the existing one. A new group has no restrictions.

        Raises:
            Full: no CLOSID or RMID is left, or the program's budgets are used up; the text names the holders.
            Busy: RMIDs were still in limbo after the waiting time.
            Unsupported: this machine can allocate neither cache nor bandwidth.
        """
        if not self.resctrl.info.can_control:
            raise Unsupported(
                self.resctrl.access.path(),
                doing="making a group in",
                reason="nothing can be allocated on this machine",
            )
        return self._make(self.control(key))

    def make_monitor(self, within: GroupRef, key: str) -> Made:
        """Make the monitor group of a key in one of the program's control groups or the default group (see
        ``make``).

        Raises Gone if the control group does not exist.
        """
        group = self.monitor(within, key)
        if self.resctrl.info.monitoring is None:
            path = self.resctrl.access.path(group.relative)
            raise Unsupported(
                path, doing="making the group", reason="this machine or mount has no monitoring"
            )
        return self._make(group)

    def remove(self, group: GroupRef, *, with_others_monitors: bool = False) -> bool:
        """Remove one of the program's groups; False if it did not exist.

        Its tasks and CPUs return to the default group, those of a monitor group to its control group. Raises
        Denied if the group contains other programs' monitor groups, unless ``with_others_monitors``.
        """
        self._refuse_others(group, "removing the group")
        with self.resctrl.changing():
            inside = [each for each in self.survey().others if each.control == group.control and each.monitor]
            if inside and not group.monitor and not with_others_monitors:
                names = ", ".join(each.monitor for each in inside)
                path = self.resctrl.access.path(group.relative)
                raise Denied(
                    path,
                    doing="removing the group",
                    reason=f"it contains other programs' monitor groups: {names}",
                )
            try:
                self.resctrl.access.rmdir(group.relative)
            except Gone:
                if self.resctrl.exists(group):
                    raise
                return False
            return True

    def sweep(self, keep: Collection[GroupRef] = ()) -> tuple[GroupRef, ...]:
        """Remove all of the program's groups except ``keep`` and their control groups; returns the removed
        ones.

        Control groups that contain other programs' monitor groups stay.
        """
        kept = {*keep, *(group.parent for group in keep)}
        removed = []
        with self.resctrl.changing():
            survey = self.survey()
            # Monitor groups first: a control group's removal would remove them unreported.
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
            self._sleep(delay_s)  # without the lock, so that other programs can release RMIDs
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
            raise self._full(path, f"own groups may take {share} and already hold {len(survey.own)}")

    @staticmethod
    def _full(path: str, reason: str, error: ResctrlError | None = None) -> Full:
        number, status = (error.errno, error.status) if error else (None, "")
        return Full(path, doing="making the group", errno=number, status=status, reason=reason)

    # --- changing -----------------------------------------------------------------------------------------

    def apply(self, group: GroupRef, wanted: Schemata) -> Applied:
        """``Resctrl.apply`` on one of the program's groups."""
        self._refuse_settings_of_others(group, "writing the schemata of")
        return self.resctrl.apply(group, wanted)

    def ensure(self, group: GroupRef, wanted: Schemata) -> Applied:
        """``Resctrl.ensure`` on one of the program's groups."""
        self._refuse_settings_of_others(group, "writing the schemata of")
        return self.resctrl.ensure(group, wanted)

    def set_mode(self, group: GroupRef, mode: str) -> None:
        """``Resctrl.set_mode`` on one of the program's groups."""
        self._refuse_settings_of_others(group, "setting the mode of")
        self.resctrl.set_mode(group, mode)

    def set_cpus(self, group: GroupRef, cpus: Iterable[int]) -> CpusChanged:
        """``Resctrl.set_cpus`` on one of the program's groups.

        An alternative to moving individual tasks, for tasks with dedicated CPUs. It affects only tasks in the
        default group. Raises Denied if another program's group has one of these CPUs.
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
        """Move threads into one of the program's groups until all are in it (``rdt.fill``).

        Args:
            group: one of the program's groups; for a monitor group, threads are moved into its control group
                first.
            tids: the thread ids, or a function that returns the present ones (for example, all threads of a
                cgroup).
            take_from_others: also move threads out of other programs' groups; else they are reported.
            only_from: if given, only threads in one of these groups (or in their monitor groups) are moved. A
                control group also lists the threads of its monitor groups.
        """
        self._refuse_others(group, "moving tasks to")

        def others() -> tuple[GroupRef, ...]:
            return () if take_from_others else self.survey().others

        passes = self.limits.fill_passes
        return Filler(self.resctrl, group, others, passes, only_from=only_from).fill(tids)

    def release(self, tids: TidSource, to: GroupRef = DEFAULT_GROUP) -> Filled:
        """Move threads from the program's groups back to their previous group: the default one or another
        program's.

        Other threads are not moved.
        """
        own = self.survey().own
        return Filler(self.resctrl, to, tuple, self.limits.fill_passes, only_from=own).fill(tids)

    def _refuse_others(self, group: GroupRef, doing: str) -> None:
        if not self.prefix.owns(group):
            path = self.resctrl.access.path(group.relative)
            raise Denied(path, doing=doing, reason=f"it does not have the prefix {self.prefix.text!r}")

    def _refuse_settings_of_others(self, group: GroupRef, doing: str) -> None:
        if not group.is_default:
            self._refuse_others(group, doing)
        elif not self._change_default:
            path = self.resctrl.access.path()
            raise Denied(
                path,
                doing=doing,
                reason="all programs share the default group; changing it must be allowed explicitly",
            )


_SHOWN_NAMES = 12


@dataclass(frozen=True, slots=True)
class Survey:
    """The groups that hold the machine's CLOSIDs and RMIDs, without the default group."""

    own: tuple[GroupRef, ...]
    others: tuple[GroupRef, ...]
    closids: int
    """Number of CLOSIDs, the default group's included."""
    rmids: int | None
    """Number of RMIDs; None without monitoring."""

    @property
    def closids_used(self) -> int:
        """CLOSIDs taken by the default group and all control groups."""
        return 1 + sum(not group.monitor for group in (*self.own, *self.others))

    @property
    def closids_free(self) -> int:
        """Number of control groups that can still be made."""
        return max(self.closids - self.closids_used, 0)

    @property
    def rmids_used(self) -> int:
        """RMIDs taken by all groups. RMIDs in limbo, which resctrl does not show, are not counted."""
        return 1 + len(self.own) + len(self.others)

    def controls(self, groups: Iterable[GroupRef]) -> tuple[GroupRef, ...]:
        """The control groups in ``groups``, without monitor groups."""
        return tuple(group for group in groups if not group.monitor)

    def __str__(self) -> str:
        own, others = self.controls(self.own), self.controls(self.others)
        rmids = "" if self.rmids is None else f"; {self.rmids_used} of {self.rmids} RMIDs"
        return (
            f"{self.closids_used} of {self.closids} CLOSIDs are taken: 1 by the default group, "
            f"{len(own)} by own groups{_names(own)}, {len(others)} by others{_names(others)}{rmids}"
        )


def _names(groups: tuple[GroupRef, ...]) -> str:
    if not groups:
        return ""
    shown = [group.control for group in groups[:_SHOWN_NAMES]]
    return f" ({', '.join(shown)}{', ...' if len(groups) > _SHOWN_NAMES else ''})"
