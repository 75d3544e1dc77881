"""Certificate authorities: none are read when the daemon starts, all of them count when it connects."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DELIVERY = """
import asyncio, os, ssl, sys
from perphd.host.tls import no_authorities
before = dict(os.environ)
with no_authorities():
    import aiohttp
    from aiohttp import web
    read_at_import = ssl.create_default_context().cert_store_stats()["x509"]
assert dict(os.environ) == before
from perphd.config.receivers import NotifyConfig
from perphd.control.hooks import DeliveryError, _post

async def main():
    got = []
    async def take(request):
        got.append(await request.json())
        return web.Response()
    app = web.Application()
    app.router.add_post("/", take)
    runner = web.AppRunner(app)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*sys.argv[1:])
    site = web.TCPSite(runner, "localhost", 0, ssl_context=context)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    error = ""
    try:
        await _post(NotifyConfig(name="n", url=f"https://localhost:{port}/"), {"text": "x"})
    except DeliveryError as exc:
        error = str(exc)
    await runner.cleanup()
    print(read_at_import, len(got), "CERTIFICATE_VERIFY_FAILED" in error)
asyncio.run(main())
"""


@pytest.mark.parametrize(("trusts", "expected"), [(True, "0 1 False"), (False, "0 0 True")])
def test_a_webhook_is_trusted_by_the_hosts_authorities_alone(
    trusts: bool, expected: str, tmp_path: Path
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    environment = {**os.environ, "SSL_CERT_FILE": str(certificate if trusts else os.devnull)}
    done = subprocess.run(
        [sys.executable, "-c", DELIVERY, certificate, key],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.stdout.strip() == expected, done.stderr
