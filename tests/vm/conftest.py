"""The machine of tests/vm: booted here (PERPHD_VM_SUITE, as ``make test-vm`` sets it), or named (PERPHD_VM)."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm import bytecode
from tests.vm.guest import INSTALL_S, KEEP, Vm, booted, package
from tests.vm.workloads import end, start_at_rest
from tools.vm.machine import Machine


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """A machine of this test run alone, ended after it. PERPHD_VM_NAME: a name for its folder, for two at a time."""
    with booted(os.environ.get("PERPHD_VM_NAME", "run"), reused=True) as made:
        yield made


@pytest.fixture(scope="session")
def installed(machine: Machine, request: pytest.FixtureRequest) -> Vm:
    """The machine after ``apt install ./perphd_*.deb``."""
    vm = Vm(machine, package())
    python = vm.sh("python3 -c 'import sys; print(sys.version_info.minor)'")
    wanted = subprocess.run(
        ["dpkg-deb", "-f", str(vm.package), "Depends"], capture_output=True, text=True, check=True
    )
    if f"python3 (>= 3.{python})" not in wanted.stdout:
        pytest.skip(
            f"{vm.package.name} is for another Python than the machine's 3.{python}: build one there (PERPHD_DEB)"
        )
    if KEEP and vm.try_("dpkg-query -W perphd").returncode == 0:
        return vm
    vm.be_patient()
    if any(item.path.name == "test_vm_package.py" for item in request.session.items):
        machine.put(vm.package, "/root")
        vm.sh(
            f"cd /root && DEBIAN_FRONTEND=noninteractive apt-get install -y -q ./{vm.package.name}", INSTALL_S
        )
    else:
        install_quickly(vm, python)
    return vm


@pytest.fixture(scope="session")
def at_rest(installed: Vm) -> Iterator[dict[str, str]]:
    """The workloads run and perphd observes them; the settings when nobody has set anything."""
    yield start_at_rest(installed)
    if not KEEP:
        end(installed)


def install_quickly(vm: Vm, minor: str) -> None:
    """Where installing is not what is tested: what is needed, with its bytecode; and nothing is started."""
    with tempfile.TemporaryDirectory() as folder:
        quick = Path(folder, "quick.deb")
        spared = () if "PERPHD_VM_ALL" in os.environ else bytecode.SPARED
        bytecode.repacked(vm.package, quick, minor, dropped=spared)
        vm.machine.put(quick, "/root")
    vm.write("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n", 0o755)
    vm.sh("DEBIAN_FRONTEND=noninteractive dpkg -i /root/quick.deb; rm /usr/sbin/policy-rc.d", INSTALL_S)
    assert vm.sh("dpkg-query -W -f '${db:Status-Status}' perphd") == "installed"
