"""A slot's way: taken at bind in the API server, held in the daemon's ledger, and released once its pod is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from perphd.adapters.kubernetes.binding import Binder
from perphd.adapters.kubernetes.client import ApiAccess, ApiClient
from perphd.adapters.kubernetes.held_slots import HeldSlots
from perphd.adapters.kubernetes.objects import PROFILES
from perphd.adapters.kubernetes.own_pods import SETTLED_S, OwnPods
from perphd.adapters.kubernetes.publisher import Publisher
from perphd.adapters.node_socket import NodeSocket
from perphd.cluster.document import NodeDocument
from perphd.cluster.slots import slots_of
from perphd.domain.reading import value_or
from tests.cluster.test_failures import NODE, bind_call
from tests.cluster.world import PODS, copper_pod, make_node, remove_node, remove_pods
from tests.unit.control_fake import put_on_target, serving


async def test_a_slot_is_held_until_its_pod_is_measured(
    admin: ApiAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_target(monkeypatch)
    now = [0.0]
    with serving(tmp_path) as served:
        socket, pods = NodeSocket(served.socket), OwnPods(lambda: now[0])

        async def held() -> tuple[list[str], float]:
            document = await socket.document()
            assert isinstance(document, NodeDocument)
            free = value_or(document.copper.allocatable.cpus, 0.0)
            return [each.holder for each in document.held], free

        async with ApiClient(admin) as api:
            await make_node(api, NODE)
            try:
                publisher = Publisher(api, NODE, socket.document, pods, 1.0, holds=HeldSlots(socket))
                pods.replaced([])
                await publisher.round()
                _, before = await held()
                pod = await api.post(PODS, copper_pod("holding", 500, schedulerName="nobody"))
                assert await Binder(api, lambda node: True).bind(bind_call(pod)) == ""
                await publisher.round()
                names, left = await held()
                assert names == ["slot:default.holding"]
                assert round(before - left, 6) == 0.5
                pods.changed("MODIFIED", {**pod, "status": {"phase": "Running"}})
                await publisher.round()
                assert (await held())[0] == names  # it runs, but copper's measured use does not hold it yet
                now[0] += SETTLED_S + 1.0
                await publisher.round()
                assert await held() == ([], before)
                assert slots_of(await api.get(f"{PROFILES}/{NODE}")) == ()
            finally:
                await remove_pods(api)
                await remove_node(api, NODE)
