"""Journal of original values: the content of each kernel file before perphd's first write, synced to disk before that
write.

Intents are values about to be written. They must survive a killed process but not a power cut, which also ends the
cgroup values. Originals of an earlier boot no longer apply, so their journal is moved aside. ``journal_format`` defines
the lines.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, TypeAlias

from perphd.domain.errors import Busy, KernelError, PerphError, kernel_error
from perphd.host.state_files import sync_directory
from perphd.isolation.journal_format import (
    COPY,
    VERSION,
    JournalCopy,
    Original,
    Record,
    closed_line,
    follow,
    header_line,
    intent_line,
    kept_line,
    numbered,
    original_line,
    parse,
    says_more,
)
from perphd.isolation.journal_lock import JournalInUse, lock

FILE: Final = "originals.jsonl"
ASIDE: Final = "originals.previous-boot.jsonl"
DAMAGED: Final = "originals.damaged.jsonl"
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_KEPT_INTENTS = 16
_COMPACT_ABOVE_BYTES = 1 << 20
"""File size above which the journal is compacted.

After that, it must also have doubled before it is compacted again.
"""
_NOTHING_WRITTEN = "no kernel file is changed while its original cannot be recorded"

Guard: TypeAlias = Callable[[Sequence[Original]], contextlib.AbstractContextManager[object]]


class OriginTaken(Busy):
    """The file is in a group that another instance has changed; other files can still be recorded."""


class Journal:
    """The journal in a state directory (created with mode 0700), locked while this object is open.

    An unwritable directory does not prevent opening, so that observing continues. ``record`` and ``intend`` then raise,
    so that no kernel file is changed unrecorded. Threads may record and close concurrently.

    Args:
        state_dir: the directory, one per host.
        boot_id: identity of this boot; None reads it from the kernel.
        guard: context in which new originals are recorded; it raises KernelError to forbid that.

    Raises:
        JournalInUse: a live process has it open.
        PerphError: a newer version wrote it.
    """

    def __init__(
        self, state_dir: str | Path, *, boot_id: str | None = None, guard: Guard = contextlib.nullcontext
    ) -> None:
        self.state_dir = str(state_dir)
        self._guard = guard
        self._writing = threading.RLock()
        self._boot = this_boot() if boot_id is None else boot_id
        self._originals: dict[str, Original] = {}
        self._intents: dict[str, dict[str, None]] = {}
        self._notes: list[str] = []
        self._sequence = 0
        self._fd = -1
        self._size = 0
        self._compact_above = _COMPACT_ABOVE_BYTES
        self._kept = False
        self.unreadable: KernelError | None = None
        """The reason why the existing journal could not be read.

        Nothing is recorded then, so that it is not overwritten.
        """
        self._copy = JournalCopy(self.state_dir)
        self._lock_fd = lock(self.state_dir)
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> str:
        """Path of the journal's file."""
        return f"{self.state_dir}/{FILE}"

    @property
    def originals(self) -> Mapping[str, Original]:
        """Originals not yet restored, by path, in the order of the first writes."""
        return MappingProxyType(self._originals)

    @property
    def notes(self) -> tuple[str, ...]:
        """Irregularities found when the journal was opened, as sentences."""
        return tuple(self._notes)

    def intents(self, path: str) -> tuple[str, ...]:
        """Values that perphd wrote, or was about to write, to this file; latest last."""
        return tuple(self._intents.get(path, ()))

    def remembers(self, path: str, value: str) -> bool:
        """True if ``intents`` has this value and newer values will not displace it soon."""
        values = self._intents.get(path)
        return values is not None and value in values and 2 * len(values) <= _KEPT_INTENTS

    def record(self, originals: Iterable[Original], intents: Iterable[tuple[str, str]] = ()) -> None:
        """Store originals and intents on disk; returns once the originals would survive a crash.

        A new original of a path replaces the older one.

        Raises:
            KernelError: storing failed; nothing is recorded, and no file may be written.
        """
        with self._writing:
            new = [numbered(entry, self._sequence + n) for n, entry in enumerate(originals, 1)]
            planned = self._fresh(intents, {entry.path for entry in new})
            if not new and not planned:
                return
            lines = [original_line(entry) for entry in new] + [
                intent_line(path, value) for path, value in planned
            ]
            with self._guard(new) if new else contextlib.nullcontext():
                self._append(lines, sync=bool(new))
            if new:
                recorded = dict(self._originals)  # a copy: other threads may be iterating over the old one
                for entry in new:
                    recorded.pop(entry.path, None)
                    recorded[entry.path] = entry
                    self._intents[entry.path] = {}
                self._originals = recorded
            self._sequence += len(new)
            for path, value in planned:
                self._remember(path, value)

    def intend(self, intents: Iterable[tuple[str, str]]) -> None:
        """Append (path, value) pairs that are about to be written; not synced.

        Raises:
            KernelError: see ``record``.
        """
        self.record((), intents)

    def close_out(self, paths: Iterable[str]) -> None:
        """Forget these files, because they are restored or gone. A journal left empty is cut to its header.

        Raises:
            KernelError: the file could not be written. The originals are forgotten in memory nevertheless; a later
                reader finds that the files already hold them.
        """
        with self._writing:
            self._close_out(paths)

    def _close_out(self, paths: Iterable[str]) -> None:
        left = dict(self._originals)
        closed = [path for path in paths if left.pop(path, None) is not None]
        if not closed:
            return
        self._originals = left
        for path in closed:
            self._intents.pop(path, None)
        if self._originals:
            self._append([closed_line(path) for path in closed], sync=False)
            return
        if self._fd < 0:
            self._rewrite()
            return
        header = header_line(self._boot)
        self._copy.shorten(header.encode())
        try:
            os.ftruncate(self._fd, len(header))
            self._size, self._compact_above = len(header), _COMPACT_ABOVE_BYTES
        except OSError as exc:
            raise kernel_error(exc, self.path, "truncate") from exc

    def keep(self) -> None:
        """Mark the settings in force as kept on purpose, so that the next process may adopt them.

        Raises:
            KernelError: the mark could not be written.
        """
        with self._writing:
            if self._originals:
                self._append([kept_line()], sync=False)

    def take_kept(self) -> bool:
        """True if the previous process ended with ``keep``. Removes the mark, so a second call returns False."""
        kept, self._kept = self._kept, False
        if kept:
            self._rewrite()
        return kept

    def close(self) -> None:
        """Close the file and release the lock; may be called twice."""
        self._copy.close()
        for fd in (self._fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock_fd = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- reading -------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        header = header_line(self._boot).encode()
        copy = self._copy.read()
        try:
            data = Path(self.path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            if says_more(copy, b"", header):
                self._use_copy(copy, "it was gone")
                return
            with contextlib.suppress(KernelError):  # the next record retries and reports
                self._rewrite()
            return
        except OSError as exc:
            advice = "its originals cannot be restored, and perphd changes no kernel file"
            self.unreadable = kernel_error(exc, self.path, "read", advice=advice)
            self._notes.append(str(self.unreadable))
            return
        if says_more(copy, data, header):
            if data != copy[: len(data)]:  # not only truncated: keep the content for inspection
                with contextlib.suppress(OSError):
                    Path(f"{self.state_dir}/{DAMAGED}").write_bytes(data)
            self._use_copy(copy, "it was damaged or cut short")
            return
        lines = data.split(b"\n")
        torn = lines.pop()
        records = [(number, parse(line)) for number, line in enumerate(lines, 1)]
        last = parse(torn)
        if last is not None:  # only the newline is missing
            records.append((len(records) + 1, last))
        first = next((record for _, record in records if record and record["kind"] == "header"), None)
        if first is not None and first.get("version") != VERSION:
            raise PerphError(
                f"{self.path}: journal version {first.get('version')!r} is not {VERSION}: "
                "restore with the perphd that wrote it"
            )
        if first is not None and first.get("boot") != self._boot:
            self._set_aside(records)
            with contextlib.suppress(KernelError):
                self._rewrite()
            return
        bad = [number for number, record in records if record is None]
        for _, record in records:
            if record is not None:
                self._replay(record)
                self._kept = record["kind"] == "kept"
        if bad or first is None:
            self._report_damage(data, bad, first is None)
        elif torn and last is None:
            self._notes.append(f"{self.path}: the last line is incomplete; its write was never made")
        if bad or torn or not data.startswith(header):
            with contextlib.suppress(KernelError):  # not essential: retried at the next start
                self._rewrite()
            return
        self._copy.replace(data)
        with contextlib.suppress(OSError):
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            self._size = len(data)

    def _use_copy(self, copy: bytes, why: str) -> None:
        for line in copy.split(b"\n")[:-1]:
            record = parse(line)
            assert record is not None
            self._replay(record)
            self._kept = record["kind"] == "kept"
        self._notes.append(f"{self.path}: {why}; repaired from {COPY}, no original is lost")
        with contextlib.suppress(KernelError):
            self._rewrite()

    def _set_aside(self, records: list[tuple[int, Record | None]]) -> None:
        count = sum(1 for _, record in records if record and record["kind"] == "original")
        with contextlib.suppress(OSError):
            os.rename(self.path, f"{self.state_dir}/{ASIDE}")
        if count:
            self._notes.append(
                f"{self.path}: {count} originals are from an earlier boot, whose cgroup values are gone: "
                f"nothing to restore, kept as {ASIDE}"
            )

    def _report_damage(self, data: bytes, bad: list[int], headless: bool) -> None:
        with contextlib.suppress(OSError):
            Path(f"{self.state_dir}/{DAMAGED}").write_bytes(data)
        what = f"lines {', '.join(map(str, bad))} are damaged" if bad else "the header is missing"
        boot = "; it is assumed to be from this boot" if headless else ""
        self._notes.append(
            f"{self.path}: {what}{boot}: the remaining {len(self._originals)} originals are used, "
            f"files named only in damaged lines are not restored (a copy is kept as {DAMAGED})"
        )

    def _replay(self, record: Record) -> None:
        follow(self._originals, record)
        kind, path = record["kind"], str(record.get("path", ""))
        if kind == "original":
            self._intents[path] = {}
            self._sequence = max(self._sequence, self._originals[path].sequence)
        elif kind == "intent":
            self._remember(path, str(record["value"]))
        elif kind == "closed":
            self._intents.pop(path, None)

    # -- writing -------------------------------------------------------------------------------------------------

    def _fresh(self, intents: Iterable[tuple[str, str]], renewed: set[str]) -> list[tuple[str, str]]:
        """The intents that differ from the latest intent for their file."""
        latest: dict[str, str] = {}
        fresh: list[tuple[str, str]] = []
        for path, value in intents:
            if path not in latest and path not in renewed and self._intents.get(path):
                latest[path] = next(reversed(self._intents[path]))
            if latest.get(path) != value:
                fresh.append((path, value))
                latest[path] = value
        return fresh

    def _remember(self, path: str, value: str) -> None:
        values = self._intents.setdefault(path, {})
        values.pop(value, None)
        values[value] = None
        if len(values) > _KEPT_INTENTS:
            del values[next(iter(values))]

    def _append(self, lines: list[str], sync: bool) -> None:
        if self._fd < 0 or self._size > self._compact_above:
            self._rewrite()
        data = "".join(lines).encode()
        try:
            _write_all(self._fd, data)
            if sync:
                os.fdatasync(self._fd)
        except OSError as exc:
            try:
                os.ftruncate(self._fd, self._size)
            except OSError:
                os.close(self._fd)  # half a line may be left: the next append rewrites the file
                self._fd = -1
            raise kernel_error(exc, self.path, "append", advice=_NOTHING_WRITTEN) from exc
        self._size += len(data)
        self._copy.append(data)

    def _rewrite(self) -> None:
        """Write all known records to a new file and replace the old one; synced before this returns."""
        if self.unreadable is not None:
            raise self.unreadable
        if self._lock_fd < 0:
            try:
                self._lock_fd = lock(self.state_dir)
            except JournalInUse as exc:
                raise Busy(self.path, "lock", errno.EAGAIN, advice=str(exc)) from exc
        lines = [header_line(self._boot)]
        for entry in self._originals.values():
            values = list(self._intents.get(entry.path, ()))[-_KEPT_INTENTS:]
            self._intents[entry.path] = dict.fromkeys(values)
            lines.append(original_line(entry))
            lines += [intent_line(entry.path, value) for value in values]
        data = "".join(lines).encode()
        temporary = f"{self.path}.new"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                _write_all(fd, data)
                os.fsync(fd)
                self._copy.replace(data)
                os.rename(temporary, self.path)
                sync_directory(self.state_dir)
            except OSError:
                os.close(fd)
                raise
        except OSError as exc:
            raise kernel_error(exc, self.path, "write", advice=_NOTHING_WRITTEN) from exc
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size = fd, len(data)
        self._compact_above = max(_COMPACT_ABOVE_BYTES, 2 * len(data))


def this_boot() -> str:
    """Identity of this boot, as read from the kernel."""
    try:
        return Path(BOOT_ID).read_text().strip()
    except OSError:
        return "unknown"


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
