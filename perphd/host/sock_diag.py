"""Lists TCP sockets by sock_diag(7): the control group of each, and bytes sent by connections.

Needs no privilege; covers only this process's network namespace. The kernel reports control groups since
Linux 5.8.
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
_SENDING: Final = (1, 4, 8, 9, 11)
"""ESTABLISHED, FIN_WAIT1, CLOSE_WAIT, LAST_ACK, CLOSING: states in which data may still be sent."""
_INFO: Final = 2
_CGROUP_ID: Final = 21
_BYTES_ACKED_AT, _BUSY_TIME_AT, _RWND_LIMITED_AT = 120, 168, 176
"""Offsets in struct tcp_info; the last two since Linux 4.10."""
_HEADER: Final = struct.Struct("=IHHII")
_MESSAGE_BYTES: Final = 72
_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    """One listening socket. ``cgroup_id``: inode of its group's directory, 0 if the kernel does not report it."""

    port: int
    cgroup_id: int
    inode: int


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection.

    ``address``: local address, 4 or 16 bytes packed. ``cookie``: the kernel's identifier of the socket.
    ``acked_bytes``: bytes acknowledged by the peer. ``busy_us``: time with unacknowledged data, without the
    time in which the peer's window was full. Both count from the connection's start.
    """

    cookie: bytes
    address: bytes
    cgroup_id: int
    acked_bytes: int
    busy_us: int


def tcp_connections() -> tuple[Connection, ...]:
    """All TCP connections that may send, IPv4 and IPv6. Raises KernelError."""
    states = sum(1 << state for state in _SENDING)
    return tuple(
        found
        for message in _messages(states, 1 << (_INFO - 1), "list connections")
        if (found := _connection(message)) is not None
    )


def tcp_listeners() -> tuple[ListeningSocket, ...]:
    """All listening TCP sockets, IPv4 and IPv6. Raises KernelError."""
    return tuple(_listener(message) for message in _messages(1 << _LISTEN, 0, "list listening sockets"))


def _messages(states: int, extensions: int, what: str) -> list[bytes]:
    """The struct inet_diag_msg, with attributes, of every socket in these states."""
    try:
        with closing(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)) as netlink:
            netlink.settimeout(_TIMEOUT_S)
            return [
                message
                for family in (socket.AF_INET, socket.AF_INET6)
                for message in _dump(netlink, family, states, extensions)
            ]
    except OSError as exc:
        if exc.errno is None:
            exc.errno = errno.ETIMEDOUT
        raise kernel_error(exc, "sock_diag(7)", what) from exc


def _dump(netlink: socket.socket, family: int, states: int, extensions: int) -> Iterator[bytes]:
    body = struct.pack("=BBBBI48s", family, socket.IPPROTO_TCP, extensions, 0, states, b"")
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
            yield data[at + _HEADER.size : at + length]
            at += (length + 3) & ~3


def _listener(message: bytes) -> ListeningSocket:
    (port,) = struct.unpack_from("!H", message, 4)
    (inode,) = struct.unpack_from("=I", message, 68)
    return ListeningSocket(port, _cgroup_id(message), inode)


def _connection(message: bytes) -> Connection | None:
    """Parse a connection; None if the kernel reports too little, as for a socket that is closing."""
    at = _attributes(message).get(_INFO)
    if at is None:
        return None
    start, length = at
    if length < _RWND_LIMITED_AT + 8:
        return None
    (acked_bytes,) = struct.unpack_from("=Q", message, start + _BYTES_ACKED_AT)
    busy_us, full_us = struct.unpack_from("=QQ", message, start + _BUSY_TIME_AT)
    address = message[8:12] if message[0] == socket.AF_INET else message[8:24]
    return Connection(message[44:52], address, _cgroup_id(message), acked_bytes, max(0, busy_us - full_us))


def _cgroup_id(message: bytes) -> int:
    at = _attributes(message).get(_CGROUP_ID)
    return 0 if at is None else int(struct.unpack_from("=Q", message, at[0])[0])


def _attributes(message: bytes) -> dict[int, tuple[int, int]]:
    """Start and length of each attribute's value, by type."""
    found, at = {}, _MESSAGE_BYTES
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if length < 4:
            break
        found[kind] = (at + 4, length - 4)
        at += (length + 3) & ~3
    return found
