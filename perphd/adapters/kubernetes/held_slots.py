"""Enters slots that extenders took into the daemon's own ledger, until the slots end.

A slot is bookkeeping in the cluster. The daemon does not know it, so its document, ``/v1/whatif`` and
``/v1/reserve`` would offer the same room again to a scheduler outside Kubernetes. Each round compares the slots with
the daemon's grants of the same names (``slot:NAMESPACE.POD``). Missing grants are reserved and committed; grants of
ended slots are released. After a restart of the daemon or the publisher, the next round corrects the ledger.

The pod is already bound, so it starts even if the daemon refuses for lack of room. The refusal is logged once, and the
next round retries.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from typing import Final

from perphd.adapters.node_socket import NodeSocket, SocketError
from perphd.cluster.document import NodeDocument
from perphd.cluster.slots import SLOT_PREFIX, Slot
from perphd.domain.reading import value_or

_log: Final = logging.getLogger("perphd.publish")


class HeldSlots:
    """Keeps the daemon's grants equal to the slots. ``socket``: the daemon's socket, with the right to make changes."""

    def __init__(self, socket: NodeSocket) -> None:
        self._socket = socket
        self._refused: dict[str, str] = {}

    async def follow(self, slots: Sequence[Slot], document: NodeDocument) -> None:
        """Reserve and release as the document requires. Failures are logged and retried in the next round."""
        wanted = {slot.holder: slot for slot in slots}
        held = {each.holder: each for each in document.held if each.holder.startswith(SLOT_PREFIX)}
        kept = set()
        for name, each in held.items():
            slot = wanted.get(name)
            same = slot is not None and (
                round(value_or(each.amounts.cpus, 0.0) * 1000) == round(slot.amounts.cpus * 1000)
                and int(value_or(each.amounts.memory_bytes, 0.0)) == slot.amounts.memory_bytes
            )
            if same and each.expires_in_s is None:
                kept.add(name)
            else:
                await self._tried(name, self._socket.release(name))
        self._refused = {name: why for name, why in self._refused.items() if name in wanted}
        for name, slot in wanted.items():
            if name not in kept:
                await self._tried(name, self._take(slot))

    async def _take(self, slot: Slot) -> None:
        # Each grant makes a new generation, so this round's first document is outdated.
        generation = await self._socket.generation()
        token = await self._socket.reserve(slot.holder, slot.amounts, generation)
        await self._socket.commit(slot.holder, token)

    async def _tried(self, name: str, work: Awaitable[None]) -> None:
        try:
            await work
            self._refused.pop(name, None)
        except SocketError as exc:
            if self._refused.get(name) != str(exc):
                _log.warning(
                    "the daemon did not reserve or release slot %s: %s; retried in the next round", name, exc
                )
            self._refused[name] = str(exc)
