"""Writes files as one transaction: records originals, then writes each file and reads it back.

``engine`` makes the writes in order and rolls all of them back at the first failure.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from posixpath import dirname
from types import MappingProxyType

from perphd.domain.errors import Broken, Busy, Gone, KernelError, ParseError
from perphd.domain.plan import Key, Write
from perphd.domain.quick import maker
from perphd.host.cgroup import lines
from perphd.host.cgroup.group import whole_list
from perphd.host.cgroup.knobs import EMPTY_ALLOWED, FOLLOWERS, LIST_SETTINGS, same
from perphd.host.fs import Identity, KernelFs, as_text, hold, read_text
from perphd.host.systemd_fs import UNIT_DEVICE
from perphd.isolation.backends.cgroupfs import FoundCgroup, found_at, is_free, is_own, put
from perphd.isolation.descendants import DescendantList
from perphd.isolation.engine import Keep, NotRolledBack, Result, make_all
from perphd.isolation.journal import Journal, OriginTaken
from perphd.isolation.journal_format import Original

_make_original = maker(Original)


class Transaction:
    """Applies writes.

    ``identities``: identity of each directory when the writes were planned. ``unrecorded``: descendants' lists to be
    recorded when their knobs are written. ``adopted``: files whose present values are recorded as their originals, even
    if others are on record. ``deadline_s``: total time in seconds of ``clock``; once it has passed,
    remaining writes are not started and the done ones are rolled back. The first write is always started, and a write
    blocked in the kernel cannot be interrupted.
    """

    def __init__(
        self,
        fs: KernelFs,
        journal: Journal,
        identities: Mapping[str, Identity],
        clock: Callable[[], float],
        deadline_s: float,
        unrecorded: Mapping[Key, Sequence[DescendantList]] = MappingProxyType({}),
        adopted: Container[str] = (),
    ) -> None:
        self._fs, self._journal, self._identities = fs, journal, identities
        self._clock, self._deadline_s = clock, deadline_s
        self._unrecorded, self._adopted = unrecorded, adopted
        self._started_s = 0.0
        self._stuck = ""
        self._led: set[str] = set()
        self._follow: dict[str, dict[str, tuple[str, ...]]] = {}
        self.result = Result()

    def run(self, writes: Sequence[Write]) -> Result:
        """Execute the writes.

        Raises no KernelError, and no Exception after the first write, since that would leave the transaction half done.
        """
        result = self.result
        try:
            self._record(writes)
        except OriginTaken as exc:
            result.failed, result.at_fault = exc, self._at_fault(exc.path, writes)
            return result
        except KernelError as exc:
            result.failed = exc
            return result
        self._started_s = self._clock()
        make_all(self, writes, result)
        for write in writes:
            if write.workload in result.gone:
                result.texts.pop(write.path, None)
        return result

    def _at_fault(self, path: str, writes: Sequence[Write]) -> Write | None:
        """The write whose original could not be recorded; other writes need not wait for it."""
        below = {key for key, items in self._unrecorded.items() for item in items if item.file.path == path}
        return next((w for w in writes if w.path == path or w.key in below), None)

    # -- for the engine ------------------------------------------------------------------------------------------

    def scope(self, write: Write) -> str:
        """All files are one scope."""
        return ""

    def hindrance(self, write: Write) -> KernelError | None:
        """The deadline, once it has passed and a write was made."""
        result = self.result
        if not result.written or self._clock() - self._started_s <= self._deadline_s:
            return None
        result.too_slow = True
        return _too_slow(write, self._deadline_s)

    def failed(self, write: Write, error: KernelError) -> bool:
        """Forget the texts read back, which the rollback changes. False: all files are one scope, so none is left."""
        self.result.texts.clear()
        return False

    def is_gone(self, write: Write) -> bool:
        """True if the cgroup is gone or was replaced, or the unit has stopped; else only this file is missing."""
        directory = dirname(write.path)
        is_unit = self._identities.get(directory, (0, 0))[0] == UNIT_DEVICE
        return self._is_another(write) or (is_unit and not self._fs.exists(directory))

    def _is_another(self, write: Write) -> bool:
        """True if the cgroup is gone or was replaced. A unit stays the same while it is stopped."""
        known = self._identities.get(dirname(write.path))
        return found_at(self._fs, write.path, known) in (FoundCgroup.GONE, FoundCgroup.REPLACED)

    # -- recording -----------------------------------------------------------------------------------------------

    def _record(self, writes: Sequence[Write]) -> None:
        """Store originals of files written for the first time, and all intents, on disk."""
        originals: dict[str, Original] = {}
        intents: list[tuple[str, str]] = []
        # Nothing is written meanwhile, so each directory and parent's list is read once.
        around: dict[str, str] = {}
        checked: dict[str, Identity] = {}
        for key in dict.fromkeys(write.key for write in writes):
            for item in self._unrecorded.get(key, ()):
                with suppress(KernelError):  # the group is gone; the write detects that below
                    self._record_below(key, item, originals, intents)
        for write in writes:
            path, gone = write.path, self.result.gone
            if write.workload in gone:
                continue
            directory, _, name = path.rpartition("/")
            followers = self._followers(path)
            try:
                identity = checked.get(directory)
                if identity is None:
                    identity = checked[directory] = self._check_identity(write, directory)
                for led in followers:
                    self._original(led, write, identity, originals)
                self._original(path, write, identity, originals)
            except Gone:
                gone.add(write.workload)
                continue
            for led, values in followers.items():
                if led in originals or not all(self._journal.remembers(led, value) for value in values):
                    intents += [(led, value) for value in values]
            now = self._own_value(write) if path not in originals else None
            if now is not None and not self._journal.remembers(path, now):
                intents.append((path, now))  # the journal keeps a limited number of intents
            intents.append((path, write.value))
            if name in EMPTY_ALLOWED and "" in (write.value, write.before):
                above = f"{dirname(directory)}/{name}"
                if above not in around:
                    around[above] = whole_list(self._fs, path)
                intents.append((path, around[above]))  # put may fall back to this value
        # Originals read from a workload that vanished midway are harmless; restore closes them as gone.
        self._journal.record(originals.values(), intents)

    def _record_below(
        self, key: Key, item: DescendantList, into: dict[str, Original], intents: list[tuple[str, str]]
    ) -> None:
        """Record a descendant's list: its text, or its parent's original if it is a copy.

        Recording it now distinguishes it from copies made after the first write.
        """
        path, raw = item.file.path, self._fs.read(item.file.path)
        if self._fs.identity(dirname(path)) != item.identity:
            return
        if item.file.original is not None and same(path, item.file.now, raw.decode(errors="replace").strip()):
            raw = f"{item.file.original}\n".encode()
            intents.append((path, item.file.now))  # derived from perphd's own value
        into[path] = _make_original(path, raw, item.identity, key[1], key[0])

    def _own_value(self, write: Write) -> str | None:
        """The value of perphd that is in force in the file; None if there is none."""
        values = self._journal.intents(write.path)
        for value in reversed(values):
            if same(write.path, value, write.before):
                return value
        original = self._journal.originals.get(write.path)
        if original is None or not values or not lines.is_keyed(write.path):
            return None
        return write.before if is_own(write.path, write.before, original.text, values) else None

    def _original(self, path: str, write: Write, identity: Identity, into: dict[str, Original]) -> None:
        known = self._journal.originals.get(path)
        if path not in into and (known is None or known.identity != identity or path in self._adopted):
            into[path] = _make_original(path, self._fs.read(path), identity, write.knob, write.workload)

    def _check_identity(self, write: Write, directory: str) -> Identity:
        identity = self._fs.identity(directory)
        if identity != self._identities.get(directory, identity):
            raise Gone(
                write.path, "write", errno.ESTALE, write.value, advice="another cgroup now has this path"
            )
        return identity

    def _followers(self, path: str) -> dict[str, tuple[str, ...]]:
        """Files that the kernel changes when this one is written, with the possible values."""
        known = self._follow.get(path)
        if known is None:
            candidates = FOLLOWERS.get(path.rpartition("/")[2])
            if candidates is None:
                known = self._follow[path] = {}
                return known
            directory = dirname(path)
            paths = {f"{directory}/{name}": values for name, values in candidates.items()}
            known = {led: values for led, values in paths.items() if self._fs.exists(led)}
            self._follow[path] = known
        return known

    # -- writing -------------------------------------------------------------------------------------------------

    def make(self, write: Write, keep: Keep) -> None:
        """Write one value, and read it back."""
        path, keyed = write.path, lines.is_keyed(write.path)
        directory = path.rpartition("/")[0]
        identity = self._identities.get(directory)
        if identity is None or keyed:
            # A line-based file may need no write, and then nothing else checks the directory's identity.
            identity = self._check_identity(write, directory)
        file = None if keyed or not write.value else hold(self._fs, path, identity)
        if file is None:
            self._about_to_write(write, read_text(self._fs, path), keep)
            now = self._put(path, write.value, identity)
        else:
            with closing(file):
                self._about_to_write(write, as_text(file.read()), keep)
                file.write(f"{write.value}\n".encode())
                now = as_text(file.read())
        if not same(path, write.value, now) and not is_free(self._fs, path, write.value, now):
            detail, advice = (
                f"it reads {now!r} after the write",
                "another program sets this file, or the kernel limits it",
            )
            raise Broken(path, "write", errno.EIO, write.value, detail, advice)
        self.result.texts[path] = now

    def _about_to_write(self, write: Write, found: str, keep: Keep) -> None:
        """Keep what this write will change, for the rollback; raises Busy if it is not as planned."""
        if write.path not in self._led and not same(write.path, write.before, found):
            detail = f"it reads {found!r} instead of {write.before!r}"
            raise Busy(
                write.path, "write", errno.EAGAIN, write.value, detail, "planned again at the next tick"
            )
        before = [(write.path, found)]
        for path in self._followers(write.path):
            before.append((path, read_text(self._fs, path)))
            self._led.add(path)
            self.result.texts.pop(path, None)
        keep(partial(self._take_back, write, before))

    def _put(self, path: str, text: str, identity: Identity | None) -> str:
        try:
            return put(self._fs, path, f"{text}\n".encode(), identity)
        except ParseError as exc:
            raise Broken(path, "write", errno.EINVAL, text, str(exc)) from exc

    def _take_back(self, write: Write, before: Sequence[tuple[str, str]]) -> bool:
        """Restore the previous text of every file that this write touched; False if its cgroup was replaced.

        Files that fail stay in the journal. Needs no intents: the previous text is the original, a value that perphd
        wrote, or another program's.
        """
        if self._is_another(write):
            return False  # the replaced cgroup was never changed
        is_list = write.knob in LIST_SETTINGS
        if is_list and self._stuck not in ("", write.workload):
            # Do not assign CPUs that a workload could not release: LRAs are narrowed last and rolled back first.
            told = f"{write.path}: not rolled back, because the rollback of {self._stuck} failed: run perphd restore"
            raise NotRolledBack(told)
        try:
            for path, text in before:
                if self._reads(path) != text and not (path != write.path and self._is_led_now(write.path)):
                    self._put(path, text, self._identities.get(dirname(path)))
        except Exception:
            self._stuck = write.workload if is_list else self._stuck
            raise
        return True

    def _reads(self, path: str) -> str | None:
        """Content of a file; None if it cannot be read, although it may still be writable."""
        try:
            return read_text(self._fs, path)
        except KernelError:
            return None

    def _is_led_now(self, leader: str) -> bool:
        """True while the leading file (cpu.idle = 1) forbids writing its followers."""
        return read_text(self._fs, leader) == "1"


def _too_slow(write: Write, deadline_s: float) -> Busy:
    return Busy(
        write.path,
        "write",
        errno.ETIMEDOUT,
        write.value,
        f"the transaction took longer than {deadline_s:g} s before this write was started",
        "the kernel was slow: earlier writes are rolled back and repeated in smaller transactions",
    )
