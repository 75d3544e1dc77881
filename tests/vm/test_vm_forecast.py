"""The forecast worker inside the unit's sandbox: it starts, gives way, forecasts, records jobs, saves, comes back.

The store is given an hour and a half of samples first, so that there is something to forecast within minutes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.vm.guest import INSTALL_S, Vm
from tests.vm.workloads import log, shown

pytestmark = pytest.mark.requires_vm

CONFIG = """
[daemon]
mode = "observe"
period_s = 1.0
[tuning.daemon]
policy = "static"
[forecast]
enabled = true
[sizing]
shaper = "observe"
[[batch]]
name = "steady"
cgroup = "/system.slice/steady.service"
reserved_memory = "128M"
[[batch]]
name = "nightly"
cgroup = "/system.slice/nightly.service"
"""
# Windows of the last 90 minutes, one sample each: what the daemon itself would have written.
HISTORY = """
import math, pathlib, time
from perphd.monitor.schema import open_database
database = open_database(pathlib.Path("/var/lib/perphd/perphd.db"))
last = int(time.time() // 60)
with database:
    for window in range(last - 90, last):
        values = (60.0 * window + 30, 0.0, 60.0, "steady", "", 0.5 + 0.1 * math.sin(window), 20e6)
        database.execute(
            "INSERT INTO samples (wall_s, at_s, interval_s, workload, quality, cpu_usage_cores,"
            " memory_working_set_bytes) VALUES (?, ?, ?, ?, ?, ?, ?)", values)
database.close()
"""
STATE = "/var/lib/perphd/forecast"
PYTHON = "env PYTHONPATH=/usr/lib/perphd python3"
WORKER = "pgrep -f 'perphd[.]control[.]forecast_worker'"
"""The pattern does not match the shell that asks."""
PATIENCE_S = 600.0
"""An emulated processor takes a minute to import and two to look at an hour and a half of windows."""


@pytest.fixture(scope="module")
def vm(installed: Vm) -> Iterator[Vm]:
    installed.sh("systemctl stop perphd", INSTALL_S)
    installed.sh("rm -rf /var/lib/perphd/forecast /var/lib/perphd/perphd.db* /var/lib/perphd/jobs.sqlite*")
    installed.write("/etc/perphd/perphd.toml", CONFIG, 0o640)
    installed.write("/root/history.py", HISTORY)
    installed.sh(f"{PYTHON} /root/history.py")
    installed.sh("systemd-run -q --unit=steady sleep 3600")
    installed.sh("perphd config check && systemctl start perphd", INSTALL_S)
    try:
        yield installed
    finally:
        installed.try_("systemctl stop perphd steady nightly; rm -f /root/history.py", INSTALL_S)


def test_the_worker_runs_confined_and_gives_way(vm: Vm) -> None:
    vm.wait_until(WORKER, "no worker", PATIENCE_S, 2.0)
    vm.wait_until(f"[ $(ps -o ni= -p $({WORKER})) = 19 ]", "it does not give way", PATIENCE_S, 2.0)
    pid = vm.sh(WORKER)
    assert vm.sh(f"cat /proc/{pid}/oom_score_adj") == "500"
    assert vm.sh(f"cut -d: -f3 /proc/{pid}/cgroup") == "/perphd.slice/perphd.service"
    assert vm.sh(f"sed -n 's/^Seccomp:\\t//p' /proc/{pid}/status") == "2"
    assert vm.sh(f"sed -n 's/^PPid:\\t//p' /proc/{pid}/status") == shown(vm, "MainPID")


def test_it_forecasts_what_the_store_has(vm: Vm) -> None:
    vm.wait_until(f"[ -s {STATE}/forecasts.json ]", "it publishes nothing", PATIENCE_S, 2.0)
    vm.wait_until(
        "perphctl status -v | grep -q '^forecasts: [1-9]'", "status names no forecast", PATIENCE_S, 5.0
    )
    asked = vm.sh("curl -s --unix-socket /run/perphd/perphd.sock http://perphd/v1/forecasts || "
                  f"cat {STATE}/forecasts.json")  # fmt: skip
    steady = next(each for each in json.loads(asked)["workloads"] if each["workload"] == "steady")
    memory = next(each for each in steady["series"] if each["series"] == "memory_working_set_bytes")
    assert memory["model"], memory
    shown_ = vm.sh("perphctl forecast steady", INSTALL_S)
    assert "working set" in shown_
    assert "steady, next 60s" in shown_
    assert json.loads(vm.sh(f"cat {STATE}/memory.json"))["steady"]["bound_bytes"] > 0
    assert "it cannot be started" not in log(vm)
    assert "Traceback" not in log(vm)


def test_it_records_a_unit_that_came_and_went(vm: Vm) -> None:
    vm.sh("systemd-run -q --unit=nightly --property=User=nobody sleep 20")
    vm.wait_until("! systemctl -q is-active nightly", "it does not end")
    answers = "perphctl predict --name nightly --json > /root/predicted"
    vm.wait_until(answers, "the run was not recorded", PATIENCE_S, 10.0)
    found = {each["quantity"]: each for each in json.loads(vm.sh("cat /root/predicted"))["predictions"]}
    assert 10 <= found["run_time_s"]["estimate"] <= 30
    assert vm.sh("perphctl predict --user nobody --json") != ""
    assert vm.sh("stat -c '%a %U' /var/lib/perphd/jobs.sqlite") in ("600 root", "640 root")


def test_it_saves_when_the_daemon_stops_and_goes_on(vm: Vm) -> None:
    vm.sh("systemctl stop perphd", INSTALL_S)
    assert shown(vm, "Result") == "success"
    assert vm.try_(WORKER).returncode != 0
    size = int(vm.sh(f"stat -c %s {STATE}/state"))
    assert size > 1000
    vm.sh(f"rm {STATE}/forecasts.json && systemctl start perphd", INSTALL_S)
    vm.wait_until(f"[ -s {STATE}/forecasts.json ]", "it does not go on", PATIENCE_S, 2.0)


def test_one_that_is_killed_is_a_problem_and_the_daemon_goes_on(vm: Vm) -> None:
    main = shown(vm, "MainPID")
    vm.sh(f"kill -9 $({WORKER})")
    vm.wait_until("perphctl status | grep -q 'no forecasts: it ended with status -9'", "nothing said")
    assert shown(vm, "MainPID") == main
    vm.wait_until(WORKER, "it is not started again", PATIENCE_S, 5.0)
