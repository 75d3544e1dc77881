"""Listening TCP sockets by sock_diag(7): their ports, and the control group that each was made in.

Needs no privilege; sees one network namespace, that of this process. The control group is told since Linux 5.8.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from perphd.domain.errors import kernel_error

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST_DUMP: Final = 0x301
_ERROR, _DONE = 2, 3
_LISTEN: Final = 10
_CGROUP_ID: Final = 21
_HEADER: Final = struct.Struct("=IHHII")
_MESSAGE_BYTES: Final = 72
_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Listener:
    """One listening socket. ``cgroup_id``: inode of its group's directory, 0 if the kernel does not tell."""

    port: int
    cgroup_id: int
    inode: int


def tcp_listeners() -> tuple[Listener, ...]:
    """All listening TCP sockets, IPv4 and IPv6. Raises KernelError."""
    try:
        with closing(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)) as netlink:
            netlink.settimeout(_TIMEOUT_S)
            return tuple(
                listener
                for family in (socket.AF_INET, socket.AF_INET6)
                for listener in _dump(netlink, family)
            )
    except OSError as exc:
        if exc.errno is None:
            exc.errno = errno.ETIMEDOUT
        raise kernel_error(exc, "sock_diag(7)", "list listening sockets") from exc


def _dump(netlink: socket.socket, family: int) -> Iterator[Listener]:
    body = struct.pack("=BBBBI48s", family, socket.IPPROTO_TCP, 0, 0, 1 << _LISTEN, b"")
    header = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, family, 0)
    netlink.send(header + body)
    while True:
        data = netlink.recv(1 << 17)
        at = 0
        while at + _HEADER.size <= len(data):
            length, kind = struct.unpack_from("=IH", data, at)
            if kind == _DONE:
                return
            if kind == _ERROR:
                code = -struct.unpack_from("=i", data, at + _HEADER.size)[0]
                if code == errno.ENOENT and family == socket.AF_INET6:  # a kernel without IPv6
                    return
                raise OSError(code, os.strerror(code))
            yield _listener(data[at + _HEADER.size : at + length])
            at += (length + 3) & ~3


def _listener(message: bytes) -> Listener:
    """Struct inet_diag_msg and its attributes."""
    (port,) = struct.unpack_from("!H", message, 4)
    (inode,) = struct.unpack_from("=I", message, 68)
    cgroup_id, at = 0, _MESSAGE_BYTES
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if length < 4:
            break
        if kind == _CGROUP_ID:
            (cgroup_id,) = struct.unpack_from("=Q", message, at + 4)
        at += (length + 3) & ~3
    return Listener(port, cgroup_id, inode)
