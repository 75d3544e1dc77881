"""Programs that some tests need and most hosts have not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


def prometheus_tool(name: str) -> str:
    """The path of ``prometheus`` or ``promtool``: from PERPHD_PROMETHEUS (a folder) or PATH, else the test skips."""
    folder = os.environ.get("PERPHD_PROMETHEUS", "")
    here = Path(__file__).parents[2] / "out/prom/usr/bin"
    found = shutil.which(name, path=folder or None) or shutil.which(name, path=str(here))
    if found is None:
        pytest.skip(f"needs {name} (Debian package prometheus, or PERPHD_PROMETHEUS=folder)")
    return found
