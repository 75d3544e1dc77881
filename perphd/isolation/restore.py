"""Give every file its original back: what stop, crash, kill -9 and ``perphd restore`` all end with.

Works from the journal alone, without the daemon. Each value is verified by reading it back. A value that is neither the
original nor anything perphd wrote was set by somebody else and is left alone.

One exception to "byte-identical": a cgroup v2 ``cpuset.cpus`` that was empty cannot be emptied while processes are
inside (ENOSPC). It gets all CPUs that its parent gives, which is equal in effect, and the report says so.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from posixpath import basename, dirname

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Denied, Gone, Invalid, KernelError, ParseError
from perphd.host.cgroup import discover
from perphd.host.cgroup.group import parent_list
from perphd.host.cgroup.knobs import EMPTY_ALLOWED, RESCTRL_SETTINGS, same
from perphd.host.egress_fs import EgressFs, is_egress
from perphd.host.fs import KernelFs, read_text, write_within
from perphd.host.resctrl import (
    CALIBRATION_PREFIX,
    LOCK_WAIT_S,
    MONITORING_KNOB,
    LockHeld,
    left_by_calibration,
    remove_group,
)
from perphd.host.systemd_bus import BusctlBus, NoAnswer
from perphd.host.systemd_fs import UNIT_DEVICE, Lasting, is_running_kernel, unit_files
from perphd.isolation.below import is_untouched, look_below
from perphd.isolation.journal import FILE, Journal
from perphd.isolation.journal_copy import COPY
from perphd.isolation.journal_format import Original
from perphd.isolation.planner import FileState
from perphd.isolation.register import Register, open_originals
from perphd.isolation.restore_report import FileReport, RestoreReport
from perphd.isolation.value import is_free, is_original, is_own, is_what_is_left, put

_CALIBRATION = "calibration"
_IGNORE_LOCK = "end that process, or give the group back all the same: perphd restore --ignore-lock"


def restore(
    fs: KernelFs,
    state_dir: str | Path,
    force: bool = False,
    *,
    boot_id: str | None = None,
    but: Container[str] = (),
    units: bool = True,
    ignore_lock: bool = False,
) -> RestoreReport:
    """Give back everything in this state directory's journal, and close what was given back in it. Idempotent.

    Args:
        fs: the kernel's files.
        state_dir: the directory of the journal.
        force: also overwrite values that somebody else has set since.
        boot_id: identity of this boot; read from the kernel if None.
        but: names of workloads that keep what they have, if the perphd before ended with that purpose.
        ignore_lock: remove resctrl groups although another program holds resctrl's lock. The kernel takes one change
            after another, so nothing breaks in it; a program that reads several files under the lock may see half a
            change.
        units: whoever goes on from there asks systemd as well; False: what was set through it is kept for nobody.

    Raises:
        JournalInUse: a live perphd holds the journal (its pid is named).
        PerphError: the journal cannot be read.
    """
    register = Register() if is_running_kernel(fs) else None
    if register is not None:
        # busctl and not dbus-fast, tc and not pyroute2: this must work with what the distribution has.
        hierarchies = discover(fs)
        fs = EgressFs(unit_files(fs, hierarchies, BusctlBus()), hierarchies, kernel=fs)
    if not any(Path(state_dir, name).exists() for name in (FILE, COPY)):
        notes = (f"{state_dir}: no journal, nothing to restore", *_swept(fs, register, state_dir, {}))
        return _without_calibration(fs, RestoreReport(notes=notes), ignore_lock)
    with Journal(state_dir, boot_id=boot_id) as journal:
        if journal.unreadable is not None:
            raise journal.unreadable
        try:
            kept = but if journal.take_kept() else ()
        except (
            KernelError
        ):  # the mark cannot be taken off (a full disk): nothing is adopted, everything goes back
            kept = ()
        # A resctrl group may hold workloads that are to keep nothing: it goes, and is made anew when it is wanted.
        # What only systemd can take back is not left to a daemon that will not ask it.
        originals = [
            entry
            for entry in journal.originals.values()
            if entry.workload not in kept
            or is_group_entry(entry)
            or (entry.identity[0] == UNIT_DEVICE and not units)
        ]
        is_everything = len(originals) == len(journal.originals)
        report = restore_journal(fs, journal, originals, force, ignore_lock)
        if register is not None and is_everything and report.complete:
            register.forget(str(state_dir))
        notes = (*report.notes, *_swept(fs, register, state_dir, journal.originals))
        return _without_calibration(fs, replace(report, notes=notes), ignore_lock)


def _swept(
    fs: KernelFs, register: Register | None, state_dir: str | Path, recorded: Iterable[str]
) -> Sequence[str]:
    """Take traffic classes away that are on nobody's record, as after a lost journal; sentences about problems."""
    others = () if register is None else register.others(str(state_dir))
    everybodys = (*recorded, *(path for other in others for path in open_originals(other.state_dir)))
    if isinstance(fs, EgressFs) and not any(is_egress(path) for path in everybodys):
        try:
            fs.sweep()
        except KernelError as exc:
            return (f"traffic classes of perphd's may be left (tc qdisc, /sys/fs/bpf/perphd): {exc}",)
    return ()


