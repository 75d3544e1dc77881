"""A BPF machine in Python, for the instructions that perphd writes: what the programs compute without a kernel."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping

MASK = 2**64 - 1
STACK_TOP = 1 << 20
_SIZES = {0x18: 8, 0x00: 4, 0x08: 2, 0x10: 1}
_CONDITIONS: Mapping[int, Callable[[int, int], bool]] = {
    0x10: lambda a, b: a == b,
    0x20: lambda a, b: a > b,
    0x30: lambda a, b: a >= b,
    0x50: lambda a, b: a != b,
    0xA0: lambda a, b: a < b,
    0xB0: lambda a, b: a <= b,
}


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


class Machine:
    """Registers and a byte-addressed memory; ``helpers``: number -> function of the machine that gives R0."""

    def __init__(self, helpers: Mapping[int, Callable[[Machine], int]] | None = None) -> None:
        self.registers = [0] * 11
        self.memory: dict[int, int] = {}
        self.helpers = helpers or {}

    def read(self, address: int, size: int) -> int:
        return int.from_bytes(bytes(self.memory.get(address + n, 0) for n in range(size)), sys.byteorder)

    def write(self, address: int, size: int, value: int) -> None:
        for n, byte in enumerate((value % (1 << 8 * size)).to_bytes(size, sys.byteorder)):
            self.memory[address + n] = byte

    def run(self, code: bytes, argument: int = 0) -> int:
        program = list(struct.iter_unpack("=BBhi", code))
        registers = self.registers
        registers[1], registers[10] = argument, STACK_TOP
        at = 0
        while True:
            opcode, both, offset, immediate = program[at]
            low, high = both & 15, both >> 4
            target, source = (low, high) if sys.byteorder == "little" else (high, low)
            at += 1
            kind = opcode & 7
            if opcode == 0x95:
                return registers[0]
            if opcode == 0x85:
                registers[0] = self.helpers[immediate](self) & MASK
            elif opcode == 0x18:
                registers[target] = immediate
                at += 1
            elif opcode == 0xDC:
                size = immediate // 8
                registers[target] = int.from_bytes(
                    (registers[target] % (1 << immediate)).to_bytes(size, sys.byteorder), "big"
                )
            elif opcode == 0xDB:
                address = registers[target] + offset
                self.write(address, 8, self.read(address, 8) + registers[source])
            elif kind == 1:
                registers[target] = self.read(registers[source] + offset, _SIZES[opcode & 0x18])
            elif kind in (2, 3):
                value = registers[source] if kind == 3 else immediate
                self.write(registers[target] + offset, _SIZES[opcode & 0x18], value)
            else:
                bits = 64 if kind in (7, 5) else 32
                right = (registers[source] if opcode & 8 else immediate) % (1 << bits)
                left = registers[target] % (1 << bits)
                if kind in (4, 7):
                    registers[target] = self.compute(opcode & 0xF0, left, right) % (1 << bits)
                elif self.holds(opcode & 0xF0, left, right, bits):
                    at += offset

    @staticmethod
    def compute(what: int, left: int, right: int) -> int:
        return {
            0x00: left + right, 0x10: left - right, 0x20: left * right, 0x40: left | right, 0x50: left & right,
            0x60: left << (right & 63), 0x70: left >> (right & 63), 0xB0: right,
        }[what]  # fmt: skip

    @staticmethod
    def holds(what: int, left: int, right: int, bits: int) -> bool:
        if what == 0:
            return True
        if what == 0x60:
            return signed(left, bits) > signed(right, bits)
        return _CONDITIONS[what](left, right)
