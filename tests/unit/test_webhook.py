"""The webhook's answers to reviews, its server over TLS, and a certificate that is renewed in place."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from perphd.adapters.kubernetes.extender_program import main
from perphd.adapters.kubernetes.serving import Address, Certificate, listening
from perphd.adapters.kubernetes.webhook import WebhookServer, reviewed
from perphd.cluster.asking import COPPER_CPU, ExtenderError
from perphd.domain.errors import PerphError
from tests.unit.test_copper_requests import pod
from tools.cluster.control_plane import free_ports


def review(data: Any, **more: Any) -> dict[str, Any]:
    request = {
        "uid": "u-1", "namespace": "default", "operation": "CREATE", "object": data,
        "resource": {"group": "", "version": "v1", "resource": "pods"}, **more,
    }  # fmt: skip
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def patch_of(answer: dict[str, Any]) -> Any:
    response = answer["response"]
    assert response["allowed"] is True
    assert response["uid"] == "u-1"
    assert ("patch" in response) == (response.get("patchType") == "JSONPatch")
    return json.loads(base64.b64decode(response["patch"])) if "patch" in response else []


def test_a_new_copper_pod_is_rewritten() -> None:
    answer, result = reviewed(review(pod({"requests": {"cpu": "1"}})))
    assert result == "rewritten"
    assert patch_of(answer)[0]["value"]["requests"] == {"cpu": "0", COPPER_CPU: "1000"}


@pytest.mark.parametrize(
    "more",
    [
        {"operation": "UPDATE"},
        {"subResource": "ephemeralcontainers"},
        {"resource": {"resource": "deployments"}},
        {"namespace": "kube-system"},
    ],
)
def test_everything_else_is_left(more: dict[str, Any]) -> None:
    answer, result = reviewed(review(pod({"requests": {"cpu": "1"}}), **more))
    assert (patch_of(answer), result) == ([], "left")


def test_an_unreadable_pod_is_admitted_with_a_warning() -> None:
    answer, result = reviewed(review(pod({"requests": {"cpu": "much"}})))
    assert (patch_of(answer), result) == ([], "unreadable")
    assert "'much' is not a quantity" in answer["response"]["warnings"][0]


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        ([], "apiVersion is None"),
        ({"apiVersion": "admission.k8s.io/v1beta1"}, "v1beta1"),
        ({"apiVersion": "admission.k8s.io/v1"}, "request is not an object"),
        ({"apiVersion": "admission.k8s.io/v1", "request": {"uid": ""}}, "uid is missing"),
    ],
)
def test_what_is_no_review_is_refused(call: Any, complaint: str) -> None:
    with pytest.raises(ExtenderError, match=complaint):
        reviewed(call)


_KEYS = "metadata spec labels perphd.io/band containers initContainers resources requests limits cpu".split()
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["copper", "1", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
    max_leaves=25,
)


@given(_JSON)
def test_no_pod_whatever_it_holds_is_denied(data: Any) -> None:
    answer, _ = reviewed(review(data))
    assert answer["response"]["allowed"] is True


async def test_calls_are_counted_and_nonsense_is_400() -> None:
    async with TestClient(TestServer(WebhookServer().app())) as client:
        assert (await client.post("/mutate", json=review(pod({"requests": {"cpu": "1"}})))).status == 200
        for body in ("", "[" * 100000, "{}"):
            answer = await client.post("/mutate", data=body)
            assert answer.status == 400
            assert "perphd: " in (await answer.json())["error"]
        text = await (await client.get("/metrics")).text()
        assert 'perphd_webhook_reviews_total{result="rewritten"} 1.0' in text
        assert 'perphd_webhook_reviews_total{result="invalid"} 3.0' in text
        assert (await client.get("/healthz")).status == 200


def certificate(folder: Path, name: str) -> Certificate:
    cert, key = folder / "tls.crt", folder / "tls.key"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
        "-keyout", f"{key}.new", "-out", f"{cert}.new",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    os.replace(f"{key}.new", key)
    os.replace(f"{cert}.new", cert)
    return Certificate(str(cert), str(key))


async def test_a_renewed_certificate_is_served_without_a_restart(tmp_path: Path) -> None:
    first = certificate(tmp_path, "first")
    at = Address("127.0.0.1", free_ports(1)[0])

    async def served() -> str:
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection(at.host, at.port, ssl=trusting)
        found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return ssl.DER_cert_to_PEM_cert(found)

    async with AsyncExitStack() as stack:
        (renewal,) = await listening(stack, WebhookServer().app(), at, first, renewal_s=0.01)
        renewing = asyncio.create_task(renewal)
        try:
            before = await served()
            assert before.strip() == Path(first.cert).read_text().strip()
            Path(first.key).write_text("half a key")  # the certificate's key is still being written
            await asyncio.sleep(0.05)
            assert await served() == before
            certificate(tmp_path, "second")
            for _ in range(500):
                if await served() != before:
                    break
                await asyncio.sleep(0.01)
            assert (await served()).strip() == Path(first.cert).read_text().strip()
        finally:
            renewing.cancel()


def test_wrong_usage_is_refused(tmp_path: Path) -> None:
    good = certificate(tmp_path, "good")
    for options, complaint in (
        (["--tls-cert", good.cert], "Missing option '--tls-key'"),
        (["--tls-cert", good.cert, "--tls-key", good.cert], "TLS: "),
        (["--tls-cert", good.cert, "--tls-key", good.key, "--listen", "here"], "must be an IP address"),
    ):
        told = CliRunner().invoke(main, ["webhook", *options])
        assert told.exit_code != 0
        assert complaint in told.output
    with pytest.raises(PerphError, match="TLS: "):
        Certificate(good.cert, good.key, str(tmp_path / "none.crt")).context()
