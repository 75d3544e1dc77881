"""Writes the metrics to a file for node_exporter's textfile collector, which reads whole files only."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from perphd.control.kept_file import KeptFile, replace_file

log = logging.getLogger("perphd")


class Textfile(KeptFile):
    """Replaces one file every ``period_s``; a folder that is missing is logged once and tried again."""

    def __init__(self, path: str, period_s: float, page: Callable[[], bytes]) -> None:
        super().__init__(Path(path), period_s, self.write)
        self._page = page
        self._problem = ""

    def write(self) -> None:
        """Replace the file now. A failure is logged when it begins; the old file stays."""
        try:
            replace_file(self._path, self._page(), 0o644)
        except OSError as exc:
            problem = f"metrics.textfile: {self._path}: cannot be written: {exc.strerror}"
            if problem != self._problem:
                log.error("%s; tried again every %g s", problem, self._period_s)
            self._problem = problem
        else:
            self._problem = ""
