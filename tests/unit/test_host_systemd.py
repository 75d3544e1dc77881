from __future__ import annotations

import errno
from pathlib import Path

import pytest

from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy, Layout
from perphd.host.systemd import UnitOwner, is_systemd, owner_unit
from tests.unit.host_tree import write_tree

UNIFIED = Hierarchies(Layout.V2, Hierarchy(2, "/sys/fs/cgroup", frozenset({"cpu"})), {})


def _marks(*directories: str, mark: str = "user.delegate"):
    def read(directory: str, attribute: str) -> bytes:
        if directory in directories and attribute == mark:
            return b"1"
        raise OSError(errno.ENODATA, "no such attribute")

    return read


@pytest.fixture
def booted(tmp_path: Path):
    return write_tree(tmp_path, {"/run/systemd/system/": ""})


def test_without_systemd_nobody_owns(tmp_path: Path) -> None:
    fs = write_tree(tmp_path, {"/run/": ""})
    assert not is_systemd(fs)
    assert owner_unit(UNIFIED, fs, "/system.slice/db.service") is None


@pytest.mark.parametrize(
    ("path", "unit", "is_unit"),
    [
        ("/system.slice/db.service", "db.service", True),
        ("/system.slice", "system.slice", True),
        ("/user.slice/user-0.slice/session-1.scope", "session-1.scope", True),
        ("/system.slice/db.service/worker", "db.service", False),
        ("/user.slice/user-0.slice/user@0.service/app.slice/x.service", "x.service", True),
    ],
)
def test_the_innermost_unit_is_the_owner(booted, path: str, unit: str, is_unit: bool) -> None:
    found = owner_unit(UNIFIED, booted, path, _marks())
    assert found is not None
    assert (found.unit, found.is_unit, found.delegated) == (unit, is_unit, False)
    assert not found.allows_direct_writes
    assert unit in found.refusal()


def test_groups_that_are_no_units(booted) -> None:
    assert owner_unit(UNIFIED, booted, "/mine/lra", _marks()) is None
    assert owner_unit(UNIFIED, booted, "/.service", _marks()) is None


@pytest.mark.parametrize("mark", ["user.delegate", "trusted.delegate"])
def test_below_a_delegated_unit_is_free_but_not_the_unit_itself(booted, mark: str) -> None:
    marks = _marks("/sys/fs/cgroup/system.slice/docker-1.scope", mark=mark)

    inside = owner_unit(UNIFIED, booted, "/system.slice/docker-1.scope/app", marks)
    assert inside == UnitOwner("docker-1.scope", "/system.slice/docker-1.scope", False, True)
    assert inside.allows_direct_writes
    assert inside.refusal() == ""

    itself = owner_unit(UNIFIED, booted, "/system.slice/docker-1.scope", marks)
    assert itself is not None
    assert not itself.allows_direct_writes


def test_a_unit_of_a_nested_manager_is_owned_although_its_ancestor_delegates(booted) -> None:
    marks = _marks("/sys/fs/cgroup/user.slice/user-0.slice/user@0.service")
    found = owner_unit(UNIFIED, booted, "/user.slice/user-0.slice/user@0.service/app.slice/x.service", marks)
    assert found is not None
    assert not found.allows_direct_writes
