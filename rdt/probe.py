"""Run memory streams on chosen CPUs and find idle CPUs, for calibration.

A stream is a process pinned to one CPU. It copies a buffer larger than the cache and counts the bytes read
and written in shared memory. It ends at its deadline, or when its parent is gone.

    python -m rdt.probe FD SLOT CPU BUFFER_BYTES SECONDS      (started by ``Streams``, not by people)
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from rdt.access import decoded
from rdt.errors import Broken, Busy, Unsupported
from rdt.fs import Fs
from rdt.names import parse_cpus

_SLOT = struct.Struct("=Q")
_CHUNK_BYTES = 1 << 20
_READY_S = 20.0
_END_S = 5.0
_CPUS = "/sys/devices/system/cpu"
_INDEX = re.compile(r"index[0-9]+\Z")


class Stream(Protocol):
    """Running streams; a context manager that ends them."""

    @property
    def tids(self) -> tuple[int, ...]:
        """The streams' thread ids, to be moved into a group."""

    def moved_bytes(self) -> float:
        """Bytes read and written by all streams so far. Raises Broken if one has ended."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Prober(Protocol):
    """Starts streams."""

    def stream(self, cpus: Sequence[int], seconds: float) -> Stream:
        """Start one stream on each CPU, for a bounded time. Returns when all streams run at full speed."""


class Streams:
    """Streams as processes.

    Args:
        cpus: one stream runs on each.
        buffer_bytes: size of a stream's source buffer, and of its target buffer.
        seconds: maximum lifetime of a stream.
    """

    def __init__(self, cpus: Sequence[int], buffer_bytes: int, seconds: float) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._fd = os.memfd_create("rdt-probe", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._fd, mmap.PAGESIZE * (len(cpus) * _SLOT.size // mmap.PAGESIZE + 1))
            self._counts = mmap.mmap(self._fd, 0)
            for slot, cpu in enumerate(cpus):
                command = [sys.executable, "-m", "rdt.probe"]
                command += [str(each) for each in (self._fd, slot, cpu, buffer_bytes, seconds)]
                self._processes.append(
                    subprocess.Popen(
                        command, pass_fds=[self._fd], stdin=subprocess.DEVNULL, env=_environment()
                    )
                )
            self._wait_until_all_run()
        except BaseException:
            self._end()
            raise

    @property
    def tids(self) -> tuple[int, ...]:
        """Process ids of the streams, each of which has one thread."""
        return tuple(process.pid for process in self._processes)

    def moved_bytes(self) -> float:
        """Bytes read and written by all streams so far. Raises Broken if one has ended."""
        for process in self._processes:
            if process.poll() is not None:
                raise Broken(
                    f"process {process.pid}",
                    doing="streaming in",
                    reason=f"it ended with status {process.returncode}",
                )
        return float(sum(self._counted()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _counted(self) -> list[int]:
        return [_SLOT.unpack_from(self._counts, slot * _SLOT.size)[0] for slot in range(len(self._processes))]

    def _wait_until_all_run(self) -> None:
        deadline_s = time.monotonic() + _READY_S
        while not all(self._counted()):
            self.moved_bytes()
            if time.monotonic() > deadline_s:
                raise Busy(
                    "streams", doing="starting", reason=f"some streams did not start within {_READY_S:g} s"
                )
            time.sleep(0.005)

    def _end(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass(frozen=True, slots=True)
class ProcessProber:
    """Starts ``Streams``.

    Each buffer is large compared with the cache share left to calibration. All buffers together stay within
    ``memory_bytes``.
    """

    buffer_bytes: int = 64 << 20
    memory_bytes: int = 4 << 30

    def stream(self, cpus: Sequence[int], seconds: float) -> Streams:
        """Start one stream on each CPU, for a bounded time."""
        return Streams(cpus, min(self.buffer_bytes, self.memory_bytes // (2 * len(cpus))), seconds)


def _environment() -> dict[str, str]:
    """The environment with this package's location in PYTHONPATH, so that the child can import it."""
    above = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [above, os.environ.get("PYTHONPATH")]))}


