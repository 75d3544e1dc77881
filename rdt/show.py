"""Text output for people: the machine's resources, groups and readings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rdt.cbm import Cbm
from rdt.curves import Calibration, Curve
from rdt.errors import Gone, ResctrlError
from rdt.info import BandwidthInfo, BandwidthUnit, CacheInfo, Info, MonitoringInfo
from rdt.monitor import Monitor
from rdt.names import GroupRef, format_cpus
from rdt.reading import GroupReading, Reading, Unavailable
from rdt.resctrl import Resctrl
from rdt.schemata import Schemata

WIDTH = 100
_MIB = 1 << 20


def machine(info: Info, groups: Sequence[GroupRef]) -> str:
    """Text about the machine's resctrl resources, and how much of them is taken."""
    options = ",".join(sorted(info.mount.options))
    lines = [f"resctrl at {info.mount.path}{f', mounted with {options}' if options else ''}"]
    lines += [_cache(each) for each in info.caches.values()]
    lines += [_bandwidth(each) for each in info.bandwidths.values()]
    lines += [
        f"{name}: not known to this program: {', '.join(files)}" for name, files in info.unknown.items()
    ]
    if not info.can_control:
        lines.append("nothing can be allocated: the default group is the only control group")
    else:
        controls = sum(not each.monitor for each in groups)
        lines.append(f"CLOSIDs: {controls} of {info.usable_closids} taken, the default group's included")
    lines.append("monitoring: none" if info.monitoring is None else _monitoring(info.monitoring, len(groups)))
    return "\n".join(lines) + "\n"


def _cache(cache: CacheInfo) -> str:
    text = f"{cache.name}: {_many(cache.ways, 'way')} (mask {cache.cbm_mask:x})"
    if cache.min_cbm_bits > 1:
        text += f", at least {cache.min_cbm_bits} in a mask"
    if cache.shareable_bits:
        shared = Cbm(cache.shareable_bits)
        text += f", ways {format_cpus(shared)} shared with I/O"
    if cache.sparse_masks:
        text += ", masks may have holes"
    return f"{text}; {cache.num_closids} CLOSIDs; {_domains(cache.domains)}"


def _bandwidth(bandwidth: BandwidthInfo) -> str:
    if bandwidth.unit is BandwidthUnit.PERCENT:
        steps = f"in steps of {bandwidth.granularity}" if bandwidth.granularity > 1 else "in steps of 1"
        text = f"{bandwidth.minimum} to 100 % {steps}, nominal"
    elif bandwidth.unit is BandwidthUnit.MBPS:
        text = "target in MBps, controlled by the kernel"
    else:
        text = f"absolute, in steps of the hardware; no cap is {bandwidth.unthrottled}"
    if bandwidth.thread_throttle_mode == "max":
        text += ", one cap for the threads of a core"
    elif bandwidth.thread_throttle_mode is not None:
        text += f", throttled {bandwidth.thread_throttle_mode}"
    return f"{bandwidth.name}: {text}; {bandwidth.num_closids} CLOSIDs; {_domains(bandwidth.domains)}"


def _monitoring(monitoring: MonitoringInfo, taken: int) -> str:
    text = f"monitoring: {', '.join(monitoring.features)}; {taken} of {monitoring.num_rmids} RMIDs taken"
    if monitoring.max_threshold_occupancy_bytes is not None:
        text += f", reusable below {monitoring.max_threshold_occupancy_bytes // 1024} KiB of occupancy"
    nodes = sum(map(len, monitoring.sub_domains.values()))
    return f"{text}; {_domains(monitoring.domains)}{f', {nodes} sub-NUMA nodes' if nodes else ''}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _domains(domains: Sequence[int]) -> str:
    ids = ", ".join(map(str, domains)) or "none"
    return f"{'domain' if len(domains) == 1 else 'domains'} {ids}"


# --- groups ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group as ``show`` displays it."""

    group: GroupRef
    tasks: int
    cpus: frozenset[int]
    schemata: Schemata | None
    """None for a monitor group, or if nothing can be allocated."""
    mode: str
    reading: GroupReading | None


def look(resctrl: Resctrl, groups: Iterable[GroupRef]) -> tuple[GroupView, ...]:
    """Read everything about these groups; leave out groups that vanish meanwhile."""
    found = []
    with Monitor(resctrl.access, resctrl.info, groups) as monitor:
        readings = monitor.read() if resctrl.info.monitoring else {}
        for group in monitor.groups:
            try:
                control = not group.monitor and resctrl.info.can_control
                view = GroupView(
                    group,
                    len(resctrl.tasks(group)),
                    resctrl.cpus(group),
                    resctrl.schemata(group) if control else None,
                    _mode(resctrl, group) if control else "",
                    readings.get(group),
                )
            except Gone:
                continue
            found.append(view)
    return tuple(found)


def _mode(resctrl: Resctrl, group: GroupRef) -> str:
    try:
        return resctrl.mode(group)
    except ResctrlError:
        return ""


