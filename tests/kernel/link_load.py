"""Traffic over a link: ``serve PORT`` prints what arrives each second, ``send`` fills connections from control groups.

link_load.py serve PORT                                    a line "TIME BYTES_PER_S" each second
link_load.py send HOST PORT FLOWS SECONDS CGROUP...        enters the groups first
link_load.py obey HOST PORT FLOWS SECONDS HINTS CGROUP...  sends nothing while the file of hints names a device
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time
from pathlib import Path

BLOCK = bytes(1 << 16)


def serve(port: int) -> None:
    """Receive from everybody until killed."""
    poll = selectors.DefaultSelector()
    with socket.create_server(("", port)) as server:
        poll.register(server, selectors.EVENT_READ)
        got, since_s = 0, time.monotonic()
        while True:
            for key, _ in poll.select(0.05):
                if key.fileobj is server:
                    poll.register(server.accept()[0], selectors.EVENT_READ)
                    continue
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(1 << 18)
                got += len(data)
                if not data:
                    poll.unregister(key.fileobj)
                    key.fileobj.close()
            now_s = time.monotonic()
            if now_s - since_s >= 1.0:
                print(now_s, got / (now_s - since_s), flush=True)
                got, since_s = 0, now_s


def send(host: str, port: int, flows: int, seconds: float, hints: str) -> None:
    """Keep that many connections full."""
    poll = selectors.DefaultSelector()
    for _ in range(flows):
        one = socket.create_connection((host, port), timeout=10)
        one.setblocking(False)
        poll.register(one, selectors.EVENT_WRITE)
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        if hints and "PERPHD_BACK_OFF=link" in Path(hints).read_text():
            time.sleep(0.2)
            continue
        for key, _ in poll.select(0.2):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.send(BLOCK)


def main() -> None:
    """See the module."""
    what, *words = sys.argv[1:]
    if what == "serve":
        serve(int(words[0]))
        return
    host, port, flows, seconds, *rest = words
    hints = rest.pop(0) if what == "obey" else ""
    for group in rest:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
    send(host, int(port), int(flows), float(seconds), hints)


if __name__ == "__main__":
    main()
