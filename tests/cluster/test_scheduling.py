"""The stock kube-scheduler with the extender, as both are shipped: placement, races, and an extender that goes away."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from perphd.adapters.kubernetes.client import ApiAccess, ApiClient
from perphd.adapters.kubernetes.objects import PROFILES
from perphd.cluster.slots import slots_of
from tests.cluster.conftest import MANIFESTS
from tests.cluster.world import (
    PODS,
    copper_pod,
    make_node,
    placed,
    plain_pod,
    publish,
    remove_node,
    remove_pods,
    token_of,
    until,
)
from tests.unit.test_cluster_extender import document
from tools.cluster.control_plane import ControlPlane, free_ports


class Extender:
    """``perphd-extender run`` as a process, with the rights of its own account."""

    def __init__(self, admin: ApiAccess, token: Path, folder: Path, *options: str, port: int = 0) -> None:
        self.port = port or free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = (folder / f"extender-{self.port}.log").open("w")
        command = [
            sys.executable, "-m", "perphd.adapters.kubernetes.extender_program", "run", "--listen",
            f"127.0.0.1:{self.port}", "--api-server", admin.url, "--token-file", str(token), "--ca-file",
            admin.ca_file, *options,
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    async def ready(self) -> None:
        async with aiohttp.ClientSession() as http:

            async def answers() -> bool:
                assert self.process.poll() is None, Path(self._log.name).read_text()
                try:
                    async with http.get(f"{self.url}/readyz") as answer:
                        return answer.status == 200
                except aiohttp.ClientError:
                    return False

            await until(answers, 60.0)

    async def get(self, path: str, **query: str) -> Any:
        async with aiohttp.ClientSession() as http, http.get(f"{self.url}{path}", params=query) as answer:
            return await answer.json()

    async def post(self, path: str, body: Any) -> Any:
        async with aiohttp.ClientSession() as http, http.post(f"{self.url}{path}", json=body) as answer:
            return await answer.json()

    def stop(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(20)
        finally:
            self.process.kill()
            self._log.close()


@contextlib.asynccontextmanager
async def scheduling(plane: ControlPlane, name: str, port: int) -> AsyncIterator[None]:
    """kube-scheduler with this shipped configuration while the block runs."""
    text = (MANIFESTS / f"{name}.yaml").read_text().replace("127.0.0.1:9466", f"127.0.0.1:{port}")
    await asyncio.to_thread(plane.stop, "kube-scheduler")
    await asyncio.to_thread(plane.start_scheduler, text)
    try:
        yield
    finally:
        await asyncio.to_thread(plane.stop, "kube-scheduler")
        await asyncio.to_thread(plane.start_scheduler)


@pytest.fixture
async def api(admin: ApiAccess) -> AsyncIterator[ApiClient]:
    async with ApiClient(admin) as client:
        yield client
        await remove_pods(client)
        for name in ("roomy", "tight", "other"):
            await remove_node(client, name)


async def _placed_count(api: ApiClient, count: int) -> dict[str, str | None]:
    found = await placed(api)
    return found if sum(node is not None for node in found.values()) >= count else {}


async def _why(api: ApiClient, pod: str) -> str:
    status = (await api.get(f"{PODS}/{pod}"))["status"]
    return " ".join(each.get("message", "") for each in status.get("conditions", []))


async def test_pods_go_where_there_is_room_and_reasons_reach_their_owner(
    api: ApiClient, admin: ApiAccess, plane: ControlPlane, tmp_path: Path
) -> None:
    for name, free in (("roomy", 6.0), ("tight", 0.5)):
        await make_node(api, name)
        await publish(api, name, document(free=free))
    token = await token_of(api, "perphd-extender", tmp_path)
    extender = Extender(admin, token, tmp_path, "--record", str(tmp_path / "record"))
    try:
        await extender.ready()
        async with scheduling(plane, "scheduler", extender.port):
            for i in range(4):
                await api.post(PODS, copper_pod(f"c{i}", 1000))
            found = await until(lambda: _placed_count(api, 4), what="copper was not placed")
            assert set(found.values()) == {"roomy"}
            await api.post(PODS, copper_pod("big", 7000))  # within nobody's offer

            async def refused() -> bool:
                return "node" in await _why(api, "big")

            await until(refused)
            why = await extender.get("/explain", pod="default/c3")
            assert [each["node"] for each in why["filter"]["best"]] == ["roomy"]
            await api.post(PODS, plain_pod("plain"))
            await until(lambda: _placed_count(api, 5), what="a plain pod was not placed")

            extender.process.kill()  # ignorable: scheduling goes on as if there were none
            extender.process.wait()
            await api.post(PODS, plain_pod("alone"))
            await until(lambda: _placed_count(api, 6), what="nothing is placed without the extender")
    finally:
        extender.stop()
    command = [sys.executable, "-m", "perphd.adapters.kubernetes.extender_program", "replay"]
    told = await asyncio.to_thread(
        subprocess.run, [*command, str(tmp_path / "record")], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "0 with a different answer" in told.stdout


async def test_of_two_extenders_that_race_for_a_slot_one_gets_it(
    api: ApiClient, admin: ApiAccess, tmp_path: Path
) -> None:
    await make_node(api, "roomy")
    await publish(api, "roomy", document(free=1.0))
    token = await token_of(api, "perphd-extender", tmp_path)
    both = [Extender(admin, token, tmp_path, "--bind") for _ in range(2)]
    try:
        for each in both:
            await each.ready()
        for race in range(5):
            calls = []
            for i in range(6):
                name = f"race-{race}-{i}"
                made = await api.post(PODS, copper_pod(name, 1000, schedulerName="nobody"))
                uid = made["metadata"]["uid"]
                calls.append({"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": "roomy"})
            before = (await api.get(f"{PROFILES}/roomy"))["metadata"]["generation"]
            answers = await asyncio.gather(*(both[i % 2].post("/bind", call) for i, call in enumerate(calls)))
            won = [
                call["PodName"] for call, answer in zip(calls, answers, strict=True) if not answer["Error"]
            ]
            assert len(won) == 1, answers
            bound = [name for name, node in (await placed(api)).items() if node == "roomy"]
            assert bound == won
            profile = await api.get(f"{PROFILES}/roomy")
            assert profile["metadata"]["generation"] == before + 1  # one reservation for that generation
            assert [slot.pod for slot in slots_of(profile)] == [f"default/{won[0]}"]
            # The same call once more, as after a lost answer: still this pod, still one slot.
            again = await both[1].post("/bind", next(call for call in calls if call["PodName"] == won[0]))
            assert again["Error"] == ""
            await remove_pods(api)
            await api.patch(f"{PROFILES}/roomy", {"spec": {"reservations": []}})
    finally:
        for each in both:
            each.stop()


async def test_binding_by_reservation_never_overcommits(
    api: ApiClient, admin: ApiAccess, plane: ControlPlane, tmp_path: Path
) -> None:
    # The resource offered is for all of copper; what is free is less: others use it. Only the extender knows that.
    offers = {"roomy": 4.0, "other": 3.0}
    for name, free in offers.items():
        await make_node(api, name)
        given = document(free=free)
        await publish(api, name, given)
        room = {"perphd.io/copper-cpu": "9000"}
        await api.patch(f"/api/v1/nodes/{name}/status", {"status": {"capacity": room, "allocatable": room}})
    token = await token_of(api, "perphd-extender", tmp_path)
    extender = Extender(admin, token, tmp_path, "--bind")
    try:
        await extender.ready()
        async with scheduling(plane, "scheduler-bind", extender.port):
            await asyncio.gather(*(api.post(PODS, copper_pod(f"c{i}", 1000)) for i in range(12)))
            await until(lambda: _placed_count(api, 7), 60.0, "not all slots were filled")
            await asyncio.sleep(3.0)
            counted = Counter(node for node in (await placed(api)).values() if node)
            assert counted == offers
            assert "copper may still take 0 CPUs" in await _why(api, next(
                name for name, node in (await placed(api)).items() if node is None
            ))  # fmt: skip

            extender.process.kill()  # only pods that ask for copper's resources wait
            extender.process.wait()
            await api.post(PODS, plain_pod("plain"))
            await until(lambda: _placed_count(api, 8), what="a plain pod waits for the extender")
    finally:
        extender.stop()


async def test_profiles_of_a_restarted_api_server_arrive_again(
    api: ApiClient, admin: ApiAccess, plane: ControlPlane, tmp_path: Path
) -> None:
    await make_node(api, "roomy")
    await publish(api, "roomy", document(free=4.0))
    token = await token_of(api, "perphd-extender", tmp_path)
    extender = Extender(admin, token, tmp_path)

    async def known_nodes() -> list[str]:
        """Those of this test: a real kubelet's may still be there."""
        nodes = [each["node"] for each in (await extender.get("/fleet"))["nodes"]]
        return [node for node in nodes if node in ("other", "roomy")]

    try:
        await extender.ready()
        await asyncio.to_thread(plane.stop, "kube-apiserver")
        try:
            await asyncio.sleep(1.0)
            assert await known_nodes() == ["roomy"], "it still answers"
        finally:  # other tests need the server
            await asyncio.to_thread(plane.start_api)
        await make_node(api, "other")
        await publish(api, "other", document(free=2.0))

        async def known() -> bool:
            return await known_nodes() == ["other", "roomy"]

        await until(known, 60.0)
        await api.request("DELETE", f"{PROFILES}/roomy")

        async def gone() -> bool:
            return await known_nodes() == ["other"]

        await until(gone)
    finally:
        assert extender.stop() == 0
