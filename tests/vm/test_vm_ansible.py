"""The plays of packaging/ansible, run by ansible-core against a booted machine: rolled out, run again, rolled back.

On a machine of its own, with the library that Ansible's module for packages needs there, and beside the same workloads
as the package's tests. ``ansible-playbook`` is taken from the PATH, or from PERPHD_ANSIBLE.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vm.guest import INSTALL_S, ROOT, Vm, booted, package, ticked
from tests.vm.workloads import is_given_back, start_workloads, wait_for_split

pytestmark = pytest.mark.requires_vm

PLAYS = ROOT / "packaging/ansible"
PLAYBOOK = os.environ.get("PERPHD_ANSIBLE") or shutil.which("ansible-playbook")
PAUSE = "/etc/perphd/pause"
CONFIG = "/etc/perphd/conf.d/60-rollout.toml"
VARIABLES: dict[str, Any] = {
    "perphd_mode": "enforce",
    # Only what makes the outcome certain: the cores are divided as soon as the daemon runs.
    "perphd_settings": {"tuning": {"daemon": {"policy": "static"}, "isolation": {"deadline_s": 20.0}}},
    "perphd_lras": [{"name": "app", "match": "unit:app.service", "tolerance_pct": 20.0}],
    "perphd_batch": [
        {"name": "jobs", "match": "slice:batch.slice"},
        {"name": "inner", "cgroup": "/system.slice/inner.service/work"},
    ],
}


class Controller:
    """Where the plays are started: this machine, with an inventory of one host."""

    def __init__(self, vm: Vm, folder: Path) -> None:
        self.vm, self._folder = vm, folder
        port = (vm.machine.folder / "port").read_text()
        quiet = "-F none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
        host = {
            "ansible_host": "127.0.0.1",
            "ansible_port": int(port),
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(vm.machine.image.key),
            "ansible_ssh_common_args": quiet,
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        variables = {**VARIABLES, "perphd_package": str(vm.package)}
        inventory = {"perphd": {"hosts": {"vm": host}, "vars": variables}}
        (folder / "inventory.json").write_text(json.dumps(inventory))

    def play(self, name: str, *words: str, fails: bool = False) -> tuple[dict[str, int], str]:
        """Run a play; the counts of its recap, and all that it said."""
        assert PLAYBOOK is not None
        environment = {
            **os.environ,
            "ANSIBLE_LOCALHOST_WARNING": "False",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_TIMEOUT": "60",
            "ANSIBLE_HOME": str(self._folder / "home"),
            "LC_ALL": "C.UTF-8",
        }
        command = [PLAYBOOK, "-i", str(self._folder / "inventory.json"), str(PLAYS / name), *words]
        began_s = time.monotonic()
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=2 * INSTALL_S, check=False
        )
        said = done.stdout + done.stderr
        print(f"[{time.monotonic() - began_s:.0f} s] {name} {' '.join(words)}\n{said}")
        assert (done.returncode != 0) == fails, said
        recap = re.search(r"(?m)^vm\s*:(.*)$", said)
        assert recap, said
        return {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", recap[1])}, said

    def roll_back(self, way: str) -> dict[str, int]:
        """Run rollback.yml in one of its ways."""
        return self.play("rollback.yml", "-e", f"perphd_rollback={way}")[0]


@pytest.fixture(scope="module")
def at_rest(controller: Controller) -> dict[str, str]:
    """The workloads run; the settings on them before perphd was ever there."""
    return start_workloads(controller.vm)


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    if PLAYBOOK is None:
        pytest.skip("needs ansible-playbook: make .venv-ansible/.stamp, and PERPHD_ANSIBLE with its path")
    deb = package()
    with booted("run-ansible", "python3-apt") as machine:
        vm = Vm(machine, deb)
        vm.be_patient("WatchdogSec=0")
        # numpy must be spared what QEMU emulates wrongly in Ansible's shell as well.
        vm.sh("systemctl show-environment | grep ^NPY_ >> /etc/environment || true")
        yield Controller(vm, tmp_path_factory.mktemp("ansible"))


def test_a_dry_run_changes_nothing(controller: Controller) -> None:
    controller.play("rollout.yml", "--check", "--diff")
    assert controller.vm.try_("test -e /usr/bin/perphd || test -e /etc/perphd").returncode != 0


def test_a_wrong_value_is_refused_before_the_host_is_touched(controller: Controller) -> None:
    _, said = controller.play("rollout.yml", "-e", "perphd_mode=enfroce", fails=True)
    assert "perphd_mode is observe or enforce" in said
    assert controller.vm.try_("test -e /usr/bin/perphd").returncode != 0


def test_rolled_out_it_protects(controller: Controller, at_rest: dict[str, str]) -> None:
    recap, _ = controller.play("rollout.yml")
    assert recap["changed"] > 0
    assert recap["failed"] == 0
    vm = controller.vm
    status = json.loads(vm.sh("perphctl --json status"))
    assert status["mode"] == "enforce"
    assert {item["spec"]["name"] for item in status["workloads"]} == {"app", "jobs", "inner"}
    assert vm.sh(f"stat -c %a {CONFIG}") == "640"
    wait_for_split(vm, "after the play")


def test_a_second_run_changes_nothing(controller: Controller, at_rest: dict[str, str]) -> None:
    before = controller.vm.sh("systemctl show perphd --value -p InvocationID")
    recap, said = controller.play("rollout.yml")
    assert (recap["changed"], recap["failed"]) == (0, 0), said
    assert controller.vm.sh("systemctl show perphd --value -p InvocationID") == before, "it was restarted"
    wait_for_split(controller.vm, "any more")


def test_a_key_that_the_daemon_refuses_leaves_the_file_and_the_daemon(
    controller: Controller, at_rest: dict[str, str]
) -> None:
    vm = controller.vm
    kept = vm.sh(f"sha256sum {CONFIG}; systemctl show perphd --value -p InvocationID")
    wrong = {"perphd_batch": [{"name": "jobs", "match": "slice:batch.slice", "min_coers": 1.0}]}
    _, said = controller.play("rollout.yml", "-e", json.dumps(wrong), fails=True)
    assert "did you mean 'min_cores'?" in said.replace("\\", "")
    assert vm.sh(f"sha256sum {CONFIG}; systemctl show perphd --value -p InvocationID") == kept


def test_pausing_gives_everything_back_and_resuming_goes_on(
    controller: Controller, at_rest: dict[str, str]
) -> None:
    assert controller.roll_back("pause")["changed"] == 1
    is_given_back(controller.vm, at_rest)
    assert "paused" in controller.vm.sh("perphctl status")
    assert controller.roll_back("pause")["changed"] == 0
    assert controller.roll_back("resume")["changed"] == 1
    wait_for_split(controller.vm, "after resuming")


def test_observing_gives_everything_back_and_lasts(controller: Controller, at_rest: dict[str, str]) -> None:
    controller.roll_back("observe")
    controller.vm.wait_until(ticked(1), "it does not tick", pause_s=2.0)
    is_given_back(controller.vm, at_rest)
    assert json.loads(controller.vm.sh("perphctl --json status"))["mode"] == "observe"


def test_removing_leaves_nothing_in_force(controller: Controller, at_rest: dict[str, str]) -> None:
    controller.vm.sh("perphctl mode enforce")
    wait_for_split(controller.vm, "after it was switched on again")
    assert controller.roll_back("remove")["changed"] == 1
    is_given_back(controller.vm, at_rest)
    assert controller.vm.try_("test -e /usr/bin/perphd").returncode != 0
    assert controller.roll_back("remove")["changed"] == 0
