"""A batch run that has ended: its description and resource use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

HISTORY_FILE: Final = "jobs.sqlite"
"""File of the job history, in the state directory."""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """One lifetime of a batch control group. Unknown values are empty or None.

    ``uid``, ``argv``: user and command line of its first process. ``image``: its container's image; without a
    container, its unit. ``hour``: hour of the day at which it started. ``took``: amounts used, by their names in
    the job history.
    """

    name: str
    image: str
    uid: int | None
    argv: tuple[str, ...]
    requested_cores: float | None
    requested_bytes: float | None
    hour: int
    took: Mapping[str, float]
