"""Files with one line per device: ``io.max``, ``io.latency``, ``io.weight``, ``blkio.throttle.*`` (v1),
``egress.max``.

A text of such a file represents a table disk -> value. The kernel accepts one line per write, and disks that
the line does not name keep their value. Going from one text to another therefore takes one write per changed disk.
Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from posixpath import basename
from typing import Final

from perphd.domain.allocation import IoLimit

DEFAULT_KEY: Final = "default"
"""The key in ``io.weight`` of all disks without their own line."""

EGRESS: Final = "egress.max"
"""Send limits of a group by network device, in bytes per second; a virtual file of ``perphd.host.egress_fs``."""
RATE_STEPS: Final = ((125_000_000_000, 125_000_000), (125_000_000, 125_000), (0, 1000))
"""(egress limit, step), in bytes per second: from this limit on, tc(8) prints only multiples of the step exactly.

It prints bits per second with a unit, without decimals: Kbit below 1 Gbit, Mbit below 1 Tbit, else Gbit.
"""

_FIELDS: Final = (
    ("rbps", "read_bytes"),
    ("wbps", "write_bytes"),
    ("riops", "read_ops"),
    ("wiops", "write_ops"),
)
THROTTLE: Final[Mapping[str, str]] = {
    "blkio.throttle.read_bps_device": "read_bytes",
    "blkio.throttle.write_bps_device": "write_bytes",
    "blkio.throttle.read_iops_device": "read_ops",
    "blkio.throttle.write_iops_device": "write_ops",
}
"""v1's files, each with its field of ``IoLimit``."""


@dataclass(frozen=True, slots=True)
class LineFormat:
    """Format of a file. ``absent``: text that removes a disk's line, and the value of a disk without a line."""

    absent: str


FORMATS: Final[Mapping[str, LineFormat]] = {
    "io.max": LineFormat("rbps=max wbps=max riops=max wiops=max"),
    "io.latency": LineFormat("target=0"),
    "io.weight": LineFormat("default"),
    "io.bfq.weight": LineFormat("default"),
    **{name: LineFormat("0") for name in THROTTLE},
    EGRESS: LineFormat("max"),
}


def is_keyed(path: str) -> bool:
    """True for a file with one line per device."""
    return basename(path) in FORMATS


def table(path: str, text: str) -> dict[str, str]:
    """Parse a text: disk (or ``default``) -> value. Lines without effect are left out."""
    form = FORMATS[basename(path)]
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.strip().partition(" ")
        if not value and key.isdecimal():
            key, value = DEFAULT_KEY, key  # io.weight with a single number
        value = " ".join(value.split())
        if key and value and value != form.absent:
            found[key] = value
    return found


def text_of(values: Mapping[str, str]) -> str:
    """The text of a table, one line per disk."""
    return "\n".join(f"{key} {value}" for key, value in sorted(values.items(), key=_order))


def steps(path: str, wanted: str, now: str) -> list[str]:
    """The lines to write, one per write, to change the text ``now`` to the text ``wanted``."""
    form, have, want = FORMATS[basename(path)], table(path, now), table(path, wanted)
    keys = sorted({*have, *want}, key=lambda key: _order((key, "")))
    return [
        f"{key} {want.get(key, form.absent)}"
        for key in keys
        if have.get(key) != want.get(key) and not (key == DEFAULT_KEY and key not in want)
    ]


def with_line(path: str, text: str, line: str) -> str:
    """The content of the file after writing this line."""
    values = table(path, text)
    values.pop(line.strip().partition(" ")[0], None)
    return text_of(values | table(path, line))


def equal(path: str, wanted: str, read: str) -> bool:
    """True if both texts represent the same table."""
    return table(path, wanted) == table(path, read)


def is_mixture(path: str, found: str, texts: Iterable[str]) -> bool:
    """True if each disk has its value from one of these texts.

    A writer that was killed between two lines leaves such a mixture.
    """
    tables = [table(path, text) for text in texts]
    have = table(path, found)
    keys = {key for entry in (have, *tables) for key in entry}
    return all(any(have.get(key) == entry.get(key) for entry in tables) for key in keys)


def tightens(path: str, wanted: str, now: str) -> bool:
    """True if at least one disk gets less than at present."""
    have, want = table(path, now), table(path, wanted)
    return any(
        less < more
        for key in {*have, *want}
        for less, more in zip(_numbers(path, want.get(key)), _numbers(path, have.get(key)), strict=True)
    )


