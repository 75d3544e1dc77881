"""Suggested declarations of undeclared groups, as values for display and the API."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.domain.reading import Reading


def workload_name(group: str) -> str:
    """A name for the workload in this control group: the last part of its path, without the kind of unit."""
    last = group.rpartition("/")[2]
    stem = last.rpartition(".")[0] or last
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in stem).strip("-") or "batch"


@dataclass(frozen=True, slots=True)
class Gain:
    """Predicted gain of one LRA if perphd had restricted the group as batch.

    ``named_s``: seconds for which the group was identified as the LRA's antagonist. ``work_ratio``, ``delay_ratio``:
    predicted work and delay, as ratios to the values observed in that time.
    """

    lra: str
    named_s: float
    work_ratio: Reading
    delay_ratio: Reading


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One undeclared group that the operator should declare.

    ``cpu_cores``: its mean use over ``seen_s`` seconds. ``config``: configuration lines to paste.
    """

    group: str
    cpu_cores: float
    seen_s: float
    gains: tuple[Gain, ...]
    config: str
    text: str
