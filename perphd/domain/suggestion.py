"""What an operator may want to declare, as values that can be shown and sent."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.domain.reading import Reading


@dataclass(frozen=True, slots=True)
class Gain:
    """What one LRA would have gained had the group been batch. ``named_s``: seconds in which it was the antagonist.

    ``work_ratio``, ``delay_ratio``: predicted with the group held back as batch, relative to what was seen then.
    """

    lra: str
    named_s: float
    work_ratio: Reading
    delay_ratio: Reading


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One undeclared group worth declaring.

    ``cpu_cores``: its mean use over ``seen_s`` seconds; ``config``: the lines to paste.
    """

    group: str
    cpu_cores: float
    seen_s: float
    gains: tuple[Gain, ...]
    config: str
    text: str