def with_limits(file: str, found: str, limits: Iterable[IoLimit]) -> str:
    """``found`` with these limits; a stricter limit in ``found`` stays."""
    values = table(file, found)
    for limit in limits:
        if file in THROTTLE:
            number = getattr(limit, THROTTLE[file])
            old = _number(values.get(limit.device, "0"))
            new = min(old, math.inf if number is None else number)
            values[limit.device] = "0" if new == math.inf else str(int(new))
        else:
            had = dict(part.split("=") for part in values.get(limit.device, FORMATS["io.max"].absent).split())
            for short, field in _FIELDS:
                number = getattr(limit, field)
                if number is not None:
                    had[short] = str(number) if had[short] == "max" else str(min(number, int(had[short])))
            values[limit.device] = " ".join(f"{short}={had[short]}" for short, _ in _FIELDS)
    return text_of({key: value for key, value in values.items() if value != FORMATS[file].absent})


def with_latency(found: str, targets: Iterable[tuple[str, int]]) -> str:
    """``found`` with these targets in us; a stricter target in ``found`` stays."""
    values = table("io.latency", found)
    for device, target_us in targets:
        old = values.get(device, "").removeprefix("target=")
        strictest = min(target_us, int(old)) if old.isdecimal() and int(old) > 0 else target_us
        values[device] = f"target={strictest}"
    return text_of(values)


def printable_rate(rate_bytes: int) -> int:
    """The largest egress limit up to this one that tc(8) prints exactly, in bytes per second."""
    step = next(step for least, step in RATE_STEPS if rate_bytes >= least)
    return rate_bytes - rate_bytes % step


def with_egress(found: str, ceilings: Iterable[tuple[str, int]]) -> str:
    """``found`` with these limits (device, bytes per second); a stricter limit in ``found`` stays."""
    values = table(EGRESS, found)
    for device, rate_bytes in ceilings:
        rate = printable_rate(rate_bytes)
        values[device] = str(min(rate, int(values.get(device, rate))))
    return text_of(values)


def egress_of(text: str) -> tuple[tuple[str, int], ...]:
    """(device, bytes per second) pairs of an ``egress.max``."""
    return tuple((device, int(value)) for device, value in sorted(table(EGRESS, text).items()))


def with_default(file: str, found: str, weight: int) -> str:
    """``found`` with this default weight, unless its present one is lower."""
    least = min(weight, default_weight(file, found))
    return text_of({**table(file, found), DEFAULT_KEY: str(least)})


def limits_of(texts: Mapping[str, str]) -> tuple[IoLimit, ...]:
    """The limits in these files (name -> text), by disk."""
    found: dict[str, dict[str, int]] = {}
    names = dict(_FIELDS)
    for file, text in texts.items():
        for device, value in table(file, text).items():
            fields = found.setdefault(device, {})
            if file in THROTTLE:
                fields[THROTTLE[file]] = int(value)
                continue
            for part in value.split():
                short, _, number = part.partition("=")
                if number.isdecimal() and short in names:
                    fields[names[short]] = int(number)
    return tuple(IoLimit(device, **fields) for device, fields in sorted(found.items()))


def latencies_of(text: str) -> tuple[tuple[str, int], ...]:
    """(disk, target in us) pairs of an ``io.latency``."""
    pairs = table("io.latency", text).items()
    return tuple((device, int(value.removeprefix("target="))) for device, value in sorted(pairs))


def default_weight(file: str, text: str) -> int:
    """The weight of disks without their own line; the kernel's default is 100."""
    return int(table(file, text).get(DEFAULT_KEY, "100"))


def _order(item: tuple[str, str]) -> tuple[bool, str]:
    return item[0] != DEFAULT_KEY, item[0]


def _numbers(path: str, value: str | None) -> tuple[float, ...]:
    form = FORMATS[basename(path)]
    words = (form.absent if value is None else value).split()
    return tuple(_number(word.rpartition("=")[2]) for word in words)


def _number(word: str) -> float:
    """The amount that this word grants; ``max`` and a throttle of 0 mean unlimited."""
    if word == "default":
        return 100.0
    number = math.inf if word == "max" else float(word)
    return math.inf if number == 0 else number
