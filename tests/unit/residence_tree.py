"""A directory with the files of cgroup2 and /proc that say where one workload runs."""

from __future__ import annotations

from pathlib import Path

from perphd.host.fs import RealFs


class Tree:
    """One group /db with one process 10; ``threads``: thread id -> (CPU where it ran last, clock ticks used)."""

    def __init__(self, root_dir: Path, *, cpus: str | None, root: str = "0-3") -> None:
        self._root = root_dir
        self.fs = RealFs(root_dir)
        self._write("proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
        self._write("proc/self/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
        self._write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory\n")
        self._write("sys/fs/cgroup/cpuset.cpus.effective", f"{root}\n")
        self._write("sys/fs/cgroup/db/cgroup.procs", "10\n")
        if cpus is not None:
            self._write("sys/fs/cgroup/db/cpuset.cpus.effective", f"{cpus}\n")
        self._threads: dict[int, tuple[int, int]] = {}

    @property
    def threads(self) -> dict[int, tuple[int, int]]:
        return self._threads

    @threads.setter
    def threads(self, threads: dict[int, tuple[int, int]]) -> None:
        self._threads = threads
        self.run(0)

    def run(self, ticks: int, only: int | None = None) -> None:
        """All threads (or this one) use so much CPU time."""
        for tid, (cpu, before) in list(self._threads.items()):
            used = before + (ticks if only in (None, tid) else 0)
            self._threads[tid] = cpu, used
            # As the kernel prints it: 52 fields, the command may hold blanks and parentheses.
            middle = " ".join(["0"] * 9)
            end = " ".join(["0"] * 13)
            text = f"{tid} (my (db) x) S 1 {middle} {used} 0 {' '.join(['0'] * 23)} {cpu} {end}\n"
            self._write(f"proc/10/task/{tid}/stat", text)

    def gone(self, tid: int) -> None:
        """A thread ended between the listing of its directory and the reading of its file."""
        del self._threads[tid]
        (self._root / f"proc/10/task/{tid}/stat").unlink()

    def _write(self, path: str, text: str) -> None:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
