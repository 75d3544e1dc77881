"""Table ``[opt_in]``: workloads that declare themselves, in their unit's files or on their containers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perphd.agent.config_schema import setting
from perphd.domain.workload import Kind


@dataclass(frozen=True, slots=True)
class OptInConfig:
    """Table ``[opt_in]``. Nobody declares itself by default."""

    units: str = setting(
        "",
        "the kinds that a unit may declare itself, by a section [X-Perphd] in its file or a drop-in; empty: none",
        kind="kinds",
    )
    containers: str = setting(
        "",
        "the kinds that a container may declare itself, by labels or pod annotations perphd.io/KEY; empty: none",
        kind="kinds",
    )
    bands: str = setting(
        "",
        "the bands that these may claim besides the usual ones (silver for an LRA, copper for batch); empty: none",
        kind="bands",
    )

    @property
    def is_on(self) -> bool:
        """True if anybody may declare itself."""
        return bool(self.units or self.containers)

    @property
    def unit_kinds(self) -> tuple[Kind, ...]:
        """What a unit may be."""
        return tuple(Kind(name) for name in self.units.split(",") if name)

    @property
    def container_kinds(self) -> tuple[Kind, ...]:
        """What a container may be."""
        return tuple(Kind(name) for name in self.containers.split(",") if name)

    @property
    def more_bands(self) -> tuple[str, ...]:
        """What may be claimed beside the usual band."""
        return tuple(name for name in self.bands.split(",") if name)


NOBODY: Final = OptInConfig()
