"""Table ``[network]``: the devices on which batch is kept from filling the link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perphd.agent.config_schema import setting


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Table ``[network]``. Without ``devices`` no network device is ever touched."""

    devices: str = setting(
        "",
        "network devices on which batch may be given a traffic class, between commas; their root qdisc is replaced "
        "while a ceiling is in force, and only if it is the kernel's own. Empty: none",
        kind="devices",
    )
    batch_egress_max_bytes: int = setting(
        0,
        "bytes per second that all batch together may send on each of these devices, rounded down to a multiple of "
        "1000, at least 10000; 0: no ceiling",
        kind="rate",
        key="batch_egress_max",
    )
    batch_egress_when: Literal["always", "saturated"] = setting(
        "always",
        "always: the ceiling holds while an LRA is there; saturated: only once a link was filled to saturated_pct, "
        "until it was filled to less than release_pct for release_s",
    )
    saturated_pct: float = setting(
        85.0, "a link counts as full from here on, of its speed", low=10.0, high=100.0, unit="%", expert=True
    )
    release_pct: float = setting(
        60.0, "and as free again below this", low=1.0, high=100.0, unit="%", expert=True
    )
    release_s: float = setting(
        30.0, "for so long, before the ceiling is taken away", low=0.0, high=3600.0, unit="s", expert=True
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The devices, each once."""
        return tuple(dict.fromkeys(name for name in self.devices.split(",") if name))
