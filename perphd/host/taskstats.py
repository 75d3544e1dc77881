"""Reads the run-queue delay of a whole process, ended threads included, by one netlink exchange (taskstats).

A raw socket instead of pyroute2 takes 4 us instead of 87 us for a process of 40 threads, and saves the 24 MiB
that pyroute2 keeps resident. Interface: linux/taskstats.h, "TASKSTATS_CMD_GET".
"""

from __future__ import annotations

import errno
import socket
import struct
from typing import Final

from perphd.domain.errors import Broken, Gone, KernelError, Unsupported, kernel_error
from perphd.domain.reading import Unavailable

_NETLINK_GENERIC: Final = 16
_CONTROL_FAMILY: Final = 16
_CONTROL_GET_FAMILY: Final = 3
_CONTROL_FAMILY_ID: Final = 1
_CONTROL_FAMILY_NAME: Final = 2
_TASKSTATS_GET: Final = 1
_TASKSTATS_TGID: Final = 2
_TYPE_AGGREGATE_TGID: Final = 5
_TYPE_STATS: Final = 3
_NLM_REQUEST: Final = 1
_NLM_ERROR: Final = 2

_HEADER: Final = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_GENERIC: Final = struct.Struct("=BBH")  # command, version, reserved
_ATTRIBUTE: Final = struct.Struct("=HH")  # length with this header, type
_ERRNO: Final = struct.Struct("=i")
_ID: Final = struct.Struct("=H")
_PID: Final = struct.Struct("=I")
_U64: Final = struct.Struct("=Q")
_ONE_SECOND: Final = struct.pack("@ll", 1, 0)  # struct timeval
_CPU_DELAY_TOTAL_AT: Final = 24  # offset in struct taskstats, the same in every version
_RECEIVE_BYTES: Final = 8192
_WHERE: Final = "taskstats"


class TaskStats:
    """An open netlink socket to the kernel's taskstats; release it with ``close``.

    Raises:
        Denied: CAP_NET_ADMIN is missing.
        Unsupported: the kernel lacks CONFIG_TASKSTATS, or this is not the host's network namespace.
    """

    def __init__(self) -> None:
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_GENERIC)
        except OSError as exc:
            raise kernel_error(exc, _WHERE, "open a netlink socket") from exc
        self._sequence = 0
        try:
            # The kernel answers within the send; a missing answer is a defect. Python's own timeouts would
            # poll before each call.
            for limit in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                self._socket.setsockopt(socket.SOL_SOCKET, limit, _ONE_SECOND)
            self._socket.bind((0, 0))
            self._family = self._find_family()
        except BaseException:
            self._socket.close()
            raise

    def run_delay_ns(self, pid: int) -> int:
        """Nanoseconds that all threads of this process, ended ones included, ever waited for a CPU.

        Raises:
            Gone: no such process.
            Denied: CAP_NET_ADMIN is missing.
        """
        reply = self._ask(
            self._family, _TASKSTATS_GET, _attribute(_TASKSTATS_TGID, _PID.pack(pid)), f"pid {pid}"
        )
        stats = _find(_find(reply, _TYPE_AGGREGATE_TGID), _TYPE_STATS)
        if len(stats) < _CPU_DELAY_TOTAL_AT + _U64.size:
            raise Broken(_WHERE, f"read pid {pid}", errno.EBADMSG)
        total: int = _U64.unpack_from(stats, _CPU_DELAY_TOTAL_AT)[0]
        return total

    def close(self) -> None:
        """Close the socket; closing twice is allowed."""
        self._socket.close()

    def _find_family(self) -> int:
        name = _attribute(_CONTROL_FAMILY_NAME, b"TASKSTATS\0")
        try:
            reply = self._ask(_CONTROL_FAMILY, _CONTROL_GET_FAMILY, name, "its netlink family")
        except Gone as exc:
            raise Unsupported(
                _WHERE,
                "look up its netlink family",
                errno.EOPNOTSUPP,
                advice="needs CONFIG_TASKSTATS and the host's own network namespace",
            ) from exc
        family: int = _ID.unpack_from(_find(reply, _CONTROL_FAMILY_ID))[0]
        return family

    def _ask(self, family: int, command: int, payload: bytes, what: str) -> bytes:
        """Send one request and return the attributes of its answer."""
        length = _HEADER.size + _GENERIC.size + len(payload)
        self._sequence = self._sequence + 1 & 0xFFFFFFFF
        header = _HEADER.pack(length, family, _NLM_REQUEST, self._sequence, 0)
        try:
            self._socket.send(header + _GENERIC.pack(command, 1, 0) + payload)
            while True:
                reply = self._socket.recv(_RECEIVE_BYTES)
                _, kind, _, sequence, _ = _HEADER.unpack_from(reply)
                if sequence == self._sequence:  # other numbers: late answers to abandoned requests
                    break
        except OSError as exc:
            raise kernel_error(exc, _WHERE, f"read {what}") from exc
        if kind == _NLM_ERROR:
            number = -_ERRNO.unpack_from(reply, _HEADER.size)[0]
            advice = "needs CAP_NET_ADMIN" if number in (errno.EPERM, errno.EACCES) else ""
            raise kernel_error(OSError(number, ""), _WHERE, f"read {what}", advice=advice)
        return reply[_HEADER.size + _GENERIC.size :]


def open_taskstats(own_pid: int) -> TaskStats | Unavailable:
    """Open taskstats and test it on one of perphd's own processes. Unavailable with the reason if that fails."""
    try:
        taskstats = TaskStats()
    except KernelError as exc:
        return Unavailable(str(exc))
    try:
        taskstats.run_delay_ns(own_pid)
    except KernelError as exc:
        taskstats.close()
        return Unavailable(str(exc))
    return taskstats


def _attribute(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def _find(attributes: bytes, wanted: int) -> bytes:
    """The value of one attribute in a sequence.

    Raises:
        Broken: it is missing.
    """
    offset = 0
    while offset + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, offset)
        if length < _ATTRIBUTE.size:
            break
        if kind == wanted:
            return attributes[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
    raise Broken(_WHERE, f"find attribute {wanted} in an answer", errno.EBADMSG)
