"""Stores the calibration of the queue's predictions, which thus survives restarts of the daemon.

The record is a small file, replaced whenever an ended job has changed the calibration. An unreadable record is replaced
by the next write: the queue then learns again, from cautious priors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from perphd.batch.calibration import MOST_LEVELS, UsageCalibration
from perphd.batch.look import EVERY
from perphd.domain.errors import ConfigError
from perphd.host.state_files import replace_text

FILE: Final = "calibration.json"


class KeptCalibration:
    """The record in this folder. ``problem``: reason why the record cannot be read or written; empty if it can."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._written: Mapping[str, UsageCalibration] = {}
        self.problem = ""

    def read(self) -> dict[str, UsageCalibration]:
        """The stored calibration by resource; priors for resources without one."""
        found: dict[str, UsageCalibration] = {}
        try:
            record = json.loads(self._path.read_text(encoding="utf-8"))
            found = {name: _calibration(record[name]) for name in EVERY if name in record}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as exc:
            found = {}
            self.problem = f"{self._path}: the calibration cannot be read: {exc}; it is learned again"
        self._written = {name: found.get(name, UsageCalibration()) for name in EVERY}
        return dict(self._written)

    def write(self, calibration: Mapping[str, UsageCalibration]) -> None:
        """Store this calibration unless the file already has it."""
        if calibration == self._written:
            return
        try:
            record = {name: asdict(each) for name, each in calibration.items()}
            replace_text(self._path, json.dumps(record) + "\n")
        except ConfigError as exc:
            self.problem = f"the calibration cannot be stored: {exc}"
        else:
            self._written, self.problem = dict(calibration), ""


def _calibration(record: Mapping[str, Any]) -> UsageCalibration:
    """The calibration of one resource. Raises ValueError for values that learning cannot produce.

    ``domain.wire`` would take the prior for a figure that is missing, and mix it with what was learned.
    """
    kept, jobs, products, pairs = (float(record[name]) for name in ("kept", "jobs", "products", "pairs"))
    each = UsageCalibration(kept, jobs, products, pairs, tuple(map(float, record["levels"])))
    figures = (each.kept, each.jobs, each.products, each.pairs)
    if not all(map(math.isfinite, figures)) or not 0.0 <= each.kept <= each.jobs or each.jobs <= 0.0:
        raise ValueError(
            f"kept {each.kept:g}, jobs {each.jobs:g}, products {each.products:g}, pairs {each.pairs:g}: all must be "
            "finite, jobs above 0, and kept from 0 to jobs"
        )
    if each.pairs <= 0.0:
        raise ValueError(f"the number of pairs of jobs is {each.pairs:g}; it must be above 0")
    if len(each.levels) > MOST_LEVELS or not all(0.0 <= level <= 1.0 for level in each.levels):
        raise ValueError(f"levels must be at most {MOST_LEVELS} numbers from 0 to 1")
    return each
