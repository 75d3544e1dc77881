"""Finds this host's throttle levels: from a calibration, a shipped default or the kernel.

A calibration is a file of ``rdt.curves`` in the state directory, made by ``perphctl calibrate``. It is valid only on
the machine and with the kernel's bandwidth steps under which it was made.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import rdt
from perphd.domain.capability import Area, Capability
from perphd.domain.throttle import ThrottleCurve, ThrottleSource
from perphd.host.fs import KernelFs
from perphd.host.resctrl import open_groups
from rdt.curves import BandwidthLookup, Calibration, family_of
from rdt.probe import machine_name

FILE: Final = "mba-calibration.json"
"""Name of the calibration file in the state directory."""
CAPABILITY: Final = "resctrl.mba_calibration"


@dataclass(frozen=True, slots=True)
class Throttle:
    """Known throttle levels of this host.

    ``levels``: percentages that differ in effect, ascending. ``note``: origin of the levels, and why no better source
    is available.
    """

    levels: tuple[int, ...] = ()
    source: ThrottleSource = ThrottleSource.NOMINAL
    curves: tuple[ThrottleCurve, ...] = ()
    note: str = ""


def throttle_of(fs: rdt.Fs, info: rdt.Info, state_dir: str) -> Throttle:
    """The throttle levels of a mounted resctrl; no levels if bandwidth is not given in percent."""
    bandwidth = info.bandwidths.get("MB")
    if bandwidth is None or not bandwidth.is_percent:
        return Throttle()
    steps, machine, why = bandwidth.steps(), machine_name(fs), "never calibrated"
    try:
        calibration = Calibration.load(Path(state_dir) / FILE)
        why = calibration.misfit(bandwidth, machine)
        if not why and any(curve.resource == bandwidth.name for curve in calibration.curves):
            return _calibrated(bandwidth, calibration, machine)
        why = f"the calibration of {calibration.made} is not used: {why or 'it has no curves'}"
    except rdt.Gone:
        pass
    except rdt.ResctrlError as exc:
        why = f"the calibration is not used: {exc}"
    family = family_of(fs)
    if family is not None:
        kept = family.levels(steps)
        left_out = ", ".join(f"{level} %" for level in steps if level not in kept)
        note = f"{why}; {family.name}: {left_out or 'no level'} left out ({family.source})"
        return Throttle(kept, ThrottleSource.SHIPPED, (), note)
    return Throttle(steps, ThrottleSource.NOMINAL, (), f"{why}, and the levels of this CPU are unknown")


def look(fs: KernelFs, state_dir: str) -> Throttle:
    """The throttle levels of the presently mounted resctrl; no levels if there is none."""
    groups = open_groups(fs)
    if isinstance(groups, str):
        return Throttle()
    return throttle_of(groups.resctrl.access.fs, groups.resctrl.info, state_dir)


def _calibrated(bandwidth: rdt.BandwidthInfo, calibration: Calibration, machine: str) -> Throttle:
    """Levels that differ in effect in at least one domain and for at least one number of cores, with their measured
    bandwidths.
    """
    lookup = BandwidthLookup(bandwidth, calibration, machine=machine)
    measured = [curve for curve in calibration.curves if curve.resource == bandwidth.name]
    useful = {level for curve in measured for level in lookup.levels(curve.domain, curve.cores)}
    levels = tuple(level for level in bandwidth.steps() if level in useful or level == 100)
    curves = []
    for curve in measured:
        found = [(level, lookup.bandwidth(curve.domain, curve.cores, level)) for level in levels]
        points = tuple((level, value) for level, value in found if isinstance(value, float))
        curves.append(ThrottleCurve(curve.domain, curve.cores, points))
    without = sorted({*bandwidth.domains} - {curve.domain for curve in curves})
    note = f"measured {calibration.made}, {len(curves)} curves"
    if without:
        note += f"; none of domain {', '.join(map(str, without))}"
    return Throttle(levels, ThrottleSource.CALIBRATED, tuple(curves), note)


def capability(throttle: Throttle) -> Capability:
    """The capability for doctor: whether the throttle levels are known in bytes per second."""
    levels = f"levels {' '.join(map(str, throttle.levels))} %"
    if throttle.source is ThrottleSource.CALIBRATED:
        return Capability(CAPABILITY, Area.ENFORCE, True, f"{throttle.note}; {levels}")
    if not throttle.levels:
        detail = "memory bandwidth cannot be throttled in percent here"
        return Capability(CAPABILITY, Area.ENFORCE, False, detail, "", "see resctrl.mba")
    return Capability(
        CAPABILITY,
        Area.ENFORCE,
        False,
        f"{throttle.source}: {throttle.note}; {levels}",
        "the bandwidth that a throttle level leaves to batch is unknown: percentages are nominal",
        "perphctl calibrate, on an idle host",
    )
