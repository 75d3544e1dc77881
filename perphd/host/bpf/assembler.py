"""An assembler for BPF: one method per instruction, jumps to labels, the host's byte order.

Operands are distinguished by type: a ``Register`` or a plain number. See
Documentation/bpf/standardization/instruction-set.rst for the encoding.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, TypeAlias


class Register(IntEnum):
    """Registers of the BPF machine.

    R0: results. R1 to R5: arguments, lost at every call. R6 to R9: preserved over calls. FP: top of the stack.
    """

    R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, FP = range(11)


Arithmetic: TypeAlias = Literal["add", "sub", "mul", "or", "and", "lsh", "rsh", "mov"]
Condition: TypeAlias = Literal["==", "!=", ">", ">=", "<", "<=", "s>"]
Bits: TypeAlias = Literal[32, 64]

_ARITHMETIC: Final[dict[str, int]] = {
    "add": 0x00, "sub": 0x10, "mul": 0x20, "or": 0x40, "and": 0x50, "lsh": 0x60, "rsh": 0x70, "mov": 0xB0,
}  # fmt: skip
_CONDITIONS: Final[dict[str, int]] = {
    "==": 0x10, ">": 0x20, ">=": 0x30, "!=": 0x50, "s>": 0x60, "<": 0xA0, "<=": 0xB0,
}  # fmt: skip
_SIZES: Final = {8: 0x18, 4: 0x00, 2: 0x08, 1: 0x10}
_BY_REGISTER: Final = 0x08
_PSEUDO_MAP_FD: Final = 1


@dataclass(slots=True)
class _Instruction:
    code: int
    destination: int = 0
    source: int = 0
    offset: int = 0
    immediate: int = 0
    target: str = ""


class Assembler:
    """A program under construction. Jumps may go forward and backward; ``encode`` resolves them."""

    def __init__(self) -> None:
        self._instructions: list[_Instruction] = []
        self._labels: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._instructions)

    def label(self, name: str) -> None:
        """Name the next instruction. Raises ValueError if the name is taken."""
        if name in self._labels:
            raise ValueError(f"the label {name!r} is already defined")
        self._labels[name] = len(self._instructions)

    def arithmetic(
        self, what: Arithmetic, destination: Register, operand: Register | int, bits: Bits = 64
    ) -> None:
        """``destination = destination OPERATION operand``; 32-bit operations clear the upper half."""
        code = (0x07 if bits == 64 else 0x04) | _ARITHMETIC[what]
        self._with_operand(code, destination, operand)

    def move(self, destination: Register, operand: Register | int, bits: Bits = 64) -> None:
        """``destination = operand``."""
        self.arithmetic("mov", destination, operand, bits)

    def from_big_endian(self, register: Register, bits: Literal[16, 32, 64]) -> None:
        """Convert a number from network byte order to the host's."""
        self._put(0xDC, register, immediate=bits)

    def jump(self, target: str) -> None:
        """Jump to a label."""
        self._put(0x05, target=target)

    def jump_if(
        self, left: Register, condition: Condition, right: Register | int, target: str, bits: Bits = 64
    ) -> None:
        """Jump to a label if the condition holds; ``s>`` compares signed numbers. 32 bits need Linux 5.1."""
        code = (0x05 if bits == 64 else 0x06) | _CONDITIONS[condition]
        self._with_operand(code, left, right, target)

    def load(self, size_bytes: int, destination: Register, base: Register, offset: int) -> None:
        """``destination = *(base + offset)``."""
        self._put(0x61 | _SIZES[size_bytes], destination, base, offset)

    def store(self, size_bytes: int, base: Register, offset: int, operand: Register | int) -> None:
        """``*(base + offset) = operand``."""
        if isinstance(operand, Register):
            self._put(0x63 | _SIZES[size_bytes], base, operand, offset)
        else:
            self._put(0x62 | _SIZES[size_bytes], base, offset=offset, immediate=operand)

    def atomic_add(self, base: Register, offset: int, operand: Register) -> None:
        """``*(u64 *)(base + offset) += operand``, atomically."""
        self._put(0xDB, base, operand, offset)

    def load_map(self, destination: Register, map_fd: int) -> None:
        """``destination`` = the map with this descriptor, to be passed to a helper function."""
        self._put(0x18, destination, _PSEUDO_MAP_FD, immediate=map_fd)
        self._put(0x00)

    def call(self, helper: int) -> None:
        """``R0 = helper(R1 ... R5)``."""
        self._put(0x85, immediate=helper)

    def exit(self) -> None:
        """Return R0."""
        self._put(0x95)

    def encode(self) -> bytes:
        """The machine code. Raises ValueError for a jump to an unknown label or over too great a distance."""
        return b"".join(self._encoded(at, one) for at, one in enumerate(self._instructions))

    def _with_operand(
        self, code: int, destination: Register, operand: Register | int, target: str = ""
    ) -> None:
        if isinstance(operand, Register):
            self._put(code | _BY_REGISTER, destination, operand, target=target)
        else:
            self._put(code, destination, immediate=operand, target=target)

    def _put(
        self,
        code: int,
        destination: int = 0,
        source: int = 0,
        offset: int = 0,
        immediate: int = 0,
        target: str = "",
    ) -> None:
        self._instructions.append(_Instruction(code, destination, source, offset, immediate, target))

    def _encoded(self, at: int, one: _Instruction) -> bytes:
        offset = one.offset
        if one.target:
            if one.target not in self._labels:
                raise ValueError(f"there is no label {one.target!r}")
            offset = self._labels[one.target] - at - 1
        if not -(2**15) <= offset < 2**15:
            raise ValueError(
                f"the label {one.target!r} is {offset} instructions away, which is too far for a jump"
            )
        registers = one.destination | one.source << 4
        if sys.byteorder == "big":  # in a byte's bit fields, the first one is in the upper half
            registers = one.destination << 4 | one.source
        immediate = one.immediate - 2**32 if one.immediate >= 2**31 else one.immediate
        return struct.pack("=BBhi", one.code, registers, offset, immediate)
