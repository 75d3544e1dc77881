"""From the installation to a protected MariaDB, by perphctl init alone; and the tutorial, typed as it is printed.

On a machine of its own, which has MariaDB. Nothing here is configured by the test: whatever is typed stands in
docs/tutorial.md, in the order in which it stands there.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest

from tests.vm.guest import INSTALL_S, Vm, booted, package, ticked
from tools.vm.tutorial import CONFIG, commands

pytestmark = pytest.mark.requires_vm


@pytest.fixture(scope="module")
def vm() -> Iterator[Vm]:
    """A machine with MariaDB, and with the package in root's folder."""
    deb = package()
    with booted("run-init", "mariadb-server") as machine:
        made = Vm(machine, deb)
        machine.put(deb, "/root")
        made.wait_until("systemctl -q is-active mariadb", "MariaDB does not start", 600.0)
        # The operator who follows the tutorial waits for nothing else either: processors are emulated here.
        made.be_patient("WatchdogSec=0")
        yield made


def typed(vm: Vm, command: str) -> str:
    began_s = time.monotonic()
    said = vm.sh(f"cd /root; export DEBIAN_FRONTEND=noninteractive\n{command}", INSTALL_S)
    print(f"[{time.monotonic() - began_s:.0f} s] $ {command}\n{said}\n")
    return said


def test_three_commands_lead_to_a_protected_mariadb(vm: Vm) -> None:
    for command in commands(1):
        typed(vm, command)
    three = commands(2)
    assert len(three) == 3
    for command in three:
        typed(vm, command)
    written = vm.sh(f"cat {CONFIG}")
    assert 'match = "unit:mariadb.service"' in written
    assert re.search(r'(?m)^match = "(slice:batch.slice|unit:nightly.service)"$', written), written
    assert vm.sh("perphd config check")
    vm.wait_until(ticked(3), "it does not tick", INSTALL_S, pause_s=2.0)
    status = json.loads(vm.sh("perphctl --json status"))
    assert status["mode"] == "observe"
    assert problems(status) == []
    table = vm.sh("perphctl status")
    row = next(line for line in table.splitlines() if line.startswith("mariadb"))
    assert "not running" not in row, table


def problems(status: dict[str, object]) -> list[str]:
    """Without the job's, which comes and goes, and the model's, which is learned by the indicator from then on."""
    said = status["problems"]
    assert isinstance(said, list)
    return [
        text for text in said if not re.match("batch|nightly|model of mariadb: .* counted by no SLI", text)
    ]


def test_the_indicator_answers_after_the_account_is_made(vm: Vm) -> None:
    for command in commands(3):
        typed(vm, command)
    written = vm.sh(f"cat {CONFIG}")
    assert "\n[lra.sli]\n" in written, written
    assert "# [lra.sli]" not in written
    assert vm.sh("mariadb -N -e 'SHOW GRANTS FOR perphd@localhost'").startswith("GRANT USAGE ON *.*")
    vm.wait_until(ticked(5), "it does not tick", INSTALL_S, pause_s=2.0)
    assert problems(json.loads(vm.sh("perphctl --json status"))) == []


def test_the_rest_of_the_tutorial(vm: Vm) -> None:
    for command in commands(4):
        typed(vm, command)
    said = vm.sh("perphctl explain mariadb")
    assert "mariadb" in said
    assert "as found" in vm.sh("perphctl status"), "nothing is written in observe"
    for command in commands(5)[:-1]:
        typed(vm, command)
    assert vm.sh("perphctl status").startswith("perphd")
    assert json.loads(vm.sh("perphctl --json status"))["mode"] == "enforce"
    typed(vm, commands(5)[-1])
    vm.wait_until("perphctl status | grep -q 'as found'", "it was not given back")
    for command in commands(6):
        typed(vm, command)
    assert vm.try_("systemctl is-active nightly.service").stdout.strip() != "active"
