"""One transaction: originals on disk, writes in order, each read back; at the first failure everything is undone.

Runs in a worker thread: it knows nothing of asyncio. It does not decide what to write.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from posixpath import basename, dirname
from types import MappingProxyType

from perphd.domain.errors import Broken, Busy, Gone, KernelError, ParseError
from perphd.domain.plan import Key, Write
from perphd.domain.quick import maker
from perphd.host.cgroup import lines
from perphd.host.cgroup.group import parent_list
from perphd.host.cgroup.knobs import EMPTY_ALLOWED, FOLLOWERS, LIST_SETTINGS, same
from perphd.host.fs import Identity, KernelFs, read_text
from perphd.isolation.below import Below
from perphd.isolation.journal import Journal, Taken
from perphd.isolation.journal_format import Original
from perphd.isolation.value import is_free, is_own, put

_make_original = maker(Original)

log = logging.getLogger("perphd")


@dataclass
class Result:
    """What a transaction did. ``gone``: workloads that vanished meanwhile; ``at_fault``: the write that failed.

    ``too_slow``: it failed by its deadline, before ``at_fault`` was begun.
    ``texts``: what files that were written read afterwards, if nothing was written since that could have changed it.
    """

    written: list[Write] = field(default_factory=list)
    undone: list[Write] = field(default_factory=list)
    failed: KernelError | None = None
    at_fault: Write | None = None
    too_slow: bool = False
    gone: set[str] = field(default_factory=set)
    undo_problems: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)


class Transaction:
    """Applies writes. ``identities``: directory -> the identity it had when the writes were planned.

    ``unrecorded``: lists of groups below those of the knobs, which go on record when those knobs are written, whether
    they are written themselves or not.

    ``deadline_s``: when the writes together take longer (``clock`` counts seconds), the rest is not begun and what was
    done is undone; a single write that blocks in the kernel cannot be cut short, and the first is always begun.
    """

    def __init__(
        self,
        fs: KernelFs,
        journal: Journal,
        identities: Mapping[str, Identity],
        clock: Callable[[], float],
        deadline_s: float,
        unrecorded: Mapping[Key, Sequence[Below]] = MappingProxyType({}),
    ) -> None:
        self._fs, self._journal, self._identities = fs, journal, identities
        self._clock, self._deadline_s = clock, deadline_s
        self._unrecorded = unrecorded
        self._before: list[tuple[Write, list[tuple[str, str]]]] = []
        self._led: set[str] = set()
        self._follow: dict[str, dict[str, tuple[str, ...]]] = {}
        self.result = Result()

    def run(self, writes: Sequence[Write]) -> Result:
        """Do it; raises no KernelError, and no Exception once the first write is begun: that would leave half of it."""
        result = self.result
        try:
            self._record(writes)
        except Taken as exc:
            result.failed, result.at_fault = exc, self._at_fault(exc.path, writes)
            return result
        except KernelError as exc:
            result.failed = exc
            return result
        started = self._clock()
        for write in writes:
            if write.workload in result.gone:
                continue
            if result.written and self._clock() - started > self._deadline_s:
                result.failed, result.too_slow = _too_slow(write, self._deadline_s), True
            else:
                result.failed = self._try(write)
            if result.failed is not None:
                result.at_fault = write
                self._undo()
                break
        for write in writes:
            if write.workload in result.gone:
                result.texts.pop(write.path, None)
        return result

    def _at_fault(self, path: str, writes: Sequence[Write]) -> Write | None:
        """Whose original this would have been: the others need not wait for it."""
        below = {key for key, items in self._unrecorded.items() for item in items if item.file.path == path}
        return next((w for w in writes if w.path == path or w.key in below), None)

    def _try(self, write: Write) -> KernelError | None:
        """Make one write; returns why it could not be made, if its group is still there."""
        try:
            self._one(write)
        except Exception as exc:
            # Whatever it answered: of a group that has gone it was an answer about another one, or about none.
            if not isinstance(exc, KernelError) or not self._is_gone(write):
                return as_failure(exc, write)
            self.result.gone.add(write.workload)
        return None

    def _is_gone(self, write: Write) -> bool:
        """True if the cgroup is not there any more, or another one is; else "gone" was only this file's answer."""
        directory = dirname(write.path)
        try:
            identity = self._fs.identity(directory)
            return identity != self._identities.get(directory, identity)
        except Gone:
            return True
        except KernelError:
            return False

    def _record(self, writes: Sequence[Write]) -> None:
        """Put on disk what is about to be changed for the first time, and what is about to be written."""
        originals: dict[str, Original] = {}
        intents: list[tuple[str, str]] = []
        # Nothing is written meanwhile: one look at each parent, and at each directory, is enough.
        around: dict[str, str] = {}
        checked: dict[str, Identity] = {}
        for key in dict.fromkeys(write.key for write in writes):
            for item in self._unrecorded.get(key, ()):
                with suppress(KernelError):  # gone: if it is to be written, that is found out below
                    self._record_below(key, item, originals, intents)
        for write in writes:
            if write.workload in self.result.gone:
                continue
            try:
                directory = dirname(write.path)
                if directory not in checked:
                    checked[directory] = self._check_identity(write, directory)
                for path in (*self._followers(write.path), write.path):
                    self._original(path, write, checked[directory], originals)
            except Gone:
                self.result.gone.add(write.workload)
                continue
            for path, values in self._followers(write.path).items():
                intents += [(path, value) for value in values]
            if write.path not in originals and (now := self._own_value(write)) is not None:
                intents.append(
                    (write.path, now)
                )  # the journal keeps only so many: it is not to lose this one
            intents.append((write.path, write.value))
            if basename(write.path) in EMPTY_ALLOWED and "" in (write.value, write.before):
                parent = dirname(dirname(write.path))
                if parent not in around:
                    around[parent] = parent_list(self._fs, write.path)
                intents.append((write.path, around[parent]))  # what put may have to do
        # A workload that turned out to be gone midway keeps what was read of it: harmless, closed as gone by restore.
        self._journal.record(originals.values(), intents)

    def _record_below(
        self, key: Key, item: Below, into: dict[str, Original], intents: list[tuple[str, str]]
    ) -> None:
        """A list below goes on record: as it reads, or as that of the group above that it is a copy of.

        Whoever was there before the first write is known by that later, and is not taken for a copy.
        """
        path, raw = item.file.path, self._fs.read(item.file.path)
        if self._fs.identity(dirname(path)) != item.identity:
            return
        if item.file.original is not None and same(path, item.file.now, raw.decode(errors="replace").strip()):
            raw = f"{item.file.original}\n".encode()
            intents.append((path, item.file.now))  # it came from perphd's own value
        into[path] = _make_original(path, raw, item.identity, key[1], key[0])

    def _own_value(self, write: Write) -> str | None:
        """What is in force on the file, if that is perphd's: however many attempts at another value failed since."""
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
        if path not in into and (known is None or known.identity != identity):
            into[path] = _make_original(path, self._fs.read(path), identity, write.knob, write.workload)

    def _check_identity(self, write: Write, directory: str) -> Identity:
        identity = self._fs.identity(directory)
        if identity != self._identities.get(directory, identity):
            raise Gone(
                write.path, "write", errno.ESTALE, write.value, advice="another cgroup has this path now"
            )
        return identity

    def _followers(self, path: str) -> dict[str, tuple[str, ...]]:
        """Files that the kernel changes by itself when this one is written, with the values it may choose."""
        known = self._follow.get(path)
        if known is None:
            candidates = FOLLOWERS.get(path.rpartition("/")[2])
            if candidates is None:
                known = self._follow[path] = {}
                return known
            paths = {f"{dirname(path)}/{name}": values for name, values in candidates.items()}
            known = {path: values for path, values in paths.items() if self._fs.exists(path)}
            self._follow[path] = known
        return known

    def _one(self, write: Write) -> None:
        # Looked at when it was recorded, and by the write itself; not by a file that may turn out to need no write.
        identity = self._identities.get(dirname(write.path))
        if identity is None or lines.is_keyed(write.path):
            identity = self._check_identity(write, dirname(write.path))
        found = read_text(self._fs, write.path)
        if write.path not in self._led and not same(write.path, write.before, found):
            detail = f"it reads {found!r} and no longer {write.before!r}"
            raise Busy(
                write.path, "write", errno.EAGAIN, write.value, detail, "planned anew at the next tick"
            )
        followers = [(path, read_text(self._fs, path)) for path in self._followers(write.path)]
        self._before.append((write, [(write.path, found), *followers]))
        self._led.update(path for path, _ in followers)
        for path, _ in followers:
            self.result.texts.pop(path, None)
        now = self._put(write.path, write.value, identity)
        if not same(write.path, write.value, now) and not is_free(self._fs, write.path, write.value, now):
            detail, advice = (
                f"it reads {now!r} after the write",
                "something else sets this file, or limits it",
            )
            raise Broken(write.path, "write", errno.EIO, write.value, detail, advice)
        self.result.written.append(write)
        self.result.texts[write.path] = now

    def _put(self, path: str, text: str, identity: Identity | None) -> str:
        try:
            return put(self._fs, path, f"{text}\n".encode(), identity)
        except ParseError as exc:
            raise Broken(path, "write", errno.EINVAL, text, str(exc)) from exc

    def _undo(self) -> None:
        """Put back what every touched file held, newest first; a failing one is left to the journal.

        Needs no intents: what a file held is its original, or was written by perphd, or is somebody else's.
        """
        self.result.texts.clear()
        written = set(self.result.written)
        stuck = ""
        for write, before in reversed(self._before):
            if self._is_gone(write):
                continue  # what is there now was never changed
            if write.knob in LIST_SETTINGS and stuck not in ("", write.workload):
                # CPUs that one cannot give up are not shared out among others: LRAs are narrowed last, undone first.
                told = (
                    f"{write.path}: not undone, since {stuck} could not be: perphd restore will give it back"
                )
                self.result.undo_problems.append(told)
                continue
            try:
                for path, text in before:
                    if self._reads(path) != text and not (
                        path != write.path and self._is_led_now(write.path)
                    ):
                        self._put(path, text, self._identities.get(dirname(path)))
                if write in written:
                    self.result.undone.append(write)
            except Exception as exc:  # whatever it is, the others are to be undone
                stuck = write.workload if write.knob in LIST_SETTINGS else stuck
                why = as_failure(exc, write)
                self.result.undo_problems.append(f"not undone, perphd restore will give it back: {why}")

    def _reads(self, path: str) -> str | None:
        """What a file reads; None: it cannot be told, which does not mean that it cannot be written."""
        try:
            return read_text(self._fs, path)
        except KernelError:
            return None

    def _is_led_now(self, leader: str) -> bool:
        """True while the leader (cpu.idle = 1) forbids writing its followers."""
        return read_text(self._fs, leader) == "1"


def _too_slow(write: Write, deadline_s: float) -> Busy:
    return Busy(
        write.path,
        "write",
        errno.ETIMEDOUT,
        write.value,
        f"the transaction took longer than {deadline_s:g} s before this was begun",
        "the kernel was slow to answer earlier writes; what they did is undone, and made again fewer at a time",
    )


def as_failure(exc: Exception, write: Write) -> KernelError:
    """What a write ended with: the kernel's refusal, or an error that nobody expected, which is logged in full."""
    if isinstance(exc, KernelError):
        return exc
    log.error("%s: writing %r ended unexpectedly", write.path, write.value, exc_info=exc)
    detail = f"{type(exc).__name__}: {exc}"
    advice = "perphd did not expect this; the log has where it comes from"
    return Broken(write.path, "write", errno.EIO, write.value, detail, advice)
