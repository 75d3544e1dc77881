"""Units that declare themselves, by drop-ins as ``systemctl edit`` makes them, on a booted host with the package."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.vm.guest import INSTALL_S, Vm
from tests.vm.workloads import end, is_given_back, start_workloads

pytestmark = pytest.mark.requires_vm

CONFIG = """
[daemon]
mode = "enforce"
period_s = 1.0
[tuning.daemon]
policy = "static"
[tuning.isolation]
deadline_s = 20.0
[opt_in]
units = "{units}"
"""
OVERRIDE = "/etc/systemd/system/{}.d/override.conf"


def edit(vm: Vm, unit: str, *lines: str) -> None:
    """``systemctl edit``, with an editor that writes these lines; it wants a terminal."""
    vm.write("/root/said", "".join(f"{line}\n" for line in ("[X-Perphd]", *lines)))
    command = f"env SYSTEMD_EDITOR='cp /root/said' systemctl edit {unit}"
    # Without a daemon-reload: what perphd has given back is nothing that systemd would miss.
    assert vm.sh(f"systemctl show {unit} --value -p NeedDaemonReload") == "no"
    vm.sh(f"script -qec {shlex.quote(command)} /dev/null")


def places_are(*wanted: str) -> str:
    """A shell condition: where the application and batch may run now."""
    groups = ("lra.slice/app.service", "batch.slice/jobs.service")
    first = "/proc/$(head -n 1 /sys/fs/cgroup/{}/cgroup.procs)/status"
    listed = " ".join(f"$(sed -n 's/^Cpus_allowed_list:\\t//p' {first.format(group)})" for group in groups)
    return " || ".join(f'[ "{listed}" = "{each}" ]' for each in wanted)


def names(vm: Vm) -> set[str]:
    return {item["spec"]["name"] for item in json.loads(vm.sh("perphctl --json status"))["workloads"]}


def wait_for_status(vm: Vm, words: str, what: str) -> None:
    vm.wait_until(f"perphctl status -v | grep -q -- {shlex.quote(words)}", what, pause_s=2.0)


def test_units_declare_themselves_by_drop_ins(installed: Vm) -> None:
    vm = installed
    vm.sh("systemctl stop perphd", INSTALL_S)
    at_rest = start_workloads(vm)
    try:
        vm.write("/etc/perphd/perphd.toml", CONFIG.format(units=""), 0o640)
        edit(vm, "app.service", "kind=lra", "tolerance_pct=20", "class=database")
        assert "which is not read: units is empty in [opt_in]" in vm.sh("perphd config check 2>&1")
        vm.sh("systemctl start perphd", INSTALL_S)
        assert names(vm) == set(), "nobody declares itself by default"

        vm.write("/etc/perphd/perphd.toml", CONFIG.format(units="lra,batch"), 0o640)
        vm.sh("systemctl reload perphd")
        wait_for_status(vm, "app (lra): declared by the unit's drop-in", "the unit was not found")
        edit(vm, "batch.slice", "kind=batch")
        wait_for_status(vm, "batch.slice (batch): declared by the unit's drop-in", "the slice was not found")
        vm.wait_until(places_are("0 1", "1 0"), "they were not kept apart")
        where = f"eclared by the unit's drop-in {OVERRIDE.format('app.service')}"
        for command in ("explain app", "doctor"):
            said = " ".join(vm.sh(f"perphctl {command}").split())
            assert where in said, said

        # A mistake: named with its line, and the unit is left alone.
        edit(vm, "app.service", "kind=lra", "tolerence_pct=20")
        mistake = f"{OVERRIDE.format('app.service')}:3: X-Perphd.tolerence_pct: unknown key; did you mean"
        assert mistake in vm.sh("perphd config check 2>&1")
        vm.wait_until('! perphctl --json status | grep -q \'"name": *"app"\'', "it stays", pause_s=2.0)
        assert "did you mean 'tolerance_pct'?" in " ".join(vm.sh("perphctl status").split())
        # The policy of this test keeps batch where it is, with or without an LRA.
        vm.wait_until(places_are("0-1 0", "0-1 1"), "what was set on it stays")

        edit(vm, "app.service", "kind=lra")
        vm.wait_until(places_are("0 1", "1 0"), "they were not kept apart again")
        vm.sh("systemctl revert app.service batch.slice")
        vm.wait_until("! perphctl --json status | grep -q declared_by.*drop-in", "they stay", pause_s=2.0)
        is_given_back(vm, at_rest)
        assert names(vm) == set()
    finally:
        vm.sh("systemctl revert app.service batch.slice")
        end(vm)
