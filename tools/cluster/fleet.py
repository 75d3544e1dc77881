"""One run: simulated hosts, a real control plane, and the pods between them."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from perphd.adapters.kubernetes.client import (
    ApiAccess,
    ApiClient,
    ApiConflict,
    ApiMissing,
    KubernetesError,
    follow,
)
from perphd.adapters.kubernetes.objects import NODES, PODS
from perphd.adapters.kubernetes.own_pods import OwnPods
from perphd.adapters.kubernetes.publisher import Publisher
from perphd.cluster.asking import BAND_LABEL, COPPER_CPU, COPPER_MEMORY
from perphd.domain.workload import LABEL_PREFIX, Mode
from tools.cluster.control_plane import ControlPlane, free_ports
from tools.cluster.hosts import LRA_KINDS, MACHINE, SimulatedNode, stated_latency_ms
from tools.cluster.trace import CopperPod, LraPod, Trace

OWN_PODS: Final = "/api/v1/namespaces/default/pods"
LATENCY: Final = f"{LABEL_PREFIX}max-latency-ms"
MANIFESTS: Final = Path(__file__).parents[2] / "packaging" / "kubernetes"
PUBLISHED_S: Final = 5
ANSWERED_S: Final = 120.0
"""Time-out of one answer of an API server on a busy machine, in wall time."""
RESOLVED_S: Final = 10.0
"""Wall time in seconds to wait for the scheduler's first result on new pods."""
WARM_S: Final = 40
"""Virtual time in seconds at which counting begins."""
LRA_MEMORY: Final = 8 << 30
COPPER_MEMORY_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Scheme:
    """``enforces``: perphd protects LRAs on the hosts; ``places``: publisher and extender take part in placement."""

    name: str
    enforces: bool
    places: bool


SCHEMES: Final = (
    Scheme("stock", enforces=False, places=False),
    Scheme("stock, perphd on nodes", enforces=True, places=False),
    Scheme("perphd", enforces=True, places=True),
)


@dataclass(slots=True)
class Result:
    """The results of a run. Times are virtual except ``resolving_s`` and ``wall_s``."""

    scheme: str
    on_target: int = 0
    lra_seconds: int = 0
    core_seconds: float = 0.0
    host_seconds: float = 0.0
    done: int = 0
    waits_s: list[float] = field(default_factory=list)
    unplaced: int = 0
    resolved: int = 0
    resolving_s: float = 0.0
    wall_s: float = 0.0
    counted_s: float = 0.0
    calls: dict[str, Any] = field(default_factory=dict)


