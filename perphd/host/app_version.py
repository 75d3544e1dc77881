"""Which version of an application runs in a control group: of a container its image, else its program's file.

A version is a short text that is the same whenever the same program runs, also after it was replaced and put back. Of
a file that is its name, size and time of last change (packages keep the time); its inode is another one every time.
An interpreter's file says nothing of what it runs: ``version_from`` then names a file or a label that does.

What may be read: a process's program is found by /proc/PID/exe, which asks for CAP_SYS_PTRACE over other users'
processes (proc(5)), else by the first word of its command line, which does not. That word is the workload's to choose
(and often a title: "nginx: worker process"), so it is looked for in the host's own folders alone (``_OWN``): anywhere
else its file may be on a server that never answers.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
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
_OWN: Final = ("/usr/", "/opt/", "/lib/", "/sbin/", "/bin/")
_STARTERS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh", "busybox", "env", "sudo", "su"})
"""Programs that say nothing of what they started: taken for the version only where they do the work themselves."""

Version: TypeAlias = str | Unavailable


class FileFacts(Protocol):
    """What stat(2) says, as far as it is used."""

    @property
    def st_mode(self) -> int: ...  # noqa: D102
    @property
    def st_size(self) -> int: ...  # noqa: D102
    @property
    def st_mtime_ns(self) -> int: ...  # noqa: D102
    @property
    def st_dev(self) -> int: ...  # noqa: D102
    @property
    def st_ino(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    started: int
    ticks: int  # of CPU time, user and system


@dataclass(frozen=True, slots=True)
class _Running:
    """What a process runs, as far as it can be seen: its number and start stay the same through execve(2)."""

    pid: int
    started: int
    said: bytes  # its command line; of a title, which may change at any time, the first word
    file: tuple[int, int, int] | None  # its program's device, inode and last change; None: not to be seen
    word: str = field(compare=False)  # the first of its command line, whole


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
        self._known: dict[str, tuple[_Running, str]] = {}

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
            (p.pid, p.started) == (known[0].pid, known[0].started) and self._running(p) == known[0]
            for p in processes
        ):
            return known[1]  # what was looked at still runs, whatever is on disk by now
        # What does the work, and not the shell that started it; the oldest of equals.
        processes.sort(key=lambda p: (-p.ticks, p.started, p.pid))
        reason: Unavailable | None = None
        seen: dict[str, FileFacts | None] = {}
        for process in processes:
            running = self._running(process)
            found = self._program(running, seen, chosen=reason is None)
            if not isinstance(found, Unavailable):
                self._known[spec.name] = running, found
                return found
            reason = found if reason is None else reason
        return Unavailable("no process of it can be read") if reason is None else reason

    def _pids(self, cgroup: str) -> list[int]:
        return sorted(self._cgroups.group(cgroup).procs())[:MOST_PROCESSES]

    def _process(self, pid: int) -> _Process | None:
        try:
            text = self._fs.read(f"/proc/{pid}/stat").decode(errors="replace")
            after = text[text.rindex(")") + 2 :].split()  # from the third field of proc_pid_stat(5) on
            return _Process(pid, int(after[19]), int(after[11]) + int(after[12]))
        except (KernelError, ValueError, IndexError):
            return None  # it is gone

    def _running(self, process: _Process) -> _Running:
        try:
            said = self._fs.read(f"/proc/{process.pid}/cmdline").rstrip(b"\0")
        except KernelError:
            said = b""  # it ends
        word = said.split(b"\0")[0]
        if word == said:
            said = said.split(b" ")[0]
        exe = self._file(f"/proc/{process.pid}/exe")
        file = None if exe is None else (exe.st_dev, exe.st_ino, exe.st_mtime_ns)
        return _Running(process.pid, process.started, said, file, word.decode(errors="surrogateescape"))

    def _program(self, running: _Running, seen: dict[str, FileFacts | None], chosen: bool) -> Version:
        """``seen``: what was looked at before. ``chosen``: this is the process that does the work."""
        said = running.word
        # Of a title the first word is the program: "/usr/sbin/nginx: worker process", "postgres: main: writer".
        title = said.split(" ")[0].rstrip(":")
        name = basename(title)
        if not chosen and (not name or name in _STARTERS):
            return Unavailable("it only started what runs")
        exe = f"/proc/{running.pid}/exe"
        for path in (exe, *_places(said, title)):
            if path not in seen:
                seen[path] = self._file(path)
            if (facts := seen[path]) is not None:
                digest = _digest(f"{facts.st_size}:{facts.st_mtime_ns}".encode())
                return _short(f"{name or 'program'}-{digest}")
        why = f"the program of process {running.pid} ({said[:60]!r}) cannot be looked at"
        if title.startswith("/") and not _is_own(title):
            why += f": {exe} cannot be read, and names are believed only in {', '.join(_OWN)}"
        return Unavailable(why)

    def _file(self, path: str) -> FileFacts | None:
        assert self._facts is not None
        try:
            facts = self._facts(path)
        except (OSError, ValueError):
            return None
        return facts if stat.S_ISREG(facts.st_mode) else None


def _places(said: str, title: str) -> list[str]:
    """Where the program of a command line may be: its first word, whole or as the beginning of a title."""
    if "/" in title:
        return [path for path in dict.fromkeys((said, title)) if _is_own(path)]
    return [f"{folder}/{title}" for folder in _FOLDERS] if title else []


def _is_own(path: str) -> bool:
    return path.startswith(_OWN) and ".." not in path.split("/")


def _short(text: str) -> str:
    """At most ``MOST_TEXT`` printable characters; a longer text keeps its beginning and a digest of all."""
    clean = "".join(c if c.isprintable() else "?" for c in text.strip())
    if len(clean) <= MOST_TEXT:
        return clean
    return f"{clean[: MOST_TEXT - 13]}-{_digest(clean.encode(errors='replace'))}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
