"""Restores every file's original value, from the journal alone: after a stop, a crash or kill -9, or by ``perphd
restore``.

Needs no daemon. Each value is verified by reading it back. A value that is neither the original nor one that perphd
wrote was set by another program and is left alone.

One exception to byte identity: a cgroup v2 ``cpuset.cpus`` that was empty cannot be emptied while the cgroup has
processes (ENOSPC). It gets all CPUs of its parent and those that are offline, which is equivalent, and the report says
so.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from posixpath import basename, dirname

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Denied, Gone, Invalid, KernelError, ParseError, PerphError
from perphd.host.cgroup import discover
from perphd.host.cgroup.group import parent_list
from perphd.host.cgroup.knobs import EMPTY_ALLOWED, same
from perphd.host.cgroup.lines import is_keyed
from perphd.host.egress_fs import EgressFs, is_egress
from perphd.host.fs import KernelFs, read_text, text_or_empty, write_within
from perphd.host.systemd_bus import BusctlBus, NoAnswer
from perphd.host.systemd_fs import is_running_kernel, unit_files
from perphd.isolation.backends import Backends
from perphd.isolation.backends.cgroupfs import (
    is_free,
    is_original,
    is_own,
    is_what_is_left,
    put,
    without_gone_disks,
)
from perphd.isolation.backends.resctrl import ResctrlGroups, is_group
from perphd.isolation.backends.systemd import was_set_through_systemd
from perphd.isolation.descendants import descendant_lists, is_untouched
from perphd.isolation.instances import InstanceRegister, open_originals
from perphd.isolation.journal import FILE, Journal
from perphd.isolation.journal_format import COPY, Original
from perphd.isolation.planner import FileState
from perphd.isolation.restore_report import FileReport, Outcome, RestoreReport

_CALIBRATION = "calibration"


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
    """Restore everything in this state directory's journal and close the restored records. Idempotent.

    Args:
        fs: the kernel's files.
        state_dir: the directory of the journal.
        force: also overwrite values that another program has set since.
        boot_id: identity of this boot; None reads it from the kernel.
        but: names of workloads that keep their settings if the previous perphd ended with ``Journal.keep``.
        ignore_lock: remove resctrl groups although another program holds resctrl's lock. The kernel serialises changes,
            so its state stays consistent; a program that reads several files under the lock may see a mixture.
        units: False if the caller will not ask systemd afterwards: settings made through systemd are then restored
            even for the workloads in ``but``.

    Raises:
        JournalInUse: a live perphd holds the journal (its pid is named).
        PerphError: the journal cannot be read.
    """
    register = InstanceRegister() if is_running_kernel(fs) else None
    if register is not None:
        # Command-line tools (busctl, tc) instead of libraries: this must work with the distribution's packages.
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
        except KernelError:  # the mark cannot be removed (full disk), so restore everything
            kept = ()
        # Remove resctrl groups even of kept workloads, since others may share them; they are recreated when wanted.
        # Restore settings made through systemd if the caller will not ask systemd.
        originals = [
            entry
            for entry in journal.originals.values()
            if entry.workload not in kept or is_group(entry) or (was_set_through_systemd(entry) and not units)
        ]
        is_everything = len(originals) == len(journal.originals)
        report = restore_journal(fs, journal, originals, force, ignore_lock)
        if register is not None and is_everything and report.complete:
            register.forget(str(state_dir))
        notes = (*report.notes, *_swept(fs, register, state_dir, journal.originals))
        return _without_calibration(fs, replace(report, notes=notes), ignore_lock)


def restore_each(
    fs: KernelFs, state_dirs: Sequence[str], force: bool = False, ignore_lock: bool = False
) -> RestoreReport:
    """``restore`` of all these state directories, combined into one report.

    A journal that is in use or unreadable counts as a failure among the others.

    Raises:
        PerphError: the only directory's journal is in use or unreadable.
    """
    if len(state_dirs) == 1:
        return restore(fs, state_dirs[0], force, ignore_lock=ignore_lock)
    reports: list[RestoreReport] = []
    for state_dir in state_dirs:
        try:
            reports.append(restore(fs, state_dir, force, ignore_lock=ignore_lock))
        except PerphError as exc:
            failed = FileReport(str(Path(state_dir, FILE)), "", "journal", "", note=str(exc))
            reports.append(RestoreReport(failed=(failed,), notes=(str(exc),)))
    return RestoreReport.merged(reports)


def _swept(
    fs: KernelFs, register: InstanceRegister | None, state_dir: str | Path, recorded: Iterable[str]
) -> Sequence[str]:
    """Remove traffic classes that no journal records, as after a lost journal; returns messages about problems."""
    others = () if register is None else register.others(str(state_dir))
    everybodys = (*recorded, *(path for other in others for path in open_originals(other.state_dir)))
    if isinstance(fs, EgressFs) and not any(is_egress(path) for path in everybodys):
        try:
            fs.sweep()
        except KernelError as exc:
            return (f"perphd's traffic classes may remain (see tc qdisc and /sys/fs/bpf/perphd): {exc}",)
    return ()


def _without_calibration(fs: KernelFs, report: RestoreReport, ignore_lock: bool) -> RestoreReport:
    """Remove the groups of a killed calibration and add them to the report."""
    reports = [report]
    for path, outcome, note in ResctrlGroups(fs, ignore_lock).remove_calibrations():
        file = (FileReport(path, "", _CALIBRATION, "", note=note),)
        if outcome == "restored":
            reports.append(RestoreReport(restored=file))
        else:
            reports.append(RestoreReport(failed=file, notes=(f"{path}: not removed: {note}",)))
    return RestoreReport.merged(reports)


def restore_journal(
    fs: KernelFs,
    journal: Journal,
    originals: Sequence[Original],
    force: bool = False,
    ignore_lock: bool = False,
) -> RestoreReport:
    """Restore these originals of an open journal and close them."""
    run = _Run(fs, journal, force, ignore_lock)
    run.give_back(originals)
    run.tidy_up()
    notes = [*journal.notes, *run.notes]
    try:
        journal.close_out(report.path for report in run.settled())
    except KernelError as exc:
        notes.append(f"the values are restored, but the journal could not be updated: {exc}")
    return RestoreReport(**{name: tuple(files) for name, files in run.files.items()}, notes=tuple(notes))


def _emptied_below(units: Sequence[Original], direct: Sequence[Original]) -> list[Original]:
    """Lists inside a restored unit that were originally empty; their values depend on the unit's."""
    above = tuple({f"{dirname(entry.path)}/" for entry in units if basename(entry.path) in EMPTY_ALLOWED})
    lists = (entry for entry in direct if basename(entry.path) in EMPTY_ALLOWED and not entry.text)
    return [entry for entry in lists if entry.path.startswith(above)]


