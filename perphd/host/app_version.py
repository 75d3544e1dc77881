"""Which version of an application runs in a control group: of a container its image, else its program's file.

A version is a short text that is the same whenever the same program runs, also after it was replaced and put back. Of
a file that is its name, size and time of last change (packages keep the time); its inode is another one every time.
An interpreter's file says nothing of what it runs: ``version_from`` then names a file or a label that does.

What may be read: a process's program is found by /proc/PID/exe, which asks for CAP_SYS_PTRACE over other users'
processes (proc(5)), else by the first word of its command line, which does not.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from posixpath import basename
from typing import Final, Protocol, TypeAlias

from perphd.domain.errors import KernelError, PerphError
from perphd.domain.reading import Unavailable
from perphd.domain.workload import WorkloadSpec
from perphd.host.cgroup.group import Cgroups
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.containers import ContainerNames, parse_path
from perphd.host.fs import KernelFs, ReadsStrangers

MOST_PROCESSES: Final = 256
"""Of a group with more of them so many are looked at."""
MOST_TEXT: Final = 120
"""Characters of a version at most."""
MOST_FILE_BYTES: Final = 4096
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+:~/@ -]*", re.ASCII)
_FOLDERS: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

Version: TypeAlias = str | Unavailable


class FileFacts(Protocol):
    """What stat(2) says, as far as it is used."""

    @property
    def st_mode(self) -> int: ...  # noqa: D102
    @property
    def st_size(self) -> int: ...  # noqa: D102
    @property
    def st_mtime_ns(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    started: int
    ticks: int  # of CPU time, user and system


class AppVersions:
    """Looks versions up. Cheap enough for every minute, not for every tick.

    Args:
        fs: the host's files.
        hierarchies: its control groups.
        facts: stat(2), following links; None where only some of the host's files are here.
    """

    def __init__(
        self, fs: KernelFs, hierarchies: Hierarchies, facts: Callable[[str], FileFacts] | None = os.stat
    ) -> None:
        self._fs, self._cgroups, self._facts = fs, Cgroups(fs, hierarchies), facts
        self._known: dict[str, tuple[_Process, Version]] = {}

    def look(self, spec: WorkloadSpec) -> Version:
        """The version that runs now, or why that cannot be told. Never raises."""
        kind, _, rest = spec.version_from.partition(":")
        try:
            if kind == "none":
                return Unavailable("version_from is none")
            if kind == "file":
                return self._from_file(rest)
            if kind == "label":
                return self._from_label(spec.cgroup, rest)
            if parse_path(spec.cgroup).container_id:
                return self._from_image(spec.cgroup)
            return self._from_program(spec)
        except (PerphError, OSError, ValueError) as exc:
            return Unavailable(f"its version cannot be read: {exc}")

    def forget(self, name: str) -> None:
        """The workload was taken off the list."""
        self._known.pop(name, None)

    def _from_file(self, path: str) -> Version:
        if not isinstance(self._fs, ReadsStrangers):
            return Unavailable("only the kernel's files are here")
        _, data = self._fs.read_strangers(path, MOST_FILE_BYTES)
        line = next((line.strip() for line in data.decode(errors="replace").splitlines() if line.strip()), "")
        if not line:
            return Unavailable(f"{path} is empty")
        # What does not look like a version may be anything: of that only a digest is kept and shown.
        return _short(line) if _PLAIN.fullmatch(line) else _digest(line.encode(errors="replace"))

    def _from_label(self, cgroup: str, key: str) -> Version:
        labels = ContainerNames(self._fs).labels(cgroup)
        if labels is None:
            return Unavailable(f"{cgroup} is no container whose labels can be read here")
        value = labels.get(key, "")
        return _short(value) if value else Unavailable(f"its container has no label {key!r}")

    def _from_image(self, cgroup: str) -> Version:
        image = ContainerNames(self._fs).image(cgroup)
        return (
            _short(image) if image else Unavailable("its container's image is not noted where it can be read")
        )

    def _from_program(self, spec: WorkloadSpec) -> Version:
        if self._facts is None:
            return Unavailable("programs' files are not here")
        processes = [p for pid in self._pids(spec.cgroup) if (p := self._process(pid)) is not None]
        if not processes:
            return Unavailable("no process of it can be read")
        known = self._known.get(spec.name)
        if known is not None and any(
            (p.pid, p.started) == (known[0].pid, known[0].started) for p in processes
        ):
            return known[1]  # the process that was looked at still runs: so does its program
        # What does the work, and not the shell that started it; the oldest of equals.
        busiest = max(processes, key=lambda p: (p.ticks, -p.started, -p.pid))
        found = self._program(busiest.pid)
        if not isinstance(found, Unavailable):
            self._known[spec.name] = busiest, found
        return found

    def _pids(self, cgroup: str) -> list[int]:
        return sorted(self._cgroups.group(cgroup).procs())[:MOST_PROCESSES]

    def _process(self, pid: int) -> _Process | None:
        try:
            text = self._fs.read(f"/proc/{pid}/stat").decode(errors="replace")
            after = text[text.rindex(")") + 2 :].split()  # from the third field of proc_pid_stat(5) on
            return _Process(pid, int(after[19]), int(after[11]) + int(after[12]))
        except (KernelError, ValueError, IndexError):
            return None  # it is gone

    def _program(self, pid: int) -> Version:
        assert self._facts is not None
        words = self._fs.read(f"/proc/{pid}/cmdline").split(b"\0")
        said = words[0].decode(errors="surrogateescape")
        paths = [f"/proc/{pid}/exe"]
        if said.startswith("/"):
            paths.append(said)
        elif said and "/" not in said:
            paths += [f"{folder}/{said}" for folder in _FOLDERS]
        for path in paths:
            try:
                facts = self._facts(path)
            except OSError:
                continue
            if stat.S_ISREG(facts.st_mode):
                name = basename(said.split(" ")[0].rstrip(":")) or "program"
                return _short(f"{name}-{_digest(f'{facts.st_size}:{facts.st_mtime_ns}'.encode())}")
        return Unavailable(f"the program of process {pid} ({said[:60]!r}) cannot be looked at")


def _short(text: str) -> str:
    """At most ``MOST_TEXT`` printable characters; a longer text keeps its beginning and a digest of all."""
    clean = "".join(c if c.isprintable() else "?" for c in text.strip())
    if len(clean) <= MOST_TEXT:
        return clean
    return f"{clean[: MOST_TEXT - 13]}-{_digest(clean.encode(errors='replace'))}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
