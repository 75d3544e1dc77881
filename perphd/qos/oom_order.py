"""Compares the order in which the kernel kills workloads when memory runs out with the order of their bands. Pure.

The kernel kills the process with the greatest use of memory, in thousandths of the total, plus its ``oom_score_adj``
(proc_pid_oom_score_adj(5)). Copper is certain to die first only if each of its processes has a greater value than any
process of gold and silver. perphd does not change the value: a service receives it from its unit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from perphd.qos.bands import MEANINGS, Aspect, QosBand

_DIES: Final = {QosBand.COPPER: 0, QosBand.SILVER: 1, QosBand.SYSTEM: 2, QosBand.GOLD: 3}
"""Order in which bands should be killed when memory runs out: copper first, gold last."""
_NAMED: Final = 3
"""Maximum number of daemons that one message names."""


@dataclass(frozen=True, slots=True)
class OomScores:
    """The lowest and the highest ``oom_score_adj`` among the processes of a workload."""

    name: str
    band: QosBand
    least: int
    most: int

    def __str__(self) -> str:
        values = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        return f"{self.name} ({self.band}, oom_score_adj {values})"


def out_of_order(workloads: Iterable[OomScores]) -> tuple[str, ...]:
    """A sentence for each workload that may be killed before another one of a lower band."""
    known = tuple(workloads)
    found = []
    for each in known:
        before = [o for o in known if _DIES[o.band] < _DIES[each.band] and o.least <= each.most]
        if before:
            others = ", ".join(map(str, before))
            bands = [each.band, *dict.fromkeys(o.band for o in before)]
            remedy = ", ".join(f"{_wanted(band)} for {band}" for band in bands)
            found.append(
                f"{each} may be killed for memory before {others}: their units need OOMScoreAdjust= ({remedy})"
            )
    return tuple(found)


def daemons_at_risk(daemons: Iterable[OomScores], workloads: Iterable[OomScores]) -> tuple[str, ...]:
    """A sentence for each copper workload that may outlive some of the host's own daemons."""
    system, found = tuple(daemons), []
    for each in workloads:
        names = sorted(o.name for o in system if each.band is QosBand.COPPER and each.least <= o.most)
        if names:
            shown = ", ".join(names[:_NAMED]) + (
                f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            )
            what = f"{len(names)} of the host's own daemons ({shown}) may be killed for memory before {each}"
            found.append(f"{what}: its unit needs OOMScoreAdjust={_wanted(QosBand.COPPER)}")
    return tuple(found)


def _wanted(band: QosBand) -> int:
    value = MEANINGS[band][Aspect.OOM_ORDER][0].value
    assert isinstance(value, int)
    return value
