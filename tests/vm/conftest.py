"""The machine of tests/vm: booted here (PERPHD_VM_SUITE, as ``make test-vm`` sets it), or named (PERPHD_VM)."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm import bytecode
from tests.vm.guest import INSTALL_S, Vm
from tests.vm.workloads import end, start_at_rest
from tools.vm.image import VmError, image
from tools.vm.machine import Machine

ROOT = Path(__file__).parents[2]
KEEP = "PERPHD_VM_KEEP" in os.environ
"""For work on these tests: the machine and what is installed on it outlive the run, and serve the next."""


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """A machine of this test run alone, ended after it."""
    suite = os.environ.get("PERPHD_VM_SUITE")
    if not suite:
        pytest.skip("needs a machine that it may install on and reboot: make test-vm")
    out = Path(os.environ.get("PERPHD_VM_OUT", ROOT / "out/vm")).resolve()
    try:
        built = image(suite, out)
    except VmError as exc:
        pytest.skip(f"no image of a virtual machine: {exc}")
    booted = Machine(built, out / os.environ.get("PERPHD_VM_NAME", f"run-{suite}"))
    if KEEP and booted.pid is not None:
        yield booted
        return
    booted.stop()
    try:
        booted.boot()
        yield booted
    finally:
        if not KEEP:
            booted.stop()


@pytest.fixture(scope="session")
def installed(machine: Machine, request: pytest.FixtureRequest) -> Vm:
    """The machine after ``apt install ./perphd_*.deb``."""
    suite = os.environ.get("PERPHD_VM_SUITE", "")
    folders = (ROOT / "out/deb" / suite, ROOT / "out/deb")
    found = next((debs for folder in folders if (debs := list(folder.glob("perphd_*.deb")))), [])
    found.sort(key=lambda path: path.stat().st_mtime)
    package = Path(os.environ["PERPHD_DEB"]) if "PERPHD_DEB" in os.environ else found[-1] if found else None
    if package is None:
        pytest.skip("no package: make deb")
    vm = Vm(machine, package)
    python = vm.sh("python3 -c 'import sys; print(sys.version_info.minor)'")
    wanted = subprocess.run(
        ["dpkg-deb", "-f", str(package), "Depends"], capture_output=True, text=True, check=True
    )
    if f"python3 (>= 3.{python})" not in wanted.stdout:
        pytest.skip(
            f"{package.name} is for another Python than the machine's 3.{python}: build one there (PERPHD_DEB)"
        )
    if KEEP and vm.try_("dpkg-query -W perphd").returncode == 0:
        return vm
    # Emulated processors, on a host that may be busy besides: nothing is to fail for that alone.
    vm.sh("mkdir -p /etc/systemd/system/perphd.service.d")
    vm.write(
        "/etc/systemd/system/perphd.service.d/slow.conf",
        "[Service]\nTimeoutStartSec=300s\nTimeoutStopSec=120s\n",
    )
    if any(item.path.name == "test_vm_package.py" for item in request.session.items):
        machine.put(package, "/root")
        vm.sh(f"cd /root && DEBIAN_FRONTEND=noninteractive apt-get install -y -q ./{package.name}", INSTALL_S)
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
        package = Path(folder, "quick.deb")
        spared = () if "PERPHD_VM_ALL" in os.environ else bytecode.SPARED
        bytecode.repacked(vm.package, package, minor, dropped=spared)
        vm.machine.put(package, "/root")
    vm.write("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n", 0o755)
    vm.sh("DEBIAN_FRONTEND=noninteractive dpkg -i /root/quick.deb; rm /usr/sbin/policy-rc.d", INSTALL_S)
    assert vm.sh("dpkg-query -W -f '${db:Status-Status}' perphd") == "installed"
