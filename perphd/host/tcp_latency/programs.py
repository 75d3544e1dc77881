"""The two BPF programs that observe the packets of a control group's TCP sockets.

A request begins with the first data segment received after the last answer, and ends with the first data
segment sent. Its latency is measured from its last received segment, and from its first. The ingress program
runs before the server is woken, the egress program within the server's own send(). The time in between is the
server's, including the time that it waits for a processor.

A connection's state is in the socket's own storage (``ProgramState``), the counts are in two arrays (``counts``).
The side that opened a connection is determined once: if no socket listens on the local port, this side is the
client and nothing is counted. With a list of ports, exactly the connections to these ports are counted.

Packets with IPv4 options or IPv6 extension headers are not examined. The programs let all packets pass.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from perphd.host.bpf.assembler import Assembler, Register
from perphd.host.bpf.syscall import MMAPABLE, NO_PREALLOC, Attach, MapLayout, MapType
from perphd.host.tcp_latency.counts import COUNTERS, SHARD_BUCKETS, SHARDS, LatencyCounter, Region
from perphd.host.tcp_latency.histogram import BUCKETS, emit_bucket

R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, FP = Register


class ProgramState(IntEnum):
    """Offsets in a connection's state. Times are ns of the kernel's monotonic clock.

    FIRST, LAST (u64): arrival of the request's first and last segments; FIRST is 0 while no request waits.
    NEXT (u32): sequence number after the last segment. SEGMENTS (u32): number of segments of the request.
    ROLE (u32): see ``ProgramRole``.
    """

    FIRST = 0
    LAST = 8
    NEXT = 16
    SEGMENTS = 20
    ROLE = 24


class ProgramRole(IntEnum):
    """The group's side of a connection."""

    UNKNOWN = 0
    SERVER = 1
    CLIENT = 2


STATE: Final = MapLayout("perphd_tcp_conn", MapType.SK_STORAGE, 32, 0, NO_PREALLOC)
COUNTS: Final = MapLayout("perphd_tcp_cnt", MapType.ARRAY, 8 * COUNTERS, SHARDS, MMAPABLE)
HISTOGRAMS: Final = MapLayout("perphd_tcp_hist", MapType.ARRAY, 8, SHARDS * SHARD_BUCKETS, MMAPABLE)


@dataclass(frozen=True, slots=True)
class Maps:
    """Descriptors of the maps with these layouts."""

    state: int
    counts: int
    histograms: int


class _Helper(IntEnum):
    """Kernel functions, by their numbers in enum bpf_func_id."""

    MAP_LOOKUP = 1
    KTIME_GET_NS = 5
    GET_SMP_PROCESSOR_ID = 8
    SK_LOOKUP_TCP = 84
    SK_RELEASE = 86
    SK_FULLSOCK = 95
    SK_STORAGE_GET = 107


class _Packet(IntEnum):
    """Offsets in struct __sk_buff."""

    LENGTH = 0
    DATA = 76
    DATA_END = 80
    SOCKET = 168


class _Stack(IntEnum):
    """Offsets below the frame pointer. TUPLE: struct bpf_sock_tuple, 36 bytes for IPv6, 12 for IPv4."""

    SHARD = -8
    KEY = -16
    SINCE_FIRST = -24
    SINCE_LAST = -32
    SOCKET_STATE = -40
    TUPLE = -80


PASS: Final = 1
_IPV4_WITHOUT_OPTIONS: Final = 0x45
_IPV4_BYTES, _IPV6_BYTES, _TCP_BYTES = 20, 40, 20
_TCP: Final = 6
_FIN, _RST = 1, 4
_SOCKET_STATE: Final = 72  # offset in struct bpf_sock
_LISTENING: Final = 10
_CURRENT_NAMESPACE: Final = -1
_CREATE: Final = 1


def ingress(maps: Maps, ports: Sequence[int] = ()) -> bytes:
    """The program for incoming packets."""
    return _Program(maps, ports, Attach.INGRESS).ingress()


def egress(maps: Maps, ports: Sequence[int] = ()) -> bytes:
    """The program for outgoing packets."""
    return _Program(maps, ports, Attach.EGRESS).egress()