class Fleet:
    """See the module."""

    def __init__(self, scheme: Scheme, hosts: int, seed: int, folder: Path, policy: str = "optum") -> None:
        self.scheme, self._folder, self._policy = scheme, folder, policy
        mode = Mode.ENFORCE if scheme.enforces else Mode.OBSERVE
        names = [f"host-{n:02d}" for n in range(hosts)]
        self.nodes = {name: SimulatedNode(name, mode, seed + n, folder) for n, name in enumerate(names)}
        self._own = {name: OwnPods() for name in names}
        self._pods: dict[str, Any] = {}
        self._asked: dict[str, LraPod | CopperPod] = {}
        self._created_s: dict[str, int] = {}
        self._started: set[str] = set()
        self.result = Result(scheme.name)

    async def run(self, trace: Trace, seconds: int) -> Result:
        """The whole trace."""
        began = time.monotonic()
        plane = ControlPlane(self._folder / "plane")
        port = free_ports(1)[0]
        text = (MANIFESTS / "scheduler.yaml").read_text().replace("127.0.0.1:9466", f"127.0.0.1:{port}")
        extender: subprocess.Popen[bytes] | None = None
        try:
            await asyncio.to_thread(plane.start_etcd)
            await asyncio.to_thread(plane.start_api)
            await asyncio.to_thread(plane.start_scheduler, text if self.scheme.places else "")
            await asyncio.to_thread(plane.start_kwok)
            access = ApiAccess(plane.url, str(plane.token_file), str(plane.ca_file))
            if self.scheme.places:
                await asyncio.to_thread(plane.kubectl, "apply", "-f", str(MANIFESTS / "crd.yaml"))
                wait = ("wait", "--for=condition=Established", "crd/nodeprofiles.perphd.io", "--timeout=60s")
                await asyncio.to_thread(plane.kubectl, *wait)
                extender = _extender(port, access, self._folder, self._policy)
            async with ApiClient(access, timeout_s=ANSWERED_S) as api:
                await asyncio.gather(*(_make_node(api, name) for name in self.nodes))
                await self._live(api, trace, seconds)
            if extender is not None:
                self.result.calls = await _calls(port)
        finally:
            if extender is not None:
                extender.terminate()
                extender.wait()
            await asyncio.to_thread(plane.stop)
            for node in self.nodes.values():
                await node.stop()
        self.result.wall_s = time.monotonic() - began
        return self.result

    async def _live(self, api: ApiClient, trace: Trace, seconds: int) -> None:
        publishers = [
            Publisher(api, name, node.document, self._own[name], PUBLISHED_S)
            for name, node in self.nodes.items()
        ]
        watching = asyncio.create_task(
            follow(api, PODS, self._replaced, self._changed, lambda error, _: print(error, file=sys.stderr))
        )
        coming: list[LraPod | CopperPod] = sorted((*trace.lras, *trace.copper), key=lambda pod: pod.at_s)
        try:
            for now_s in range(1, seconds + 1):
                new = []
                while coming and coming[0].at_s <= now_s:
                    new.append(coming.pop(0))
                for node in self.nodes.values():
                    await node.tick(float(now_s))
                    for pod in node.finished():
                        self.result.done += now_s > WARM_S
                        await _delete(api, pod)
                if self.scheme.places and now_s % PUBLISHED_S == 1:
                    await asyncio.gather(*(_round(each) for each in publishers))
                await self._submit(api, new, now_s)
                await self._start(now_s)
                self._look(now_s)
                if now_s % 30 == 0:
                    share = self.result.on_target / max(1, self.result.lra_seconds)
                    print(f"  {now_s} s: {len(self._started)} pods, {share:.1%} on target", file=sys.stderr)
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        self.result.unplaced = sum(name not in self._started for name in self._created_s)
        self.result.counted_s = seconds - WARM_S

    async def _submit(self, api: ApiClient, new: list[LraPod | CopperPod], now_s: int) -> None:
        """Create pods, and wait until the scheduler has a result for each."""
        if not new:
            return
        for each in new:
            self._asked[each.name], self._created_s[each.name] = each, now_s
        began = time.monotonic()
        await asyncio.gather(*(_create(api, OWN_PODS, self._pod(each)) for each in new))
        while time.monotonic() - began < RESOLVED_S:
            open_ = [each for each in new if not _is_resolved(self._pods.get(each.name))]
            if not open_:
                break
            await asyncio.sleep(0.005)
        self.result.resolved += len(new)
        self.result.resolving_s += time.monotonic() - began

    async def _start(self, now_s: int) -> None:
        """Start bound pods on their hosts, and change loads."""
        for name, pod in list(self._pods.items()):
            node = pod["spec"].get("nodeName")
            if node is None or name in self._started or name not in self._asked:
                continue
            self._started.add(name)
            asked = self._asked[name]
            if isinstance(asked, LraPod):
                stated = pod["metadata"]["annotations"][LATENCY]
                await self.nodes[node].start_lra(name, asked.kind, asked.factor, float(stated))
            else:
                self.nodes[node].start_copper(name, asked.kind, asked.threads, asked.seconds)
                self.result.waits_s.append(float(now_s - self._created_s[name]))
        for name in self._started:
            asked = self._asked[name]
            if isinstance(asked, LraPod) and asked.changes_s == now_s:
                self.nodes[self._pods[name]["spec"]["nodeName"]].set_load(f"lra-{asked.kind}", asked.later)

    def _look(self, now_s: int) -> None:
        if now_s <= WARM_S:
            return
        for node in self.nodes.values():
            good, total = node.lras_on_target()
            self.result.on_target += good
            self.result.lra_seconds += total
            self.result.core_seconds += node.used_cores()
            self.result.host_seconds += 1.0

    def _replaced(self, pods: list[Any]) -> None:
        for pod in pods:
            self._changed("ADDED", pod)
        for each in self._own.values():
            each.is_synced = True

    def _changed(self, kind: str, pod: Any) -> None:
        name, node = pod["metadata"]["name"], pod["spec"].get("nodeName")
        if kind != "DELETED":
            self._pods[name] = pod
        elif name in self._started:
            self._pods.pop(name, None)
        if node in self._own:
            self._own[node].changed(kind, pod)

    def _pod(self, asked: LraPod | CopperPod) -> dict[str, Any]:
        labels: dict[str, str] = {"app": asked.kind}
        annotations = {LATENCY: f"{stated_latency_ms(asked.kind):g}"} if isinstance(asked, LraPod) else {}
        spec: dict[str, Any] = {"terminationGracePeriodSeconds": 0}
        if isinstance(asked, LraPod):
            requests = {"cpu": f"{LRA_KINDS[asked.kind]:g}", "memory": str(LRA_MEMORY)}
            term = {
                "topologyKey": "kubernetes.io/hostname",
                "labelSelector": {"matchLabels": {"app": asked.kind}},
            }
            rule = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
            spec["affinity"] = {"podAntiAffinity": rule}  # a host has one place for each kind
        elif self.scheme.places:
            labels[BAND_LABEL] = "copper"
            requests = {COPPER_CPU: str(asked.threads * 1000), COPPER_MEMORY: str(COPPER_MEMORY_BYTES)}
        else:
            requests = {"cpu": str(asked.threads), "memory": str(COPPER_MEMORY_BYTES)}
        resources: dict[str, Any] = {"requests": requests}
        if not isinstance(asked, LraPod) and self.scheme.places:
            resources["limits"] = requests
        spec["containers"] = [{"name": "c", "image": "none", "resources": resources}]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": asked.name, "labels": labels, "annotations": annotations},
            "spec": spec,
        }