def group(view: GroupView, info: Info) -> str:
    """A group's text: its members, then a line per resource with one cell per domain."""
    cpus = f", CPUs {format_cpus(view.cpus)}" if view.cpus else ""
    mode = f", {view.mode}" if view.mode not in ("", "shareable") else ""
    lines = [f"{name_of(view.group)}: {_many(view.tasks, 'task')}{cpus}{mode}"]
    if view.schemata is not None:
        for resource, values in view.schemata.values.items():
            cells = [f"{domain}: {_value(resource, value, info)}" for domain, value in sorted(values.items())]
            lines += _row(resource, cells)
        for resource, text in view.schemata.opaque.items():
            lines += _row(resource, [text])
    if view.reading is not None:
        cells = [f"{domain}: {_mib(each.occupancy_bytes)}" for domain, each in view.reading.domains.items()]
        lines += _row("held", cells)
    return "\n".join(lines) + "\n"


def name_of(group: GroupRef) -> str:
    """A group's path as the user writes it."""
    return f"/{group.relative}"


def _row(label: str, cells: Sequence[str]) -> list[str]:
    """Lay out cells in columns of equal width, as many per line as fit."""
    if not cells:
        return []
    column = max(map(len, cells)) + 3
    fits = max(1, (WIDTH - 12) // column)
    rows = [cells[start : start + fits] for start in range(0, len(cells), fits)]
    return [
        f"  {label if number == 0 else '':<9} {''.join(cell.ljust(column) for cell in row)}".rstrip()
        for number, row in enumerate(rows)
    ]


def _value(resource: str, value: int, info: Info) -> str:
    cache = info.caches.get(resource)
    if cache is not None:
        width = cache.cbm_mask.bit_length()
        bits = f"{value:0{width}b}".replace("1", "#").replace("0", ".")
        return f"{Cbm(value).text(width)} {bits}"
    bandwidth = info.bandwidths.get(resource)
    if bandwidth is None:
        return str(value)
    if bandwidth.unit is not BandwidthUnit.PERCENT and value >= bandwidth.unthrottled:
        return "no cap"
    unit = {BandwidthUnit.PERCENT: " %", BandwidthUnit.MBPS: " MBps", BandwidthUnit.ABSOLUTE: ""}[
        bandwidth.unit
    ]
    return f"{value}{unit}"


def _mib(reading: Reading) -> str:
    return reading.why.value if isinstance(reading, Unavailable) else f"{reading / _MIB:.1f} MiB"


# --- watching ----------------------------------------------------------------------------------------------------


def readings(found: Mapping[GroupRef, GroupReading]) -> str:
    """A table of readings: one line per group and domain, with a sum if there are several domains."""
    names = [name_of(each) for each in found]
    width = max([len("GROUP"), *map(len, names)])
    lines = [f"{'GROUP':<{width}}  DOMAIN     HELD MiB   TOTAL GB/s   LOCAL GB/s"]
    reasons: dict[str, None] = {}
    for name, reading in zip(names, found.values(), strict=True):
        rows = [
            (str(domain), each.occupancy_bytes, each.total_bytes_per_s, each.local_bytes_per_s)
            for domain, each in reading.domains.items()
        ]
        if len(rows) != 1:
            rows.append(
                ("all", reading.occupancy_bytes, reading.total_bytes_per_s, reading.local_bytes_per_s)
            )
        for number, (domain, held, all_bytes, local) in enumerate(rows):
            shown = name if number == 0 else ""
            cells = f"{_in(held, _MIB, 11)}  {_in(all_bytes, 1e9, 11)}  {_in(local, 1e9, 11)}"
            lines.append(f"{shown:<{width}}  {domain:>6}  {cells}")
            if domain != "all":
                for each in (held, all_bytes, local):
                    if isinstance(each, Unavailable):
                        reasons[f"  {each.why.value}: {each.reason}"] = None
    return "\n".join([*lines, *reasons]) + "\n"


def _in(reading: Reading, unit: float, width: int) -> str:
    if isinstance(reading, Unavailable):
        return f"{reading.why.value[:width]:>{width}}"
    return f"{reading / unit:>{width}.2f}"


# --- calibrations ------------------------------------------------------------------------------------------------


def calibration(kept: Calibration) -> str:
    """Every curve as a table; levels that make no difference are marked."""
    lines = [f"calibration of {kept.machine}, made {kept.made}"]
    for curve in kept.curves:
        lines += ["", *_curve(curve)]
    return "\n".join(lines) + "\n"


def _curve(curve: Curve) -> list[str]:
    by = "the kernel's counters" if curve.measured_by == "mbm" else "the streams' own count"
    lines = [f"{curve.resource} domain {curve.domain}, {_many(curve.cores, 'core')} streaming, by {by}"]
    useful = {each.level for each in curve.useful()}
    top = curve.top.bytes_per_s or 1.0
    for point in reversed(curve.points):
        bar = "#" * round(40 * point.bytes_per_s / top)
        mark = "" if point.level in useful else "  makes no difference"
        lines.append(f"  {point.level:>6}  {point.bytes_per_s / 1e9:>8.2f} GB/s  {bar}{mark}")
    return lines
