"""The batch jobs: CPU-bound Monte-Carlo PI and memory streaming, whose work is counted through a shared file."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.lab.processes import LabError, Ledger

_SOURCES = Path(__file__).parent / "native"
_SLOT_BYTES, _SLOTS = 64, 64
_STREAM_MIB_FLOOR = 128


@dataclass(frozen=True, slots=True)
class Job:
    """A kind of batch job. ``unit``: what ``count`` counts, after division by ``scale``."""

    name: str
    program: str
    processes: int
    unit: str
    scale: float


JOBS = {
    "pi4": Job("pi4", "pi", 4, "M samples", 1e6),
    "stream2": Job("stream2", "stream", 2, "GB moved", 1e9),
}


class Programs:
    """The compiled workers, or their Python stand-ins where there is no compiler."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._compiler = shutil.which("gcc") or shutil.which("cc")
        for name in ("pi", "stream"):
            if self._compiler is not None:
                source = _SOURCES / f"{name}.c"
                command = [self._compiler, "-O2", "-march=native", "-o", str(folder / name), str(source)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    raise LabError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")

    @property
    def language(self) -> str:
        """What the workers are written in: their rates are not comparable."""
        return "C" if self._compiler is not None else "Python"

    def command(self, name: str, counters: Path, slot: int) -> list[str]:
        """The command line of one worker."""
        extra = [str(stream_mib())] if name == "stream" else []
        if self._compiler is not None:
            return [str(self._folder / name), str(counters), str(slot), *extra]
        return [sys.executable, str(_SOURCES / "workers.py"), name, str(counters), str(slot), *extra]


def stream_mib() -> int:
    """Size of one array: four times the last-level cache, so that it cannot stay there."""
    try:
        llc = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (ValueError, OSError):
        llc = 0
    return max(_STREAM_MIB_FLOOR, 4 * llc // 2**20)


class Batch:
    """One running batch job."""

    def __init__(self, ledger: Ledger, job: Job, programs: Programs, folder: Path, groups: list[str]) -> None:
        self.job = job
        self._ledger = ledger
        self._path = folder / f"counters-{job.name}"
        self._path.write_bytes(bytes(_SLOT_BYTES * _SLOTS))
        with self._path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._processes = [
            ledger.start(programs.command(job.program, self._path, slot), groups=groups)
            for slot in range(job.processes)
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
            for slot in range(self.job.processes)
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