def _without_calibration(fs: KernelFs, report: RestoreReport, ignore_lock: bool) -> RestoreReport:
    """The report, after the group of a killed calibration is removed: no journal names that one."""
    restored, failed, notes = [*report.restored], [*report.failed], [*report.notes]
    for path in left_by_calibration(fs):
        try:
            remove_group(fs, path, None if ignore_lock else LOCK_WAIT_S, CALIBRATION_PREFIX)
        except KernelError as exc:
            note = f"{exc}; {_IGNORE_LOCK}" if isinstance(exc, LockHeld) else str(exc)
            failed.append(FileReport(path, "", _CALIBRATION, "", note=note))
            notes.append(f"{path}: not removed: {note}")
        else:
            note = "the group of a killed calibration is removed"
            restored.append(FileReport(path, "", _CALIBRATION, "", note=note))
    return replace(report, restored=tuple(restored), failed=tuple(failed), notes=tuple(notes))


def is_group_entry(entry: Original) -> bool:
    """True for a resctrl group, for control or for monitoring: it is given back by removing it."""
    return entry.knob in RESCTRL_SETTINGS or entry.knob == MONITORING_KNOB


def restore_journal(
    fs: KernelFs,
    journal: Journal,
    originals: Sequence[Original],
    force: bool = False,
    ignore_lock: bool = False,
) -> RestoreReport:
    """Give back these originals of an open journal and close them in it."""
    run = _Run(fs, journal, force, ignore_lock)
    run.give_back(originals)
    run.tidy_up()
    notes = [*journal.notes, *run.notes]
    try:
        journal.close_out(report.path for report in run.settled())
    except KernelError as exc:
        notes.append(f"the values are given back, but the journal could not be closed: {exc}")
    return RestoreReport(
        tuple(run.restored),
        tuple(run.already),
        tuple(run.gone),
        tuple(run.foreign),
        tuple(run.failed),
        tuple(notes),
    )


def _emptied_below(units: Sequence[Original], direct: Sequence[Original]) -> list[Original]:
    """Lists without a value of their own, below a unit that is given back as well: they may get what it then has."""
    above = tuple({f"{dirname(entry.path)}/" for entry in units if basename(entry.path) in EMPTY_ALLOWED})
    lists = (entry for entry in direct if basename(entry.path) in EMPTY_ALLOWED and not entry.text)
    return [entry for entry in lists if entry.path.startswith(above)]