async def _create(api: ApiClient, path: str, what: dict[str, Any]) -> None:
    """Create an object. An existing object comes from an earlier request whose answer was lost."""
    with contextlib.suppress(ApiConflict):
        await api.post(path, what)


async def _delete(api: ApiClient, pod: str) -> None:
    with contextlib.suppress(ApiMissing):
        await api.request("DELETE", f"{OWN_PODS}/{pod}", query={"gracePeriodSeconds": "0"})


async def _round(publisher: Publisher) -> None:
    """One round, as in perphd-publish: the next round repairs failures."""
    try:
        await publisher.round()
    except KubernetesError as exc:
        print(f"  a round failed: {exc}", file=sys.stderr)


def _is_resolved(pod: Any) -> bool:
    if pod is None:
        return False
    conditions = (pod.get("status") or {}).get("conditions") or []
    return "nodeName" in pod["spec"] or any(each["type"] == "PodScheduled" for each in conditions)


def _extender(port: int, access: ApiAccess, folder: Path, policy: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "perphd.adapters.kubernetes.extender_program", "run", "--listen", f"127.0.0.1:{port}",
        "--api-server", access.url, "--token-file", access.token_file, "--ca-file", access.ca_file,
        "--policy", policy,
    ]  # fmt: skip
    with (folder / "extender.log").open("wb") as log:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


async def _make_node(api: ApiClient, name: str) -> None:
    room = {"cpu": str(MACHINE.cpus), "memory": str(MACHINE.memory_bytes), "pods": "16"}
    labels = {"type": "kwok", "kubernetes.io/hostname": name}
    metadata = {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}}
    # The node has its status from the start, because kwok, which initialises nodes, would replace a later one by its
    # own sizes.
    status = {"capacity": room, "allocatable": room}
    await _create(api, NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status})


async def _calls(port: int) -> dict[str, Any]:
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/fleet") as answer:
        calls = (await answer.json())["calls"]
    return dict(calls)


def table(results: list[Result]) -> list[tuple[str, ...]]:
    """One row for each scheme, after a row of headings."""
    rows: list[tuple[str, ...]] = [
        (
            "scheme", "LRAs on target", "CPU used", "copper done/min", "median wait", "not placed", "decisions/s",
            "extender p99", "wall",
        )
    ]  # fmt: skip
    for each in results:
        used = each.core_seconds / max(1.0, each.host_seconds) / MACHINE.cpus
        waits = sorted(each.waits_s)
        wait = f"{waits[len(waits) // 2]:.0f} s" if waits else "-"
        p99 = max((call["p99_s"] for call in each.calls.values()), default=math.nan)
        rows.append(
            (
                each.scheme,
                f"{each.on_target / max(1, each.lra_seconds):.1%}",
                f"{used:.1%}",
                f"{60.0 * each.done / max(1.0, each.counted_s):.0f}",
                wait,
                str(each.unplaced),
                f"{each.resolved / max(1e-9, each.resolving_s):.0f}",
                "-" if math.isnan(p99) else f"{1e3 * p99:.1f} ms",
                f"{each.wall_s:.0f} s",
            )
        )
    return rows
