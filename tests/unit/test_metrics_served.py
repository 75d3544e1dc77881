"""Metrics over TCP and in a file: who gets them, and what happens when they cannot be offered."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.config.file import parse
from perphd.config.tables import MetricsConfig
from perphd.control.kept_file import Textfile
from perphd.control.limits import ApiLimits
from perphd.control.metrics.listener import (
    MAX_CONNECTIONS,
    MAX_HANDSHAKES,
    MIN_TOKEN,
    MetricsListener,
    read_token,
)
from perphd.domain.endpoint import endpoint_text, parse_endpoint
from perphd.domain.errors import ConfigError

TOKEN = "x" * MIN_TOKEN
PAGE = b"# TYPE perphd_info gauge\nperphd_info 1.0\n"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize("listen", ["127.0.0.1:9464", "127.9.9.9:1", "[::1]:65535", ""])
def test_loopback_needs_nothing_more(listen: str):
    assert parse(f'[metrics]\nlisten = "{listen}"\n', "f").metrics.listen == listen


@pytest.mark.parametrize("listen", ["0.0.0.0:9464", "10.0.0.1:9464", "[::]:9464", "[2001:db8::1]:9464"])
def test_other_addresses_need_tls_and_a_token(listen: str):
    with pytest.raises(ConfigError, match="tls_cert, tls_key, bearer_token_file") as refused:
        parse(f'[metrics]\nlisten = "{listen}"\n', "f")
    assert refused.value.key == "metrics.listen"
    with pytest.raises(ConfigError, match="keys not set: bearer_token_file"):
        parse(f'[metrics]\nlisten = "{listen}"\ntls_cert = "/c"\ntls_key = "/k"\n', "f")
    whole = f'[metrics]\nlisten = "{listen}"\ntls_cert = "/c"\ntls_key = "/k"\nbearer_token_file = "/t"\n'
    assert parse(whole, "f").metrics.bearer_token_file == "/t"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('listen = "localhost:9464"', "metrics.listen"),
        ('listen = "127.0.0.1:0"', "metrics.listen"),
        ('listen = "127.0.0.1:70000"', "metrics.listen"),
        ('listen = "127.0.0.1"', "metrics.listen"),
        ('listen = "127.0.0.1:9464"\ntls_cert = "/c"', "metrics.tls_key"),
        ('bearer_token_file = "/t"', "metrics.bearer_token_file"),
        ('textfile = "perphd.prom"', "metrics.textfile"),
    ],
)
def test_refusals_name_the_key(text: str, key: str):
    with pytest.raises(ConfigError) as refused:
        parse(f"[metrics]\n{text}\n", "f")
    assert refused.value.key == key


@given(st.ip_addresses(), st.integers(1, 65535))
def test_endpoints_read_back(address: object, port: int):
    assert parse_endpoint(endpoint_text(str(address), port)) == (str(address), port)


async def fetched(url: str, **kwargs: object) -> tuple[int, bytes]:
    async with aiohttp.ClientSession() as session, session.get(url, **kwargs) as answer:  # type: ignore[arg-type]
        return answer.status, await answer.read()


async def test_metrics_are_served_and_nothing_else():
    port = free_port()
    listener = MetricsListener(MetricsConfig(listen=f"127.0.0.1:{port}"), lambda: PAGE)
    await listener.start()
    try:
        assert await fetched(f"http://127.0.0.1:{port}/metrics") == (200, PAGE)
        assert (await fetched(f"http://127.0.0.1:{port}/-/healthy"))[0] == 200
        for path in ("", "v1/status", "v1/config", "metrics/x"):
            assert (await fetched(f"http://127.0.0.1:{port}/{path}"))[0] == 404
    finally:
        await listener.stop()
    with pytest.raises(aiohttp.ClientError):
        await fetched(f"http://127.0.0.1:{port}/metrics")


def certificate(cert: Path, key: Path) -> None:
    """A certificate for 127.0.0.1 that signs itself."""
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("needs openssl")


async def test_a_token_and_tls_are_enforced(tmp_path: Path):
    cert, key, token = tmp_path / "cert", tmp_path / "key", tmp_path / "token"
    certificate(cert, key)
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    port = free_port()
    config = MetricsConfig(
        listen=f"127.0.0.1:{port}", tls_cert=str(cert), tls_key=str(key), bearer_token_file=str(token)
    )
    listener = MetricsListener(config, lambda: PAGE)
    await listener.start()
    try:
        trusted = ssl.create_default_context(cafile=str(cert))
        url = f"https://127.0.0.1:{port}/metrics"
        assert (await fetched(url, ssl=trusted))[0] == 401
        for given_token in ("", "x", TOKEN[:-1], f"{TOKEN}x", "ä" * MIN_TOKEN):
            header = {"Authorization": f"Bearer {given_token}"}
            assert (await fetched(url, ssl=trusted, headers=header))[0] == 401
        header = {"Authorization": f"Bearer {TOKEN}"}
        assert await fetched(url, ssl=trusted, headers=header) == (200, PAGE)
        with pytest.raises(aiohttp.ClientError):
            await fetched(f"http://127.0.0.1:{port}/metrics", headers=header)
    finally:
        await listener.stop()


async def test_tls_connections_beyond_the_limit_are_closed(tmp_path: Path):
    cert, key = tmp_path / "cert", tmp_path / "key"
    certificate(cert, key)
    port = free_port()
    listener = MetricsListener(
        MetricsConfig(listen=f"127.0.0.1:{port}", tls_cert=str(cert), tls_key=str(key)), lambda: PAGE
    )
    await listener.start()
    trusted, writers = ssl.create_default_context(cafile=str(cert)), []
    try:
        for _ in range(MAX_CONNECTIONS):
            writers.append((await asyncio.open_connection("127.0.0.1", port, ssl=trusted))[1])
        await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
        writers.append(writer)
        answer = await asyncio.wait_for(reader.read(), 10.0)
        assert answer.startswith(b"HTTP/1.1 503 ")
    finally:
        for writer in writers:
            writer.close()
        await listener.stop()


async def test_a_client_that_never_shakes_hands_is_dropped(tmp_path: Path):
    cert, key = tmp_path / "cert", tmp_path / "key"
    certificate(cert, key)
    port = free_port()
    config = MetricsConfig(listen=f"127.0.0.1:{port}", tls_cert=str(cert), tls_key=str(key))
    listener = MetricsListener(config, lambda: PAGE, ApiLimits(idle_s=0.3))
    await listener.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(reader.read(), 20.0) == b""
        writer.close()
    finally:
        await listener.stop()


async def test_handshakes_that_do_not_end_are_few_and_keep_nobody_out(tmp_path: Path):
    cert, key = tmp_path / "cert", tmp_path / "key"
    certificate(cert, key)
    port = free_port()
    config = MetricsConfig(listen=f"127.0.0.1:{port}", tls_cert=str(cert), tls_key=str(key))
    listener = MetricsListener(config, lambda: PAGE)
    await listener.start()
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_HANDSHAKES + 3)]
    try:
        for reader, _ in silent[:3]:
            assert await asyncio.wait_for(reader.read(), 20.0) == b""
        trusted = ssl.create_default_context(cafile=str(cert))
        assert await fetched(f"https://127.0.0.1:{port}/metrics", ssl=trusted) == (200, PAGE)
        assert not silent[-1][0].at_eof()
    finally:
        await listener.stop()
        for _, writer in silent:
            writer.close()


def test_tokens_that_are_none_are_refused(tmp_path: Path):
    token = tmp_path / "token"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token(str(token))
    token.write_text(TOKEN[:-1])
    token.chmod(0o600)
    with pytest.raises(ConfigError, match="has no valid token"):
        read_token(str(token))
    token.write_text(TOKEN)
    token.chmod(0o644)
    with pytest.raises(ConfigError, match="accessible to other users"):
        read_token(str(token))
    token.chmod(0o640)
    assert read_token(str(token)) == TOKEN.encode()


async def test_an_address_that_is_taken_is_had_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("perphd.control.metrics.listener.AGAIN_S", 0.01)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        listener = MetricsListener(MetricsConfig(listen=f"127.0.0.1:{port}"), lambda: PAGE)
        await listener.start()  # the daemon goes on
        assert f"127.0.0.1:{port}" in caplog.text
    try:
        for _ in range(500):
            await asyncio.sleep(0.01)
            try:
                assert await fetched(f"http://127.0.0.1:{port}/metrics") == (200, PAGE)
                break
            except aiohttp.ClientConnectionError:
                continue
        else:
            pytest.fail("the address was not taken up")
    finally:
        await listener.stop()


async def test_the_textfile_is_whole_readable_and_goes_at_the_end(tmp_path: Path):
    path = tmp_path / "perphd.prom"
    previous = os.umask(0o077)
    try:
        textfile = Textfile(str(path), 0.01, lambda: PAGE)
        await textfile.start()
        await asyncio.sleep(0.05)
        assert path.read_bytes() == PAGE
        assert path.stat().st_mode & 0o777 == 0o644
        assert os.listdir(tmp_path) == ["perphd.prom"]
        await textfile.stop()
    finally:
        os.umask(previous)
    assert not path.exists()


async def test_a_page_that_cannot_be_made_is_told_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "perphd.prom"
    failures: list[Exception] = [KeyError("no such series"), ValueError("no such series")]

    def page() -> bytes:
        if failures:
            raise failures.pop()
        return PAGE

    textfile = Textfile(str(path), 0.01, page)
    await textfile.start()
    try:
        for _ in range(500):
            await asyncio.sleep(0.01)
            if path.exists():
                break
        assert path.read_bytes() == PAGE
        assert caplog.text.count("cannot be updated") == 1
    finally:
        await textfile.stop()


def test_a_folder_that_is_missing_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    textfile = Textfile(str(tmp_path / "no/perphd.prom"), 1.0, lambda: PAGE)
    for _ in range(3):
        textfile.write()
    assert caplog.text.count("cannot be written") == 1


def test_a_link_in_the_folder_is_not_followed(tmp_path: Path):
    target = tmp_path / "target"
    target.write_text("kept")
    (tmp_path / ".perphd.prom.new").symlink_to(target)
    Textfile(str(tmp_path / "perphd.prom"), 1.0, lambda: PAGE).write()
    assert target.read_text() == "kept"
    assert (tmp_path / "perphd.prom").read_bytes() == PAGE
