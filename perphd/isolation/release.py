"""Closes journal records while the daemon runs, once their files hold the originals again.

An original may have come back through a plan that no longer wants the setting, a rolled-back transaction, a
restore, or because a process died before its first write. ``restore`` does the restoring itself, with or
without a daemon.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress

from perphd.domain.allocation import KEEP, UNTOUCHED
from perphd.domain.errors import Busy, Gone, KernelError
from perphd.domain.plan import Key, Write
from perphd.domain.workload import WorkloadSpec
from perphd.host.cgroup.group import Knob
from perphd.host.cgroup.knobs import LIST_SETTINGS, Value
from perphd.host.egress_fs import is_egress
from perphd.host.fs import KernelFs, read_text
from perphd.isolation.backends import Backends
from perphd.isolation.backends.cgroupfs import (
    FoundCgroup,
    found_at,
    is_original,
    without_gone_disks,
)
from perphd.isolation.backends.resctrl import is_control_group, is_group
from perphd.isolation.backends.systemd import was_set_through_systemd
from perphd.isolation.caches import Caches
from perphd.isolation.descendants import descendant_lists, is_untouched
from perphd.isolation.journal import Journal
from perphd.isolation.journal_format import Original
from perphd.isolation.knob_states import KnobStates, value_in_force
from perphd.isolation.readback import ReadBack
from perphd.isolation.restore import restore_journal
from perphd.isolation.restore_report import FileReport, RestoreReport
from perphd.isolation.watch import ConflictWatch


class Release:
    """Closes restored originals in the journal and updates ``watch`` and ``knobs``.

    Synchronous: its calls may block in the kernel.
    """

    def __init__(
        self,
        fs: KernelFs,
        backends: Backends,
        journal: Journal,
        read: ReadBack,
        watch: ConflictWatch,
        knobs: KnobStates,
        caches: Caches,
    ) -> None:
        self._fs, self._backends, self._journal, self._read = fs, backends, journal, read
        self._watch, self._knobs, self._caches = watch, knobs, caches

    # -- at the start --------------------------------------------------------------------------------------------

    def forget_unwritten(self) -> None:
        """Close records of a previous process that were never written, or already restored.

        Records of values set through systemd stay, because systemd may still carry out the earlier request.
        """
        groups = self._by_knob().values()
        self._close_out([e.path for group in groups if all(map(self._is_unwritten, group)) for e in group])

    def _is_unwritten(self, entry: Original) -> bool:
        if is_group(entry) or self._persists(entry) or self._place(entry) is not FoundCgroup.SAME:
            return False
        try:
            return is_original(entry.path, entry.raw, self._fs.read(entry.path))
        except KernelError:
            return False

    def _persists(self, entry: Original) -> bool:
        return self._backends.of(entry.path).persists(entry.path)

    def _place(self, entry: Original) -> FoundCgroup:
        return found_at(self._fs, entry.path, entry.identity)

    # -- after a transaction -------------------------------------------------------------------------------------

    def settle(
        self,
        keys: set[Key],
        touched: set[str],
        read_back: Mapping[str, str],
        planned: Mapping[Key, tuple[Knob, Value]],
        late: Write | None,
    ) -> None:
        """Record the values read after a transaction, and close knobs that hold their originals again.

        Args:
            keys: the knobs that were to be written.
            touched: the files that were, or may have been, written.
            read_back: texts already read after the writes.
            planned: the targets of the knobs.
            late: a failed write that may still take effect.
        """
        self._read.forget_around()
        closed: list[str] = []
        for key, entries in self._by_knob().items():
            if key not in keys:
                continue
            vanished = [entry.path for entry in entries if self._is_vanished(entry, read_back)]
            closed += vanished
            for path in vanished:
                self._watch.forget(path)
            group = [entry for entry in entries if entry.path not in vanished]
            written = any(entry.path in touched for entry in group)
            # Do not trust texts of systemd units: a later request for the same unit may have changed them.
            texts = {
                entry.path: read_back[entry.path]
                for entry in group
                if entry.path in read_back and not was_set_through_systemd(entry)
            }
            holds = [
                self._holds_original(entry, written, texts) for entry in group
            ]  # a list, not a generator: every entry must be noted
            if late is not None and key == (late.workload, late.knob):
                self._watch.forget(late.path)  # the next check compares with the intents
            elif all(holds) and not self._has_copies(key, planned):
                closed += [entry.path for entry in group]
                for entry in group:
                    self._watch.forget(entry.path)
                self._knobs.drop(*key)
            elif key in planned:
                self._note(key, planned[key][0], texts)
        self._close_out(closed)

    def _is_vanished(self, entry: Original, read_back: Mapping[str, str]) -> bool:
        """True if the cgroup of this list is gone or was replaced.

        Descendants come and go while a workload is confined, so their records must not accumulate.
        """
        if entry.knob not in LIST_SETTINGS or entry.path in read_back or was_set_through_systemd(entry):
            return False
        return not self._persists(entry) and self._place(entry) in (FoundCgroup.GONE, FoundCgroup.REPLACED)

    def _has_copies(self, key: Key, planned: Mapping[Key, tuple[Knob, Value]]) -> bool:
        """True if a new descendant copied a value that perphd is withdrawing; the next plan corrects it."""
        if key not in planned or planned[key][0].version != 1 or key[1] not in LIST_SETTINGS:
            return False
        knob = planned[key][0]
        with suppress(KernelError):
            top = self._read.file(knob.paths[0], self._fs.identity(knob.directory))
            return any(item.behind for item in descendant_lists(self._fs, self._journal, top))
        return False

    def _note(self, key: Key, knob: Knob, texts: Mapping[str, str]) -> None:
        with suppress(KernelError):
            identity = self._read.identities.get(knob.directory) or self._fs.identity(knob.directory)
            files = [self._read.file(path, identity, texts.get(path)) for path in knob.paths]
            lists = knob.setting in LIST_SETTINGS
            around = self._read.around(knob.directory, knob.paths[0]) if lists else ""
            self._knobs.set(key, value_in_force(knob, files, around))

    def _holds_original(self, entry: Original, written: bool, texts: dict[str, str]) -> bool:
        """True if the file holds its original. ``texts``: known texts by path; texts read here are added."""
        if (text := texts.get(entry.path)) is None:
            try:
                text = texts[entry.path] = read_text(self._fs, entry.path)
            except Gone:
                return not self._persists(entry)
            except KernelError:
                return False
        if written:
            self._watch.wrote(entry.path, entry.identity, text)
        left = without_gone_disks(self._fs, entry.path, entry.text, text)
        raw = entry.raw if left == entry.text else left.encode()
        return is_original(entry.path, raw, text.encode()) or is_untouched(self._journal, entry)

    # -- on demand -----------------------------------------------------------------------------------------------

    def give_back(
        self,
        names: frozenset[str] | None,
        specs: Mapping[str, WorkloadSpec],
        force: bool,
        ignore_lock: bool = False,
        *,
        groups_busy: bool = False,
    ) -> RestoreReport:
        """Restore everything, or only these workloads. ``specs``: those of the last plan.

        ``groups_busy``: resctrl groups are being written; the next plans release these workloads.
        """
        entries = self._journal.originals.values()
        originals = [e for e in entries if names is None or (e.workload in names and not is_control_group(e))]
        if names is not None and not groups_busy:
            with suppress(KernelError):  # the journal then still names the group
                self._caches.release(names, specs)
        report = restore_journal(self._fs, self._journal, originals, force, ignore_lock)
        self._caches.removed(file.path for file in (*report.restored, *report.gone))
        for entry in originals:
            self._watch.forget(entry.path)
            self._knobs.drop(entry.workload, entry.knob)
        self._knobs.given_back(names)
        return report

    def not_given_back(self, names: frozenset[str] | None, why: Busy) -> RestoreReport:
        """The report of ``give_back`` when the kernel is still busy with an earlier write."""
        # A copy, because the earlier write may still close some.
        left = [e for e in list(self._journal.originals.values()) if names is None or e.workload in names]
        failed = tuple(FileReport(e.path, e.workload, e.knob, e.text, note=str(why)) for e in left)
        return RestoreReport(failed=failed, notes=(f"nothing restored: {why}",))

    def left_by_gone(self) -> list[Original]:
        """Traffic classes of cgroups that are gone, which only a full restore would otherwise remove."""
        return [e for e in self._journal.originals.values() if is_egress(e.path) and self._is_gone(e)]

    def _is_gone(self, entry: Original) -> bool:
        """True if the cgroup is gone, or was replaced by one that wants no traffic class."""
        place = self._place(entry)
        if place is not FoundCgroup.REPLACED:
            return place is FoundCgroup.GONE
        return self._knobs.targets.get(entry.workload, UNTOUCHED).egress_max is KEEP

    # -- the record ----------------------------------------------------------------------------------------------

    def _by_knob(self) -> dict[Key, list[Original]]:
        """The originals by workload and setting."""
        found: dict[Key, list[Original]] = defaultdict(list)
        for entry in self._journal.originals.values():
            found[entry.workload, entry.knob].append(entry)
        return found

    def _close_out(self, paths: list[str]) -> None:
        """Close these files, which hold their originals, after removing the settings' helper objects."""
        # Files that fail here stay on record; restore retries and reports them.
        paths = [path for path in paths if not self._backends.of(path).tidy(path)]
        with suppress(KernelError):  # otherwise the journal still names files that hold their originals
            self._journal.close_out(paths)
