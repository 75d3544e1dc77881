"""Life of one LRA's model: the files from which it starts, its origin, and the times of its last save and check."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from perphd.domain.errors import PerphError
from perphd.domain.workload import WorkloadSpec
from perphd.host.app_version import Version
from perphd.predictor import LraModel
from perphd.predictor.files import Loaded, ModelFiles
from perphd.predictor.persist import ModelFile
from perphd.predictor.profile.classes import WarmStart, beginning

VERSION_LOOK_S: Final = 30.0
"""Seconds between two checks of an application's version."""
LOOKS_PER_TICK: Final = 2
"""Maximum number of LRAs checked per tick; each check reads some files of /proc."""


class Versions(Protocol):
    """Source of applications' versions; see ``host.app_version.AppVersions``."""

    def look(self, spec: WorkloadSpec) -> Version:
        """The running version, or the reason why it is unknown. Never raises."""

    def forget(self, name: str) -> None:
        """Forget a removed workload."""


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was to be saved. ``problem``: reason why it could not be saved; None if it was."""

    file: ModelFile
    problem: str | None


@dataclass(slots=True)
class Life:
    """Facts about a model that the model itself does not hold."""

    spec: WorkloadSpec
    origin: str
    saved_unix_s: float | None = None
    saved_samples: int = 0
    version: str = ""
    looked_s: float = -math.inf
    fresh: bool = False  # no file was found, except perhaps models of earlier versions
    application: str = ""  # name by which other hosts know the LRA; empty: its own name

    @property
    def known_as(self) -> str:
        """The name by which other hosts know the LRA."""
        return self.application or self.spec.name

    def rename(self, known_as: str) -> None:
        """Note that other hosts know the LRA by another name, because the LRA's declaration changed."""
        self.application = "" if known_as == self.spec.name else known_as
        self.saved_samples = -1  # must be saved, so that the model is contributed under this name


def sli_of(spec: WorkloadSpec) -> str:
    """The source of an LRA's SLI; empty if it has none."""
    return spec.sli.source if spec.sli is not None else ""


def counted_otherwise(file: ModelFile, spec: WorkloadSpec) -> str:
    """Reason why the work in a file is not comparable with this LRA's; empty if it is."""
    was, now = file.provenance.sli_source, sli_of(spec)
    if was == now:
        return ""
    return f"its work was counted by {was or 'no SLI'}, but that of {spec.name!r} is counted by {now or 'no SLI'}"


def misfit(spec: WorkloadSpec, file: ModelFile) -> str:
    """Reason why a file is not a usable model of this LRA; empty if it is."""
    source = file.provenance
    if source.lra != spec.name:
        return f"it belongs to the LRA {source.lra!r}"
    if source.cgroup != spec.cgroup and not spec.match:
        return f"it belongs to the application in {source.cgroup}, not to the one in {spec.cgroup}"
    return counted_otherwise(file, spec) or unusable(file)


def unusable(file: ModelFile) -> str:
    """Reason why a file with valid values does not make a model; empty if it does."""
    try:
        LraModel.from_state(file.state)
    except PerphError as exc:
        return str(exc)
    return ""


def longest_unseen(
    specs: Iterable[WorkloadSpec], lives: Mapping[str, Life], now_s: float
) -> list[tuple[WorkloadSpec, Life]]:
    """LRAs whose version is due for a check, longest unchecked first, so that long ticks do not starve the last
    ones.
    """
    due = []
    for spec in specs:
        life = lives.get(spec.name)
        if life is not None:
            life.spec = spec
            if not 0 <= now_s - life.looked_s < VERSION_LOOK_S:
                due.append((spec, life))
    return heapq.nsmallest(LOOKS_PER_TICK, due, key=lambda one: one[1].looked_s)


def start_files(files: ModelFiles, spec: WorkloadSpec) -> tuple[Loaded, WarmStart]:
    """Read the saved model of an LRA, and the profile from which its model starts otherwise. Never raises."""
    saved = files.load(spec.name, partial(misfit, spec))
    return saved, beginning(Path(files.directory).parent, spec.name, spec.app_class)
