"""Event mode: copper is reduced to a share for a stated time, and returns in a ramp.

    share(t) = copper_share                                        during the event
    share(t) = copper_share + (1 - copper_share) * (t - end) / ramp  during the ramp
    share(t) = 1                                                   before and after

An event ends by itself. Its times are on the system's clock (seconds since 1970), and its record is plain
JSON, so it survives restarts and reboots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from perphd.domain.wire import decode, encode
from perphd.qos.ledger import Amounts


@dataclass(frozen=True, slots=True)
class CopperEvent:
    """From ``begins_s`` on, copper gets ``copper_share`` of its offer for ``duration_s``. The share then grows to 1
    over ``ramp_s``.
    """

    begins_s: float
    duration_s: float
    copper_share: float
    ramp_s: float = 0.0
    reason: str = ""

    def __post_init__(self) -> None:
        times = (self.begins_s, self.duration_s, self.ramp_s)
        if not all(map(math.isfinite, times)) or self.duration_s <= 0 or self.ramp_s < 0:
            raise ValueError(
                "an event needs a finite beginning, a duration above 0 s and a ramp of at least 0 s"
            )
        if not 0 <= self.copper_share <= 1:
            raise ValueError(f"copper_share must be from 0 to 1, not {self.copper_share}")

    @property
    def ends_s(self) -> float:
        """The time at which the ramp begins."""
        return self.begins_s + self.duration_s

    @property
    def over_s(self) -> float:
        """The time at which copper has its full offer again."""
        return self.ends_s + self.ramp_s


def share_at(event: CopperEvent | None, now_s: float) -> float:
    """The share of its offer that copper gets at ``now_s``."""
    if event is None or now_s < event.begins_s or now_s >= event.over_s:
        return 1.0
    if now_s < event.ends_s:
        return event.copper_share
    return event.copper_share + (1.0 - event.copper_share) * (now_s - event.ends_s) / event.ramp_s


def scaled(offer: Amounts, event: CopperEvent | None, now_s: float) -> Amounts:
    """Copper's offer, reduced to the share that ``event`` leaves at ``now_s``."""
    share = share_at(event, now_s)
    return Amounts(offer.cpus * share, int(offer.memory_bytes * share))


def ended_now(event: CopperEvent, now_s: float) -> CopperEvent | None:
    """``event``, ended manually: its ramp begins at ``now_s``.

    None if it had not begun; unchanged if it has ended.
    """
    if now_s <= event.begins_s:
        return None
    return event if now_s >= event.ends_s else replace(event, duration_s=now_s - event.begins_s)


def event_record(event: CopperEvent) -> dict[str, Any]:
    """The event as JSON values."""
    record: dict[str, Any] = encode(event)
    return record


def event_of(record: object, now_s: float) -> CopperEvent | None:
    """The event that ``event_record`` described; None if it is over.

    Raises:
        WireError: the record does not describe an event.
    """
    event = decode(CopperEvent, record)
    return None if now_s >= event.over_s else event
