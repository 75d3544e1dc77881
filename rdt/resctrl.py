"""One mounted resctrl: describe it, and read and change its groups.

``Resctrl`` changes any group it is given; ``rdt.groups`` adds ownership. Calls block for microseconds, or
while another program holds the tree's lock, up to the lock timeout. Threads may share one ``Resctrl``.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rdt.access import Access
from rdt.describe import read_info
from rdt.errors import Broken, Gone, Invalid, Mismatch, ResctrlError, Unsupported
from rdt.fs import Fs, RealFs
from rdt.groups import Groups
from rdt.info import Info
from rdt.mount import DEFAULT_ROOT
from rdt.names import DEFAULT_GROUP, RESERVED, GroupRef, format_cpus, parse_cpus
from rdt.schemata import Applied, Cell, CpusChanged, DomainChange, Schemata, check, differences
from rdt.tasks import Moved, TaskWriter

_ENSURE_TRIES = 3


class Resctrl:
    """A mounted resctrl. Create it with ``open``.

    Every method may raise any ``ResctrlError``; ``rdt.errors`` explains the classes.
    """

    def __init__(self, access: Access, info: Info) -> None:
        self.access = access
        self.info = info
        self._threads = threading.RLock()
        self._held: str = ""
        self._tasks = TaskWriter(access)

    @classmethod
    def open(
        cls, fs: Fs | None = None, root: str = DEFAULT_ROOT, *, lock_timeout_s: float | None = 2.0
    ) -> Resctrl:
        """Open the resctrl mounted at ``root`` and read its description. Nothing is mounted or changed.

        ``lock_timeout_s``: how long to wait for other programs that hold the tree's lock; None: ignore the
        lock.

        Raises Unsupported if resctrl is not mounted there; the text says what an operator can do.
        """
        access = Access(fs or RealFs(), root, lock_timeout_s=lock_timeout_s)
        return cls(access, read_info(access))

    def patient(self, lock_timeout_s: float | None) -> Resctrl:
        """The same resctrl with another lock timeout, for use beside this one; None: ignore the lock."""
        return Resctrl(self.access.patient(lock_timeout_s), self.info)

    def groups(self, prefix: str) -> Groups:
        """The groups of one program, identified by their prefix: the usual way to make, fill and remove groups."""
        return Groups(self, prefix)

    # --- the lock that programs share ---------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the tree's shared lock for reads that belong together. May be nested."""
        with self._locked("shared"):
            yield

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the tree's exclusive lock for reads and writes that belong together.

        May be nested, but not inside ``reading``.
        """
        with self._locked("exclusive"):
            yield

    @contextmanager
    def _locked(self, kind: str) -> Iterator[None]:
        with self._threads:
            if self._held:
                if (self._held, kind) == ("shared", "exclusive"):
                    raise RuntimeError("changing() inside of reading(): use changing() for both")
                yield
                return
            with self.access.lock(exclusive=kind == "exclusive"):
                self._held = kind
                try:
                    yield
                finally:
                    self._held = ""

    # --- existing groups ----------------------------------------------------------------------------------

    def list_groups(self) -> tuple[GroupRef, ...]:
        """All groups of all programs: the default group, control groups, and their monitor groups."""
        with self.reading():
            refs = []
            for name in ["", *self.access.listdir()]:
                if name and (name in RESERVED or not self.access.exists(name, "tasks")):
                    continue
                control = GroupRef(name)
                refs.append(control)
                if self.access.exists(name, "mon_groups"):
                    try:
                        refs.extend(
                            GroupRef(name, monitor) for monitor in self.access.listdir(name, "mon_groups")
                        )
                    except Gone:
                        if self.exists(control):
                            raise
                        refs.remove(control)
            return tuple(refs)

    def exists(self, group: GroupRef) -> bool:
        """True if there is such a group."""
        return self.access.exists(group.relative, "tasks")

    def identity(self, group: GroupRef) -> tuple[int, int]:
        """(device, inode): a different one means a new group under an old name, with new counters."""
        return self.access.identity(group.relative)

    def domain_change(self) -> DomainChange:
        """Domains that vanished or appeared since ``info`` was read. If there are any, open again and
        ``ensure`` every group.
        """
        shown = self.schemata()
        now = {cell for cell, _ in shown.cells()}
        known = set(self.info.cells())
        key = _cell_order
        return DomainChange(tuple(sorted(known - now, key=key)), tuple(sorted(now - known, key=key)))

    # --- schemata and mode --------------------------------------------------------------------------------

    def schemata(self, group: GroupRef = DEFAULT_GROUP) -> Schemata:
        """A control group's present values. One file is read as a whole, which needs no lock."""
        path = self._schemata_path(group)
        return Schemata.parse(self.access.read(group.relative, "schemata"), path)

    def apply(self, group: GroupRef, wanted: Schemata) -> Applied:
        """Write the values of ``wanted`` (may be partial) that differ from the present ones; read them back.

        All go into one write. The kernel applies it completely or not at all, except with mba_MBps. There rdt
        undoes the partial changes of a refused write. A raised error carries the resulting schemata in
        ``actual``.

        Raises:
            Unsupported, Gone, Invalid: see ``rdt.schemata.check``; or the kernel refuses.
            Mismatch: the values read back differ, because another program wrote as well.
        """
        return self._apply(group, wanted, self.schemata(group))

    def ensure(self, group: GroupRef, wanted: Schemata) -> Applied:
        """Like ``apply``, but domains that do not exist now are left out and listed in ``absent``.

        For repeated calls with the same target: it writes only if something differs, for example after CPU
        hotplug, when a domain has come back with default values. Otherwise it reads once.
        """
        first = seen = self.schemata(group)
        for attempt in range(_ENSURE_TRIES):
            present, absent = wanted.present_in(seen)
            self._refuse_unknown(group, wanted, absent)
            try:
                applied = self._apply(group, present, seen)
            except Gone as error:
                domain_went = error.actual is not None and bool(present.present_in(error.actual)[1])
                if not domain_went or attempt == _ENSURE_TRIES - 1:
                    raise
                seen = self.schemata(group)
            else:
                if attempt == 0:
                    return Applied(applied.before, applied.after, applied.wrote, absent)
                # An earlier attempt may have written already: report the change over all attempts.
                changed = frozenset(each.cell for each in differences(present, first, self.info))
                return Applied(first, applied.after, present.only(changed), absent)
        raise AssertionError("not reached")

    def _apply(self, group: GroupRef, wanted: Schemata, seen: Schemata) -> Applied:
        """Do the work of ``apply``, given the values just read; take the exclusive lock only to write."""
        if not self._differing(group, wanted, seen):
            return Applied(seen, seen, Schemata())
        with self.changing():
            before = self.schemata(group)
            change = wanted.only(self._differing(group, wanted, before))
            return self._write(group, wanted, change, before) if change else Applied(before, before, change)

    def _differing(self, group: GroupRef, wanted: Schemata, seen: Schemata) -> frozenset[Cell]:
        try:
            check(wanted, self.info, seen, self._schemata_path(group))
        except ResctrlError as error:
            error.actual = seen
            raise
        return frozenset(each.cell for each in differences(wanted, seen, self.info))

    def _write(self, group: GroupRef, wanted: Schemata, change: Schemata, before: Schemata) -> Applied:
        text = change.to_write()
        try:
            self.access.command(text, group.relative, "schemata")
        except ResctrlError as error:
            raise self._explained(error, group, before, change) from error
        after = self.schemata(group)
        wrong = differences(wanted, after, self.info)
        if wrong:
            kind = Mismatch if any(each.actual is not None for each in wrong) else Gone
            path, reason = self._schemata_path(group), "; ".join(map(str, wrong))
            raise kind(path, doing="reading back", value=text, reason=reason, actual=after)
        return Applied(before, after, change)

    def mode(self, group: GroupRef = DEFAULT_GROUP) -> str:
        """The group's mode: ``shareable``, ``exclusive``, ``pseudo-locksetup`` or ``pseudo-locked``."""
        return self.access.read(group.relative, "mode").strip()

    def set_mode(self, group: GroupRef, mode: str) -> None:
        """Set a control group's mode and read it back; in ``exclusive`` the kernel refuses any overlap."""
        with self.changing():
            if self.mode(group) == mode:
                return
            self.access.command(f"{mode}\n", group.relative, "mode")
            if (actual := self.mode(group)) != mode:
                path = self.access.path(group.relative, "mode")
                raise Mismatch(path, doing="reading back", value=mode, reason=f"it is {actual!r}")

    # --- members ------------------------------------------------------------------------------------------

    def tasks(self, group: GroupRef = DEFAULT_GROUP) -> frozenset[int]:
        """Thread ids in a group, those of its monitor groups included."""
        text = self.access.read(group.relative, "tasks")
        try:
            return frozenset(map(int, text.split()))
        except ValueError:
            path = self.access.path(group.relative, "tasks")
            raise Broken(path, doing="reading", reason="not a list of thread ids") from None

    def move_tasks(self, group: GroupRef, tids: Iterable[int]) -> Moved:
        """Move each thread once; ``rdt.groups`` repeats this until no thread is left to move."""
        with self.changing():
            return self._tasks.move(group, tids)

    def cpus(self, group: GroupRef = DEFAULT_GROUP) -> frozenset[int]:
        """CPUs on which tasks of the default group use this group's settings."""
        path = self.access.path(group.relative, "cpus_list")
        return parse_cpus(self.access.read(group.relative, "cpus_list"), path)

    def set_cpus(self, group: GroupRef, cpus: Iterable[int]) -> CpusChanged:
        """Give a group exactly these CPUs and read them back.

        The CPUs leave the group that had them. CPUs that the group loses return to the default group; those of
        a monitor group return to its control group. Raises Invalid for CPUs that are offline or do not exist
        and, for a monitor group, for CPUs that its control group does not have.
        """
        wanted = frozenset(cpus)
        if any(cpu < 0 for cpu in wanted):
            raise Invalid(
                self.access.path(group.relative, "cpus_list"),
                doing="writing",
                reason="CPU numbers must not be negative",
            )
        with self.changing():
            before = self.cpus(group)
            if before == wanted:
                return CpusChanged(before, before)
            text = f"{format_cpus(wanted)}\n"
            self.access.write_cpus(text, group.relative, "cpus_list")
            after = self.cpus(group)
            if after != wanted:
                path = self.access.path(group.relative, "cpus_list")
                reason = f"it is {format_cpus(after) or 'empty'}"
                raise Mismatch(path, doing="reading back", value=text, reason=reason)
            return CpusChanged(before, after)

    # --- inside -------------------------------------------------------------------------------------------

    def _schemata_path(self, group: GroupRef) -> str:
        if group.monitor:
            path = self.access.path(group.relative)
            raise Unsupported(path, reason="a monitor group has no schemata; its control group has")
        return self.access.path(group.relative, "schemata")

    def _explained(
        self, error: ResctrlError, group: GroupRef, before: Schemata, change: Schemata
    ) -> ResctrlError:
        """The error of a failed write, completed with the group's present schemata.

        Gone replaces EINVAL if a domain of the write no longer exists, which the kernel does not explain.
        """
        try:
            error.actual = self.schemata(group)
            taken = _taken(before, change, error.actual, self.info)
            if taken:
                self.access.command(taken.restored_by(before).to_write(), group.relative, "schemata")
                error.actual = self.schemata(group)
        except ResctrlError:
            return error
        lost = change.present_in(error.actual)[1]
        if error.errno == errno.EINVAL and lost:
            return Gone(
                error.path, doing=error.doing, value=error.value, errno=error.errno, status=error.status,
                reason=f"no longer present: {', '.join(map(str, lost))}", actual=error.actual,
            )  # fmt: skip
        return error

    def _refuse_unknown(self, group: GroupRef, wanted: Schemata, absent: tuple[Cell, ...]) -> None:
        for cell in absent:
            if cell.resource not in self.info.caches and cell.resource not in self.info.bandwidths:
                path = self._schemata_path(group)
                raise Unsupported(
                    path, doing="writing", value=str(wanted), reason=f"there is no {cell.resource}"
                )


def _taken(before: Schemata, change: Schemata, now: Schemata, info: Info) -> Schemata:
    """The part of a refused write that took effect: with mba_MBps the kernel applies bandwidths while parsing."""
    refused = {each.cell for each in differences(change, now, info)}
    return change.only(
        frozenset(
            cell
            for cell, _ in change.cells()
            if cell not in refused
            and before.get(cell.resource, cell.domain) not in (None, now.get(cell.resource, cell.domain))
        )
    )


def _cell_order(cell: Cell) -> tuple[str, int]:
    return cell.resource, cell.domain
