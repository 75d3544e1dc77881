"""Indicators from a file that the application, or a helper program, keeps rewriting."""

from __future__ import annotations

import errno
import math
import os
import stat
from typing import TypeAlias

from perphd.domain.errors import ParseError
from perphd.domain.reading import Unavailable
from perphd.domain.workload import SliSpec
from perphd.monitor.sli.keyed import MAX_BYTES, KeyedReader
from perphd.monitor.sli.options import resolution_of, seconds, setting
from perphd.monitor.sli.reading import SliReading
from perphd.monitor.sli.resolution import Deliveries, Resolution, ResolutionFinder

_Version: TypeAlias = tuple[int, int, int]
"""Version of a file: inode, modification time in ns, and size in bytes."""
_NO_FILE: _Version = (0, 0, 0)


class FileSource:
    """Reads a file once after each change; in between, readings are Awaited for up to ``max_age_s``.

    The content before the first change may be of any age, so it is ignored. Writers should rename a new file over
    the old one. Otherwise perphd may read a half-written file, and may even accept its content.
    """

    def __init__(self, spec: SliSpec) -> None:
        self._path = setting(spec, "path")
        self._max_age_s = seconds(spec, "max_age_s")
        self._finder = ResolutionFinder(resolution_of(spec))
        self._reader = KeyedReader(self._finder, delivered=True)
        self._version: _Version | None = None
        self._changes = Deliveries()
        self._reading = SliReading.missing(Unavailable(f"{self._path}: waiting for its first change"))

    @property
    def resolution(self) -> Resolution:
        """The usual time between two versions of the file, or between two changes of its counter if that is longer."""
        both = self._finder.resolution, self._changes.resolution
        return max(both, key=lambda one: max(one.seconds, one.proven_s))

    def worked(self, cpu_s: float | None) -> None:
        """Take the application's CPU time between the last two readings; None if unknown."""
        self._finder.worked(cpu_s)

    async def read(self, now_s: float) -> SliReading:
        """The indicators of the file's newest version."""
        try:
            version, data = _load(self._path, self._version)
        except OSError as exc:
            if exc.errno == errno.ENOENT:
                self._version = _NO_FILE  # a file that appears later is new
            return SliReading.missing(Unavailable(f"{self._path}: {exc.strerror or exc}"))
        if data is not None:
            known, self._version = self._version, version
            if known is not None:
                self._changes.delivered(now_s)
                self._reading = self._parse(data, now_s)
        age_s = self._changes.age_s(now_s)
        if math.isfinite(age_s) and age_s > self._max_age_s:
            stale = f"{self._path}: stale, unchanged for more than {self._max_age_s:g} s"
            return SliReading.missing(Unavailable(stale))
        reading = self._reading
        if math.isfinite(age_s) and not reading.is_missing():
            self._reading = SliReading.missing(self.resolution.awaited())
        return reading

    def _parse(self, data: bytes, now_s: float) -> SliReading:
        if len(data) > MAX_BYTES:
            return SliReading.missing(Unavailable(f"{self._path}: larger than {MAX_BYTES} bytes"))
        try:
            return self._reader.reading(data.decode(errors="replace"), now_s, self._changes.resolution)
        except ParseError as exc:
            return SliReading.missing(Unavailable(f"{self._path}: {exc}"))

    async def close(self) -> None:
        """Do nothing, because no resource is held."""


def _load(path: str, known: _Version | None) -> tuple[_Version, bytes | None]:
    """The file's version, and its content if the version is new. Raises OSError if it cannot be read."""
    # Opening a FIFO without a writer would block the daemon.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", path)
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        return version, None if version == known else os.read(fd, MAX_BYTES + 1)
    finally:
        os.close(fd)
