"""The host's processors and the bounds of resctrl's controls, as last read."""

from __future__ import annotations

from collections.abc import Callable

from perphd.domain.topology import Topology
from perphd.host.actuators import Actuators
from perphd.host.topology import Processors


class HostHardware:
    """The part of the host that may change while perphd runs: CPU hotplug, resctrl's mount.

    Args:
        topology: the processors as found at start.
        processors: detects CPU hotplug.
        bounds: resctrl's controls as found at start.
        read_bounds: reads them again.
    """

    def __init__(
        self,
        topology: Topology,
        processors: Processors,
        bounds: Actuators,
        read_bounds: Callable[[], Actuators],
    ) -> None:
        self._processors, self._read_bounds = processors, read_bounds
        self.topology, self.actuators = topology, bounds

    def follow_processors(self) -> bool:
        """Read the processors again. Returns True if other CPUs are online than before."""
        found = self._processors.look()
        if found is None:
            return False
        self.topology = found
        return True

    def bounds_now(self) -> Actuators:
        """The bounds of resctrl's controls at present. ``actuators`` keeps its value."""
        return self._read_bounds()

    def read_bounds(self, *, keep: bool = False) -> None:
        """Read the bounds of resctrl's controls again. ``keep``: if none are found, keep those known before."""
        found = self._read_bounds()
        if found != Actuators() or not keep:
            self.actuators = found
