"""The batch jobs: Monte-Carlo PI, memory streaming and short processes count through a shared file, fio by its I/O."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tools.lab.processes import LabError, Ledger

_SOURCES = Path(__file__).parent / "native"
_SLOT_BYTES, _SLOTS = 64, 1024
_STREAM_MIB_FLOOR = 128


@dataclass(frozen=True, slots=True)
class Job:
    """A kind of batch job. ``unit``: the unit of ``count`` after division by ``scale``."""

    name: str
    program: str
    processes: int
    unit: str
    scale: float
    text: str


JOBS = {
    "pi4": Job("pi4", "pi", 4, "M samples", 1e6, "4 CPU-bound Monte-Carlo PI processes"),
    "stream2": Job("stream2", "stream", 2, "GB moved", 1e9, "2 memory-streaming processes"),
    "forks4": Job("forks4", "forks", 4, "processes", 1.0,
                  "4 makes: each starts one short-lived process after the other, as a compilation does"),
    "fio1": Job("fio1", "fio", 1, "MB", 1e6, "fio, random reads and writes of 64 KB on a file on disk"),
}  # fmt: skip
FIO_BYTES = 256 << 20


class Programs:
    """The compiled workers, or their Python substitutes if there is no compiler."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._compiler = shutil.which("gcc") or shutil.which("cc")
        for name in ("pi", "stream", "forks"):
            if self._compiler is not None:
                source = _SOURCES / f"{name}.c"
                command = [self._compiler, "-O2", "-march=native", "-o", str(folder / name), str(source)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    raise LabError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")

    @property
    def language(self) -> str:
        """The workers' language; rates of different languages are not comparable."""
        return "C" if self._compiler is not None else "Python"

    def command(self, name: str, counters: Path, slot: int) -> list[str]:
        """The command line of one worker."""
        extra = [str(stream_mib())] if name == "stream" else []
        if self._compiler is not None:
            return [str(self._folder / name), str(counters), str(slot), *extra]
        return [sys.executable, str(_SOURCES / "workers.py"), name, str(counters), str(slot), *extra]


def stream_mib() -> int:
    """Size of one array: four times the last-level cache, so that it does not fit."""
    try:
        llc = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (ValueError, OSError):
        llc = 0
    return max(_STREAM_MIB_FLOOR, 4 * llc // 2**20)


class Batch(Protocol):
    """One running batch job."""

    def count(self) -> float:
        """Work done since the start, in the job's unit.

        Raises:
            LabError: a worker has ended by itself.
        """

    def stop(self) -> None:
        """End the workers."""


def start(
    ledger: Ledger, job: Job, programs: Programs, data: Path, disk: Path, groups: list[str], scale: int = 1
) -> Batch:
    """Start a job; ``scale`` times as many workers. ``data``: folder for counters; ``disk``: folder of fio's file."""
    if job.program == "fio":
        return Fio(ledger, job, disk, groups, scale)
    return Counted(ledger, job, programs, data, groups, scale)


class Fio:
    """fio, whose work is the number of bytes read and written by its threads."""

    def __init__(self, ledger: Ledger, job: Job, disk: Path, groups: list[str], scale: int) -> None:
        if shutil.which("fio") is None:
            raise LabError("fio is not installed: apt-get install fio")
        self._ledger, self._job = ledger, job
        self._file = disk / "fio-file"
        if not self._file.exists():
            with self._file.open("wb") as file:
                for _ in range(FIO_BYTES >> 20):
                    file.write(os.urandom(1 << 20))
        self._process = ledger.start(
            ["fio", "--name=lab", f"--filename={self._file}", "--rw=randrw", "--bs=64k", "--direct=1", "--thread",
             f"--numjobs={scale}", "--ioengine=psync", "--time_based", "--runtime=86400", f"--size={FIO_BYTES}"],
            groups=groups,
        )  # fmt: skip

    def count(self) -> float:
        """Megabytes read and written."""
        try:
            text = Path(f"/proc/{self._process.pid}/io").read_text()
        except OSError:
            text = ""
        if self._process.poll() is not None or not text:
            raise LabError("fio ended by itself")
        done = dict(line.split(": ") for line in text.splitlines())
        return (int(done["rchar"]) + int(done["wchar"])) / self._job.scale

    def stop(self) -> None:
        """End fio."""
        self._ledger.end(self._process)


class Counted:
    """A job of native/, whose workers count in a shared file."""

    def __init__(
        self, ledger: Ledger, job: Job, programs: Programs, folder: Path, groups: list[str], scale: int
    ) -> None:
        self.job = job
        self._count = job.processes * scale
        if self._count > _SLOTS:
            raise LabError(
                f"{job.name} has {_SLOTS} counters: {self._count} workers are too many (a smaller --scale)"
            )
        self._ledger = ledger
        self._path = folder / f"counters-{job.name}"
        self._path.write_bytes(bytes(_SLOT_BYTES * _SLOTS))
        with self._path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._processes = [
            ledger.start(programs.command(job.program, self._path, slot), groups=groups)
            for slot in range(self._count)
        ]

    def count(self) -> float:
        """Work done since the start, in the job's unit.

        Raises:
            LabError: a worker has ended by itself.
        """
        if any(process.poll() is not None for process in self._processes):
            raise LabError(f"a worker of {self.job.name} ended by itself")
        total = sum(
            int.from_bytes(self._map[_SLOT_BYTES * slot : _SLOT_BYTES * slot + 8], sys.byteorder)
            for slot in range(self._count)
        )
        return total / self.job.scale

    def stop(self) -> None:
        """End the workers."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            self._ledger.end(process)
        self._map.close()
        self._path.unlink(missing_ok=True)