class _Run:
    """One pass over the originals, sorting every file into its list."""

    def __init__(self, fs: KernelFs, journal: Journal, force: bool, ignore_lock: bool) -> None:
        self._fs, self._journal, self._force = fs, journal, force
        self._lock_wait_s: float | None = None if ignore_lock else LOCK_WAIT_S
        self.restored: list[FileReport] = []
        self.already: list[FileReport] = []
        self.gone: list[FileReport] = []
        self.foreign: list[FileReport] = []
        self.failed: list[FileReport] = []
        self.notes: list[str] = []
        self._no_answer: NoAnswer | None = None

    def give_back(self, originals: Sequence[Original]) -> None:
        """Give back in the reverse order of first writes, what goes through systemd after what is written directly.

        A systemd that does not answer then keeps nothing waiting but its own units. It is waited for once in a run: the
        rest of them fail at once and stay on record.
        """
        newest_first = sorted(originals, key=lambda entry: entry.sequence, reverse=True)
        for entry in [entry for entry in newest_first if is_group_entry(entry)]:
            self._remove_group(entry)
            newest_first.remove(entry)
        units = [entry for entry in newest_first if entry.identity[0] == UNIT_DEVICE]
        direct = [entry for entry in newest_first if entry.identity[0] != UNIT_DEVICE]
        below = _emptied_below(units, direct)
        self._give_back_files([entry for entry in direct if entry not in below])
        self._give_back_files(units)
        stuck = tuple(
            f"{dirname(file.path)}/" for file in self.failed if basename(file.path) in EMPTY_ALLOWED
        )
        self._give_back_files([entry for entry in below if not entry.path.startswith(stuck)])
        for entry in below:
            if entry.path.startswith(stuck):
                self._not_tried(entry, "it takes what the unit above it has, which is not given back")

    def _give_back_files(self, entries: Sequence[Original]) -> None:
        """CPU sets and memory nodes come last and together.

        On v1 parents and children bind each other, in whatever order they were first written.
        """
        for entry in entries:
            if basename(entry.path) not in EMPTY_ALLOWED and (found := self._due(entry)) is not None:
                self._write(entry, found)
        for name in ("cpuset.mems", "cpuset.cpus"):
            self._give_back_lists([entry for entry in entries if basename(entry.path) == name])

    def settled(self) -> list[FileReport]:
        """What is to be closed in the journal."""
        # A setting is closed as a whole: while its cpu.idle is not given back, its weight may yet be reset by that.
        unsettled = {(report.workload, report.knob) for report in (*self.failed, *self.foreign)}
        done = (*self.restored, *self.already, *self.gone)
        return [report for report in done if (report.workload, report.knob) not in unsettled]

    def tidy_up(self) -> None:
        """Take away what only served a setting; where that is refused, it is told and the original stays on record."""
        if not isinstance(self._fs, Lasting):
            return
        for report in self.settled():
            if why := self._fs.given_back(report.path):
                for reports in (self.restored, self.already, self.gone):
                    if report in reports:
                        reports.remove(report)
                self.failed.append(replace(report, note=why))
                self.notes.append(f"{report.path}: not given back: {why}")

    def _remove_group(self, entry: Original) -> None:
        """A resctrl group that perphd made: its tasks fall to the default group, where they were."""
        try:
            same_mount = self._fs.identity(dirname(entry.path)) == entry.identity
            if same_mount and remove_group(self._fs, entry.path, self._lock_wait_s):
                note = "the group is removed, its tasks are in the default group"
                if entry.knob == MONITORING_KNOB:
                    note = "the monitor group is removed, its tasks stay in their control group"
                self._add(self.restored, entry, note=note)
            else:
                self._add(self.gone, entry, note="the group, or the resctrl mount that it was in, is gone")
        except Gone:
            self._add(self.gone, entry, note="resctrl is not mounted any more")
        except LockHeld as exc:
            self._lock_wait_s = 0.0  # waited for once: the other groups are not kept waiting each
            self._add(self.failed, entry, note=f"{exc}; {_IGNORE_LOCK}")
            self.notes.append(f"{entry.path}: not removed: {exc}; {_IGNORE_LOCK}")
        except KernelError as exc:
            self._add(self.failed, entry, note=str(exc))
            self.notes.append(f"{entry.path}: not removed: {exc}")

    def _due(self, entry: Original) -> str | None:
        """The file's present text if it is to be written, else None (and the file is in its list)."""
        if entry.identity[0] == UNIT_DEVICE and not self._knows_units(entry):
            note = "it was set through systemd, which is not asked here (isolation.units): perphd restore gives it back"
            self._add(self.failed, entry, note=note)
            self.notes.append(f"{entry.path}: not given back: {note}")
            return None
        try:
            if self._fs.identity(dirname(entry.path)) != entry.identity:
                self._add(self.gone, entry, note="another cgroup has the same path now")
                return None
            raw = self._fs.read(entry.path)
        except Gone:
            self._gone(entry)
            return None
        except KernelError as exc:
            self._add(self.failed, entry, note=str(exc))
            return None
        found = raw.decode(errors="replace").rstrip("\n")
        if is_original(entry.path, entry.raw, raw) or is_untouched(self._journal, entry):
            self._add(self.already, entry, found, found)
            return None
        if not self._force and not self._is_own(entry, found):
            note = f"set to {found!r} by somebody else, left alone (original: {entry.text!r})"
            self._add(self.foreign, entry, found, found, note)
            self.notes.append(f"{entry.path}: {note}")
            return None
        return found

    def _knows_units(self, entry: Original) -> bool:
        """False if these are the kernel's files alone: what is written there, or gone, systemd would set again."""
        try:
            return self._fs.identity(dirname(entry.path))[0] == UNIT_DEVICE
        except KernelError:
            return False

    def _is_waited_for_in_vain(self, entry: Original) -> bool:
        """True of what only systemd could give back, once it has not answered in this run."""
        if self._no_answer is None or entry.identity[0] != UNIT_DEVICE:
            return False
        self._not_tried(entry, f"systemd does not answer ({self._no_answer.path})")
        return True

    def _not_tried(self, entry: Original, why: str) -> None:
        self._add(self.failed, entry, note=f"not tried: {why}")
        self.notes.append(f"{entry.path}: not given back, not tried: {why}")

    def _gone(self, entry: Original) -> None:
        if self._is_waited_for_in_vain(entry):
            return
        try:
            if isinstance(self._fs, Lasting) and self._fs.give_back_absent(entry.path, entry.text):
                note = "it does not run; systemd was told to start it with what it had"
                self._add(self.restored, entry, now=entry.text, note=note)
                return
        except KernelError as exc:
            if isinstance(exc, NoAnswer):
                self._no_answer = exc
            self._add(self.failed, entry, note=str(exc))
            return
        self._add(self.gone, entry, note="the cgroup, or its controller, is gone")

    def _is_own(self, entry: Original, found: str) -> bool:
        intents = self._journal.intents(entry.path)
        if is_own(entry.path, found, entry.text, intents):
            return True
        if basename(entry.path) not in EMPTY_ALLOWED:
            return False
        around = parent_list(self._fs, entry.path)
        if not entry.text:  # what an interrupted restore leaves where it could not empty the file
            return found == around
        is_v1 = not self._fs.exists(f"{entry.path}.effective")
        return is_v1 and any(is_what_is_left(text, found, around) for text in (entry.text, *intents))

    def _write(self, entry: Original, found: str) -> None:
        if self._is_waited_for_in_vain(entry):
            return
        try:
            if not is_original(entry.path, entry.raw, self._fs.read(entry.path)):  # widening may have done it
                now = put(self._fs, entry.path, entry.raw, entry.identity)
            else:
                now = entry.text
        except Gone:
            self._gone(entry)
            return
        except (KernelError, ParseError) as exc:
            if isinstance(exc, NoAnswer):
                self._no_answer = exc
            left = self._what_is_left(entry, found) if isinstance(exc, Invalid | Denied) else ""
            note = f"{exc}; {left}" if left else str(exc)
            self._add(self.failed, entry, found, note=note)
            self.notes.append(f"{entry.path}: not given back: {note}")
            return
        if is_original(entry.path, entry.raw, f"{now}\n".encode()):
            self._add(self.restored, entry, found, now)
        elif is_free(self._fs, entry.path, entry.text, now):
            note = (
                f"equal in effect: a populated group cannot be emptied, it has all CPUs of its parent ({now})"
            )
            self._add(self.restored, entry, found, now, note)
            self.notes.append(f"{entry.path}: {note}")
        else:
            note = f"not given back: {entry.text!r} was written and {now!r} is read"
            self._add(self.failed, entry, found, now, note)
            self.notes.append(f"{entry.path}: {note}")

    def _what_is_left(self, entry: Original, found: str) -> str:
        """Cgroup v1 takes no CPU that is switched off: give back those that are on. Says so; empty: it was not that."""
        if basename(entry.path) not in EMPTY_ALLOWED or not entry.text:
            return ""
        try:
            want, around = CpuSet.parse(entry.text), CpuSet.parse(parent_list(self._fs, entry.path))
            if not want & around or want <= around:
                return ""
            if want & around != CpuSet.parse(found):
                self._journal.intend([(entry.path, str(want & around))])
                put(self._fs, entry.path, f"{want & around}\n".encode(), entry.identity)
        except (KernelError, ParseError):
            return ""
        return f"it has {want & around} of {want} now; the rest can be given back when {want - around} is there again"

    def _give_back_lists(self, entries: Iterable[Original]) -> None:
        """CPU sets, or memory nodes: from the top to old and new together, then from the bottom to the originals.

        Those without an original value come last, from the top: what they get depends on their parents'.
        """
        entries = list(entries)
        due = [(entry, found) for entry in entries if (found := self._due(entry)) is not None]
        due += self._copies_below(entries)
        due.sort(key=lambda item: item[0].path.count("/"))
        valued = [(entry, found) for entry, found in due if entry.text]
        for entry, found in valued:
            if self._fs.exists(f"{entry.path}.effective"):
                continue  # v2 lets a child name CPUs that its parent lacks: no need to widen
            self._widen(entry, found)
        # From the bottom; of those at one depth the newest first: an LRA's own CPUs were confined last.
        for entry, found in sorted(valued, key=lambda item: -item[0].path.count("/")):
            self._write(entry, found)
        for entry, found in due:
            if not entry.text:
                self._write(entry, found)

    def _copies_below(self, entries: Sequence[Original]) -> Iterator[tuple[Original, str]]:
        """Lists of groups that were made below these while they were confined, as originals, with what they read.

        Nothing needs to go on record for them: what is above stays there until they have theirs.
        """
        left = {report.path for report in (*self.foreign, *self.failed, *self.gone)}
        known = {entry.path for entry in entries}
        for entry in entries:
            directory, name = dirname(entry.path), basename(entry.path)
            is_below = f"{dirname(directory)}/{name}" in known
            if is_below or entry.path in left or self._fs.exists(f"{entry.path}.effective"):
                continue  # v2: see ``below``
            with suppress(KernelError):
                top = FileState(entry.path, read_text(self._fs, entry.path), entry.text)
                for item in look_below(self._fs, self._journal, top):
                    path, original = item.file.path, item.file.original or ""
                    if item.is_copy and not same(path, original, item.file.now):
                        raw = f"{original}\n".encode()
                        made = replace(entry, path=path, raw=raw, identity=item.identity)
                        yield made, item.file.now

    def _widen(self, entry: Original, found: str) -> None:
        try:
            have, want = CpuSet.parse(found), CpuSet.parse(entry.text)
            want = (
                want & CpuSet.parse(parent_list(self._fs, entry.path)) or want
            )  # what is switched off is refused
            if want <= have:
                return
            if str(have | want) != entry.text:
                with suppress(KernelError):  # lost only if this restore is cut short here as well
                    self._journal.intend([(entry.path, str(have | want))])
            write_within(self._fs, entry.path, f"{have | want}\n".encode(), entry.identity)
        except (KernelError, ParseError):
            return  # the write of the original itself will say what is wrong

    def _add(
        self, where: list[FileReport], entry: Original, found: str = "", now: str = "", note: str = ""
    ) -> None:
        where.append(FileReport(entry.path, entry.workload, entry.knob, entry.text, found, now, note))
