"""A thread in network and mount namespaces of its own: devices, qdiscs and a BPF file system that end with it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")
_NEWNS, _NEWNET, _FS = 0x00020000, 0x40000000, 0x00000200
_PRIVATE = 1 << 18 | 1 << 14  # MS_PRIVATE | MS_REC
BPFFS = "/sys/fs/bpf"


def shell(command: str) -> str:
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def inside(work: Callable[[], _T]) -> _T:
    """Run it there: a veth pair v0 (10.9.0.1, with a neighbour 10.9.0.2) and v1, both up, on a fresh bpffs."""

    def enter() -> _T:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_FS | _NEWNS | _NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")
        if libc.mount(None, b"/", None, _PRIVATE, None) or libc.mount(
            b"bpf", BPFFS.encode(), b"bpf", 0, None
        ):
            raise OSError(ctypes.get_errno(), "mount")
        shell(
            "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6;"  # no packets of the kernel's own
            "ip link add v0 type veth peer name v1; ip link set lo up; ip link set v0 up; ip link set v1 up;"
            "ip addr add 10.9.0.1/24 dev v0;"
            "ip neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev v0 nud permanent"
        )
        return work()

    with ThreadPoolExecutor(
        1
    ) as pool:  # threads that it starts are born in its namespaces, and so are processes
        return pool.submit(enter).result()


SENDER = """
import os, socket, sys
for path in sys.argv[2:]:
    with open(path, "w") as file:
        file.write(str(os.getpid()))
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(int(sys.argv[1])):
    s.sendto(bytes(1000), ("10.9.0.2", 9))
"""


def send(packets: int, *procs: str) -> None:
    """From a process in these groups (paths of cgroup.procs), so many packets of 1042 bytes to the neighbour."""
    subprocess.run([sys.executable, "-c", SENDER, str(packets), *procs], check=True)


def why_not() -> str:
    """Why these tests cannot run here; empty if they can."""
    if os.geteuid() != 0:
        return "needs root"
    for tool in ("ip", "tc"):
        if not any(os.access(f"{folder}/{tool}", os.X_OK) for folder in os.environ["PATH"].split(":")):
            return f"needs {tool} (iproute2)"
    try:
        inside(lambda: shell("tc qdisc add dev v0 root htb && tc qdisc del dev v0 root"))
    except (OSError, AssertionError) as exc:
        return f"not enforceable here because: {exc}"
    return ""
