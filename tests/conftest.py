"""What every test folder shares: skips that name what is missing on this machine.

@pytest.mark.requires_root
@pytest.mark.requires_cgroup_v1("cpu", "cpuset")
@pytest.mark.requires_cgroup_v2("memory")
@pytest.mark.requires_vm
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from perphd.host.cgroup.hierarchy import Hierarchies, discover
from perphd.host.fs import RealFs
from perphd.isolation import instances

# A shared machine may stop a test for seconds: no example fails for being slow. Derandomized in CI, so that a
# red run says something about the change and can be repeated.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

_DEFAULT_V1 = ("cpu", "cpuset", "memory")


def pytest_configure(config: pytest.Config) -> None:
    """What tests do in this process is not known to the perphds of this host; daemons that they start are."""
    folder = tempfile.mkdtemp(prefix="perphd-test-register-")
    instances.DIRECTORY = f"{folder}/journals"
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remove the empty cgroups of test runs that died: a group with CPUs of its own would change what others may."""
    for tree in discover(RealFs()).all():
        for group in Path(tree.mount).glob("perphd-test-*"):
            run = re.search(r"-(\d+)(-|$)", group.name)
            if run is None or Path("/proc", run[1]).exists():
                continue
            for folder in sorted((group, *group.glob("**/")), reverse=True):
                with suppress(OSError):  # read-only, not ours, or with work still in it: left for a person
                    folder.rmdir()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose needs this machine does not meet, with the reason."""
    for missing in (
        _missing_root(item.get_closest_marker("requires_root")),
        _missing_v1(item.get_closest_marker("requires_cgroup_v1")),
        _missing_v2(item.get_closest_marker("requires_cgroup_v2")),
        _missing_vm(item.get_closest_marker("requires_vm")),
    ):
        if missing:
            pytest.skip(missing)


def pytest_runtest_teardown() -> None:
    """A test that leaves logging off would hide what later tests look for."""
    left = logging.root.manager.disable
    logging.disable(logging.NOTSET)
    assert left == logging.NOTSET, f"the test leaves log lines up to level {left} disabled"


def _missing_root(marker: pytest.Mark | None) -> str:
    if marker is None or os.geteuid() == 0:
        return ""
    return f"needs root to change kernel state; this runs as uid {os.geteuid()}"


def _missing_v1(marker: pytest.Mark | None) -> str:
    if marker is None:
        return ""
    hierarchies = discover(RealFs())
    wanted = marker.args or _DEFAULT_V1
    found = {name: hierarchies.of("io" if name == "blkio" else name) for name in wanted}
    absent = [name for name, tree in found.items() if tree is None or tree.version != 1]
    if absent:
        return f"needs cgroup v1 with {', '.join(absent)}; {_layout(hierarchies)}"
    return _read_only({tree.mount for tree in found.values() if tree is not None})


def _missing_v2(marker: pytest.Mark | None) -> str:
    if marker is None:
        return ""
    hierarchies = discover(RealFs())
    if hierarchies.unified is None:
        return f"needs a cgroup2 mount; {_layout(hierarchies)}"
    absent = [name for name in marker.args if name not in hierarchies.unified.controllers]
    if absent:
        return f"needs the cgroup v2 controllers {', '.join(absent)}; {_layout(hierarchies)}"
    return _read_only({hierarchies.unified.mount})


def _missing_vm(marker: pytest.Mark | None) -> str:
    if marker is None:
        return ""
    if not os.environ.get("PERPHD_VM") and not os.environ.get("PERPHD_VM_SUITE"):
        return "needs a booted virtual machine with systemd: make test-vm, or PERPHD_VM as tests/vm/README.md says"
    if shutil.which("ssh") is None:
        return "needs ssh to reach the virtual machine (Debian package openssh-client)"
    return ""


def _read_only(mounts: set[str]) -> str:
    closed = sorted(mount for mount in mounts if not os.access(mount, os.W_OK))
    return f"needs to make cgroups, and cannot write in {', '.join(closed)}" if closed else ""


def _layout(hierarchies: Hierarchies) -> str:
    unified = hierarchies.unified
    v2 = "none" if unified is None else " ".join(sorted(unified.controllers)) or "no controllers"
    v1 = " ".join(sorted(name for name, h in hierarchies.by_controller.items() if h.version == 1)) or "none"
    return f"here the layout is {hierarchies.layout} (v1: {v1}; v2: {v2})"
