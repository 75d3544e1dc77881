"""Cgroup trees in a temporary folder, with the kernel's file contents, and a file system that notices removal."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from perphd.domain.errors import Gone
from perphd.host.cgroup.hierarchy import Hierarchies, discover
from perphd.host.fs import KernelFile, RealFs

UNIFIED = "cgroup2 {} cgroup2 rw 0 0\n"
V1 = "cgroup /sys/fs/cgroup/{0} cgroup rw,{0} 0 0\n"
V1_CONTROLLERS = ("cpu", "cpuacct", "memory", "blkio", "pids")

MEMORY_STAT_V2 = """anon {anon}
file 52178944
kernel 8163328
kernel_stack 1000
pagetables 2000
sec_pagetables 0
shmem 2678784
inactive_anon 100000
active_anon 50000
inactive_file 24825856
active_file 7000
unevictable 300
slab_reclaimable 3557376
slab_unreclaimable 4000
slab 5277144
workingset_refault_anon {refaults}
workingset_refault_file 1986
workingset_activate_anon 0
pgfault 42240
pgmajfault {major}
thp_collapse_alloc 2
"""
MEMORY_STAT_V1 = """cache 0
rss 0
workingset_refault_anon 5
workingset_refault_file 6
pgmajfault 1
inactive_anon 1
active_anon 1
active_file 1
unevictable 1
total_cache 60403712
total_rss {anon}
total_workingset_refault_anon {refaults}
total_workingset_refault_file 127534
total_pgmajfault {major}
total_inactive_anon 100000
total_active_anon 50000
total_inactive_file 17969152
total_active_file 7000
total_unevictable 300
"""


class Tree:
    """A host's cgroup trees below ``root``. Files show at reading that their cgroup was removed, as the kernel's do."""

    def __init__(self, root: Path, layout: str) -> None:
        self.root, self.layout = root, layout
        mounts = ""
        if layout in ("v1", "hybrid"):
            mounts += "".join(V1.format(name) for name in V1_CONTROLLERS)
        if layout == "v2":
            mounts += UNIFIED.format("/sys/fs/cgroup")
            self.put("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n")
        if layout == "hybrid":
            mounts += UNIFIED.format("/sys/fs/cgroup/unified")
            self.put("/sys/fs/cgroup/unified/cgroup.controllers", "hugetlb\n")
        self.put("/proc/self/mounts", mounts)
        self.put("/sys/devices/system/cpu/online", "0-1\n")
        self.fs = NoticingFs(root)
        self.hierarchies: Hierarchies = discover(self.fs)

    def put(self, path: str, text: str) -> None:
        target = self.root / path[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def directories(self, cgroup: str) -> list[Path]:
        return [self.root / h.path(cgroup)[1:] for h in self.hierarchies.all()]

    def make(self, cgroup: str, step: int = 0) -> None:
        """Make the cgroup, or advance its counters to ``step`` (each step is one second of known activity)."""
        for hierarchy in self.hierarchies.all():
            for name, text in self._files(hierarchy.version, step).items():
                controller = {"cpuacct": "cpuacct", "blkio": "blkio"}.get(
                    name.partition(".")[0], name.partition(".")[0]
                )
                if hierarchy.version == 2 or controller in hierarchy.controllers or name == "cgroup.procs":
                    self.put(hierarchy.path(cgroup, name), text)

    def _files(self, version: int, step: int) -> dict[str, str]:
        throttling = f"nr_periods {10 * step}\nnr_throttled {4 * step}\n"
        if version == 1:
            return {
                "cgroup.procs": "",
                "cpu.stat": f"{throttling}throttled_time {step * 10**8}\n",
                "cpuacct.usage": f"{step * 1_500_000_000}\n",
                "memory.usage_in_bytes": "123456\n",
                "memory.stat": MEMORY_STAT_V1.format(anon=step, refaults=7 * step, major=3 * step),
                "blkio.throttle.io_service_bytes_recursive": f"8:0 Read {4096 * step}\n8:0 Write {8192 * step}\n"
                f"8:0 Sync 0\n8:0 Total {12288 * step}\n8:16 Read {step}\n8:16 Write 0\nTotal {12288 * step}\n",
                "pids.current": "42\n",
            }
        files = {
            "cgroup.procs": "",
            "cpu.stat": f"usage_usec {1_500_000 * step}\nuser_usec 1\nsystem_usec 1\n",
            "cpu.pressure": pressure(250_000 * step),
            "memory.pressure": pressure(100_000 * step, 50_000 * step),
            "io.pressure": pressure(10_000 * step, 5_000 * step),
        }
        if self.layout == "v2":
            files["cpu.stat"] += throttling + f"throttled_usec {step * 10**5}\n"
            files |= {
                "memory.current": "123456\n",
                "memory.stat": MEMORY_STAT_V2.format(anon=step, refaults=7 * step, major=3 * step),
                "io.stat": f"7:7 \n254:0 rbytes={4096 * step} wbytes={8192 * step} rios=1 wios=1 dbytes=0 dios=0\n"
                f"8:0 rbytes={step} wbytes=0 rios=1 wios=1 dbytes=0 dios=0\n",
                "pids.current": "42\n",
            }
        return files

    def remove(self, cgroup: str) -> None:
        for directory in self.directories(cgroup):
            # Kept aside, so that the inode is not given to the next directory of this name.
            if directory.exists():
                aside = self.root / "removed"
                aside.mkdir(exist_ok=True)
                shutil.move(directory, aside / f"{len(list(aside.iterdir()))}")


def pressure(some_us: int, full_us: int = 0) -> str:
    average = "avg10=0.00 avg60=0.00 avg300=0.00"
    return f"some {average} total={some_us}\nfull {average} total={full_us}\n"


class NoticingFs(RealFs):
    """Reading a kept-open file whose path leads elsewhere by now fails with ENODEV."""

    def open(self, path: str) -> KernelFile:
        return _NoticingFile(super().open(path), path, self._at(path))


class _NoticingFile:
    def __init__(self, file: KernelFile, path: str, real: str) -> None:
        self._file, self._path, self._real = file, path, real
        self._directory = os.stat(os.path.dirname(real)).st_ino

    def read(self) -> bytes:
        try:
            same = os.stat(os.path.dirname(self._real)).st_ino == self._directory and os.path.exists(
                self._real
            )
        except OSError:
            same = False
        if not same:
            raise Gone(self._path, "read", errno.ENODEV)
        return self._file.read()

    def close(self) -> None:
        self._file.close()
