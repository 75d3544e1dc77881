"""The io controller: throttling limits, weights and counters of the one disk."""

from __future__ import annotations

import errno
import re
from typing import Final

from perphd.sim.counters import IoCounters
from perphd.sim.kernel import formats
from perphd.sim.kernel.cgroup2.rules import DISK, FileSpec, Kernel
from perphd.sim.kernel.vfs import refuse

_DEVICE = re.compile(r"([0-9]+):([0-9]+)(?=\s|$)")
_LIMITS: Final = ("rbps", "wbps", "riops", "wiops")


class Io:
    """State and files of one group's io controller. ``limits``: per second, None is no limit."""

    def __init__(self, kernel: Kernel, counters: IoCounters) -> None:
        self._kernel, self._counters = kernel, counters
        self.limits: dict[str, int | None] = dict.fromkeys(_LIMITS)
        self.weight = 100
        self.latency_target_us: int | None = None

    def files(self) -> list[FileSpec]:
        """The controller's files."""
        files = [
            FileSpec("io.stat", lambda: stat_text(self._counters)),
            FileSpec("io.max", self._read_max, self._write_max),
            FileSpec("io.weight", lambda: f"default {self.weight}\n", self._write_weight),
        ]
        if self._kernel.io_latency:
            files.append(FileSpec("io.latency", self._read_latency, self._write_latency))
        return files

    def _read_max(self) -> str:
        if all(limit is None for limit in self.limits.values()):
            return ""
        words = (f"{name}={'max' if limit is None else limit}" for name, limit in self.limits.items())
        return f"{DISK} {' '.join(words)}\n"

    def _write_max(self, data: bytes) -> None:
        limits = dict(self.limits)
        for name, text in _settings(data):
            value = _limit(text)
            if value == 0:
                raise refuse(errno.ERANGE)
            if name not in limits or value == 1:  # the kernel requires at least two of anything
                raise refuse(errno.EINVAL)
            limits[name] = value
        self.limits = limits

    def _write_weight(self, data: bytes) -> None:
        text = formats.text_of(data)
        if ":" in text:
            _settings(data)  # an unknown device is reported first
            raise refuse(errno.EOPNOTSUPP)  # no scheduler with weights by device is active
        found = re.match(r"(?:default\s*)?([0-9]+)", text)
        if found is None or not 1 <= int(found[1]) <= 10_000:
            raise refuse(errno.EINVAL)
        self.weight = int(found[1])

    def _read_latency(self) -> str:
        return "" if self.latency_target_us is None else f"{DISK} target={self.latency_target_us}\n"

    def _write_latency(self, data: bytes) -> None:
        target = self.latency_target_us
        for name, text in _settings(data):
            if name != "target":
                raise refuse(errno.EINVAL)
            target = _limit(text)
        self.latency_target_us = target or None


def _settings(data: bytes) -> list[tuple[str, str]]:
    """NAME=VALUE words after the device: EINVAL without a device, ENODEV for one that does not exist."""
    text = formats.text_of(data)
    device = _DEVICE.match(text)
    if device is None:
        raise refuse(errno.EINVAL)
    if f"{int(device[1])}:{int(device[2])}" != DISK:
        raise refuse(errno.ENODEV)
    pairs = (word.partition("=") for word in text[device.end() :].split())
    return [(name, value) for name, _, value in pairs]


def _limit(text: str) -> int | None:
    if text == "max":
        return None
    digits = re.match(r"[0-9]+", text)
    if digits is None:
        raise refuse(errno.EINVAL)
    return int(digits[0])


def stat_text(stat: IoCounters) -> str:
    """io.stat; a group that did no I/O has no line."""
    if not stat.reads and not stat.writes:
        return ""
    return (
        f"{DISK} rbytes={int(stat.read_bytes)} wbytes={int(stat.written_bytes)} "
        f"rios={int(stat.reads)} wios={int(stat.writes)} dbytes=0 dios=0\n"
    )