class _Program:
    """A program under construction.

    Registers throughout: R6 the packet, R7 bytes of payload, R8 the sequence number after it, R9 the
    connection's state.
    """

    def __init__(self, maps: Maps, ports: Sequence[int], direction: Attach) -> None:
        self._maps, self._ports, self._out = maps, ports, direction is Attach.EGRESS
        self.code = Assembler()

    def ingress(self) -> bytes:
        """Start or continue a request."""
        code = self.code
        self._read_headers(_RST)
        self._find_state("pass", create=True)
        self._know_role()
        self._skip_repeated()
        code.store(4, R9, ProgramState.NEXT, R8)
        code.call(_Helper.KTIME_GET_NS)
        code.store(8, R9, ProgramState.LAST, R0)
        code.load(8, R1, R9, ProgramState.FIRST)
        code.jump_if(R1, "!=", 0, "continued")
        code.store(8, R9, ProgramState.FIRST, R0)
        code.store(4, R9, ProgramState.SEGMENTS, 1)
        self._count(LatencyCounter.STARTED)
        code.jump("pass")
        code.label("continued")
        code.load(4, R1, R9, ProgramState.SEGMENTS)
        code.arithmetic("add", R1, 1)
        code.store(4, R9, ProgramState.SEGMENTS, R1)
        code.jump("pass")
        code.label("repeated")
        self._count(LatencyCounter.REPEATED)
        code.jump("pass")
        return self._finished()

    def egress(self) -> bytes:
        """End a request, if one waits."""
        code = self.code
        # A side that closes sends no answer. A request of a closing client may still be answered.
        self._read_headers(_FIN | _RST)
        self._find_state("pass", create=True)
        self._know_role()
        code.load(8, R7, R9, ProgramState.FIRST)
        code.jump_if(R7, "==", 0, "pushed")
        code.call(_Helper.KTIME_GET_NS)
        code.move(R8, R0)
        code.arithmetic("sub", R8, R7)
        code.store(8, FP, _Stack.SINCE_FIRST, R8)
        code.load(8, R7, R9, ProgramState.LAST)
        code.arithmetic("sub", R0, R7)
        code.store(8, FP, _Stack.SINCE_LAST, R0)
        code.store(8, R9, ProgramState.FIRST, 0)
        self._count(LatencyCounter.ANSWERED)
        code.load(4, R1, R9, ProgramState.SEGMENTS)
        code.jump_if(R1, ">", 1, "split")
        self._add_to(Region.WHOLE, _Stack.SINCE_LAST)
        code.jump("pass")
        code.label("split")
        code.atomic_add(R0, 8 * LatencyCounter.SPLIT, R2)  # R0 and R2 have the values left by _count
        self._add_to(Region.SPLIT_FIRST, _Stack.SINCE_FIRST)
        self._add_to(Region.SPLIT_LAST, _Stack.SINCE_LAST)
        code.jump("pass")
        code.label("pushed")
        self._count(LatencyCounter.PUSHED)
        code.jump("pass")
        return self._finished()

    def _read_headers(self, ends: int) -> None:
        """Emit code that reads payload size and sequence number, and jumps to "pass" if there is no payload.

        ``ends``: flags that end a request in a segment without payload.
        """
        code = self.code
        code.move(R6, R1)
        code.load(4, R7, R6, _Packet.LENGTH)
        code.load(4, R2, R6, _Packet.DATA)
        code.load(4, R3, R6, _Packet.DATA_END)
        code.move(R4, R2)
        code.arithmetic("add", R4, _IPV4_BYTES + _TCP_BYTES)
        code.jump_if(R4, ">", R3, "pass")
        code.load(1, R0, R2, 0)
        code.jump_if(R0, "==", _IPV4_WITHOUT_OPTIONS, "ipv4")
        code.arithmetic("rsh", R0, 4)
        code.jump_if(R0, "!=", 6, "pass")
        code.load(1, R0, R2, 6)  # next header
        code.jump_if(R0, "!=", _TCP, "pass")
        code.move(R5, _IPV6_BYTES)
        code.arithmetic("add", R2, _IPV6_BYTES)
        code.jump("tcp")
        code.label("ipv4")
        code.load(1, R0, R2, 9)  # protocol
        code.jump_if(R0, "!=", _TCP, "pass")
        code.move(R5, _IPV4_BYTES)
        code.arithmetic("add", R2, _IPV4_BYTES)
        code.label(
            "tcp"
        )  # offsets are constants, because arithmetic with packet pointers needs more capabilities
        code.move(R4, R2)
        code.arithmetic("add", R4, _TCP_BYTES)
        code.jump_if(R4, ">", R3, "pass")
        self._check_port()
        code.load(1, R0, R2, 12)  # header length in the upper half, in words of four bytes
        code.arithmetic("rsh", R0, 4)
        code.arithmetic("lsh", R0, 2)
        code.arithmetic("sub", R7, R5)
        code.arithmetic("sub", R7, R0)
        code.load(1, R0, R2, 13)  # flags
        code.jump_if(R7, "s>", 0, "data")
        code.arithmetic("and", R0, ends)
        code.jump_if(R0, "!=", 0, "ended")
        code.jump("pass")
        code.label("data")
        code.load(4, R8, R2, 4)  # sequence number
        if sys.byteorder == "little":
            code.from_big_endian(R8, 32)
        code.arithmetic("add", R8, R7, bits=32)

    def _check_port(self) -> None:
        """Emit code that jumps to "pass" unless the local port is in ``ports``; none if no ports are given.

        R2: the TCP header.
        """
        if not self._ports:
            return
        self.code.load(2, R0, R2, 0 if self._out else 2)
        for port in self._ports:
            self.code.jump_if(R0, "==", socket.htons(port), "served-port")
        self.code.jump("pass")
        self.code.label("served-port")

    def _find_state(self, missing: str, create: bool) -> None:
        """Set R9 to the connection's state. A listener's packets (deferred accept, Fast Open) have no lasting
        state.
        """
        code = self.code
        code.load(8, R1, R6, _Packet.SOCKET)
        code.jump_if(R1, "==", 0, missing)
        code.call(_Helper.SK_FULLSOCK)
        code.jump_if(R0, "==", 0, missing)
        code.load_map(R1, self._maps.state)
        code.move(R2, R0)
        code.move(R3, 0)
        code.move(R4, _CREATE if create else 0)
        code.call(_Helper.SK_STORAGE_GET)
        code.jump_if(R0, "==", 0, missing)
        code.move(R9, R0)

    def _know_role(self) -> None:
        """Continue only for the server's side. The code that determines the side is behind the main path."""
        if self._ports:
            return
        code = self.code
        code.load(4, R1, R9, ProgramState.ROLE)
        code.jump_if(R1, "==", ProgramRole.UNKNOWN, "find-role")
        code.jump_if(R1, "!=", ProgramRole.SERVER, "pass")
        code.label("is-server")

    def _find_role(self) -> None:
        """Determine whether a socket listens on the local port.

        The lookup uses remote port 0, which never finds the connection itself.
        """
        if self._ports:
            return
        code = self.code
        code.label("find-role")
        code.load(4, R2, R6, _Packet.DATA)
        code.load(4, R3, R6, _Packet.DATA_END)
        code.move(R4, R2)
        code.arithmetic("add", R4, _IPV4_BYTES + _TCP_BYTES)
        code.jump_if(R4, ">", R3, "pass")
        code.load(1, R0, R2, 0)
        code.jump_if(R0, "==", _IPV4_WITHOUT_OPTIONS, "tuple-ipv4")
        code.arithmetic("add", R4, 4)
        code.jump_if(R4, ">", R3, "pass")
        tuple_bytes = self._write_tuple(addresses_at=8, address_bytes=16, header_bytes=_IPV6_BYTES)
        code.move(R3, tuple_bytes)
        code.jump("look-up")
        code.label("tuple-ipv4")
        tuple_bytes = self._write_tuple(addresses_at=12, address_bytes=4, header_bytes=_IPV4_BYTES)
        code.move(R3, tuple_bytes)
        code.label("look-up")
        code.move(R1, R6)
        code.move(R2, FP)
        code.arithmetic("add", R2, _Stack.TUPLE)
        code.move(R4, _CURRENT_NAMESPACE)
        code.move(R5, 0)
        code.call(_Helper.SK_LOOKUP_TCP)
        code.store(4, R9, ProgramState.ROLE, ProgramRole.CLIENT)
        code.jump_if(R0, "==", 0, "pass")
        code.load(4, R1, R0, _SOCKET_STATE)
        code.store(4, FP, _Stack.SOCKET_STATE, R1)
        code.move(R1, R0)
        code.call(_Helper.SK_RELEASE)
        code.load(4, R1, FP, _Stack.SOCKET_STATE)
        code.jump_if(R1, "!=", _LISTENING, "pass")
        code.store(4, R9, ProgramState.ROLE, ProgramRole.SERVER)
        code.jump("is-server")

    def _write_tuple(self, addresses_at: int, address_bytes: int, header_bytes: int) -> int:
        """Write struct bpf_sock_tuple (remote address, local address, remote port 0, local port); returns its
        size.

        R2: the packet.
        """
        code = self.code
        source, destination = addresses_at, addresses_at + address_bytes
        remote, local = (destination, source) if self._out else (source, destination)
        at = int(_Stack.TUPLE)
        for start in (remote, local):
            for word in range(0, address_bytes, 4):
                code.load(4, R0, R2, start + word)
                code.store(4, FP, at, R0)
                at += 4
        code.store(2, FP, at, 0)
        code.load(2, R0, R2, header_bytes + (0 if self._out else 2))
        code.store(2, FP, at + 2, R0)
        return at + 4 - _Stack.TUPLE

    def _skip_repeated(self) -> None:
        """Treat a segment that ends at or before the last one as a retransmission or probe.

        Otherwise it would start a request that never ends.
        """
        code = self.code
        code.load(4, R1, R9, ProgramState.NEXT)
        code.jump_if(R1, "==", 0, "fresh")
        code.move(R2, R8, bits=32)
        code.arithmetic("sub", R2, R1, bits=32)
        code.jump_if(R2, "s>", 0, "fresh", bits=32)
        code.jump("repeated")
        code.label("fresh")

    def _end_request(self) -> None:
        """End of a connection: a waiting request gets no answer."""
        code = self.code
        code.label("ended")
        self._find_state("pass", create=False)
        code.load(8, R7, R9, ProgramState.FIRST)
        code.store(8, R9, ProgramState.FIRST, 0)
        code.jump_if(R7, "==", 0, "pass")
        self._count(LatencyCounter.DROPPED)
        code.jump("pass")

    def _count(self, counter: LatencyCounter) -> None:
        """Add one to a counter. Leaves R0 at this CPU's counters and R2 = 1."""
        code = self.code
        code.call(_Helper.GET_SMP_PROCESSOR_ID)
        code.arithmetic("and", R0, SHARDS - 1)
        code.store(4, FP, _Stack.SHARD, R0)
        code.load_map(R1, self._maps.counts)
        code.move(R2, FP)
        code.arithmetic("add", R2, _Stack.SHARD)
        code.call(_Helper.MAP_LOOKUP)
        code.jump_if(R0, "==", 0, "pass")
        code.move(R2, 1)
        code.atomic_add(R0, 8 * counter, R2)

    def _add_to(self, region: Region, since: _Stack) -> None:
        """Count the time at ``since`` in a histogram of the shard that ``_count`` used last."""
        code = self.code
        code.load(8, R1, FP, since)
        emit_bucket(code, R1, R2, region.name)
        code.load(4, R2, FP, _Stack.SHARD)
        code.arithmetic("mul", R2, SHARD_BUCKETS)
        code.arithmetic("add", R1, R2)
        code.arithmetic("add", R1, region * BUCKETS)
        code.store(4, FP, _Stack.KEY, R1)
        code.load_map(R1, self._maps.histograms)
        code.move(R2, FP)
        code.arithmetic("add", R2, _Stack.KEY)
        code.call(_Helper.MAP_LOOKUP)
        code.jump_if(R0, "==", 0, "pass")
        code.move(R2, 1)
        code.atomic_add(R0, 0, R2)

    def _finished(self) -> bytes:
        """Complete the program with the code behind the main path and the single exit."""
        self._end_request()
        self._find_role()
        self.code.label("pass")
        self.code.move(R0, PASS)
        self.code.exit()
        return self.code.encode()
