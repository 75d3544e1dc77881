"""Devices on which perphd backs batch off, as the control API and hints report them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContendedShare:
    """Restriction of one antagonist on a contended device.

    ``rung``: the kind of the present restriction; from the mildest on, ``hint``, ``device ceiling``, ``cpu ceiling`` or
    ``freeze cycle``. ``limit_bytes_s``: bandwidth in bytes per second to which the antagonist is limited on this
    device.
    """

    workload: str
    rung: str
    limit_bytes_s: float


@dataclass(frozen=True, slots=True)
class ContendedDevice:
    """A device on which batch takes bandwidth that LRAs need.

    ``kind``: ``disk`` (``device``: MAJOR:MINOR), ``link`` (a network device) or ``memory`` (the id of a
    last-level cache). ``round``: number of the back-off round, starting at 1.
    """

    kind: str
    device: str
    round: int
    restrictions: tuple[ContendedShare, ...]
