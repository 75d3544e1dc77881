"""Kernel files below a root: what counts as a directory, and errors by class."""

from __future__ import annotations

from pathlib import Path

import pytest

from perphd.domain.errors import Gone, KernelError
from perphd.host.fs import RealFs


def test_subdirectories_are_directories_only(tmp_path: Path) -> None:
    for name in ("b.service", "a"):
        (tmp_path / "cg" / name).mkdir(parents=True)
    (tmp_path / "cg/cgroup.procs").write_text("")
    (tmp_path / "cg/link").symlink_to("a")
    fs = RealFs(tmp_path)
    assert fs.subdirectories("/cg") == ["a", "b.service"]
    with pytest.raises(Gone):
        fs.subdirectories("/none")
    with pytest.raises(KernelError, match="list"):
        fs.subdirectories("/cg/cgroup.procs")
