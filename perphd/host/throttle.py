"""What is known of this host's throttle levels: a calibration in the state directory, a shipped default, or nothing.

A calibration is a file of ``rdt.curves``, made by ``perphctl calibrate``. It counts while the machine and the steps
that the kernel offers are those on which it was made.
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
from rdt.curves import Calibration
from rdt.lookup import BandwidthLookup
from rdt.probe import machine_name
from rdt.shipped import family_of

FILE: Final = "mba-calibration.json"
"""Its name in the state directory."""
CAPABILITY: Final = "resctrl.mba_calibration"


@dataclass(frozen=True, slots=True)
class Throttle:
    """``levels``: per cents that make a difference, ascending; ``note``: what is known, and why not more."""

    levels: tuple[int, ...] = ()
    source: ThrottleSource = ThrottleSource.NOMINAL
    curves: tuple[ThrottleCurve, ...] = ()
    note: str = ""


def throttle_of(fs: rdt.Fs, info: rdt.Info, state_dir: str) -> Throttle:
    """The throttle levels of a mounted resctrl; no levels where bandwidth is not given in per cent."""
    bandwidth = info.bandwidths.get("MB")
    if bandwidth is None or not bandwidth.is_percent:
        return Throttle()
    steps, machine, why = bandwidth.steps(), machine_name(fs), "never calibrated"
    try:
        calibration = Calibration.load(Path(state_dir) / FILE)
        why = calibration.misfit(bandwidth, machine)
        if not why and any(curve.resource == bandwidth.name for curve in calibration.curves):
            return _calibrated(bandwidth, calibration, machine)
        why = f"the calibration of {calibration.made} does not count: {why or 'it has no curves'}"
    except rdt.Gone:
        pass
    except rdt.ResctrlError as exc:
        why = f"the calibration does not count: {exc}"
    family = family_of(fs)
    if family is not None:
        kept = family.levels(steps)
        left_out = ", ".join(f"{level} %" for level in steps if level not in kept)
        note = f"{why}; {family.name}: {left_out or 'no level'} left out ({family.source})"
        return Throttle(kept, ThrottleSource.SHIPPED, (), note)
    return Throttle(steps, ThrottleSource.NOMINAL, (), f"{why}, and nothing is known of this CPU's levels")


def look(fs: KernelFs, state_dir: str) -> Throttle:
    """The same for whatever is mounted on a host now."""
    groups = open_groups(fs)
    if isinstance(groups, str):
        return Throttle()
    return throttle_of(groups.resctrl.access.fs, groups.resctrl.info, state_dir)


def _calibrated(bandwidth: rdt.BandwidthInfo, calibration: Calibration, machine: str) -> Throttle:
    """Levels that make a difference in some domain for some number of cores, and what all of them deliver."""
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
    """For doctor: are the throttle levels known in bytes per second?"""
    levels = f"levels {' '.join(map(str, throttle.levels))} %"
    if throttle.source is ThrottleSource.CALIBRATED:
        return Capability(CAPABILITY, Area.ENFORCE, True, f"{throttle.note}; {levels}")
    if not throttle.levels:
        detail = "memory bandwidth cannot be throttled in per cent here"
        return Capability(CAPABILITY, Area.ENFORCE, False, detail, "", "see resctrl.mba")
    return Capability(
        CAPABILITY,
        Area.ENFORCE,
        False,
        f"{throttle.source}: {throttle.note}; {levels}",
        "how many bytes per second a throttle level leaves batch is not known: per cents are nominal",
        "perphctl calibrate, on an idle host",
    )
