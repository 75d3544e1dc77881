"""perphctl trace: the store of this host as a trace for fleet simulators."""

from __future__ import annotations

import platform

import click

from perphd.commands.base import Out, command
from perphd.commands.number import Number
from perphd.control.client import NotPermitted
from perphd.domain.errors import PerphError
from perphd.domain.units import format_bytes


def add_trace_commands(cli: click.Group) -> None:
    """Add the commands to perphctl."""

    @cli.group()
    def trace() -> None:
        """Use this host's measurements in a simulation."""

    @command(trace)
    @click.argument("place")
    @click.option(
        "--format", "form", type=click.Choice(["alibaba-v2023"]), default="alibaba-v2023", show_default=True
    )
    @click.option("--node", metavar="NAME", help="This host's name in the trace [default: its host name].")
    @click.option(
        "--every", "every_s", type=Number(1, 3600), default=30.0, show_default=True, metavar="SECONDS",
        help="Seconds between two rows of a workload.",
    )  # fmt: skip
    @click.option(
        "--store", metavar="FILE", help="The store's file [default: the daemon's, else as configured]."
    )
    def export(out: Out, place: str, form: str, node: str | None, every_s: float, store: str | None) -> None:
        """Commit the store as a trace: node use, pods, and pod use.

        PLACE is a new folder, or s3://BUCKET/NAME. The tables are those of Alibaba's cluster-trace-v2023, in CPUs,
        bytes, milliseconds and ratios; -1 means not measured. LRAs have the class LS, batch BE. Requests are the
        reservations that the configuration or the control groups state; with --store there are none. The trace names
        this host and its workloads. The command opens the store's file itself: run it as root.
        """
        from perphd.commands.reservations import find
        from perphd.dataset.stores import open_store
        from perphd.monitor.trace_export import Requested, export_trace
        from perphd.sizing.shaper import Resource

        called = node or platform.node()
        if not called or "/" in called:
            raise PerphError(f"{called!r} cannot name a host in a trace (allowed: a name without a slash)")
        found = find(out, store)
        requests = {
            name: Requested(
                *(found.reservation(name, each).amount for each in (Resource.CPU, Resource.MEMORY))
            )
            for name in found.reservations
        }
        to = open_store(place)
        try:
            manifest = export_trace(found.store, to, called, requests, every_s)
        except PermissionError as exc:
            raise NotPermitted(f"{found.store}: this user may not read the store; run as root") from exc
        rows = {part.source: part.rows for part in manifest.parts}
        out.say(
            {"place": str(to), "node": called, "format": form, "rows": rows, "bytes": manifest.bytes},
            *(f"{part.source}: {part.rows} rows" for part in manifest.parts),
            f"{to}: {format_bytes(manifest.bytes)}, committed",
        )
