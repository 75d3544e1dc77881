"""Servers of protocols for tests, each one process: run as ``python tcp_protocols.py GROUP PROTOCOL [FILE]``.

It enters the control group GROUP, listens on a free port of 127.0.0.1 and prints it. Protocols: ``many`` answers every
line of ten thousand connections from one thread; ``http2`` answers each stream, in their order, 2 ms each; ``tls``
answers lines over TLS, with the certificate and key in FILE; ``http`` is HTTP/1.1 that says ``100 Continue``;
``fastopen`` takes data that comes with a SYN, and asks so itself, over as many connections as FILE says.
"""

from __future__ import annotations

import asyncio
import http.server
import os
import socket
import ssl
import struct
import sys
import time
from collections.abc import Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, HEADERS = 4, 1
END = 0x5
"""END_STREAM and END_HEADERS."""
GET = b"\x82\x86\x84"
OK = b"\x88"
"""Header blocks of fields in HPACK's static table: GET http /, and :status 200."""
STREAM_S = 0.002
FASTOPEN = 23


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame of HTTP/2."""
    return struct.pack("!I", len(payload))[1:] + bytes((kind, flags)) + struct.pack("!I", stream) + payload


def frames(connection: socket.socket) -> Iterator[tuple[int, int, int]]:
    """(type, flags, stream) of every frame that comes in."""
    with connection.makefile("rb") as file:
        while len(head := file.read(9)) == 9:
            file.read(int.from_bytes(head[:3], "big"))
            yield head[3], head[4], int.from_bytes(head[5:9], "big") & 0x7FFFFFFF


async def many(server: socket.socket) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)

    async with await asyncio.start_server(serve, sock=server, backlog=4096) as running:
        await running.serve_forever()


def lines(connection: socket.socket) -> None:
    with connection.makefile("rb") as file:
        for line in file:
            connection.sendall(line)


def http2(connection: socket.socket) -> None:
    preface = b""
    while len(preface) < len(PREFACE):
        preface += connection.recv(len(PREFACE) - len(preface))
    connection.sendall(frame(SETTINGS, 0, 0))
    for kind, _, stream in frames(connection):
        if kind == HEADERS:
            time.sleep(STREAM_S)
            connection.sendall(frame(HEADERS, END, stream, OK))


def open_fast(server: socket.socket, connections: int) -> None:
    """Two requests on each connection, the first with the SYN where the client has the server's cookie."""
    for _ in range(connections):
        with socket.socket() as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.sendto(b"echo\n", socket.MSG_FASTOPEN, server.getsockname())
            connection, _ = server.accept()
            with connection:
                for n in range(2):
                    if n > 0:
                        client.sendall(b"echo\n")
                    connection.sendall(connection.recv(100))
                    assert client.recv(100) == b"echo\n"


class Continuing(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def main(group: str, protocol: str, file: str = "") -> None:
    with open(f"{group}/cgroup.procs", "w") as procs:
        procs.write(str(os.getpid()))
    if protocol == "http":
        serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Continuing)
        print(serving.server_port, flush=True)
        serving.serve_forever()
    server = socket.create_server(("127.0.0.1", 0), backlog=4096)
    if protocol == "fastopen":
        server.setsockopt(socket.IPPROTO_TCP, FASTOPEN, 16)
        return open_fast(server, int(file))
    print(server.getsockname()[1], flush=True)
    if protocol == "many":
        asyncio.run(many(server))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if protocol == "tls":
        context.load_cert_chain(file)
    while True:
        connection, _ = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            if protocol == "tls":
                with context.wrap_socket(connection, server_side=True) as wrapped:
                    lines(wrapped)
            elif protocol == "http2":
                http2(connection)
            else:
                lines(connection)


if __name__ == "__main__":
    main(*sys.argv[1:])
