"""Reads the use of network links: bytes sent by device, link speeds, and the addresses of devices."""

from __future__ import annotations

import socket
from typing import Final

from perphd.domain.errors import KernelError
from perphd.host.fs import KernelFs

_CLASS: Final = "/sys/class/net"
_SENT_FIELD: Final = 8
_BITS: Final = 1e6 / 8.0
_MAPPED: Final = bytes(10) + b"\xff\xff"
"""Prefix of an IPv6 address that represents an IPv4 address."""


def sent_bytes(fs: KernelFs) -> dict[str, int]:
    """Bytes sent by each network device since its creation; empty if the kernel does not report them."""
    try:
        lines = fs.read("/proc/net/dev").decode("ascii", "replace").splitlines()
    except KernelError:
        return {}
    found = {}
    for line in lines:
        name, colon, counts = line.partition(":")
        fields = counts.split()
        if colon and len(fields) > _SENT_FIELD and fields[_SENT_FIELD].isdecimal():
            found[name.strip()] = int(fields[_SENT_FIELD])
    return found


def link_speed(fs: KernelFs, device: str) -> float:
    """Speed of a link in bytes per second; 0 if unknown.

    Virtual devices report a meaningless speed, which counts as unknown.
    """
    try:
        if not fs.exists(f"{_CLASS}/{device}/device"):
            return 0.0
        return max(0.0, int(fs.read(f"{_CLASS}/{device}/speed")) * _BITS)
    except (KernelError, ValueError):  # the link is down (EINVAL), or reports no speed
        return 0.0


def device_addresses() -> dict[bytes, str]:
    """The network device of each of this host's addresses. The keys are packed addresses (4 or 16 bytes)."""
    import psutil  # imported here: a daemon that watches no link saves 1 MiB

    families = (socket.AF_INET, socket.AF_INET6)
    return {
        socket.inet_pton(each.family, each.address.partition("%")[0]): device
        for device, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family in families
    }


def plain_address(packed: bytes) -> bytes:
    """Four bytes for an IPv4 address mapped into IPv6; any other address unchanged."""
    return packed[len(_MAPPED) :] if packed.startswith(_MAPPED) and len(packed) == 16 else packed
