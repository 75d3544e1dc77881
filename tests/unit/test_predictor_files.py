"""Models that were put aside: kept for an operator's second thoughts, and not for ever."""

from __future__ import annotations

import os
from pathlib import Path

from perphd.predictor.files import ASIDE, KEPT_ASIDE, ModelFiles


def test_only_the_newest_files_that_were_put_aside_are_kept(tmp_path: Path) -> None:
    files = ModelFiles(tmp_path)
    for number in range(KEPT_ASIDE + 5):
        path = Path(files.path(f"job-{number}"))
        path.write_text("{}")
        os.utime(path, ns=(number, number))
        files.put_aside(f"job-{number}")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == sorted(f"job-{number}.json{ASIDE}" for number in range(5, KEPT_ASIDE + 5))