def _copy_until_the_end(fd: int, slot: int, cpu: int, buffer_bytes: int, seconds: float) -> None:
    os.sched_setaffinity(0, {cpu})
    counts = mmap.mmap(fd, 0)
    parent, deadline_s = os.getppid(), time.monotonic() + seconds
    chunk = min(_CHUNK_BYTES, buffer_bytes)
    # Written once, because unwritten pages all map to one page of zeros, which would stay in the cache.
    source, target = (memoryview(bytearray(b"\x5a") * buffer_bytes) for _ in range(2))
    copied = 0
    while time.monotonic() < deadline_s and os.getppid() == parent:
        for start in range(0, buffer_bytes - chunk + 1, chunk):
            target[start : start + chunk] = source[start : start + chunk]
            copied += 2 * chunk
            _SLOT.pack_into(counts, slot * _SLOT.size, copied)


# --- which CPUs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CacheShare:
    """The CPUs of one L3 domain, and the size of its cache."""

    domain: int
    cores: tuple[tuple[int, ...], ...]
    """Online CPUs by core: the hardware threads of a core form one tuple."""
    cache_bytes: int


def l3_domains(fs: Fs) -> dict[int, CacheShare]:
    """Online cores by L3 cache, from /sys/devices/system/cpu. CPUs with missing files are left out."""
    sharing: dict[int, set[int]] = {}
    sizes: dict[int, int] = {}
    online = parse_cpus(_text(fs, f"{_CPUS}/online"))
    for cpu in sorted(online):
        with suppress(OSError, ValueError):
            for index in filter(_INDEX.match, fs.listdir(f"{_CPUS}/cpu{cpu}/cache")):
                place = f"{_CPUS}/cpu{cpu}/cache/{index}"
                if _text(fs, f"{place}/level") == "3":
                    number = int(_text(fs, f"{place}/id"))
                    sharing.setdefault(number, set()).add(cpu)
                    sizes[number] = _size_bytes(_text(fs, f"{place}/size"))
    found = {}
    for number, cpus in sorted(sharing.items()):
        cores = {tuple(sorted(_siblings(fs, cpu) & online)) for cpu in cpus}
        found[number] = CacheShare(number, tuple(sorted(cores)), sizes[number])
    return found


def idle_cores(
    fs: Fs,
    cores: Iterable[tuple[int, ...]],
    *,
    sleep: Callable[[float], None] = time.sleep,
    seconds: float = 0.5,
    busy: float = 0.1,
) -> tuple[tuple[int, ...], ...]:
    """Cores on which every CPU was busy for less than the share ``busy`` of an interval, according to /proc/stat."""
    before = _busy_idle(fs)
    sleep(seconds)
    after = _busy_idle(fs)

    def is_idle(cpu: int) -> bool:
        if cpu not in before or cpu not in after:
            return False
        worked, rested = (now - then for now, then in zip(after[cpu], before[cpu], strict=True))
        return worked + rested > 0 and worked / (worked + rested) < busy

    return tuple(core for core in cores if all(map(is_idle, core)))


def machine_name(fs: Fs) -> str:
    """The CPU's model name from /proc/cpuinfo, to which a calibration belongs; ``unknown`` if it has none."""
    with suppress(OSError):
        for line in _text(fs, "/proc/cpuinfo").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return "unknown"


def _busy_idle(fs: Fs) -> dict[int, tuple[int, int]]:
    """Ticks busy and idle (waiting for I/O included) of every CPU since boot."""
    found = {}
    try:
        lines = _text(fs, "/proc/stat").splitlines()
    except OSError as error:
        raise Unsupported(
            "/proc/stat", doing="reading", errno=error.errno, reason="idle CPUs cannot be found"
        ) from error
    for line in lines:
        name, *fields = line.split()
        if re.fullmatch(r"cpu[0-9]+", name):
            ticks = [int(field) for field in fields[:8]]
            found[int(name[3:])] = (sum(ticks) - ticks[3] - ticks[4], ticks[3] + ticks[4])
    return found


def _siblings(fs: Fs, cpu: int) -> frozenset[int]:
    try:
        return parse_cpus(_text(fs, f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list")) | {cpu}
    except OSError:
        return frozenset({cpu})


def _size_bytes(text: str) -> int:
    return int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)


def _text(fs: Fs, path: str) -> str:
    return decoded(fs.read(path)).strip()


if __name__ == "__main__":
    _fd, _slot, _cpu, _buffer_bytes = map(int, sys.argv[1:5])
    _copy_until_the_end(_fd, _slot, _cpu, _buffer_bytes, float(sys.argv[5]))
