"""Register of the perphd instances on this kernel, and of the control groups that each has changed.

The register holds one file per state directory in /run/perphd, while an instance uses that directory or has originals
on record there. Originals are therefore found even after ``daemon.state_dir`` changes or the configuration becomes
unreadable. The register is lost at reboot, like the kernel values. Simulated hosts and hosts with ``host.root`` are not
registered.

Several instances may share a host, such as a test beside the service, if their control groups differ. If two recorded
the same file, the last restore would write the other's value. An instance claims a group with the first original that
it records there, and frees it when all are restored.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from posixpath import dirname
from typing import Final, TypeAlias

from perphd.domain.errors import Busy, KernelError, kernel_error
from perphd.host.cgroup import Hierarchies
from perphd.host.fs import Identity, KernelFs
from perphd.isolation.journal import FILE, OriginTaken, this_boot
from perphd.isolation.journal_format import COPY, Original, Record, follow, parse
from perphd.isolation.journal_lock import holder

DIRECTORY = "/run/perphd/journals"
"""Directory of the register; tests use their own."""
_SUFFIX: Final = ".json"
_INTENT: Final = b'{"kind":"intent"'
"""Start of most journal lines; such lines hold no original."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A state directory, its configuration file (empty: none) and the last process that used it."""

    state_dir: str
    config: str
    pid: int = 0

    @property
    def is_hidden(self) -> bool:
        """True if its process is alive and this process cannot see the directory (PrivateTmp=, ProtectHome=)."""
        return self.pid > 0 and os.path.exists(f"/proc/{self.pid}") and not os.path.isdir(self.state_dir)


class InstanceRegister:
    """The register in ``directory``, by default this host's."""

    def __init__(self, directory: str | None = None) -> None:
        self.directory = DIRECTORY if directory is None else directory

    def enter(self, state_dir: str, config: str) -> None:
        """Register an existing state directory as in use.

        Entries whose directory is invisible here stay, because PrivateTmp= and ProtectHome= hide existing directories.

        Raises:
            KernelError: the entry cannot be written.
        """
        entry = Instance(os.path.realpath(state_dir), os.path.abspath(config) if config else "", os.getpid())
        path = self._path(entry.state_dir)
        temporary = f"{path}.new"
        try:
            os.makedirs(os.path.dirname(self.directory), mode=0o755, exist_ok=True)
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            text = json.dumps({"state_dir": entry.state_dir, "config": entry.config, "pid": entry.pid})
            Path(temporary).write_text(f"{text}\n")
            os.rename(temporary, path)
        except OSError as exc:
            advice = "other instances cannot see which files are changed; restore needs --state-dir"
            raise kernel_error(exc, path, "write", advice=advice) from exc

    def forget(self, state_dir: str) -> None:
        """Remove the entry of a directory that has nothing left to restore."""
        with suppress(OSError):  # a stale entry costs only one more check
            os.unlink(self._path(os.path.realpath(state_dir)))

    def entries(self) -> tuple[Instance, ...]:
        """All readable entries."""
        try:
            names = sorted(name for name in os.listdir(self.directory) if name.endswith(_SUFFIX))
        except OSError:
            return ()
        found = (_entry(Path(self.directory, name)) for name in names)
        return tuple(entry for entry in found if entry is not None)

    def others(self, state_dir: str) -> tuple[Instance, ...]:
        """All entries except that of this directory."""
        own = os.path.realpath(state_dir)
        return tuple(entry for entry in self.entries() if entry.state_dir != own)

    def of_config(self, config: str) -> tuple[str, ...]:
        """State directories that were last used with this configuration file."""
        path = os.path.abspath(config)
        return tuple(entry.state_dir for entry in self.entries() if entry.config == path)

    def _path(self, state_dir: str) -> str:
        return f"{self.directory}/{hashlib.sha256(state_dir.encode()).hexdigest()[:32]}{_SUFFIX}"


def _entry(path: Path) -> Instance | None:
    try:
        said = json.loads(path.read_text())
        state_dir, config, pid = said["state_dir"], said["config"], said.get("pid", 0)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(state_dir, str) or not isinstance(config, str) or not isinstance(pid, int):
        return None
    return Instance(state_dir, config, pid) if state_dir.startswith("/") else None


def open_originals(state_dir: str) -> Mapping[str, Original]:
    """Originals of this boot in a state directory, by path. Takes no lock and changes nothing."""
    for name in (FILE, COPY):
        with suppress(OSError):
            lines = Path(state_dir, name).read_bytes().split(b"\n")
            records = [parse(line) for line in lines if not line.startswith(_INTENT)]
            header = next((record for record in records if record and record["kind"] == "header"), None)
            if header is not None:
                return _open_of(records) if header.get("boot") == this_boot() else {}
    return {}


def _open_of(records: Iterable[Record | None]) -> dict[str, Original]:
    found: dict[str, Original] = {}
    for record in records:
        if record is not None:  # None: the line is damaged, or is being written right now
            follow(found, record)
    return found


