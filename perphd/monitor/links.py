"""Measures the utilisation of the host's network links.

Without this reading, a saturated link would look like a slow remote service.
"""

from __future__ import annotations

from dataclasses import dataclass

from perphd.domain.errors import KernelError
from perphd.domain.reading import Reading, Unavailable
from perphd.host.fs import KernelFile, KernelFs
from perphd.host.link_use import link_speed

CLASS = "/sys/class/net"
LOOK_S = 60.0
"""Seconds between two searches for links, which come, go and change speed."""
_DIRECTIONS = ("rx_bytes", "tx_bytes")


@dataclass(slots=True)
class _Counter:
    """One direction of one link, its file kept open. ``last``: bytes at the previous reading, None if there
    was none.
    """

    file: KernelFile
    bytes_per_s: float
    last: int | None = None


class LinkLoad:
    """Utilisation of the busiest link between two readings, in its busier direction.

    Only links that report a speed count (``speed``, Mbit/s, ABI/testing/sysfs-class-net), not virtual devices
    and links that are down.
    """

    def __init__(self, fs: KernelFs) -> None:
        self._fs = fs
        self._counters: dict[tuple[str, str], _Counter] = {}
        self._looked_s: float | None = None
        self._read_s: float | None = None

    def read(self, now_s: float) -> Reading:
        """Percentage of the link's speed; Unavailable if no link reports a speed, and at the first reading."""
        if self._looked_s is None or not 0 <= now_s - self._looked_s < LOOK_S:
            self._look()
            self._looked_s = now_s
        if not self._counters:
            return Unavailable(f"{CLASS}: no link that is up reports its speed")
        before_s, self._read_s = self._read_s, now_s
        most: float | None = None
        for key, counter in list(self._counters.items()):
            try:
                now = int(counter.file.read())
            except (KernelError, ValueError):
                counter.file.close()
                del self._counters[key]  # the link is gone; the next search may find it again
                continue
            last, counter.last = counter.last, now
            if last is not None and before_s is not None and now_s > before_s and now >= last:
                pct = 100.0 * (now - last) / (now_s - before_s) / counter.bytes_per_s
                most = pct if most is None else max(most, pct)
        return most if most is not None else Unavailable("no interval yet")

    def _look(self) -> None:
        speeds = self._speeds()
        for key in [key for key in self._counters if key[0] not in speeds]:
            self._counters.pop(key).file.close()
        for name, bytes_per_s in speeds.items():
            for direction in _DIRECTIONS:
                known = self._counters.get((name, direction))
                if known is not None:
                    known.bytes_per_s = bytes_per_s
                    continue
                try:
                    file = self._fs.open(f"{CLASS}/{name}/statistics/{direction}")
                except KernelError:
                    continue
                self._counters[name, direction] = _Counter(file, bytes_per_s)

    def _speeds(self) -> dict[str, float]:
        found: dict[str, float] = {}
        try:
            names = self._fs.listdir(CLASS)
        except KernelError:
            return found
        for name in names:
            # Virtual devices such as bridges have none: they repeat the traffic of the links below them.
            if speed := link_speed(self._fs, name):
                found[name] = speed
        return found

    def close(self) -> None:
        """Close all descriptors."""
        for counter in self._counters.values():
            counter.file.close()
        self._counters.clear()
