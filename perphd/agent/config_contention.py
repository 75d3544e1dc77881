"""Table ``[contention]``: backing batch off from contended devices."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.agent.config_schema import setting


@dataclass(frozen=True, slots=True)
class ContentionConfig:
    """Table ``[contention]``."""

    disks: bool = setting(
        False,
        "watch every disk, and back batch off for some rounds of 5 s where it keeps LRAs from their bandwidth: by "
        "io.max, a CPU ceiling, standing still at times. In the mode observe perphd says what it would have done",
    )
