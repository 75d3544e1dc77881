"""One control group, one perphd: what another has on record in a group is nobody else's to change.

What it reads there is no original: if two recorded the same file, whoever gave back last would leave the other's value
behind for good. Two perphds on one host are fine as long as each has groups of its own, such as a test beside the
service. A group is taken with the first original that is recorded in it, and free when all are given back.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from posixpath import dirname

from perphd.domain.errors import Busy, KernelError
from perphd.host.cgroup import Hierarchies
from perphd.host.fs import Identity, KernelFs
from perphd.isolation.journal import FILE, Taken
from perphd.isolation.journal_format import Original
from perphd.isolation.journal_lock import holder
from perphd.isolation.register import Register, open_originals

_TRIES = 50
_STEP_S = 0.02


@dataclass(frozen=True, slots=True)
class _Claim:
    directory: str
    identity: Identity
    state_dir: str


class Neighbours:
    """What perphds with other state directories than ``state_dir`` have on record on this kernel.

    ``fs`` and ``hierarchies``: those that are written to; ``sleep``: for tests.
    """

    def __init__(
        self,
        state_dir: str,
        fs: KernelFs,
        hierarchies: Hierarchies,
        register: Register | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._state_dir, self._fs, self._sleep = state_dir, fs, sleep
        self._register = Register() if register is None else register
        self._mounts = sorted((h.mount for h in hierarchies.all()), key=len, reverse=True)
        self._seen: tuple[object, ...] = ()
        self._others: tuple[str, ...] = ()
        self._claims: dict[str, set[_Claim]] = {}

    def enter(self, config: str) -> tuple[str, ...]:
        """Let the others know; the state directories of those of which nothing can be known here.

        ``config``: the configuration file. Raises KernelError if that is not possible.
        """
        self._register.enter(self._state_dir, config)
        return tuple(entry.state_dir for entry in self._register.others(self._state_dir) if entry.is_hidden)

    def close(self) -> None:
        """The end of this perphd: what it has not given back stays known to the others."""
        if not open_originals(self._state_dir):
            self._register.forget(self._state_dir)

    def refusal(self, cgroup: str) -> str:
        """Why nothing can be set on this cgroup, or empty."""
        self._look()
        return self._why_taken(cgroup)

    @contextmanager
    def recording(self, originals: Sequence[Original]) -> Iterator[None]:
        """While these are put on record nobody else records anything; theirs are known.

        Raises:
            Taken: one of them lies in a group that another perphd has changed.
            Busy: another perphd is stuck while it records.
        """
        fd = self._lock()
        try:
            self._look(anew=True)
            for original in originals:
                if why := self._why_taken(self._group(original.path)):
                    raise Taken(original.path, "record its original", errno.EBUSY, advice=why)
            yield
        finally:
            if fd >= 0:
                os.close(fd)

    def _lock(self) -> int:
        """-1: there is no register, hence nobody to be known."""
        path = f"{self._register.directory}/lock"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return -1
        for _ in range(_TRIES):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._sleep(_STEP_S)
            else:
                return fd
        os.close(fd)
        advice = "another perphd on this host is stuck while it records originals; this is tried again"
        raise Busy(path, "lock", errno.EAGAIN, advice=advice)

    def _look(self, anew: bool = False) -> None:
        """Read what the others have on record, if it may be another than it was."""
        seen: list[object] = [_changed(self._register.directory)]
        if anew or not self._seen or seen[0] != self._seen[0]:
            self._others = tuple(entry.state_dir for entry in self._register.others(self._state_dir))
        seen += [_changed(f"{state_dir}/{FILE}") for state_dir in self._others]
        if not anew and tuple(seen) == self._seen:
            return
        claims: dict[str, set[_Claim]] = {}
        for state_dir in self._others:
            for original in open_originals(state_dir).values():
                claim = _Claim(dirname(original.path), original.identity, state_dir)
                claims.setdefault(self._group(original.path), set()).add(claim)
        self._seen, self._claims = tuple(seen), claims

    def _group(self, path: str) -> str:
        """The cgroup of a file; of what is no cgroup's, such as a resctrl group, the path itself."""
        for mount in self._mounts:
            if path.startswith(f"{mount}/"):
                return dirname(path[len(mount) :])
        return path

    def _why_taken(self, group: str) -> str:
        for claim in self._claims.get(group, ()):
            if self._is_there(claim):
                pid = holder(claim.state_dir)
                who = f"the perphd with the state directory {claim.state_dir}" + f" (process {pid})" * bool(
                    pid
                )
                return (
                    f"{group} is changed by {who}: stop that one, or leave the group to it; if it does not run any "
                    f"more, perphd restore --state-dir {claim.state_dir} gives back what it left"
                )
        return ""

    def _is_there(self, claim: _Claim) -> bool:
        """False if its group is gone, or another has its path: what was on record ended with it."""
        try:
            return self._fs.identity(claim.directory) == claim.identity
        except KernelError:
            return False


def _changed(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size)
