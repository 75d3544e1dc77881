"""The counters behind ``mon_data``: occupancy and bandwidth of every RMID in every monitoring domain.

The work itself is simulated elsewhere: the physics passes the hardware's counts to ``set_occupancy`` and
``add_traffic``. This module does the kernel's part: whole units, sums over monitor groups and Sub-NUMA nodes,
counters that start at 0, identifiers that stay in limbo while their lines are in the cache.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from perphd.sim.kernel.resctrl.groups import Group, Rmids
from perphd.sim.kernel.resctrl.hardware import LOCAL, OCCUPANCY, TOTAL, Domain, Kernel, Monitoring
from perphd.sim.kernel.resctrl.numbers import BLANKS, text_of, unsigned
from perphd.sim.kernel.resctrl.status import CommandStatus
from perphd.sim.kernel.vfs import refuse

UNAVAILABLE: Final = "Unavailable"
ERROR: Final = "Error"
EVICTION_HALF_LIFE_S: Final = 0.25
"""Half-life of a freed RMID's lines in the cache, in seconds, as others evict them."""

_EVENT_BITS: Final = 0x7F
_ANY_BITS: Final = 8 * 4096
_DEFAULT_CONFIG: Final = {TOTAL: 0x7F, LOCAL: 0x15}
"""Default content of the bandwidth events (resctrl.rst, "mbm_total_bytes_config")."""


@dataclass(slots=True)
class Counter:
    """The hardware's state for one RMID in one monitoring domain, in bytes."""

    occupancy_bytes: float = 0.0
    total_bytes: float = 0.0
    local_bytes: float = 0.0

    def value(self, event: str) -> float:
        """The value of this event, in bytes."""
        if event == OCCUPANCY:
            return self.occupancy_bytes
        return self.total_bytes if event == TOTAL else self.local_bytes