class _Run:
    """One pass over the originals; collects the outcome of every file."""

    def __init__(self, fs: KernelFs, journal: Journal, force: bool, ignore_lock: bool) -> None:
        self._fs, self._journal, self._force = fs, journal, force
        self._backends, self._groups = Backends(fs), ResctrlGroups(fs, ignore_lock)
        self.files: dict[Outcome, list[FileReport]] = {
            "restored": [],
            "already": [],
            "gone": [],
            "foreign": [],
            "failed": [],
        }
        self.notes: list[str] = []
        self._no_answer: NoAnswer | None = None

    def give_back(self, originals: Sequence[Original]) -> None:
        """Restore in reverse order of first writes, direct writes before those through systemd.

        If systemd does not answer, only its own units are affected. The run waits for it once; its remaining units fail
        at once and stay on record.
        """
        newest_first = sorted(originals, key=lambda entry: entry.sequence, reverse=True)
        for entry in [entry for entry in newest_first if is_group(entry)]:
            self._remove_group(entry)
            newest_first.remove(entry)
        units = [entry for entry in newest_first if was_set_through_systemd(entry)]
        direct = [entry for entry in newest_first if not was_set_through_systemd(entry)]
        below = _emptied_below(units, direct)
        self._give_back_files([entry for entry in direct if entry not in below])
        self._give_back_files(units)
        stuck = tuple(
            f"{dirname(file.path)}/" for file in self.files["failed"] if basename(file.path) in EMPTY_ALLOWED
        )
        self._give_back_files([entry for entry in below if not entry.path.startswith(stuck)])
        for entry in below:
            if entry.path.startswith(stuck):
                self._not_tried(entry, "its value depends on the unit above it, which is not restored")

    def _give_back_files(self, entries: Sequence[Original]) -> None:
        """Restore files, CPU and memory-node lists last and together.

        On v1 the lists of parents and children constrain each other, regardless of the order of first writes.
        """
        for recorded in entries:
            entry = self._without_gone_disks(recorded)
            if basename(entry.path) not in EMPTY_ALLOWED and (found := self._due(entry)) is not None:
                self._write(entry, found)
        for name in ("cpuset.mems", "cpuset.cpus"):
            self._give_back_lists([entry for entry in entries if basename(entry.path) == name])

    def _without_gone_disks(self, entry: Original) -> Original:
        now = text_or_empty(self._fs, entry.path) if is_keyed(entry.path) else entry.text
        left = without_gone_disks(self._fs, entry.path, entry.text, now)
        return entry if left == entry.text else replace(entry, raw=f"{left}\n".encode())

    def settled(self) -> list[FileReport]:
        """The originals to close in the journal."""
        # A knob is closed as a whole: restoring cpu.idle later would reset its weight again.
        unsettled = {
            (report.workload, report.knob) for report in (*self.files["failed"], *self.files["foreign"])
        }
        done = (*self.files["restored"], *self.files["already"], *self.files["gone"])
        return [report for report in done if (report.workload, report.knob) not in unsettled]

    def tidy_up(self) -> None:
        """Remove helper objects of a restored setting. On failure the original stays on record."""
        for report in self.settled():
            if why := self._backends.of(report.path).tidy(report.path):
                for files in self.files.values():
                    if report in files:
                        files.remove(report)
                self.files["failed"].append(replace(report, note=why))
                self.notes.append(f"{report.path}: not restored: {why}")

    def _remove_group(self, entry: Original) -> None:
        outcome, note = self._groups.restore(entry)
        self._add(outcome, entry, note=note)
        if outcome == "failed":
            self.notes.append(f"{entry.path}: not removed: {note}")

    def _due(self, entry: Original) -> str | None:
        """The file's present text if it must be written; None if not, with the outcome recorded."""
        if was_set_through_systemd(entry) and not self._backends.is_units(entry.path):
            note = "it was set through systemd, which tuning.isolation.units forbids here: run perphd restore"
            self._add("failed", entry, note=note)
            self.notes.append(f"{entry.path}: not restored: {note}")
            return None
        try:
            if self._fs.identity(dirname(entry.path)) != entry.identity:
                self._add("gone", entry, note="another cgroup now has this path")
                return None
            raw = self._fs.read(entry.path)
        except Gone:
            self._gone(entry)
            return None
        except KernelError as exc:
            self._add("failed", entry, note=str(exc))
            return None
        found = raw.decode(errors="replace").rstrip("\n")
        if is_original(entry.path, entry.raw, raw) or is_untouched(self._journal, entry):
            self._add("already", entry, found, found)
            return None
        if not self._force and not self._is_own(entry, found):
            note = f"set to {found!r} by another program, left alone (original: {entry.text!r})"
            self._add("foreign", entry, found, found, note)
            self.notes.append(f"{entry.path}: {note}")
            return None
        return found

    def _is_waited_for_in_vain(self, entry: Original) -> bool:
        """Fail an entry at once if it needs systemd, and systemd has not answered in this run; True if it failed."""
        if self._no_answer is None or not was_set_through_systemd(entry):
            return False
        self._not_tried(entry, f"systemd does not answer ({self._no_answer.path})")
        return True

    def _not_tried(self, entry: Original, why: str) -> None:
        self._add("failed", entry, note=f"not tried: {why}")
        self.notes.append(f"{entry.path}: not restored, because perphd did not try: {why}")

    def _gone(self, entry: Original) -> None:
        if self._is_waited_for_in_vain(entry):
            return
        try:
            if self._backends.of(entry.path).restore_absent(entry.path, entry.text):
                note = "it does not run; systemd will start it with the original value"
                self._add("restored", entry, now=entry.text, note=note)
                return
        except KernelError as exc:
            if isinstance(exc, NoAnswer):
                self._no_answer = exc
            self._add("failed", entry, note=str(exc))
            return
        self._add("gone", entry, note="the cgroup, or its controller, is gone")

    def _is_own(self, entry: Original, found: str) -> bool:
        intents = self._journal.intents(entry.path)
        if is_own(entry.path, found, entry.text, intents):
            return True
        if basename(entry.path) not in EMPTY_ALLOWED:
            return False
        if not entry.text:  # left by an interrupted restore that could not empty the file
            return is_free(self._fs, entry.path, "", found)
        around = parent_list(self._fs, entry.path)
        is_v1 = not self._fs.exists(f"{entry.path}.effective")
        return is_v1 and any(is_what_is_left(text, found, around) for text in (entry.text, *intents))

    def _write(self, entry: Original, found: str) -> None:
        if self._is_waited_for_in_vain(entry):
            return
        try:
            # Widening may have restored it already.
            if not is_original(entry.path, entry.raw, self._fs.read(entry.path)):
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
            self._add("failed", entry, found, note=note)
            self.notes.append(f"{entry.path}: not restored: {note}")
            return
        if is_original(entry.path, entry.raw, f"{now}\n".encode()):
            self._add("restored", entry, found, now)
        elif is_free(self._fs, entry.path, entry.text, now):
            note = f"equivalent: the list of a populated group cannot be emptied, so it holds its parent's ({now})"
            self._add("restored", entry, found, now, note)
            self.notes.append(f"{entry.path}: {note}")
        else:
            note = f"not restored: wrote {entry.text!r} and read back {now!r}"
            self._add("failed", entry, found, now, note)
            self.notes.append(f"{entry.path}: {note}")

    def _what_is_left(self, entry: Original, found: str) -> str:
        """Restore only the CPUs that are online, because cgroup v1 refuses the others.

        Returns a message; empty if offline CPUs were not the problem.
        """
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
        return (
            f"it has {want & around} of {want} now; run perphd restore again when {want - around} is online"
        )

    def _give_back_lists(self, entries: Iterable[Original]) -> None:
        """Restore CPU or memory-node lists: widen to old and new from the top, then set originals from the bottom.

        Lists without an original value come last, from the top, because they depend on their parents'.
        """
        entries = list(entries)
        due = [(entry, found) for entry in entries if (found := self._due(entry)) is not None]
        due += self._copies_below(entries)
        due.sort(key=lambda item: item[0].path.count("/"))
        valued = [(entry, found) for entry, found in due if entry.text]
        for entry, found in valued:
            if self._fs.exists(f"{entry.path}.effective"):
                continue  # v2 accepts CPUs that the parent lacks, so widening is unnecessary
            self._widen(entry, found)
        # Deepest first; at equal depth the newest first, because an LRA's CPUs were confined last.
        for entry, found in sorted(valued, key=lambda item: -item[0].path.count("/")):
            self._write(entry, found)
        for entry, found in due:
            if not entry.text:
                self._write(entry, found)

    def _copies_below(self, entries: Sequence[Original]) -> Iterator[tuple[Original, str]]:
        """Yield descendants that copied a confined list, as originals with their present text.

        They need no record of their own, because their parent stays on record until they are restored.
        """
        left = {report.path for name in ("foreign", "failed", "gone") for report in self.files[name]}
        known = {entry.path for entry in entries}
        for entry in entries:
            directory, name = dirname(entry.path), basename(entry.path)
            is_below = f"{dirname(directory)}/{name}" in known
            if is_below or entry.path in left or self._fs.exists(f"{entry.path}.effective"):
                continue  # v2: new cgroups copy nothing
            with suppress(KernelError):
                top = FileState(entry.path, read_text(self._fs, entry.path), entry.text)
                for item in descendant_lists(self._fs, self._journal, top):
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
            )  # the kernel refuses offline CPUs
            if want <= have:
                return
            if str(have | want) != entry.text:
                with suppress(KernelError):  # needed only if this restore is interrupted, too
                    self._journal.intend([(entry.path, str(have | want))])
            write_within(self._fs, entry.path, f"{have | want}\n".encode(), entry.identity)
        except (KernelError, ParseError):
            return  # writing the original will report the problem

    def _add(self, outcome: Outcome, entry: Original, found: str = "", now: str = "", note: str = "") -> None:
        self.files[outcome].append(
            FileReport(entry.path, entry.workload, entry.knob, entry.text, found, now, note)
        )
