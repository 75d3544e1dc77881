"""Fast parsing of numbers in kernel files: only the needed lines are examined.

Numbers must be ASCII digits; unknown lines are ignored, because kernels add some. None means that the line is
missing or contains no number. Callers turn it into Unavailable with the file's name.
"""

from __future__ import annotations

from collections.abc import Sequence


def whole_number(data: bytes) -> int | None:
    """The single unsigned number in a file (``memory.current``, ``pids.current``), or None."""
    token = data.strip()
    return int(token) if token.isdigit() else None


def line_needle(key: str) -> bytes:
    """The search key for ``values_of``: prepared once, used at every tick."""
    return b"\n" + key.encode() + b" "


def values_of(data: bytes, needles: Sequence[bytes]) -> list[int | None]:
    """The numbers of flat-keyed lines (``key value``), one per needle made by ``line_needle``.

    One pass suffices if the needles are in the file's order; other orders are slower.
    """
    found: list[int | None] = []
    position = 0
    for needle in needles:
        at = data.find(needle, position)
        if at < 0:
            at = data.find(needle, 0, position) if position else -1
            if at < 0:
                if not data.startswith(needle[1:]):  # the first line has no newline before it
                    found.append(None)
                    continue
                at = -1
        start = at + len(needle)
        end = data.find(b"\n", start)
        token = data[start:end] if end >= 0 else data[start:]
        found.append(int(token) if token.isdigit() else None)
        # The next needle may begin with the newline that ends this line.
        position = end if end >= 0 else len(data)
    return found


def psi_total_us(data: bytes, share: bytes) -> int | None:
    """Stalled microseconds (``total=``) of a pressure file's ``some`` or ``full`` line."""
    start = 0
    if not data.startswith(share) or data[len(share) : len(share) + 1] != b" ":
        start = data.find(b"\n" + share + b" ") + 1
        if start == 0:
            return None
    end = data.find(b"\n", start)
    if end < 0:
        end = len(data)
    at = data.find(b" total=", start, end)
    token = data[at + 7 : end] if at >= 0 else b""
    return int(token) if token.isdigit() else None


def io_stat_bytes(data: bytes) -> tuple[int, int] | None:
    """Bytes read and bytes written over all devices of a v2 ``io.stat``; None if malformed, (0, 0) if empty.

    A device-mapper volume and the disk below it each have a line, and both count.
    """
    if b"=" not in data:
        return (0, 0) if _only_device_names(data) else None
    read = _sum_after(data, b" rbytes=")
    written = _sum_after(data, b" wbytes=")
    return None if read is None or written is None else (read, written)


def blkio_bytes(data: bytes) -> tuple[int, int] | None:
    """Bytes read and bytes written over all devices of a v1 ``blkio.*.io_service_bytes*``; None if malformed."""
    if not data.startswith(b"Total ") and b"\nTotal " not in data:
        return None
    read = _sum_after(data, b" Read ")
    written = _sum_after(data, b" Write ")
    return None if read is None or written is None else (read, written)


def _only_device_names(data: bytes) -> bool:
    # Devices without I/O are listed as "7:0 " without a value.
    return all(
        name.count(b":") == 1 and name.replace(b":", b"").isdigit()
        for name in (line.strip() for line in data.splitlines())
        if name
    )


def _sum_after(data: bytes, marker: bytes) -> int | None:
    total = 0
    at = data.find(marker)
    while at >= 0:
        start = at + len(marker)
        end = data.find(b" ", start)
        if end < 0:
            end = len(data)
        # The last number of a line ends at the newline.
        token = data[start:end].partition(b"\n")[0]
        if not token.isdigit():
            return None
        total += int(token)
        at = data.find(marker, start)
    return total