class Monitor:
    """All counters of a machine. A monitoring domain has an id: the cache's, or under SNC the node's."""

    def __init__(self, machine: Monitoring, kernel: Kernel, status: CommandStatus, online: int) -> None:
        self.machine, self._kernel, self._status = machine, kernel, status
        self.rmids = Rmids(machine.num_rmids)
        self.threshold_bytes = machine.threshold_bytes
        self._online = online
        self._counters: dict[tuple[int, int], Counter] = {}
        self._freed_s: dict[int, float] = {}
        self._conditions: dict[tuple[int, str, bool], str] = {}
        self._config = {(e, d.id): bits for e, bits in _DEFAULT_CONFIG.items() for d in machine.domains}
        self._stale: set[tuple[int, int, str]] = set()

    # -- domains ----------------------------------------------------------------------------------------

    def domains(self) -> list[Domain]:
        """Monitoring domains with an online CPU."""
        return [domain for domain in self.machine.domains if domain.cpus.mask & self._online]

    def units(self, domain: Domain) -> Sequence[int]:
        """The monitoring domains of a cache: itself, or its nodes under SNC."""
        return domain.nodes or (domain.id,)

    def bring_online(self, online: int) -> None:
        """Set the online CPUs; a vanishing domain loses its counters and its limbo entries."""
        before = {domain.id for domain in self.domains()}
        self._online = online
        after = {domain.id for domain in self.domains()}
        for domain in self.machine.domains:
            if domain.id in before - after:
                units = set(self.units(domain))
                for key in [key for key in self._counters if key[1] in units]:
                    del self._counters[key]
        if before - after:
            self.rmids.release([rmid for rmid in self.rmids.limbo if not self._dirty(rmid, 0.0)])

    # -- physics ----------------------------------------------------------------------------------------

    def set_occupancy(self, rmid: int, unit: int, occupancy_bytes: float) -> None:
        """Set the RMID's present cache occupancy."""
        self._counter(rmid, unit).occupancy_bytes = max(0.0, occupancy_bytes)

    def add_traffic(self, rmid: int, unit: int, total_bytes: float, local_bytes: float) -> None:
        """Add bytes that went to and from memory since the last call."""
        counter = self._counter(rmid, unit)
        counter.total_bytes += total_bytes
        counter.local_bytes += local_bytes

    def set_condition(
        self, domain_id: int, event: str, condition: str | None, *, of_nodes: bool = True
    ) -> None:
        """Make the event read ``condition`` (``Unavailable``, ``Error``) in a domain (a cache id); None:
        numbers again.

        Without ``of_nodes``, this affects only the sums over Sub-NUMA nodes: some kernels report 0 there
        after a node's first CPU went offline.
        """
        for key in ((domain_id, event, False), *(((domain_id, event, True),) if of_nodes else ())):
            if condition is None:
                self._conditions.pop(key, None)
            else:
                self._conditions[key] = condition

    def _counter(self, rmid: int, unit: int) -> Counter:
        return self._counters.setdefault((rmid, unit), Counter())

    def restart_counting(self, rmid: int) -> None:
        """Restart the bandwidth counts from 0, as for every group whose ``mon_data`` is created."""
        for (held_by, _), counter in self._counters.items():
            if held_by == rmid:
                counter.total_bytes = counter.local_bytes = 0.0

    # -- RMIDs ------------------------------------------------------------------------------------------

    def take_rmid(self, now_s: float) -> int:
        """An RMID whose bandwidth counters begin at 0; OSError: see ``Rmids.take``."""
        self.catch_up(now_s)
        rmid = self.rmids.take()
        for domain in self.machine.domains:
            for unit in self.units(domain):
                counter = self._counters.pop((rmid, unit), None)
                if counter is not None and counter.occupancy_bytes > 0:
                    left = self._left(rmid, counter.occupancy_bytes, now_s)
                    self._counters[rmid, unit] = Counter(occupancy_bytes=left)
        self._freed_s.pop(rmid, None)
        return rmid

    def free_rmid(self, rmid: int, now_s: float) -> None:
        """Free an RMID."""
        self.catch_up(now_s)
        self._freed_s[rmid] = now_s
        if OCCUPANCY not in self.machine.events:
            self.rmids.give_back(rmid, now_s, dirty=False)
            return
        dirty = self._kernel.always_limbo or self._dirty(rmid, now_s, at_most=True)
        self.rmids.give_back(rmid, now_s, dirty=dirty)

    def catch_up(self, now_s: float) -> None:
        """Apply the work of the kernel's limbo worker until now."""
        for look_s in self.rmids.due(now_s):
            self.rmids.release([rmid for rmid in self.rmids.limbo if not self._dirty(rmid, look_s)])

    def _dirty(self, rmid: int, now_s: float, *, at_most: bool = False) -> bool:
        # The check when an RMID is freed admits exactly the threshold; the worker's does not.
        for domain in self.domains():
            for unit in self.units(domain):
                counter = self._counters.get((rmid, unit))
                held = self._left(rmid, counter.occupancy_bytes, now_s) if counter is not None else 0.0
                in_units = self.machine.rounded(int(held))
                if in_units > self.threshold_bytes or (in_units == self.threshold_bytes and not at_most):
                    return True
        return False

    def _left(self, rmid: int, occupancy_bytes: float, now_s: float) -> float:
        age_s = max(0.0, now_s - self._freed_s.get(rmid, now_s))
        return occupancy_bytes * math.exp2(-age_s / EVICTION_HALF_LIFE_S)

    # -- files ------------------------------------------------------------------------------------------

    def read(self, group: Group, domain: Domain, event: str, node: int | None = None) -> str:
        """The content of an event's file: the sum over the group, its monitor groups, and all units or one node."""
        units = self.units(domain) if node is None else (node,)
        condition = self._conditions.get((domain.id, event, node is not None))
        if condition is not None:
            return condition + "\n"
        total, readable = 0, False
        for unit in units:
            for member in group.family():
                if (member.rmid, unit, event) in self._stale:
                    self._stale.discard((member.rmid, unit, event))
                    continue
                readable = True
                counter = self._counters.get((member.rmid, unit))
                if counter is not None:
                    total += self.machine.rounded(int(counter.value(event)))
        return f"{total}\n" if readable else UNAVAILABLE + "\n"

    def write_threshold(self, data: bytes) -> None:
        """Write ``max_threshold_occupancy``. Does not change the status.

        OSError: EINVAL for other text or more than the cache's size, ERANGE beyond 32 bits.
        """
        text = text_of(data).removesuffix("\n")
        base = 16 if text[:2].lower() == "0x" else 8 if text[:1] == "0" and len(text) > 1 else 10
        value = unsigned(text, base, _ANY_BITS)
        if value is None:
            raise refuse(errno.EINVAL)
        if value >= 1 << 32:
            raise refuse(errno.ERANGE)
        if value > self.machine.cache_bytes:
            raise refuse(errno.EINVAL)
        self.threshold_bytes = self.machine.rounded(value)

    def show_config(self, event: str) -> str:
        """The content of ``mbm_total_bytes_config`` or ``mbm_local_bytes_config``."""
        return ";".join(f"{d.id}=0x{self._config[event, d.id]:02x}" for d in self.domains()) + "\n"

    def write_config(self, event: str, data: bytes) -> None:
        """Select what a bandwidth event counts; all bandwidth counters of the domain restart.

        The next read of each is Unavailable. OSError: EINVAL for other text, event bits beyond the valid mask, or
        an unknown domain; domains before the refused one are changed.
        """
        if not data.endswith(b"\n"):
            raise refuse(errno.EINVAL)
        self._status.clear()
        rest: str = text_of(data[:-1])
        while rest:
            part, _, rest = rest.partition(";")
            number, _, text = part.strip(BLANKS).partition("=")
            domain_id = unsigned(number, 10)
            if domain_id is None:
                self._status.say("Missing '=' or non-numeric domain id")
                raise refuse(errno.EINVAL)
            bits = unsigned(text, 16)
            if bits is None:
                self._status.say("Non-numeric event configuration value")
                raise refuse(errno.EINVAL)
            if bits & ~_EVENT_BITS:
                self._status.say(f"Invalid event configuration: max valid mask is 0x{_EVENT_BITS:02x}")
                raise refuse(errno.EINVAL)
            domain = next((d for d in self.domains() if d.id == domain_id), None)
            if domain is None:
                raise refuse(errno.EINVAL)
            if bits != self._config[event, domain_id]:
                self._config[event, domain_id] = bits
                self._restart(domain)

    def _restart(self, domain: Domain) -> None:
        for unit in self.units(domain):
            for rmid in range(self.machine.num_rmids):
                counter = self._counters.get((rmid, unit))
                if counter is not None:
                    counter.total_bytes = counter.local_bytes = 0.0
                self._stale.update(((rmid, unit, TOTAL), (rmid, unit, LOCAL)))
