"""The Debian package changed for another version and back, removed and purged, with workloads that perphd confines."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest

from tests.vm import bytecode
from tests.vm.guest import INSTALL_S, Vm
from tests.vm.workloads import enforce, is_given_back, now, shown, since, wait_for_split

pytestmark = pytest.mark.requires_vm

DROPPED = (*bytecode.SPARED, "dateutil", "pygments", "pyroute2")
"""Another release might do without these: nothing here needs them, and fewer files are unpacked."""


@pytest.fixture
def vm(installed: Vm) -> Vm:
    return installed


def packed_again(vm: Vm, name: str, appended: str) -> str:
    """The same package, with this appended to its version, copied there.

    The bytecode of the packages that it holds is inside: the installation has shown already that they are compiled
    where they are not. That of some modules is made there each time, and is on nobody's list when it is to be removed.
    """
    minor = vm.sh("python3 -c 'import sys; print(sys.version_info.minor)'")
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, name)
        bytecode.repacked(
            vm.package, package, minor, appended=appended, compiled_there="perphd/control", dropped=DROPPED
        )
        vm.machine.put(package, "/root")
    return name


def test_up_and_downgrade_keep_configuration_and_state(vm: Vm, at_rest: dict[str, str]) -> None:
    enforce(vm)
    released = vm.sh("dpkg-query -W -f '${Version}' perphd")
    packages = [packed_again(vm, "next.deb", "+next1"), packed_again(vm, "released.deb", "")]
    for package, version in zip(packages, (f"{released}+next1", released), strict=True):
        pid, cursor = shown(vm, "MainPID"), now(vm)
        vm.sh(f"cd /root && dpkg -i {package} < /dev/null", INSTALL_S)
        assert vm.sh("dpkg-query -W -f '${Version}' perphd") == version
        assert shown(vm, "MainPID") not in (pid, "0")
        told = since(vm, cursor)
        assert re.search(r"stopped; files: [2-9] restored", told), told
        assert 'mode = "enforce"' in vm.sh("cat /etc/perphd/perphd.toml")
        assert vm.sh("ls /var/lib/perphd/perphd.db")
        wait_for_split(vm, f"after the change to {version}")


def test_removed_and_purged(vm: Vm, at_rest: dict[str, str]) -> None:
    enforce(vm)
    vm.write("/etc/perphd/conf.d/site.toml", '[[batch]]\nname = "other"\ncgroup = "/other.slice"\n', 0o640)
    vm.sh("DEBIAN_FRONTEND=noninteractive apt-get remove -y -q perphd", INSTALL_S)
    is_given_back(vm, at_rest)
    assert vm.sh("ls /var/lib/perphd/perphd.db /etc/perphd/perphd.toml /etc/perphd/conf.d/site.toml")
    assert vm.try_("systemctl cat perphd").returncode != 0
    assert vm.try_("test -e /usr/lib/perphd").returncode != 0, "bytecode and all"
    vm.sh("DEBIAN_FRONTEND=noninteractive apt-get purge -y -q perphd", INSTALL_S)
    left = "ls -d /var/lib/perphd /etc/perphd /run/perphd /etc/systemd/system/*/perphd* 2>/dev/null || true"
    assert vm.sh(left) == ""
    is_given_back(vm, at_rest)
