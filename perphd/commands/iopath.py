"""perphctl iopath: the storage behind a workload, the links that its I/O crosses, and where its time is spent."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import click

from perphd.commands.base import Out, command
from perphd.commands.number import Number
from perphd.control.client import NotPermitted, Refused, Unreachable
from perphd.control.table import Part, table, text
from perphd.domain.errors import ConfigError, KernelError, PerphError
from perphd.domain.io_path import IoUse, TimeSplit, farthest, flaws
from perphd.domain.reading import Reading, Unavailable, available

if TYPE_CHECKING:
    from perphd.host.fs import RealFs

_GIVE_PATH: Final = "give the control group's path, e.g. /system.slice/mariadb.service"


def add_iopath_command(cli: click.Group) -> None:
    """Add the command to perphctl."""

    @command(cli)
    @click.argument("workload")
    @click.option(
        "--seconds",
        type=Number(0, 60),
        default=2.0,
        show_default=True,
        help="Seconds for which the workload's threads are watched; 0: not at all.",
    )
    def iopath(out: Out, workload: str, seconds: float) -> None:
        """Show the storage behind a workload, and its cost.

        Resolves open files and connections to local disk, replicated volume, remote file system or object store, with
        the links that a read and a write cross. Also shows how its threads spend their time, and paths that copy data
        twice or pass one host. WORKLOAD is a name, or the path of a control group. The command has only this user's
        rights: run it as root.
        """
        from perphd.host.cgroup.group import Cgroups
        from perphd.host.cgroup.hierarchy import discover
        from perphd.host.fs import RealFs
        from perphd.host.io_wait import split
        from perphd.host.storage_path import look

        root, cgroup = _place(out, workload)
        fs = RealFs(root or "/")
        group = Cgroups(fs, discover(fs)).group(cgroup)

        def readlink(path: str) -> str:
            return os.readlink(root.rstrip("/") + path)

        pids = sorted(group.procs())
        if not pids:
            raise PerphError(f"{workload}: no process runs in {cgroup}")
        found = look(fs, readlink, pids)
        times = None
        if seconds > 0:
            before = _counters(fs, cgroup)
            times = split(fs, readlink, lambda: list(_threads(fs, group.procs())), found.sockets, seconds)
            times = _with_group(times, before, _counters(fs, cgroup))
        said = flaws(found.uses)
        data = _json(workload, cgroup, found.uses, times, said, found.skipped)
        out.show(data, lambda: _parts(found.uses, times, said, found.skipped))


def _place(out: Out, workload: str) -> tuple[str, str]:
    """The host's root and the workload's control group, from the daemon or else from the configuration."""
    if workload.startswith("/"):
        return "", workload
    groups: dict[str, str] | None = None
    with suppress(Unreachable, NotPermitted, Refused):
        host = out.client.get("config")["tuning"]["host"]
        groups = {
            item["spec"]["name"]: str(item["spec"]["cgroup"])
            for item in out.client.get("status")["workloads"]
        }
    if groups is not None:
        if workload not in groups:
            text, allowed = f"there is no workload {workload!r}", ", ".join(groups)
            raise Refused(404, {"code": "not-found", "message": text, "allowed": allowed})
        if host["kind"] == "simulated":
            raise PerphError(
                f"{workload}: the daemon's host is simulated: it has no files and no connections"
            )
        return str(host["root"] or ""), groups[workload]
    from perphd.config.file import load

    try:
        config = load(runtime=False)
    except ConfigError as exc:
        raise PerphError(
            f"the daemon could not be queried, and the configuration cannot be read: {exc}; {_GIVE_PATH}"
        ) from exc
    for spec in config.workloads:
        if spec.name == workload and spec.cgroup:
            return "", spec.cgroup
    raise PerphError(
        f"{workload}: the daemon could not be queried, and the configuration names no control group for it; "
        f"{_GIVE_PATH}"
    )


def _threads(fs: RealFs, pids: frozenset[int]) -> Iterator[tuple[int, int]]:
    for pid in sorted(pids):
        with suppress(KernelError):
            yield from ((pid, int(name)) for name in fs.subdirectories(f"/proc/{pid}/task"))


@dataclass(frozen=True, slots=True)
class _Counters:
    """Counters of a control group at one moment: refaulted pages, and seconds in which some thread waited for I/O."""

    at_s: float
    refaults: Reading
    stalled_s: Reading


def _counters(fs: RealFs, cgroup: str) -> _Counters:
    from perphd.host.cgroup.hierarchy import discover

    refaults: Reading = Unavailable("memory.stat of the group cannot be read")
    stalled: Reading = Unavailable("io.pressure of the group cannot be read; only cgroup v2 has this file")
    for hierarchy in discover(fs).all():
        name = "workingset_refault_file" if hierarchy.version == 2 else "total_workingset_refault_file"
        with suppress(KernelError, ValueError):
            text = fs.read(f"{hierarchy.path(cgroup)}/memory.stat").decode()
            lines = dict(line.split() for line in text.splitlines())
            refaults = float(lines[name]) if name in lines else Unavailable(f"memory.stat has no {name}")
        with suppress(KernelError, ValueError, StopIteration):
            text = fs.read(f"{hierarchy.path(cgroup)}/io.pressure").decode()
            some = next(line for line in text.splitlines() if line.startswith("some "))
            stalled = float(some.rpartition("total=")[2]) / 1e6
    return _Counters(time.monotonic(), refaults, stalled)


def _with_group(times: TimeSplit, before: _Counters, after: _Counters) -> TimeSplit:
    seconds = max(after.at_s - before.at_s, 1e-9)

    def rate(first: Reading, last: Reading) -> Reading:
        if not available(first):
            return first
        return (last - first) / seconds if available(last) else last

    stalled = rate(before.stalled_s, after.stalled_s)
    return replace(
        times,
        refaults_per_s=rate(before.refaults, after.refaults),
        stalled_pct=min(100.0, 100.0 * stalled) if available(stalled) else stalled,
    )


def _json(
    workload: str,
    cgroup: str,
    uses: Sequence[IoUse],
    times: TimeSplit | None,
    said: Sequence[str],
    skipped: int,
) -> dict[str, Any]:
    worst = farthest(uses)
    return {
        "workload": workload,
        "cgroup": cgroup,
        "place": None if worst is None else str(worst.place),
        "links_read": None if worst is None else worst.links[0],
        "links_write": None if worst is None else worst.links[1],
        "uses": [
            {
                "what": use.what,
                "place": str(use.place),
                "layers": [
                    {
                        "name": layer.name,
                        "copies": layer.copies,
                        "remote": layer.remote,
                        "assumed": layer.assumed,
                    }
                    for layer in use.layers
                ],
                "links_read": use.links[0],
                "links_write": use.links[1],
                "count": use.count,
                "example": use.example,
                "note": use.note,
            }
            for use in uses
        ],
        "threads": None
        if times is None
        else {
            "seconds": round(times.seconds, 3),
            "cpu": _number(times.cpu),
            "block": _number(times.block),
            "network": _number(times.network),
            "block_source": times.block_source,
            "stalled_pct": _number(times.stalled_pct),
            "refaults_per_s": _number(times.refaults_per_s),
        },
        "flaws": list(said),
        "skipped": skipped,
    }


def _number(reading: Reading) -> float | None:
    return round(reading, 3) if available(reading) else None


def _parts(
    uses: Sequence[IoUse], times: TimeSplit | None, said: Sequence[str], skipped: int
) -> Iterator[Part]:
    if uses:
        rows = [
            (
                str(use.place),
                str(use.links[0]),
                str(use.links[1]),
                str(use.count),
                use.what,
                " over ".join(_layers(use)),
            )
            for use in uses
        ]
        yield table("", ("PLACE", "READ", "WRITE", "OPEN", "WHAT", "LAYERS"), rows, right=(1, 2, 3))
        yield text("READ, WRITE: links between hosts that one record crosses.")
    else:
        yield text("No open file on a disk and no connection to a storage service.")
    notes = sorted({f"{use.what}: {use.note}" for use in uses if use.note})
    if any(layer.assumed for use in uses for layer in use.layers):
        notes.append("Numbers of copies are the usual ones of each system: this host cannot see them.")
    if skipped:
        notes.append(
            f"{skipped} processes or descriptors were not examined: too many, gone, or not permitted."
        )
    if notes:
        yield text(*notes)
    if times is not None:
        yield table(
            f"Threads over {times.seconds:.1f} s",
            ("CPU", "BLOCK I/O", "NETWORK", "STALLED%", "PAGES READ AGAIN/S"),
            [
                tuple(
                    _shown(each)
                    for each in (
                        times.cpu,
                        times.block,
                        times.network,
                        times.stalled_pct,
                        times.refaults_per_s,
                    )
                )
            ],
            right=(0, 1, 2, 3, 4),
        )
        yield text(
            f"Figures are in threads: 1 is all the time of one thread. Block I/O: {times.block_source}."
        )
        yield text("STALLED%: share of the time in which at least one thread waited for I/O.")
    if said:
        yield text(*(f"Flaw: {sentence}" for sentence in said))


def _layers(use: IoUse) -> Iterator[str]:
    for layer in use.layers:
        copies = "" if layer.copies == 1 else f" x{layer.copies}"
        yield f"{layer.name}{copies}"


def _shown(reading: Reading) -> str:
    return f"{reading:.2f}" if available(reading) else "-"
