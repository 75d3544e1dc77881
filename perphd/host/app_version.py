"""Version of the application in a control group: a container's image, else the program's file.

A version is a short text. It is the same whenever the same program runs, even after a replacement was undone.
For a file it consists of name, size and modification time, which packages preserve; the inode would always
differ. An interpreter's file says nothing about the program that it runs: ``version_from`` then names a file
or a label.

Permissions: a process's program is found through /proc/PID/exe, which needs CAP_SYS_PTRACE for other users'
processes (proc(5)), else through the first word of its command line, which does not. The workload chooses
that word (often a title: "nginx: worker process"). Its program is therefore looked up only in the host's own
folders (``_OWN``). Elsewhere, the file may be on a network file system whose server never answers.
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
from perphd.host.process_stat import START_TICKS, SYSTEM_TICKS, USER_TICKS, stat_fields

MOST_PROCESSES: Final = 256
"""Maximum number of processes examined per group."""
MOST_TEXT: Final = 120
"""Maximum length of a version in characters."""
MOST_FILE_BYTES: Final = 4096
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+:~/@ -]*", re.ASCII)
_FOLDERS: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_OWN: Final = ("/usr/", "/opt/", "/lib/", "/sbin/", "/bin/")
_STARTERS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh", "busybox", "env", "sudo", "su"})
"""Programs that only start others. Their version counts only if they do the work themselves."""

Version: TypeAlias = str | Unavailable


class FileFacts(Protocol):
    """The fields of stat(2) that are used here."""

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
    ticks: int  # CPU time in clock ticks, user and system


@dataclass(frozen=True, slots=True)
class _Running:
    """A process and its program, as far as they can be read. Process id and start time survive execve(2)."""

    pid: int
    started: int
    said: bytes  # its command line, or only the first word of a title, whose rest may change at any time
    file: (
        tuple[int, int, int] | None
    )  # device, inode and modification time of its program; None: not readable
    word: str = field(compare=False)  # first word of its command line


class AppVersions:
    """Determines versions. Cheap enough to call once a minute, but not at every tick.

    Args:
        fs: the host's files.
        hierarchies: its control groups.
        facts: stat(2), following links; None if only some of the host's files are available.
    """

    def __init__(
        self, fs: KernelFs, hierarchies: Hierarchies, facts: Callable[[str], FileFacts] | None = os.stat
    ) -> None:
        self._fs, self._cgroups, self._facts = fs, Cgroups(fs, hierarchies), facts
        self._known: dict[str, tuple[_Running, str]] = {}

    def look(self, spec: WorkloadSpec) -> Version:
        """The version that runs now, or the reason why it is unknown. Never raises."""
        kind, _, rest = spec.version_from.partition(":")
        try:
            if kind == "none":
                return Unavailable("version_from is none")
            if kind == "file":
                return self._from_file(rest)
            if kind == "label":
                return self._from_label(spec.cgroup, rest)
            if parse_path(spec.cgroup).has_image:
                return self._from_image(spec.cgroup)
            return self._from_program(spec)
        except (PerphError, OSError, ValueError) as exc:
            return Unavailable(f"the version cannot be read: {exc}")

    def forget(self, name: str) -> None:
        """Forget a workload that was removed."""
        self._known.pop(name, None)

    def _from_file(self, path: str) -> Version:
        if not isinstance(self._fs, ReadsStrangers):
            return Unavailable("this host gives access to the kernel's files only")
        _, data = self._fs.read_strangers(path, MOST_FILE_BYTES)
        line = next((line.strip() for line in data.decode(errors="replace").splitlines() if line.strip()), "")
        if not line:
            return Unavailable(f"{path} is empty")
        # Text that does not resemble a version may be arbitrary data: keep and show only a digest.
        return _short(line) if _PLAIN.fullmatch(line) else _digest(line.encode(errors="replace"))

    def _from_label(self, cgroup: str, key: str) -> Version:
        labels = ContainerNames(self._fs).labels(cgroup)
        if labels is None:
            return Unavailable(f"{cgroup} is not a container with readable labels")
        value = labels.get(key, "")
        return _short(value) if value else Unavailable(f"the container has no label {key!r}")

    def _from_image(self, cgroup: str) -> Version:
        image = ContainerNames(self._fs).image(cgroup)
        return _short(image) if image else Unavailable("the image of the container is unknown")

    def _from_program(self, spec: WorkloadSpec) -> Version:
        if self._facts is None:
            return Unavailable("the files of programs cannot be read on this host")
        processes = [p for pid in self._pids(spec.cgroup) if (p := self._process(pid)) is not None]
        if not processes:
            return Unavailable("none of the workload's processes can be read")
        known = self._known.get(spec.name)
        if known is not None and any(
            (p.pid, p.started) == (known[0].pid, known[0].started) and self._running(p) == known[0]
            for p in processes
        ):
            return known[1]  # the known program still runs, even if its file has changed
        # Prefer the process that does the work over the shell that started it; on ties the oldest.
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
        return Unavailable("none of the workload's processes can be read") if reason is None else reason

    def _pids(self, cgroup: str) -> list[int]:
        return sorted(self._cgroups.group(cgroup).procs())[:MOST_PROCESSES]

    def _process(self, pid: int) -> _Process | None:
        try:
            fields = stat_fields(self._fs, pid)
            return _Process(
                pid, int(fields[START_TICKS]), int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS])
            )
        except (ValueError, IndexError):
            return None  # it has ended

    def _running(self, process: _Process) -> _Running:
        try:
            said = self._fs.read(f"/proc/{process.pid}/cmdline").rstrip(b"\0")
        except KernelError:
            said = b""  # it is ending
        word = said.split(b"\0")[0]
        if word == said:
            said = said.split(b" ")[0]
        exe = self._file(f"/proc/{process.pid}/exe")
        file = None if exe is None else (exe.st_dev, exe.st_ino, exe.st_mtime_ns)
        return _Running(process.pid, process.started, said, file, word.decode(errors="surrogateescape"))

    def _program(self, running: _Running, seen: dict[str, FileFacts | None], chosen: bool) -> Version:
        """The version of one process's program.

        ``seen``: files examined before. ``chosen``: this process does the work.
        """
        said = running.word
        # In a title, the first word is the program: "/usr/sbin/nginx: worker process", "postgres: main:
        # writer".
        title = said.split(" ")[0].rstrip(":")
        name = basename(title)
        if not chosen and (not name or name in _STARTERS):
            return Unavailable("the process has no program name, or its program only starts others")
        exe = f"/proc/{running.pid}/exe"
        for path in (exe, *_places(said, title)):
            if path not in seen:
                seen[path] = self._file(path)
            if (facts := seen[path]) is not None:
                digest = _digest(f"{facts.st_size}:{facts.st_mtime_ns}".encode())
                return _short(f"{name or 'program'}-{digest}")
        why = f"the program of process {running.pid} ({said[:60]!r}) cannot be examined"
        if title.startswith("/") and not _is_own(title):
            why += (
                f": {exe} cannot be read, and command lines are trusted only for files in {', '.join(_OWN)}"
            )
        return Unavailable(why)

    def _file(self, path: str) -> FileFacts | None:
        assert self._facts is not None
        try:
            facts = self._facts(path)
        except (OSError, ValueError):
            return None
        return facts if stat.S_ISREG(facts.st_mode) else None


def _places(said: str, title: str) -> list[str]:
    """Possible paths of a command line's program: the first word, whole or truncated where a title begins."""
    if "/" in title:
        return [path for path in dict.fromkeys((said, title)) if _is_own(path)]
    return [f"{folder}/{title}" for folder in _FOLDERS] if title else []


def _is_own(path: str) -> bool:
    return path.startswith(_OWN) and ".." not in path.split("/")


def _short(text: str) -> str:
    """At most ``MOST_TEXT`` printable characters; a longer text is cut and gets a digest of the whole."""
    clean = "".join(c if c.isprintable() else "?" for c in text.strip())
    if len(clean) <= MOST_TEXT:
        return clean
    return f"{clean[: MOST_TEXT - 13]}-{_digest(clean.encode(errors='replace'))}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
