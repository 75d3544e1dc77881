"""The BPF programs without a kernel: encoding, buckets, and whole packets through a machine in Python."""

from __future__ import annotations

import socket
import struct
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.reading import Unavailable
from perphd.host.bpf.assembler import Assembler, Register
from perphd.host.egress_bpf import program
from perphd.host.tcp_latency import LatencyCounter, percentile_ms, programs
from perphd.host.tcp_latency.counts import SHARD_BUCKETS, SHARDS, Region
from perphd.host.tcp_latency.histogram import BUCKETS, MAX_UNITS, bucket_of, emit_bucket, lower_bound_ns
from perphd.host.tcp_latency.programs import Maps, ProgramRole, ProgramState
from tests.unit.bpf_machine import Machine

R0, R1, R2 = Register.R0, Register.R1, Register.R2


def instruction(code: int, target: int, source: int, offset: int, immediate: int) -> bytes:
    registers = target | source << 4 if sys.byteorder == "little" else target << 4 | source
    return struct.pack("=BBhi", code, registers, offset, immediate)


# -- assembler ----------------------------------------------------------------------------------------------


def test_encoding_is_the_kernels() -> None:
    code = Assembler()
    code.move(R0, -1)
    code.label("again")
    code.arithmetic("add", R1, R2, bits=32)
    code.load(2, R0, R1, 12)
    code.store(4, Register.FP, -8, 7)
    code.store(8, Register.FP, -16, R2)
    code.jump_if(R0, "s>", R1, "again", bits=32)
    code.jump_if(R0, "!=", 2**32 - 1, "end")
    code.load_map(R1, 9)
    code.atomic_add(R1, 8, R2)
    code.call(14)
    code.label("end")
    code.exit()
    assert code.encode() == b"".join(
        (
            instruction(0xB7, 0, 0, 0, -1),
            instruction(0x0C, 1, 2, 0, 0),
            instruction(0x69, 0, 1, 12, 0),
            instruction(0x62, 10, 0, -8, 7),
            instruction(0x7B, 10, 2, -16, 0),
            instruction(0x6E, 0, 1, -5, 0),
            instruction(0x55, 0, 0, 4, -1),
            instruction(0x18, 1, 1, 0, 9),
            instruction(0x00, 0, 0, 0, 0),
            instruction(0xDB, 1, 2, 8, 0),
            instruction(0x85, 0, 0, 0, 14),
            instruction(0x95, 0, 0, 0, 0),
        )
    )


def test_labels_must_be_there_once_and_within_reach() -> None:
    code = Assembler()
    code.jump("nowhere")
    with pytest.raises(ValueError, match="no label 'nowhere'"):
        code.encode()
    code.label("here")
    with pytest.raises(ValueError, match="already defined"):
        code.label("here")
    far = Assembler()
    far.jump("end")
    for _ in range(2**15):
        far.exit()
    far.label("end")
    far.exit()
    with pytest.raises(ValueError, match="too far"):
        far.encode()


def test_the_program_for_egress_sets_the_priority() -> None:
    machine = Machine()
    assert machine.run(program(0x8000, 0x10), argument=4096) == 1
    assert machine.read(4096 + 32, 4) == 0x80000010


# -- histogram ----------------------------------------------------------------------------------------------

TIMES = st.one_of(st.integers(0, 2**18), st.integers(0, 2**64 - 1))


@given(TIMES)
def test_the_programs_bucket_is_the_readers(nanoseconds: int) -> None:
    code = Assembler()
    emit_bucket(code, R1, R2, "x")
    code.move(R0, R1)
    code.exit()
    machine = Machine()
    assert machine.run(code.encode(), argument=nanoseconds) == bucket_of(nanoseconds) < BUCKETS


@given(TIMES)
def test_a_time_lies_within_its_bucket_whose_width_is_small(nanoseconds: int) -> None:
    bucket = bucket_of(nanoseconds)
    low, high = lower_bound_ns(bucket), lower_bound_ns(bucket + 1)
    assert low <= nanoseconds
    if nanoseconds >> 10 <= MAX_UNITS:
        assert nanoseconds < high
        assert high - low <= max(1024, low / 63)
    else:
        assert bucket == BUCKETS - 1


