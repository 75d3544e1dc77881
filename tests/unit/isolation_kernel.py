"""Cgroup files in memory that answer as the kernel does (captured from 6.1, 6.12 and 6.18), with faults on demand."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from posixpath import basename, dirname

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import ParseError, kernel_error
from perphd.host.cgroup import Hierarchies, discover
from perphd.host.fs import KernelFile

THROTTLE = (
    "blkio.throttle.read_bps_device",
    "blkio.throttle.write_bps_device",
    "blkio.throttle.read_iops_device",
    "blkio.throttle.write_iops_device",
)
V1_MOUNTS = {
    "cpu": "/sys/fs/cgroup/cpu",
    "cpuset": "/sys/fs/cgroup/cpuset",
    "memory": "/sys/fs/cgroup/memory",
    "blkio": "/sys/fs/cgroup/blkio",
    "freezer": "/sys/fs/cgroup/freezer",
}
V1_FILES = {
    "cpu": {"cpu.shares": "1024", "cpu.idle": "0", "cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
    "cpuset": {"cpuset.cpus": "", "cpuset.mems": "0"},
    "memory": {
        "memory.limit_in_bytes": "9223372036854771712",
        "memory.soft_limit_in_bytes": "9223372036854771712",
    },
    "blkio": {"blkio.bfq.weight": "100", **dict.fromkeys(THROTTLE, "")},
    "freezer": {"freezer.state": "THAWED"},
}
V2_FILES = {
    "cpu": {"cpu.weight": "100", "cpu.idle": "0", "cpu.max": "max 100000"},
    "cpuset": {
        "cpuset.cpus": "",
        "cpuset.cpus.effective": "",
        "cpuset.mems": "",
        "cpuset.mems.effective": "",
    },
    "memory": {
        "memory.min": "0",
        "memory.low": "0",
        "memory.high": "max",
        "memory.max": "max",
        "memory.current": "0",
        "memory.stat": "inactive_file 0\nworkingset_refault_anon 0\nworkingset_refault_file 0",
        "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0",
        "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0",
    },
    "io": {"io.max": "", "io.latency": "", "io.weight": "default 100", "io.bfq.weight": "default 100"},
}
DISKS = ("8:0", "254:0")
READ_ONLY = (
    "cpuset.cpus.effective",
    "cpuset.mems.effective",
    "memory.current",
    "memory.stat",
    "memory.events",
)


SETTABLE = {
    name
    for table in (V1_FILES, V2_FILES)
    for files in table.values()
    for name in files
    if name not in READ_ONLY
} | {"cgroup.freeze"}


@dataclass
class Directory:
    inode: int
    version: int
    files: dict[str, str]
    populated: bool = False


@dataclass
class FakeKernel:
    """``layout``: v1, v2 or hybrid (v1 controllers beside a v2 tree without any). Paths of groups: ``/a/b``."""

    layout: str = "v1"
    cpus: str = "0-3"
    nodes: str = "0-1"
    scheduler: str = "[bfq] none"
    idle_weight: str = "0"
    """What v2's cpu.weight reads while idle: 0 on 6.1, 1 on 6.12."""
    directories: dict[str, Directory] = field(default_factory=dict)
    writes: list[tuple[str, str]] = field(default_factory=list)
    before_write: Callable[[int, str, str], int | None] | None = None
    """(number of the write from 0, path, text) -> errno to fail with, or None."""
    possible: str = ""
    """CPUs that are there or switched off; empty: ``cpus``."""
    disks: set[str] = field(default_factory=lambda: set(DISKS))
    deaf: set[str] = field(default_factory=set)
    """Files that accept writes and keep their value."""
    attempts: int = 0
    _inode: int = 100

    def __post_init__(self) -> None:
        for mount, version, controllers in self._mounts():
            self.directories[mount] = Directory(self._next(), version, {"cgroup.procs": ""})
            if version == 1:
                files = {name: text for c in controllers for name, text in V1_FILES[c].items()}
            else:
                files = {
                    "cgroup.controllers": " ".join(controllers),
                    "cgroup.subtree_control": " ".join(controllers),
                }
                if "cpuset" in controllers:
                    files["cpuset.cpus.effective"] = self.cpus
                    files["cpuset.mems.effective"] = self.nodes
            if "cpuset.cpus" in files:
                files["cpuset.cpus"], files["cpuset.mems"] = self.cpus, self.nodes
            self.directories[mount].files |= files

    def _mounts(self) -> list[tuple[str, int, tuple[str, ...]]]:
        if self.layout == "v2":
            return [("/sys/fs/cgroup", 2, ("cpu", "cpuset", "memory", "io"))]
        v1: list[tuple[str, int, tuple[str, ...]]] = [(path, 1, (name,)) for name, path in V1_MOUNTS.items()]
        return [*v1, ("/sys/fs/cgroup/unified", 2, ())] if self.layout == "hybrid" else v1

    def _next(self) -> int:
        self._inode += 1
        return self._inode

    @property
    def hierarchies(self) -> Hierarchies:
        return discover(self)

    def paths(self, group: str) -> list[str]:
        return [mount + group for mount, _, _ in self._mounts()]

    # -- what a person does ----------------------------------------------------------------------

    def mkdir(self, group: str, cpus: str | None = None, populated: bool = True) -> None:
        """Make a group in every hierarchy; on v1 its CPUs are ``cpus`` (default: the parent's)."""
        for mount, version, controllers in self._mounts():
            path = mount + group
            if path in self.directories:
                continue
            table = V1_FILES if version == 1 else V2_FILES
            enabled = controllers
            if version == 2:
                enabled = tuple(self.directories[dirname(path)].files["cgroup.subtree_control"].split())
            files = {name: text for c in enabled for name, text in table[c].items()}
            files["cgroup.procs"] = "4711\n" if populated else ""
            files["tasks" if version == 1 else "cgroup.threads"] = "4711\n4712\n" if populated else ""
            if version == 2:
                files["cgroup.subtree_control"] = files["cgroup.controllers"] = " ".join(enabled)
                files["cgroup.freeze"] = "0"
            if version == 1 and "cpuset.cpus" in files:
                files["cpuset.cpus"] = (
                    self.directories[dirname(path)].files["cpuset.cpus"] if cpus is None else cpus
                )
            elif "cpuset.cpus" in files and cpus is not None:
                files["cpuset.cpus"] = cpus
            if version == 1 and "cpuset.mems" in files:
                files["cpuset.mems"] = self.directories[dirname(path)].files["cpuset.mems"]
            self.directories[path] = Directory(self._next(), version, files, populated)

    def rmdir(self, group: str) -> None:
        for path in self.paths(group):
            for name in [d for d in self.directories if d == path or d.startswith(f"{path}/")]:
                del self.directories[name]

    def set(self, path: str, text: str) -> None:
        """Somebody else writes (no fault, not counted)."""
        self._write(path, text)

    def set_online(self, cpus: str) -> None:
        """CPUs are switched on or off. v1 takes what is off out of every list, for good; v2's lists stay."""
        self.possible = self.possible or self.cpus
        self.cpus = cpus
        for path, directory in self.directories.items():
            if directory.version == 1 and "cpuset.cpus" in directory.files:
                is_root = path in V1_MOUNTS.values()
                left = CpuSet.parse(directory.files["cpuset.cpus"]) & CpuSet.parse(cpus)
                directory.files["cpuset.cpus"] = cpus if is_root else str(left)

    def detach(self, disk: str) -> None:
        """A disk is removed, and with it its lines."""
        self.disks.remove(disk)
        for directory in self.directories.values():
            for name in {"io.max", "io.latency", *THROTTLE} & directory.files.keys():
                lines = directory.files[name].splitlines()
                directory.files[name] = "\n".join(line for line in lines if line.split()[0] != disk)

    def texts(self) -> dict[str, str]:
        """Every settable file's content, for comparing before and after."""
        return {
            f"{path}/{name}": f"{text}\n"
            for path, directory in self.directories.items()
            for name, text in directory.files.items()
            if name in SETTABLE
        }

    # -- KernelFs --------------------------------------------------------------------------------

    def open(self, path: str) -> KernelFile:
        raise NotImplementedError

    def exists(self, path: str) -> bool:
        if path.startswith("/sys/dev/block"):
            return path.removeprefix("/sys/dev/block/") in self.disks or path == "/sys/dev/block"
        return path in self.directories or basename(path) in self._files(dirname(path))

    def listdir(self, path: str) -> list[str]:
        if path == "/sys/block":
            return ["sda"]
        if path not in self.directories:
            raise self._error(errno.ENOENT, path, "list")
        children = [basename(d) for d in self.directories if dirname(d) == path]
        return sorted([*children, *self.directories[path].files])

    def subdirectories(self, path: str) -> list[str]:
        return [name for name in self.listdir(path) if f"{path}/{name}" in self.directories]

    def identity(self, path: str) -> tuple[int, int]:
        if path not in self.directories:
            raise self._error(errno.ENOENT, path, "stat")
        return 1, self.directories[path].inode

    def read(self, path: str) -> bytes:
        if path == "/proc/self/mounts":
            kinds = {1: "cgroup", 2: "cgroup2"}
            lines = [f"x {m} {kinds[v]} rw,{','.join(c)} 0 0" for m, v, c in self._mounts()]
            return ("\n".join(lines) + "\n").encode()
        if path == "/proc/sys/net/core/default_qdisc":
            return b"fq_codel\n"
        if path in ("/sys/devices/system/cpu/possible", "/sys/devices/system/cpu/online"):
            return f"{(path.endswith('possible') and self.possible) or self.cpus}\n".encode()
        if path == "/sys/block/sda/queue/scheduler":
            return f"{self.scheduler}\n".encode()
        above, _, name = path.rpartition("/")
        text = self._files(above).get(name)
        if text is None:
            raise self._error(errno.ENOENT, path, "open")
        if name.endswith(".effective"):
            text = str(self._effective(above, name.removesuffix(".effective")))
        return f"{text}\n".encode()

    def write(self, path: str, data: bytes) -> None:
        number, self.attempts = self.attempts, self.attempts + 1
        text = data.decode()
        assert text.endswith("\n"), f"{path}: a write without a newline: {text!r}"
        if self.before_write is not None and (fault := self.before_write(number, path, text)) is not None:
            raise self._error(fault, path, "write", text)
        if basename(path) not in self._files(dirname(path)):
            raise self._error(errno.ENOENT, path, "open for writing", text)
        if path not in self.deaf:
            self._write(path, text.rstrip("\n"))
        self.writes.append((path, text.rstrip("\n")))

    # -- the kernel's rules ----------------------------------------------------------------------

    def _files(self, directory: str) -> dict[str, str]:
        found = self.directories.get(directory)
        return {} if found is None else found.files

    def _error(self, number: int, path: str, operation: str, value: str | None = None) -> Exception:
        return kernel_error(OSError(number, os.strerror(number)), path, operation, value)

    def _effective(self, directory: str, file: str) -> CpuSet:
        files = self._files(directory)
        if file not in files:
            return CpuSet.parse(self.cpus if file == "cpuset.cpus" else self.nodes)
        above = self._effective(dirname(directory), file)
        return CpuSet.parse(files[file]) & above or above

    def _populated(self, directory: str) -> bool:
        return any(
            d.populated
            for name, d in self.directories.items()
            if name == directory or name.startswith(directory + "/")
        )

    def _write(self, path: str, text: str) -> None:
        file, directory = basename(path), dirname(path)
        files = self._files(directory)
        rule = {
            "cpuset.cpus": self._cpus,
            "cpuset.mems": self._cpus,
            "cpu.idle": self._idle,
            "cpu.weight": self._weight,
            "cpu.shares": self._weight,
            "cpu.max": self._max,
            "cpu.cfs_quota_us": self._quota,
            "memory.low": self._memory,
            "memory.high": self._memory,
            "memory.min": self._memory,
            "memory.max": self._memory,
            "memory.reclaim": self._reclaim,
            "cgroup.freeze": self._freeze,
            "freezer.state": self._freeze,
            "blkio.bfq.weight": self._io_weight,
            "io.weight": self._disk_line,
            "io.bfq.weight": self._disk_line,
            "io.max": self._disk_line,
            "io.latency": self._disk_line,
            **dict.fromkeys(THROTTLE, self._disk_line),
        }.get(file)
        if rule is None:
            raise AssertionError(f"perphd has no business writing {path}")
        number = rule(directory, files, file, text)
        if number:
            raise self._error(number, path, "write", text)

    def _cpus(self, directory: str, files: dict[str, str], file: str, text: str) -> int:
        try:
            wanted = CpuSet.parse(text)
        except ParseError:
            return errno.EINVAL
        there = CpuSet.parse(self.cpus if file == "cpuset.cpus" else self.nodes)
        possible = CpuSet.parse(self.possible or self.cpus) if file == "cpuset.cpus" else there
        if not wanted <= possible:
            return errno.ERANGE
        if self.directories[directory].version == 1 and not wanted <= there:
            return errno.EINVAL
        if not wanted and self._populated(directory):
            return errno.ENOSPC
        if self.directories[directory].version == 1:
            children = [d.files[file] for n, d in self.directories.items() if dirname(n) == directory]
            if any(not CpuSet.parse(child) <= wanted for child in children):
                return errno.EBUSY
            if not wanted <= CpuSet.parse(self.directories[dirname(directory)].files[file]):
                return errno.EACCES
        files[file] = str(wanted)
        return 0

    def _idle(self, directory: str, files: dict[str, str], file: str, text: str) -> int:
        if text not in ("0", "1"):
            return errno.EINVAL
        if text != files[file]:
            files[file] = text
            if "cpu.weight" in files:
                files["cpu.weight"] = self.idle_weight if text == "1" else "100"
            else:
                files["cpu.shares"] = "3" if text == "1" else "1024"
        return 0

    def _weight(self, directory: str, files: dict[str, str], file: str, text: str) -> int:
        if not text.isdecimal() or files.get("cpu.idle") == "1":
            return errno.EINVAL
        if file == "cpu.weight" and not 1 <= int(text) <= 10000:
            return errno.ERANGE
        files[file] = text if file == "cpu.weight" else str(min(262144, max(2, int(text))))
        return 0

    def _max(self, directory: str, files: dict[str, str], file: str, text: str) -> int:
        quota, period = text.split()
        if (quota != "max" and int(quota) < 1000) or not 1000 <= int(period) <= 1_000_000:
            return errno.EINVAL
        files[file] = f"{quota} {period}"
        return 0

    def _quota(self, directory: str, files: dict[str, str], file: str, text: str) -> int:
        if 0 <= int(text) < 1000:
            return errno.EINVAL
        files[file] = str(max(-1, int(text)))
        return 0

    def _memory(self, directory: str, files: dict[str, str], file: str, text: str) -> int:
        if not text:
            files[file] = "0"  # what the real kernel does with an empty line
        elif text == "max":
            files[file] = text
        elif text.isdecimal():
            files[file] = str(int(text) // 4096 * 4096)
        else:
            return errno.EINVAL
        return 0

    def _reclaim(self, directory: str, files: dict[str, str], file: str, text: str) -> int:
        """What is inactive_file can be reclaimed; less than asked is EAGAIN."""
        stat = dict(line.split() for line in files["memory.stat"].splitlines())
        got = min(int(text), int(stat["inactive_file"]))
        self.use(directory, int(files["memory.current"]) - got, int(stat["inactive_file"]) - got)
        return 0 if got >= int(text) else errno.EAGAIN

    def use(self, directory: str, current: int, inactive_file: int = 0) -> None:
        """The group uses so much memory."""
        files = self._files(directory)
        rest = [line for line in files["memory.stat"].splitlines() if not line.startswith("inactive_file")]
        files["memory.current"] = str(current)
        files["memory.stat"] = "\n".join([f"inactive_file {inactive_file}", *rest])

    def _freeze(self, directory: str, files: dict[str, str], file: str, text: str) -> int:
        if file == "cgroup.freeze" and text not in ("0", "1"):
            return errno.ERANGE
        if file == "freezer.state" and text not in ("FROZEN", "THAWED"):
            return errno.EINVAL
        files[file] = "FREEZING" if text == "FROZEN" else text
        return 0

    def _io_weight(self, directory: str, files: dict[str, str], file: str, text: str) -> int:
        if not 1 <= int(text) <= 1000:
            return errno.ERANGE
        files[file] = text
        return 0

    def _disk_line(self, directory: str, files: dict[str, str], file: str, text: str) -> int:
        assert "\n" not in text, f"one line a write: {text!r}"
        key, *values = text.split()
        weight = file.endswith("weight")
        if not values or (key not in self.disks and not (weight and key == "default")):
            return errno.ENODEV if values else errno.EINVAL
        lines = dict(line.split(" ", 1) for line in files[file].splitlines())
        if file == "io.max":
            fields = dict(
                part.split("=") for part in lines.get(key, "rbps=max wbps=max riops=max wiops=max").split()
            )
            fields |= dict(part.split("=") for part in values)
            if "0" in fields.values():
                return errno.ERANGE
            value = " ".join(f"{name}={number}" for name, number in fields.items())
            absent = set(fields.values()) == {"max"}
        else:
            value = values[0]
            absent = value in ("default", "0", "target=0")
        lines.pop(key, None)
        if not absent:
            lines[key] = value
        files[file] = "\n".join(f"{name} {text}" for name, text in lines.items())
        return 0
