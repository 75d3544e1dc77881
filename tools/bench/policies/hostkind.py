"""Kinds of host, and perphd's measurements on each, to which the bench restricts its policies.

A test compares this with what the agent itself provides on a simulated host of each kind.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Final

from perphd.domain.policy import HostView
from perphd.domain.reading import Unavailable
from perphd.domain.sample import Sample

NO_EVENTS: Final = Unavailable("this kind of host has no PMU")
NO_RESCTRL: Final = Unavailable("this kind of host has no resctrl")
_EVENTS: Final = ("mips", "cpi", "llc_mpki")
_CACHE: Final = ("llc_occupancy_bytes", "mbw_bytes_per_s")


class HostKind(StrEnum):
    """Features of a host in addition to control groups, PSI and an application's own indicators."""

    METAL = "metal"  # a PMU, and cache and bandwidth allocation and monitoring
    NO_RDT = "no-rdt"  # a PMU alone
    NO_PMU = "no-pmu"  # resctrl alone
    VM = "vm"  # neither

    @property
    def has_pmu(self) -> bool:
        """True if the processor's events can be counted."""
        return self in (HostKind.METAL, HostKind.NO_RDT)

    @property
    def has_resctrl(self) -> bool:
        """True if cache and bandwidth can be divided and measured."""
        return self in (HostKind.METAL, HostKind.NO_PMU)

    def seen(self, sample: Sample) -> Sample:
        """The sample reduced to this kind of host's measurements."""
        lacking = {} if self.has_pmu else dict.fromkeys(_EVENTS, NO_EVENTS)
        lacking |= {} if self.has_resctrl else dict.fromkeys(_CACHE, NO_RESCTRL)
        return replace(sample, **lacking) if lacking else sample  # type: ignore[arg-type]

    def actuators(self, view: HostView) -> HostView:
        """The host with the actuators that this kind of host has."""
        return view if self.has_resctrl else replace(view, llc_ways=0, mba_levels_pct=())

    def knobs(self, everything: frozenset[str]) -> frozenset[str]:
        """The knobs of a workload on this kind of host."""
        return everything if self.has_resctrl else everything - {"llc_masks", "mba_pct"}