@given(st.lists(st.integers(1_000, 10**11), min_size=1, max_size=300), st.sampled_from([0.5, 0.95, 0.99]))
def test_percentiles_are_those_of_the_times_but_for_the_buckets_width(times: list[int], share: float) -> None:
    histogram = np.bincount([bucket_of(one) for one in times], minlength=BUCKETS).astype(np.uint32)
    exact = float(np.quantile(times, share, method="inverted_cdf")) / 1e6
    found = percentile_ms(histogram, share)
    assert found == pytest.approx(exact, rel=0.017, abs=0.00103)


def test_no_request_has_no_percentile() -> None:
    assert isinstance(percentile_ms(np.zeros(BUCKETS, np.uint32), 0.5), Unavailable)


# -- programs -----------------------------------------------------------------------------------------------

MAPS = Maps(state=11, counts=12, histograms=13)
CONTEXT, SOCKET, STORAGE, FOUND_SOCKET = 0x100000000, 0x200000000, 0x300000000, 0x400000000
PACKET, COUNTS, HISTOGRAMS = 0x1000, 0x500000000, 0x600000000
FIN, RST, PSH, ACK = 1, 4, 8, 16
SERVER_PORT, CLIENT_PORT = 6379, 40000


@dataclass
class Connection:
    """One connection of a group, and the kernel's side of what the programs call. ``listening``: the local port."""

    family: int = socket.AF_INET
    listening: bool = True
    ports: tuple[int, ...] = ()
    now_ns: int = 1_000_000_000
    machine: Machine = field(init=False)
    looked_up: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machine = Machine(
            {
                1: self._lookup,
                5: lambda _: self.now_ns,
                8: lambda _: 3,
                84: self._listener,
                86: lambda machine: 0 if machine.registers[1] == FOUND_SOCKET else 1 // 0,
                95: lambda machine: machine.registers[1],
                107: lambda machine: STORAGE if machine.registers[4] or self.exists else 0,
            }
        )
        self.exists = False

    def _lookup(self, machine: Machine) -> int:
        key = machine.read(machine.registers[2], 4)
        if machine.registers[1] == MAPS.counts:
            assert key < SHARDS
            return COUNTS + 64 * key
        assert key < SHARDS * SHARD_BUCKETS
        return HISTOGRAMS + 8 * key

    def _listener(self, machine: Machine) -> int:
        size = machine.registers[3]
        self.looked_up.append(bytes(machine.memory.get(machine.registers[2] + n, 0) for n in range(size)))
        if not self.listening:
            return 0
        machine.write(FOUND_SOCKET + 72, 4, 10)
        return FOUND_SOCKET

    def send(
        self, sequence: int, payload: int, flags: int = PSH | ACK, wait_us: int = 0, extra: int = 0
    ) -> None:
        """A segment to the group."""
        self._packet(programs.ingress, (CLIENT_PORT, SERVER_PORT), sequence, payload, flags, wait_us, extra)

    def answer(self, payload: int = 10, flags: int = PSH | ACK, wait_us: int = 0) -> None:
        """A segment from the group."""
        self._packet(programs.egress, (SERVER_PORT, CLIENT_PORT), 7, payload, flags, wait_us, 0)

    def _packet(
        self, build, ports, sequence: int, payload: int, flags: int, wait_us: int, extra: int
    ) -> None:
        self.now_ns += 1000 * wait_us
        source, target = b"\x0a\0\0\1", b"\x0a\0\0\2"
        if self.family == socket.AF_INET:
            header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 0, 0, 0, 64, 6, 0, source, target)
        else:
            header = struct.pack("!IHBB16s16s", 6 << 28, 0, 6, 64, source * 4, target * 4)
        tcp = struct.pack("!HHIIBBHHH", *ports, sequence % 2**32, 0, (5 + extra // 4) << 4, flags, 0, 0, 0)
        data = header + tcp + bytes(extra)
        for n, byte in enumerate(data):
            self.machine.memory[PACKET + n] = byte
        self.machine.write(CONTEXT, 4, len(data) + payload)
        self.machine.write(CONTEXT + 76, 4, PACKET)
        self.machine.write(CONTEXT + 80, 4, PACKET + len(data))
        self.machine.write(CONTEXT + 168, 8, SOCKET)
        assert self.machine.run(build(MAPS, self.ports), CONTEXT) == 1
        self.exists = True

    def __getitem__(self, counter: LatencyCounter) -> int:
        return self.machine.read(COUNTS + 64 * 3 + 8 * counter, 8)

    def latencies(self, region: Region) -> list[int]:
        base = HISTOGRAMS + 8 * (3 * SHARD_BUCKETS + region * BUCKETS)
        return [n for n in range(BUCKETS) for _ in range(self.machine.read(base + 8 * n, 8))]

    def counted(self) -> dict[str, int]:
        return {counter.name: self[counter] for counter in LatencyCounter if self[counter]}


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_request_is_counted_with_the_time_to_its_answer(family: int) -> None:
    one = Connection(family)
    one.send(100, 20, extra=12)
    one.answer(wait_us=500)
    one.send(120, 20, wait_us=10_000)
    one.answer(wait_us=3000)
    assert one.counted() == {"STARTED": 2, "ANSWERED": 2}
    assert one.latencies(Region.WHOLE) == [bucket_of(500_000), bucket_of(3_000_000)]
    address = b"\x0a\0\0\1", b"\x0a\0\0\2"
    remote, local = address if family == socket.AF_INET else (address[0] * 4, address[1] * 4)
    assert one.looked_up == [remote + local + struct.pack("!HH", 0, SERVER_PORT)], "once a connection"


def test_a_request_in_two_segments_counts_from_both() -> None:
    one = Connection()
    one.send(100, 20)
    one.send(120, 20, wait_us=9000)
    one.answer(wait_us=100)
    assert one.counted() == {"STARTED": 1, "ANSWERED": 1, "SPLIT": 1}
    assert one.latencies(Region.WHOLE) == []
    assert one.latencies(Region.SPLIT_FIRST) == [bucket_of(9_100_000)]
    assert one.latencies(Region.SPLIT_LAST) == [bucket_of(100_000)]


def test_what_comes_in_again_starts_nothing_even_across_the_end_of_sequence_numbers() -> None:
    one = Connection()
    one.send(2**32 - 10, 20)
    one.answer()
    one.send(2**32 - 10, 20)  # retransmitted after it was answered
    one.send(9, 1)  # keepalive probe
    assert one.counted() == {"STARTED": 1, "ANSWERED": 1, "REPEATED": 2}
    one.send(10, 5)
    assert one[LatencyCounter.STARTED] == 2


def test_what_nobody_asked_for_is_pushed_and_the_rest_of_an_answer_too() -> None:
    one = Connection()
    one.answer()  # a greeting
    one.send(1, 5)
    one.answer()
    one.answer(9000)
    assert one.counted() == {"STARTED": 1, "ANSWERED": 1, "PUSHED": 2}
    assert len(one.looked_up) == 1
    assert one.looked_up[0].endswith(struct.pack("!HH", 0, SERVER_PORT)), "the local port of what goes out"


@pytest.mark.parametrize("flags", [RST | ACK, FIN | ACK])
def test_a_request_without_an_answer_is_dropped(flags: int) -> None:
    one = Connection()
    one.send(1, 5)
    one.answer(0, flags)
    one.answer(0, flags)
    assert one.counted() == {"STARTED": 1, "DROPPED": 1}


def test_the_client_may_close_its_half_and_still_get_an_answer_but_not_after_a_reset() -> None:
    one = Connection()
    one.send(1, 5)
    one.send(6, 0, FIN | ACK)
    one.answer()
    assert one.counted() == {"STARTED": 1, "ANSWERED": 1}
    one.send(6, 5)
    one.send(11, 0, RST)
    assert one.counted() == {"STARTED": 2, "ANSWERED": 1, "DROPPED": 1}


def test_acknowledgements_count_nothing() -> None:
    one = Connection()
    one.send(1, 0, ACK)
    one.answer(0, ACK)
    assert one.counted() == {}
    assert not one.looked_up


def test_connections_that_the_group_opened_count_nothing() -> None:
    one = Connection(listening=False)
    one.answer()
    one.send(1, 50)
    one.answer()
    assert one.counted() == {}
    assert len(one.looked_up) == 1
    assert one.machine.read(STORAGE + ProgramState.ROLE, 4) == ProgramRole.CLIENT


def test_with_ports_only_these_count_and_nobody_is_looked_up() -> None:
    for ports, counted in (((80, SERVER_PORT), {"STARTED": 1, "ANSWERED": 1}), ((80,), {})):
        one = Connection(listening=False, ports=ports)
        one.send(1, 5)
        one.answer()
        assert one.counted() == counted
        assert not one.looked_up