def orphaned_journals(
    state_dir: str,
    config: str,
    hierarchies: Hierarchies,
    cgroups: Collection[str],
    register: InstanceRegister | None = None,
) -> tuple[str, ...]:
    """Other state directories whose originals this instance must restore before it starts.

    Either their instance used the same configuration file, or it changed a control group that is to be enforced.
    Instances with other groups and another configuration keep their settings.
    """
    directories = tuple(f"{h.path(cgroup)}/" for cgroup in cgroups for h in hierarchies.all())
    register = InstanceRegister() if register is None else register
    same = register.of_config(config) if config else ()
    found: list[str] = []
    for entry in register.others(state_dir):
        paths: Iterable[str] = open_originals(entry.state_dir)
        if paths and (entry.state_dir in same or any(path.startswith(directories) for path in paths)):
            found.append(entry.state_dir)
    return tuple(found)


_Version: TypeAlias = tuple[int, int, int]
_ABSENT: Final = (0, 0, 0)
_SETTLED_NS: Final = 1_000_000_000
"""File systems store times in steps of up to 10 ms: a younger file may change again without a new modification time."""
_TRIES = 50
_STEP_S = 0.02


@dataclass(frozen=True, slots=True)
class _Claim:
    directory: str
    identity: Identity
    state_dir: str


class OtherInstances:
    """Originals recorded on this kernel by instances with other state directories.

    ``fs`` and ``hierarchies``: the files that this instance writes. ``sleep``, ``wall_clock_ns``: replaced in tests.
    """

    def __init__(
        self,
        state_dir: str,
        fs: KernelFs,
        hierarchies: Hierarchies,
        register: InstanceRegister | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._state_dir, self._fs, self._sleep, self._wall_clock_ns = state_dir, fs, sleep, wall_clock_ns
        self._register = InstanceRegister() if register is None else register
        self._mounts = sorted((h.mount for h in hierarchies.all()), key=len, reverse=True)
        self._known: dict[str, _Version | None] = {}
        self._others: tuple[str, ...] = ()
        self._records: dict[str, Mapping[str, Original]] = {}
        self._claims: dict[str, set[_Claim]] = {}

    def enter(self, config: str) -> tuple[str, ...]:
        """Register this instance; return the state directories whose journal is invisible here.

        ``config``: the configuration file. Raises KernelError if the register cannot be written.
        """
        self._register.enter(self._state_dir, config)
        return tuple(entry.state_dir for entry in self._register.others(self._state_dir) if entry.is_hidden)

    def close(self) -> None:
        """Leave the register, unless originals remain to be restored."""
        if not open_originals(self._state_dir):
            self._register.forget(self._state_dir)

    def look(self) -> None:
        """Read other instances' records if they may have changed. Reads every entry, so call it once for all groups."""
        known = self._known
        entered = self._version(self._register.directory)
        if entered is None or entered != known.get(self._register.directory):
            self._others = tuple(entry.state_dir for entry in self._register.others(self._state_dir))
        seen = {self._register.directory: entered}
        records: dict[str, Mapping[str, Original]] = {}
        for state_dir in self._others:
            version = self._version(f"{state_dir}/{FILE}")
            version = self._version(f"{state_dir}/{COPY}") if version == _ABSENT else version
            is_known = version is not None and version == known.get(state_dir)
            records[state_dir] = self._records[state_dir] if is_known else open_originals(state_dir)
            seen[state_dir] = version
        if records != self._records:
            self._claims = {}
            for state_dir, originals in records.items():
                for original in originals.values():
                    claim = _Claim(dirname(original.path), original.identity, state_dir)
                    self._claims.setdefault(self._group(original.path), set()).add(claim)
        self._known, self._records = seen, records

    def refusal(self, cgroup: str) -> str:
        """The reason why this cgroup must not be changed, as of the last check; empty if it may be.

        ``recording`` checks again.
        """
        if not self._known:
            self.look()
        return self._why_taken(cgroup)

    @contextmanager
    def recording(self, originals: Sequence[Original]) -> Iterator[None]:
        """Hold the register's lock while these originals are recorded, after checking other instances' records.

        Raises:
            OriginTaken: one of the files is in a group that another instance has changed.
            Busy: another instance holds the lock for too long.
        """
        fd = self._lock()
        try:
            self.look()
            for original in originals:
                if why := self._why_taken(self._group(original.path)):
                    raise OriginTaken(original.path, "record its original", errno.EBUSY, advice=why)
            yield
        finally:
            if fd >= 0:
                os.close(fd)

    def _lock(self) -> int:
        """Descriptor of the lock; -1 if there is no register and thus no other instance."""
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
        advice = "another perphd on this host is stuck while it records originals; perphd retries"
        raise Busy(path, "lock", errno.EAGAIN, advice=advice)

    def _version(self, path: str) -> _Version | None:
        """Identity of a file's present version; None if it was modified too recently to be sure."""
        try:
            status = os.stat(path)
        except OSError:
            return _ABSENT
        if self._wall_clock_ns() - status.st_mtime_ns < _SETTLED_NS:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _group(self, path: str) -> str:
        """The cgroup of a file; for other files, such as a resctrl group's, the path itself."""
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
                    f"{group} is changed by {who}: stop that instance, or remove the group here; if it is dead, "
                    f"run perphd restore --state-dir {claim.state_dir}"
                )
        return ""

    def _is_there(self, claim: _Claim) -> bool:
        """False if the group is gone or was replaced; either ends the claim."""
        try:
            return self._fs.identity(claim.directory) == claim.identity
        except KernelError:
            return False
