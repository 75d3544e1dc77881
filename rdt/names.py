"""Names of groups: where a group lies in the tree, and how a program marks a group as its own."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rdt.errors import Invalid

RESERVED = frozenset({"", ".", "..", "info", "mon_data", "mon_groups"})
_MAX_NAME_BYTES = 255
_PLAIN = re.compile(rb"[A-Za-z0-9_.@:+-]")
_ESCAPED = re.compile(rb"%([0-9a-f]{2})")


@dataclass(frozen=True, slots=True, order=True)
class GroupRef:
    """A group's place: ``control`` is the control group's name (empty: the default group), ``monitor`` the name of a
    monitor group in it (empty: the control group itself). Raises Invalid for what no group can be named.
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
                raise Invalid("group", doing="naming a", value=name, reason="no group can have this name")

    @property
    def relative(self) -> str:
        """The directory below the mount; empty for the default group."""
        parts = [self.control] if self.control else []
        return "/".join([*parts, "mon_groups", self.monitor] if self.monitor else parts)

    @property
    def parent(self) -> GroupRef:
        """The control group that a monitor group lies in; a control group itself."""
        return GroupRef(self.control)

    @property
    def is_default(self) -> bool:
        """True for the default group, to which everything belongs that nobody placed elsewhere."""
        return not self.control and not self.monitor

    def __str__(self) -> str:
        return self.relative or "the default group"


DEFAULT_GROUP = GroupRef()


@dataclass(frozen=True, slots=True)
class Prefix:
    """The mark of one program's groups: ``perphd`` makes the group of the key ``redis`` ``perphd.redis``.

    Keys are any text; what is not plain in a file name is escaped as ``%2f``. Only names that this prefix could
    have made are parsed as own, so that a directory which merely begins alike stays somebody else's.
    """

    text: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", self.text):
            raise Invalid(
                "prefix", doing="using the", value=self.text, reason="1 to 32 letters, digits, _ or -"
            )

    def name(self, key: str) -> str:
        """The group name of a key; raises Invalid for the empty key and one too long for a file name."""
        if not key:
            raise Invalid("group", doing="naming a", value=key, reason="the key is empty")
        raw = key.encode("utf-8", "surrogateescape")
        parts = (chr(byte) if _PLAIN.match(bytes([byte])) else f"%{byte:02x}" for byte in raw)
        name = f"{self.text}.{''.join(parts)}"
        if len(name) > _MAX_NAME_BYTES:
            raise Invalid("group", doing="naming a", value=key, reason=f"longer than {_MAX_NAME_BYTES} bytes")
        return name

    def key(self, name: str) -> str | None:
        """The key of a group name; None for a name that this prefix did not make."""
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
        """True for a group with this prefix; a monitor group must lie in an own or in the default control group."""
        if group.control and self.key(group.control) is None:
            return False
        return self.key(group.monitor) is not None if group.monitor else bool(group.control)
