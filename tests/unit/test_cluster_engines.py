"""The control plane's program: pinned, found where it was built, and said how to come by where it is not there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tools.cluster import control_plane, engines


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and nothing packed beside the checkout."""
    monkeypatch.setattr(engines, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(control_plane, "PACKED", "no/such/file.zst")
    monkeypatch.delenv(control_plane.VARIABLE, raising=False)
    return tmp_path / "cache"


def go(folder: Path, script: str) -> None:
    """Put a program named go into this folder."""
    folder.mkdir()
    made = folder / "go"
    made.write_text(f"#!/bin/sh\n{script}\n")
    made.chmod(made.stat().st_mode | stat.S_IXUSR)


def test_the_pins_name_one_version_of_kubernetes() -> None:
    assert engines.kubernetes_version() == "1.36.3"
    assert engines.cached("kubelab") != engines.cached("kubelet")


def test_what_is_built_is_found_and_not_built_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(engines.NoProgram, match="make kubernetes-engines"):
        control_plane.program()
    calls = tmp_path / "calls"
    go(tmp_path / "bin", f'echo "$@" >> {calls}\nwhile [ "$1" != -o ]; do shift; done\necho built > "$2"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    made = engines.build("kubelab")
    assert (made, made.read_text()) == (control_plane.program(), "built\n")
    assert engines.build("kubelab") == made
    (call,) = calls.read_text().splitlines()
    assert "k8s.io/component-base/version.gitVersion=v1.36.3" in call
    assert [each.name for each in cache.iterdir()] == [made.name]


def test_a_failed_build_leaves_nothing_and_says_where(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(tmp_path / "bin", "exit 3")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(engines.NoProgram, match=r"no kubelet: go build in .*/kubelab ended with status 3"):
        engines.build("kubelet")
    assert not list(cache.iterdir())
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(engines.NoProgram, match="no kubelet: Go, of the version that"):
        engines.build("kubelet")
