"""Table ``[window]``: when riskier changes are allowed."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.agent.config_schema import setting


@dataclass(frozen=True, slots=True)
class WindowConfig:
    """Table ``[window]``. Without ``allow`` the window is always open."""

    allow: str = setting(
        "",
        "days and local times at which perphd may change the own settings of LRAs, and try steps that no need calls "
        "for. At other times an LRA's own settings stay as they are, and LRAs are relieved by batch's settings alone",
        kind="window",
    )
