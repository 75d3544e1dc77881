"""IP addresses with a port as text: ``127.0.0.1:9464`` or ``[::1]:9464``."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

ALLOWED: Final = "an IP address and a port such as 127.0.0.1:9464 or [::1]:9464"
_FORM: Final = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([0-9.]+)):([0-9]{1,5})")


def parse_endpoint(text: str) -> tuple[str, int]:
    """Parse an address and a port.

    Host names are refused, because the address behind a name can change. Raises ValueError.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError("is not an IP address with a port")
    six, four, port = found.groups()
    address = ipaddress.IPv6Address(six) if six else ipaddress.IPv4Address(four)
    if not 0 < int(port) < 1 << 16:
        raise ValueError("has a port outside 1 to 65535")
    return str(address), int(port)


def endpoint_text(address: str, port: int) -> str:
    """The text of an address and a port, as ``parse_endpoint`` accepts it."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
