"""The webhook as the real API server calls it, with the configuration that is shipped."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from perphd.adapters.kubernetes.client import ApiAccess, ApiClient, ApiMissing, KubernetesError
from perphd.cluster.asking import COPPER_CPU, COPPER_MEMORY, quantity
from tests.cluster.conftest import MANIFESTS
from tests.cluster.world import PODS, remove_pods, until
from tests.unit.test_copper_requests import pod
from tests.unit.test_webhook import certificate
from tools.cluster.control_plane import ControlPlane, free_ports

HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
ASKED = {"requests": {"cpu": "500m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}}


class Webhook:
    """``perphd-extender webhook`` as a process on loopback."""

    def __init__(self, folder: Path) -> None:
        self.port = free_ports(1)[0]
        self.certificate = certificate(folder, "perphd-webhook")
        self._command = [
            sys.executable, "-m", "perphd.adapters.kubernetes.extender_program", "webhook", "--listen",
            f"127.0.0.1:{self.port}", "--tls-cert", self.certificate.cert, "--tls-key", self.certificate.key,
        ]  # fmt: skip
        self.process = subprocess.Popen(self._command)

    async def ready(self) -> None:
        async with aiohttp.ClientSession() as http:

            async def answers() -> bool:
                assert self.process.poll() is None
                try:
                    async with http.get(f"https://127.0.0.1:{self.port}/healthz", ssl=False) as answer:
                        return answer.status == 200
                except aiohttp.ClientError:
                    return False

            await until(answers, 60.0)

    async def count(self, result: str) -> float:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"https://127.0.0.1:{self.port}/metrics", ssl=False) as answer,
        ):
            found = [
                line for line in (await answer.text()).splitlines() if f'_total{{result="{result}"}}' in line
            ]
            return float(found[0].split()[1]) if found else 0.0

    def configuration(self, plane: ControlPlane) -> Any:
        """What is shipped, with the address of this process in place of the service's."""
        file = str(MANIFESTS / "webhook.yaml")
        told = plane.kubectl("create", "--dry-run=client", "-o", "json", "-f", file)
        kinds = {each["kind"]: each for each in documents_of(told)}
        found = kinds["MutatingWebhookConfiguration"]
        authority = base64.b64encode(Path(self.certificate.cert).read_bytes()).decode()
        url = f"https://127.0.0.1:{self.port}/mutate"
        found["webhooks"][0]["clientConfig"] = {"url": url, "caBundle": authority}
        return found

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


@pytest.fixture
async def api(admin: ApiAccess) -> AsyncIterator[ApiClient]:
    async with ApiClient(admin) as client:
        yield client
        await remove_pods(client)
        with contextlib.suppress(ApiMissing):
            await client.request("DELETE", f"{HOOKS}/perphd-copper")


def documents_of(text: str) -> list[Any]:
    """JSON documents one after the other, as kubectl writes them."""
    found, reader, text = [], json.JSONDecoder(), text.strip()
    while text:
        document, end = reader.raw_decode(text)
        found.append(document)
        text = text[end:].strip()
    return found


def amounts(resources: Any) -> dict[str, dict[str, float]]:
    """Requests and limits as numbers: the API server writes 1000 as 1k."""
    return {kind: {name: quantity(text) for name, text in each.items()} for kind, each in resources.items()}


def named(name: str, **more: Any) -> dict[str, Any]:
    made = pod(ASKED, init=({"resources": {"requests": {"cpu": "1"}}},), **more)
    made["metadata"]["name"] = name
    return {"apiVersion": "v1", "kind": "Pod", **made, "spec": {**made["spec"], "schedulerName": "nobody"}}


async def test_copper_pods_are_rewritten_and_others_never(
    api: ApiClient, plane: ControlPlane, tmp_path: Path
) -> None:
    webhook = Webhook(tmp_path)
    try:
        await webhook.ready()
        await api.post(HOOKS, webhook.configuration(plane))
        tries = 0

        async def rewritten() -> Any:
            # A new configuration takes effect within seconds.
            nonlocal tries
            tries += 1
            made = await api.post(PODS, named(f"copper-{tries}"))
            resources = made["spec"]["containers"][0]["resources"]
            return made if COPPER_CPU in resources["requests"] else None

        made = await until(rewritten)
        asked = {COPPER_CPU: 500.0, COPPER_MEMORY: float(256 << 20)}
        assert amounts(made["spec"]["containers"][0]["resources"]) == {
            "requests": {"cpu": 0.0, "memory": 0.0, **asked},
            "limits": {"memory": float(512 << 20), **asked},
        }
        init = amounts(made["spec"]["initContainers"][0]["resources"])
        assert init == {"requests": {"cpu": 0.0, COPPER_CPU: 1000.0}, "limits": {COPPER_CPU: 1000.0}}
        assert made["status"]["qosClass"] == "Burstable"
        assert await webhook.count("rewritten") >= 1  # again where another webhook changed the pod: IfNeeded
        for band in ("gold", "silver", None):
            other = await api.post(PODS, named(f"other-{band or 'none'}", band=band))
            assert other["spec"]["containers"][0]["resources"] == ASKED
        system = "/api/v1/namespaces/kube-system/pods"
        before = await webhook.count("rewritten") + await webhook.count("left")
        kept = await api.post(system, named("copper-system"))
        await api.request("DELETE", f"{system}/copper-system", query={"gracePeriodSeconds": "0"})
        assert kept["spec"]["containers"][0]["resources"] == ASKED
        assert await webhook.count("rewritten") + await webhook.count("left") == before  # not even asked
        # What was rewritten and is sent again, as by a restored backup, is left as it is.
        again = {**made, "metadata": {"name": "again", "labels": made["metadata"]["labels"]}}
        assert (await api.post(PODS, again))["spec"]["containers"] == made["spec"]["containers"]
        with pytest.raises(KubernetesError, match="quantities must match"):
            await api.post(
                PODS,
                named("wrong")
                | {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "much"}}}]}},
            )

        webhook.stop()  # failurePolicy: Ignore
        plain = await api.post(PODS, named("without"))
        assert plain["spec"]["containers"][0]["resources"] == ASKED
    finally:
        webhook.stop()


async def test_a_defaulted_request_stays_zero_with_a_limit_range(
    api: ApiClient, plane: ControlPlane, tmp_path: Path
) -> None:
    ranges = "/api/v1/namespaces/default/limitranges"
    webhook = Webhook(tmp_path)
    limit = {"type": "Container", "defaultRequest": {"cpu": "200m", "memory": "64Mi"}}
    await api.post(
        ranges,
        {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "x"}, "spec": {"limits": [limit]}},
    )
    try:
        await webhook.ready()
        await api.post(HOOKS, webhook.configuration(plane))
        tries = 0

        async def rewritten() -> Any:
            nonlocal tries
            tries += 1
            made = await api.post(PODS, named(f"ranged-{tries}"))
            return made if COPPER_CPU in made["spec"]["containers"][0]["resources"]["requests"] else None

        made = await until(rewritten)
        requests = amounts(made["spec"]["initContainers"][0]["resources"])["requests"]
        # The range's default request of memory came before the webhook, and counts like one of the pod's own.
        assert requests == {"cpu": 0.0, "memory": 0.0, COPPER_CPU: 1000.0, COPPER_MEMORY: float(64 << 20)}
    finally:
        await api.request("DELETE", f"{ranges}/x")
        webhook.stop()
