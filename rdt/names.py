"""Names of resctrl groups: their place in the tree, and the prefix that marks own groups."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rdt.errors import Broken, Invalid

RESERVED = frozenset({"", ".", "..", "info", "mon_data", "mon_groups"})
_MAX_NAME_BYTES = 255
_PLAIN = re.compile(rb"[A-Za-z0-9_.@:+-]")
_ESCAPED = re.compile(rb"%([0-9a-f]{2})")


@dataclass(frozen=True, slots=True, order=True)
class GroupRef:
    """A group's place in the tree.

    ``control``: the control group's name; empty: the default group. ``monitor``: the name of a monitor group
    in it; empty: the control group itself. Raises Invalid for impossible names.
    """

    control: str = ""
    monitor: str = ""

    def __post_init__(self) -> None:
        for name in (self.control, self.monitor):
            if not name:
                continue
            encoded = name.encode("utf-8", "surrogateescape")
            if (
                name in RESERVED
                or "/" in name
                or "\n" in name
                or "\0" in name
                or len(encoded) > _MAX_NAME_BYTES
            ):
                raise Invalid(
                    "group",
                    doing="naming a",
                    value=name,
                    reason=f"allowed: at most {_MAX_NAME_BYTES} bytes without /, newline and NUL, and none of "
                    "resctrl's own names",
                )

    @property
    def relative(self) -> str:
        """The directory below the mount; empty for the default group."""
        parts = [self.control] if self.control else []
        return "/".join([*parts, "mon_groups", self.monitor] if self.monitor else parts)

    @property
    def parent(self) -> GroupRef:
        """The control group that contains a monitor group; for a control group, itself."""
        return GroupRef(self.control)

    @property
    def is_default(self) -> bool:
        """True for the default group, which holds every task that was not moved elsewhere."""
        return not self.control and not self.monitor

    def __str__(self) -> str:
        return self.relative or "the default group"


DEFAULT_GROUP = GroupRef()


@dataclass(frozen=True, slots=True)
class Prefix:
    """The prefix of one program's groups: with ``perphd``, the group of the key ``redis`` is
    ``perphd.redis``.

    Keys may be any text; characters that are not plain in a file name are escaped as ``%2f``. Only names that
    this prefix could have produced count as own, not every name that begins with it.
    """

    text: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", self.text):
            raise Invalid(
                "prefix",
                doing="using the",
                value=self.text,
                reason="allowed: 1 to 32 letters, digits, _ or -",
            )

    def name(self, key: str) -> str:
        """The group name of a key. Raises Invalid for an empty key, and for one too long for a file name."""
        if not key:
            raise Invalid("group", doing="naming a", value=key, reason="the key is empty")
        raw = key.encode("utf-8", "surrogateescape")
        parts = (chr(byte) if _PLAIN.match(bytes([byte])) else f"%{byte:02x}" for byte in raw)
        name = f"{self.text}.{''.join(parts)}"
        if len(name) > _MAX_NAME_BYTES:
            raise Invalid("group", doing="naming a", value=key, reason=f"longer than {_MAX_NAME_BYTES} bytes")
        return name

    def key(self, name: str) -> str | None:
        """The key of a group name; None for a name that this prefix did not produce."""
        if not name.startswith(f"{self.text}.") or not name.isascii():
            return None
        escaped = name[len(self.text) + 1 :].encode()
        raw = _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), escaped)
        key = raw.decode("utf-8", "surrogateescape")
        try:
            return key if self.name(key) == name else None
        except Invalid:
            return None

    def owns(self, group: GroupRef) -> bool:
        """True for a group with this prefix.

        A monitor group must also be in a control group with this prefix, or in the default group.
        """
        if group.control and self.key(group.control) is None:
            return False
        return self.key(group.monitor) is not None if group.monitor else bool(group.control)


def parse_cpus(text: str, path: str = "cpus_list") -> frozenset[int]:
    """Parse a CPU list. Raises Broken, naming ``path``, if it is invalid."""
    cpus: set[int] = set()
    for item in text.strip().split(","):
        if not item:
            continue
        first, _, last = item.partition("-")
        try:
            cpus.update(range(int(first), int(last or first) + 1))
        except ValueError:
            raise Broken(path, doing="reading", value=text, reason="not a CPU list") from None
    return frozenset(cpus)


def format_cpus(cpus: Iterable[int]) -> str:
    """The shortest CPU list of these CPUs; empty for none."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)
