"""How full the host's network links are: without that, a full link would look like something slow elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.domain.errors import KernelError
from perphd.domain.reading import Reading, Unavailable
from perphd.host.fs import KernelFile, KernelFs

CLASS = "/sys/class/net"
LOOK_S = 60.0
"""Links come, go and change their speed: they are looked for so often."""
_DIRECTIONS = ("rx_bytes", "tx_bytes")
_BITS = 1e6 / 8.0


@dataclass(slots=True)
class _Counter:
    """One direction of one link, its file kept open. ``last``: bytes at the reading before, None if there was none."""

    file: KernelFile
    bytes_per_s: float
    last: int | None = None


class LinkLoad:
    """How full the fullest link was over the time between two readings, in the fuller direction.

    Only links that say their speed count (``speed``, Mbit/s, of ABI/testing/sysfs-class-net): virtual devices and
    links that are down do not.
    """

    def __init__(self, fs: KernelFs) -> None:
        self._fs = fs
        self._counters: dict[tuple[str, str], _Counter] = {}
        self._looked_s: float | None = None
        self._read_s: float | None = None

    def read(self, now_s: float) -> Reading:
        """Per cent of the link's speed; Unavailable where no link tells it, and in the first interval."""
        if self._looked_s is None or not 0 <= now_s - self._looked_s < LOOK_S:
            self._look()
            self._looked_s = now_s
        if not self._counters:
            return Unavailable(f"{CLASS}: no link that is up says its speed")
        before_s, self._read_s = self._read_s, now_s
        most: float | None = None
        for key, counter in list(self._counters.items()):
            try:
                now = int(counter.file.read())
            except (KernelError, ValueError):
                counter.file.close()
                del self._counters[key]  # it went; looked for again in a while
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
            try:
                if not self._fs.exists(f"{CLASS}/{name}/device"):
                    continue  # bridges, tunnels and the like repeat what goes over the links below them
                mbits = int(self._fs.read(f"{CLASS}/{name}/speed"))
            except (KernelError, ValueError):
                continue  # down, or without a speed: EINVAL
            if mbits > 0:
                found[name] = mbits * _BITS
        return found

    def close(self) -> None:
        """Give the descriptors back."""
        for counter in self._counters.values():
            counter.file.close()
        self._counters.clear()
