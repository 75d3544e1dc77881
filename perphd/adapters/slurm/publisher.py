"""The publisher of one Slurm node: reserves the cores that copper may not use.

On such a node Slurm runs batch, which is copper. perphd's document states the CPUs available to copper. The rest is
reserved, one core per reservation ``perphd_NODE_K``. A change of the level creates or deletes only the difference:
Slurm cannot resize a core reservation, and recreating it would leave a gap. ``IGNORE_JOBS`` lets a reservation start
while jobs run; they keep running, and no new job starts on its core.

Everything is level-triggered: each round reads the actual state. The controller may restart or lose its state.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from perphd.adapters.rounds import repeat
from perphd.cluster.document import NodeDocument
from perphd.cluster.publication import KeptPublication, Level, decided
from perphd.domain.errors import PerphError
from perphd.domain.reading import Unavailable

TIMEOUT_S: Final = 10.0
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_OWN_COMMENT: Final = "perphd:"
_PAIR: Final = re.compile(r"(\w+)=(\S*)")
_log: Final = logging.getLogger("perphd.slurm")


class SlurmError(PerphError):
    """A program of Slurm failed."""


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """Slurm's view of the node, with the indices of perphd's reservations (``held``)."""

    cpus: int
    cores: int
    comment: str
    held: frozenset[int]


async def scontrol(*arguments: str) -> str:
    """Run scontrol; returns its output. Raises SlurmError if it fails or times out."""
    return await slurm_command("scontrol", *arguments)


async def jobs_on(node: str) -> frozenset[str]:
    """Numbers of the jobs that have resources of this node. Raises SlurmError if squeue fails or times out."""
    return frozenset((await slurm_command("squeue", "-h", "-w", checked_node(node), "-o", "%A")).split())


async def slurm_command(program: str, *arguments: str) -> str:
    """Run a program of Slurm; returns its output.

    Raises:
        SlurmError: it failed, or timed out.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            program, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as exc:
        raise SlurmError(f"{program} cannot be started: {exc.strerror}") from exc
    try:
        out, err = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    except TimeoutError as exc:
        process.kill()
        await process.wait()
        raise SlurmError(f"{program} {arguments[0]}: no answer within {TIMEOUT_S:.0f} s") from exc
    if process.returncode != 0:
        said = (err or out).decode(errors="replace").strip()
        raise SlurmError(f"{program} {' '.join(arguments[:2])}: {said[:300]}")
    return out.decode(errors="replace")


def checked_node(name: str) -> str:
    """The name, if it is valid in scontrol commands.

    Raises:
        SlurmError: it is not a valid node name.
    """
    if _NODE.fullmatch(name) is None:
        raise SlurmError(
            f"{name!r} is not a valid node name (allowed: 1 to 63 letters, digits, _, - and ., "
            "beginning with a letter or digit)"
        )
    return name


def node_of(node: str, shown: str, reservations: str) -> SlurmNode:
    """Parse ``scontrol show node`` and ``scontrol show reservation``, both with ``--oneliner``.

    Raises:
        SlurmError: the node's size is missing.
    """
    fields = dict(_PAIR.findall(shown))
    try:
        cpus = int(fields["CPUTot"])
        cores = int(fields["CoresPerSocket"]) * int(fields["Sockets"])
    except (KeyError, ValueError) as exc:
        raise SlurmError(
            f"scontrol must report CPUTot, CoresPerSocket and Sockets of {node} as whole numbers"
        ) from exc
    comment = re.search(r"(?:^|\s)Comment=(.*?)(?:\s+\w+=|\s*$)", shown)
    prefix = f"perphd_{node}_"
    held = set()
    for line in reservations.splitlines():
        name = dict(_PAIR.findall(line)).get("ReservationName", "")
        if name.startswith(prefix) and name[len(prefix) :].isdecimal():
            held.add(int(name[len(prefix) :]))
    return SlurmNode(cpus, cores, comment[1] if comment else "", frozenset(held))


def cores_to_hold(node: SlurmNode, copper_milli: int) -> int:
    """Number of whole cores that copper may not use."""
    return max(0, node.cores - math.floor(copper_milli / 1000.0 / _threads(node) + 1e-9))


def _threads(node: SlurmNode) -> int:
    return max(1, node.cpus // max(1, node.cores))


def _as_published(node: SlurmNode) -> KeptPublication:
    """State published by an earlier process; with it, the first round after a restart does not raise the offer."""
    level = Level(max(0, node.cores - len(node.held)) * _threads(node) * 1000)
    return KeptPublication(level, level)


class SlurmPublisher:
    """Publishes one node in rounds.

    ``look``: returns the daemon's document, or why there is none. ``period_s``: seconds between rounds. ``run``:
    executes scontrol.
    """

    def __init__(
        self,
        node: str,
        look: Callable[[], Awaitable[NodeDocument | Unavailable]],
        period_s: float,
        run: Callable[..., Awaitable[str]] = scontrol,
    ) -> None:
        self._node, self._look, self._period_s, self._run = checked_node(node), look, period_s, run
        self._kept: KeptPublication | None = None

    async def run(self) -> None:
        """Publish every ``period_s`` seconds until cancelled; retry failures with exponential backoff."""
        await repeat(self.round, self._period_s, SlurmError, _log)

    async def round(self) -> None:
        """Read the daemon's document and publish the differences.

        Raises:
            SlurmError: a part could not be published.
        """
        look = await self._look()
        node = await self.seen()
        if self._kept is None:
            self._kept = _as_published(node)
        publication, self._kept = decided(look, self._kept)
        for notice in publication.notices:
            _log.log(logging.WARNING if notice.is_warning else logging.INFO, "%s", notice.message)
        wanted = cores_to_hold(node, publication.level.cpu_milli)
        free = [n for n in range(node.cores) if n not in node.held]
        for number in free[: max(0, wanted - len(node.held))]:
            await self._run(
                "create", "reservation", f"ReservationName=perphd_{self._node}_{number}", f"Nodes={self._node}",
                "CoreCnt=1", "StartTime=now", "Duration=infinite", "Users=root", "Flags=IGNORE_JOBS",
            )  # fmt: skip
        surplus = max(0, len(node.held) - wanted)
        for number in sorted(node.held, reverse=True)[:surplus]:
            await self._run("delete", f"reservation=perphd_{self._node}_{number}")
        condition = publication.conditions[0]
        text = f"{_OWN_COMMENT}{condition.reason}:{publication.level.cpu_milli}m"
        # A comment that another program wrote stays.
        if node.comment != text and (not node.comment or node.comment.startswith(_OWN_COMMENT)):
            await self._run("update", f"NodeName={self._node}", f"Comment={text}")

    async def seen(self) -> SlurmNode:
        """The node's present state in Slurm.

        Raises:
            SlurmError: scontrol does not report it.
        """
        shown = await self._run("show", "node", self._node, "--oneliner")
        reservations = await self._run("show", "reservation", "--oneliner")
        return node_of(self._node, shown, reservations)

    async def withdraw(self) -> None:
        """Delete perphd's reservations and comment.

        Raises:
            SlurmError: a part could not be removed.
        """
        node = await self.seen()
        for number in sorted(node.held):
            await self._run("delete", f"reservation=perphd_{self._node}_{number}")
        if node.comment.startswith(_OWN_COMMENT):
            await self._run("update", f"NodeName={self._node}", "Comment=")
