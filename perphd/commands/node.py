"""perphctl node: this node's document for schedulers, as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from perphd.commands.base import Out, command
from perphd.control.table import Part, table, text
from perphd.domain.reading import Reading, available

if TYPE_CHECKING:
    from perphd.cluster.document import NodeAmounts, NodeLra

_GIB = float(1 << 30)


def add_node_command(cli: click.Group) -> None:
    """Add the command to the group."""

    @command(cli)
    def node(out: Out) -> None:
        """Show the node as a scheduler sees it.

        Prints reserved, used and predicted amounts, what copper may still take, what one unit less of a resource would
        cost each LRA, and reservations. Changes nothing on the host.
        """
        data = out.client.get("node")
        out.show(data, lambda: list(_parts(data)))


def _parts(data: Any) -> Iterator[Part]:
    from perphd.cluster.document import NodeDocument  # slow to import
    from perphd.domain.wire import decode

    doc = decode(NodeDocument, data)
    yield text(
        f"generation {doc.generation}, mode {doc.mode}, confidence {doc.confidence:.2f}, valid for {doc.ttl_s:.0f} s"
    )
    rows = [
        ("capacity", *_cells(doc.capacity)),
        ("reserved", *_cells(doc.reserved)),
        ("used", *_cells(doc.used)),
        *(
            (f"free, {each.start_s:.0f} to {each.end_s:.0f} s from now", *_cells(each.free))
            for each in doc.available
        ),
        ("copper: offered", *_cells(doc.copper.offered)),
        ("copper: used", *_cells(doc.copper.used)),
        ("copper: may still take", *_cells(doc.copper.allocatable)),
    ]
    yield table("", ("", "CPUS", "MEMORY GiB"), rows, right=(1, 2))
    if doc.copper.reason:
        yield text(doc.copper.reason)
    if doc.lras:
        columns = ("LRA", "HEALTH", "SCORE", "ONE LESS: CPU", "LLC WAY", "BANDWIDTH")
        yield table("", columns, [_row(each) for each in doc.lras], right=(2, 3, 4, 5))
    for each in doc.antagonists:
        yield text(f"{each.culprit} disturbs {each.lra}: {each.cause}")
    if doc.held:
        held = [
            (
                each.holder,
                each.band,
                *_cells(each.amounts),
                "-" if each.expires_in_s is None else f"{each.expires_in_s:.0f} s",
            )
            for each in doc.held
        ]
        yield table("", ("HOLDER", "BAND", "CPUS", "MEMORY GiB", "LAPSES IN"), held, right=(2, 3, 4))


def _row(lra: NodeLra) -> tuple[str, ...]:
    costs = {each.resource: each.loss_ratio for each in lra.sensitivity}
    return (
        lra.name,
        str(lra.health),
        _number(lra.score, "{:.2f}"),
        *(_number(costs[name], "-{:.1%}") for name in ("cpu", "llc", "mbw")),
    )


def _cells(amounts: NodeAmounts) -> tuple[str, str]:
    memory = amounts.memory_bytes
    return _number(amounts.cpus, "{:.1f}"), f"{memory / _GIB:.1f}" if available(memory) else "-"


def _number(value: Reading, form: str) -> str:
    return form.format(value) if available(value) else "-"
