"""perphctl groups: every control group with its use, its main program, and the line to paste."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from perphd.agent.known_programs import program_of
from perphd.config.match import named
from perphd.control.numbers import NONE, number
from perphd.control.table import Part, table
from perphd.domain.host_facts import GroupFact
from perphd.domain.units import format_bytes
from perphd.host.catalogue import CgroupEntry
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.fs import KernelFs
from perphd.host.systemd_fs import unit_of

OVER_S: Final = 0.5


def usage(fs: KernelFs, hierarchies: Hierarchies) -> Mapping[str, GroupFact]:
    """The programs and the CPU use, over half a second, of each group of this machine."""
    from perphd.host.survey import survey

    facts = survey(fs, hierarchies, frozenset(), tcp_latency=False, over_s=OVER_S)
    return {group.cgroup: group for group in facts.groups}


def rows_of(entries: Iterable[CgroupEntry], used: Mapping[str, GroupFact]) -> list[dict[str, Any]]:
    """Each group as an object; ``cpu_cores``, ``memory_bytes`` and ``command`` are null where they are not known."""
    return [_row(entry, used.get(entry.path)) for entry in entries]


def group_parts(rows: Sequence[Mapping[str, Any]]) -> list[Part]:
    """The groups as a table."""
    cells = [
        (
            str(row["path"]),
            str(row["processes"]),
            NONE if row["cpu_cores"] is None else number(row["cpu_cores"]),
            NONE if row["memory_bytes"] is None else format_bytes(row["memory_bytes"]).replace(" ", ""),
            str(row["command"] or NONE),
            str(row["paste"]),
        )
        for row in rows
    ]
    heads = ("CGROUP", "PROCESSES", "CORES", "MEMORY", "COMMAND", "PASTE")
    return [table("", heads, cells, right=(1, 2, 3))]


def _row(entry: CgroupEntry, group: GroupFact | None) -> dict[str, Any]:
    main = group.main if group is not None else None
    unit = unit_of(entry.path)
    return {
        "path": entry.path,
        "populated": entry.populated,
        "processes": entry.processes,
        "container": entry.label,
        "cpu_cores": None if group is None else round(group.cpu_cores, 3),
        "memory_bytes": None if group is None else group.memory_bytes,
        "command": None if main is None else program_of(main),
        "paste": _paste(entry, unit),
    }


def _paste(entry: CgroupEntry, unit: str) -> str:
    if "/" in entry.label:  # a pod: with the systemd driver also a slice, whose name does not last
        return f'match = "{named(entry.label)}"'
    if unit.endswith(".slice"):
        return f'match = "slice:{unit}"'
    if unit:
        return f'match = "unit:{unit}"'
    if entry.label:
        return f'match = "{named(entry.label)}"'
    return f'cgroup = "{entry.path}"'
