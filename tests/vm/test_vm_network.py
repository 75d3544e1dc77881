"""Egress ceilings ([network]) on a booted host: batch is kept to its traffic class, and every link is left as it was.

A link of its own leads into another network namespace (a veth pair); the machine's own device, through which this
test speaks to it, is named as well. Judged by ``tc``, ``bpftool`` and ``ip``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.vm.guest import INSTALL_S, Vm, ticked

pytestmark = pytest.mark.requires_vm

LINK, OWN = "perphdv0", "eth0"
CEILING = 20_000
BURST = 1 << 16
"""What HTB lets through at once, beyond its ceiling."""
WINDOW_S = 8
DROP_INS = "/etc/systemd/system/perphd.service.d"
CONFIG_FILE = "/etc/perphd/perphd.toml"
BATCH = "/sys/fs/cgroup/batch.slice/flood.service"
CONFIG = f"""
[daemon]
mode = "%s"
period_s = 3.0
[tuning.daemon]
policy = "static"
[tuning.isolation]
deadline_s = 20.0
[network]
devices = "{LINK},{OWN}"
batch_egress_max = "{CEILING}"
[[lra]]
name = "calls"
cgroup = "/lra.slice/calls.service"
[[batch]]
name = "flood"
cgroup = "/batch.slice/flood.service"
"""
SENDER = """
import socket, sys, time
to, port, size, pause_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    sender.sendto(bytes(size), (to, port))
    time.sleep(pause_s)
"""
UNIT = """
[Service]
Slice={slice}.slice
ExecStart=/usr/bin/python3 -S /usr/local/lib/perphd-sender.py 10.99.0.2 {port} {size} {pause_s}
"""
# The flood would send several times the ceiling; the application little, and often.
UNITS = {
    "flood": UNIT.format(slice="batch", port=9001, size=5000, pause_s=0.05),
    "calls": UNIT.format(slice="lra", port=9002, size=100, pause_s=0.1),
}
# The far end takes what comes: a closed port would answer.
MAKE = f"""set -e
ip netns add perphdvm
ip link add {LINK} type veth peer name perphdv1 netns perphdvm
ip addr add 10.99.0.1/24 dev {LINK}
ip link set {LINK} up
ip -n perphdvm addr add 10.99.0.2/24 dev perphdv1
ip -n perphdvm link set perphdv1 up
ip netns exec perphdvm sysctl -qw net.ipv4.icmp_ratelimit=60000
"""
# Everything about the links that can be set, without what counts; the programs at control groups; perphd's pins.
STATE = " && ".join(
    (
        *(
            f"ip -d link show dev {device} && tc -d qdisc show dev {device} && tc filter show dev {device} && "
            f"(tc class show dev {device} | grep htb || true)"
            for device in (LINK, OWN)
        ),
        "(bpftool cgroup tree /sys/fs/cgroup | grep perphd_egress || true)",
        "(ls -A /sys/fs/bpf/perphd 2>/dev/null || true)",
    )
)


@dataclass(frozen=True, slots=True)
class Sent:
    """What has passed a traffic class so far, and how often it had to wait."""

    total_bytes: int
    packets: int
    held_back: int


@pytest.fixture(scope="module")
def vm(installed: Vm) -> Iterator[Vm]:
    """The machine with the link, the two senders and perphd observing; left as it was."""
    installed.sh(f"systemctl stop perphd; cp -p {CONFIG_FILE} /root/config-before", INSTALL_S)
    installed.write("/usr/local/lib/perphd-sender.py", SENDER)
    for name, text in UNITS.items():
        installed.write(f"/etc/systemd/system/{name}.service", text)
    try:
        installed.sh(MAKE)
        installed.sh(f"mkdir -p {DROP_INS}; systemctl daemon-reload; systemctl start {' '.join(UNITS)}")
        yield installed
    finally:
        files = " ".join(f"/etc/systemd/system/{name}.service" for name in UNITS)
        installed.try_(
            f"systemctl stop perphd {' '.join(UNITS)}; perphd restore; ip link del {LINK}; ip netns del perphdvm; "
            f"rm -f {DROP_INS}/network.conf {DROP_INS}/tested.conf {files}; "
            f"systemctl unmask --runtime perphd-restore; cp -p /root/config-before {CONFIG_FILE}; "
            "systemctl daemon-reload; systemctl reset-failed perphd",
            INSTALL_S,
        )


@pytest.fixture(scope="module")
def as_found(vm: Vm) -> str:
    """The links before perphd has looked at them."""
    return state(vm)


def state(vm: Vm) -> str:
    return vm.sh(STATE)


def egress(vm: Vm) -> dict[str, str]:
    """What doctor says of traffic classes."""
    found = json.loads(vm.sh("perphctl doctor --json"))["capabilities"]
    said: dict[str, str] = next(item for item in found if item["name"] == "network.egress")
    return said


def start(vm: Vm, mode: str) -> None:
    """Start it, or anew, in this mode."""
    vm.write(CONFIG_FILE, CONFIG % mode, 0o640)
    vm.sh("systemctl daemon-reload; systemctl reset-failed perphd; systemctl restart perphd", INSTALL_S)


def wait_for_class(vm: Vm) -> None:
    for device in (LINK, OWN):
        vm.wait_until(
            f"tc class show dev {device} | grep -q 'htb 7e50:10 '", f"batch was given no class on {device}"
        )
        assert sent(vm, device) is not None


def sent(vm: Vm, device: str) -> Sent | None:
    """Of batch's class on this device; None: there is none."""
    told = vm.sh(f"tc -s class show dev {device}")
    found = re.search(
        r"class htb 7e50:10 parent 7e50:1 .* ceil 160Kbit .*\n Sent (\d+) bytes (\d+) pkt "
        r"\(dropped \d+, overlimits (\d+) ",
        told,
    )
    return None if found is None else Sent(int(found[1]), int(found[2]), int(found[3]))


