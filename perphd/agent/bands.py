"""Keeps the division of the host among declared bands, and reports each band's share.

The host is divided once a workload in mode ``enforce`` declares a band with ``reserved_cpus`` or
``reserved_memory``. A workload that is only observed has no share, and no other workload makes room for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from perphd.domain.allocation import Settings
from perphd.domain.policy import HostView
from perphd.domain.topology import Topology
from perphd.domain.workload import WorkloadSpec
from perphd.host.actuators import Actuators

if TYPE_CHECKING:  # a daemon without bands does not load their module
    from perphd.qos.division import Division, Masks


def asks_for_a_share(spec: WorkloadSpec) -> bool:
    """True if the workload declares a band and reserves CPUs or memory."""
    return spec.band is not None and (spec.reserved_cpus > 0.0 or spec.reserved_memory_bytes > 0)


class Bands:
    """The last division of the host, and the inputs from which it was computed."""

    def __init__(self) -> None:
        self._made_for: object = None
        self._division: Division | None = None
        self._masks: Mapping[int, Masks] = {}
        self._least_bits = 1

    @property
    def division(self) -> Division | None:
        """The division in force; None if no band asks for one."""
        return self._division

    @property
    def copper_ways(self) -> Mapping[int, int]:
        """The maximum number of copper's cache ways by L3 domain; domains without a limit are absent."""
        return {domain: each.copper.bit_count() for domain, each in self._masks.items()}

    def divide(
        self,
        topology: Topology,
        actuators: Actuators,
        enforced: Iterable[WorkloadSpec],
        knobs: Mapping[str, frozenset[str]],
    ) -> None:
        """Divide the host among these workloads, unless nothing has changed since the last division.

        Args:
            topology: the host's processors now.
            actuators: the bounds of resctrl's controls.
            enforced: all present workloads that are enforced.
            knobs: settings that can be set on each of them here.
        """
        parties = tuple(enforced)
        if not any(map(asks_for_a_share, parties)):
            self._made_for = self._division = None
            self._masks = {}
            return
        asked = (topology, actuators, tuple((spec, knobs.get(spec.name, frozenset())) for spec in parties))
        if asked == self._made_for:
            return
        from perphd.qos.division import divided

        self._made_for = asked
        self._division = divided(topology, parties, knobs)
        self._masks = _masks(self._division, topology, actuators)
        self._least_bits = max(1, actuators.min_cbm_bits)

    def guarantees(self, name: str) -> bool:
        """False if the host cannot hold this workload's reserved memory in addition to that of others."""
        return self._division is None or name not in self._division.without_memory

    def over(self, spec: WorkloadSpec, wanted: Settings, knobs: frozenset[str]) -> Settings:
        """``wanted``, restricted to the workload's share of the division."""
        if self._division is None:
            return wanted
        from perphd.qos.division import over

        return over(spec, wanted, self._division, self._masks, knobs, self._least_bits)


def _masks(division: Division, topology: Topology, actuators: Actuators) -> dict[int, Masks]:
    """Cache masks by L3 domain, at the end of the cache that batch uses."""
    if actuators.llc_ways <= actuators.min_cbm_bits:
        return {}
    from perphd.admission.inference.way_layout import batch_mask
    from perphd.qos.division import Masks, way_shares

    host = HostView(
        topology,
        llc_ways=actuators.llc_ways,
        min_cbm_bits=actuators.min_cbm_bits,
        llc_shareable=actuators.llc_shareable,
    )
    shares = way_shares(division, topology, actuators.llc_ways)
    return {
        domain: Masks(batch_mask(host, share.silver), batch_mask(host, share.copper))
        for domain, share in shares.items()
    }
