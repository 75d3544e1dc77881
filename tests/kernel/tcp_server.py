"""A TCP server of commands, one a line, for tests: run as ``python tcp_server.py GROUP PORT-FAMILY MOVE``.

It enters the control group GROUP, listens on a free port of 127.0.0.1 or ::1 (or on a Unix socket), prints the
port, then enters the group MOVE if that is given. Commands: ``echo TEXT``; ``sleep SECONDS`` answers after that;
``big BYTES``; ``push N`` answers once and sends N lines more; ``hang`` never answers; ``close`` closes without an
answer; ``end`` ends the process.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

DEFER_ACCEPT = 9


def enter(group: str) -> None:
    with open(f"{group}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))


def serve(connection: socket.socket) -> None:
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection, connection.makefile("rb") as lines:
        for line in lines:
            command, _, rest = line.decode().rstrip("\n").partition(" ")
            match command:
                case "end":
                    os._exit(0)
                case "close":
                    return
                case "hang" | "note":
                    pass
                case "sleep":
                    time.sleep(float(rest))
                    connection.sendall(b"slept\n")
                case "big":
                    connection.sendall(bytes(int(rest)) + b"\n")
                case "push":
                    for _ in range(1 + int(rest)):
                        connection.sendall(b"pushed\n")
                        time.sleep(0.002)
                case _:
                    connection.sendall(line)


def listen(family: str) -> socket.socket:
    if family.startswith("/"):
        server = socket.socket(socket.AF_UNIX)
        server.bind(family)
        server.listen()
        return server
    if family == "dual":
        return socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    if family == "ipv6":
        return socket.create_server(("::1", 0), family=socket.AF_INET6)
    server = socket.create_server(("127.0.0.1", 0))
    if family == "defer":
        server.setsockopt(socket.IPPROTO_TCP, DEFER_ACCEPT, 1)
    return server


def main(group: str, family: str, move: str = "") -> None:
    enter(group)
    server = listen(family)
    if move:
        enter(move)
    print(server.getsockname()[1] if not family.startswith("/") else 0, flush=True)
    while True:
        connection, _ = server.accept()
        if family == "fork":
            if os.fork() == 0:
                enter(os.environ["CHILD_GROUP"])
                serve(connection)
                os._exit(0)
            connection.close()
        else:
            threading.Thread(target=serve, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