def direct_packets(vm: Vm) -> int:
    """What has passed the link in no class."""
    found = re.search(
        r"qdisc htb 7e50: root .* direct_packets_stat (\d+)", vm.sh(f"tc qdisc show dev {LINK}")
    )
    assert found is not None
    return int(found[1])


def programs(vm: Vm) -> str:
    return vm.sh(f"bpftool cgroup show {BATCH}")


def is_as_found(vm: Vm, as_found: str) -> None:
    vm.wait_for(lambda: state(vm) == as_found, f"the links were left differently:\n{as_found}\n", 60.0)


def test_the_unit_as_shipped_says_what_it_lacks_and_touches_no_link(vm: Vm, as_found: str) -> None:
    start(vm, "enforce")
    said = egress(vm)
    assert not said["present"]
    assert said["cost"] == "batch can fill a link, and LRAs' packets then wait behind batch's"
    for needed in ("CAP_BPF", "SystemCallFilter=bpf", "ReadWritePaths=/sys/fs/bpf"):
        assert needed in said["remedy"]
    vm.wait_for(lambda: "flood egress_max" in vm.sh("perphctl status"), "status does not say that it lacks")
    assert state(vm) == as_found


def test_with_the_shipped_drop_in_it_can_and_observing_changes_nothing(vm: Vm, as_found: str) -> None:
    vm.sh(f"cp /usr/share/doc/perphd/examples/network.conf {DROP_INS}/")
    start(vm, "observe")
    said = egress(vm)
    assert said["present"], said
    vm.wait_until(ticked(3), "it does not tick")
    assert state(vm) == as_found


def test_batch_is_kept_to_its_class_and_nobody_else_is_in_one(vm: Vm, as_found: str) -> None:
    vm.sh("perphctl mode enforce")
    wait_for_class(vm)
    assert re.search(r"cgroup_inet_egress\b.*\bperphd_egress", programs(vm)), programs(vm)
    before, direct = sent(vm, LINK), direct_packets(vm)
    began = float(vm.sh("cut -d' ' -f1 /proc/uptime"))
    vm.sh(f"sleep {WINDOW_S}")
    after = sent(vm, LINK)
    took_s = float(vm.sh("cut -d' ' -f1 /proc/uptime")) - began
    assert before is not None
    assert after is not None
    passed = after.total_bytes - before.total_bytes
    assert after.packets - before.packets >= 20, "what batch sends is in its class"
    assert passed <= CEILING * took_s + 2 * BURST, f"{passed} bytes in {took_s:.1f} s"
    assert after.held_back > before.held_back, "it wanted to send more"
    assert direct_packets(vm) - direct >= 20, "the application passes unshaped"
    # On the machine's own device batch sends nothing; this test's own conversation is in no class.
    assert sent(vm, OWN) == Sent(0, 0, 0)

    vm.sh("systemctl stop flood")
    vm.wait_for(lambda: state(vm) == as_found, "the class of a unit that has ended is left")
    vm.sh("systemctl start flood")
    vm.wait_for(lambda: sent(vm, LINK), "the unit was started again, and is given no class")
    before = sent(vm, LINK)
    assert before is not None
    vm.wait_for(
        lambda: (now := sent(vm, LINK)) is not None and now.packets > before.packets, "nor what it sends"
    )


def test_stop_and_kill_and_restore_leave_every_link_as_found(vm: Vm, as_found: str) -> None:
    vm.sh("systemctl stop perphd", INSTALL_S)
    assert state(vm) == as_found
    for by_hand in (False, True):
        vm.write(f"{DROP_INS}/tested.conf", "[Service]\nRestart=no\n" + "ExecStopPost=\n" * by_hand)
        if by_hand:  # else OnFailure= sees to it
            vm.sh("systemctl mask --runtime perphd-restore")
        start(vm, "enforce")
        wait_for_class(vm)
        vm.sh("systemctl kill --kill-whom=main --signal=KILL perphd")
        vm.wait_until("systemctl -q is-failed perphd", "it was killed, and is not")
        if by_hand:
            assert sent(vm, LINK) is not None, "nobody has given it back yet"
            assert "perphd_egress" in programs(vm)
            vm.sh("perphd restore")
        is_as_found(vm, as_found)
    vm.sh(f"rm {DROP_INS}/tested.conf; systemctl unmask --runtime perphd-restore")


def test_a_qdisc_that_somebody_has_chosen_stays(vm: Vm) -> None:
    vm.sh(f"tc qdisc add dev {LINK} root handle 77: prio bands 4")
    chosen = state(vm)
    start(vm, "enforce")
    wanted = f"{LINK} has a qdisc prio that an administrator set (handle 77:)"
    vm.wait_for(lambda: wanted in " ".join(vm.sh("perphctl status").split()), "status does not say why")
    assert state(vm) == chosen
    vm.sh("systemctl stop perphd", INSTALL_S)
    assert state(vm) == chosen
