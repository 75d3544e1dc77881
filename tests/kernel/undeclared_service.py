"""An HTTP-like service for tests and its open-loop client, each a process of its own.

``server PORT_FILE SLEEP_FILE`` answers every line after a little work, and after as many seconds as a file says.
``client PORT_FILE INDICATORS`` asks at a constant rate and writes what it saw as indicators, twice a second.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

RATE_PER_S = 120.0
WORK_LOOPS = 40_000
WINDOW_S = 2.0


async def serve(port_file: str, sleep_file: str) -> None:
    """Answer until killed."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while line := await reader.readline():
                total = 0
                for n in range(WORK_LOOPS):
                    total += n
                sleep_s = float(Path(sleep_file).read_text() or "0")
                if sleep_s:
                    await asyncio.sleep(sleep_s)
                writer.write(line)
                await writer.drain()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    Path(port_file).write_text(str(server.sockets[0].getsockname()[1]))
    async with server:
        await server.serve_forever()


async def ask(port_file: str, indicators: str) -> None:
    """Ask at a constant rate, whatever the answers take."""
    with suppress(PermissionError):  # its own waiting must not look like the service's
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    while not (Path(port_file).exists() and Path(port_file).read_text()):
        time.sleep(0.1)  # noqa: ASYNC251 (nothing else runs yet)
    port = int(Path(port_file).read_text())
    free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    seen: deque[tuple[float, float]] = deque()
    running: set[asyncio.Task[None]] = set()
    done = 0

    async def one() -> None:
        nonlocal done
        began_s = time.monotonic()
        pair = free.pop() if free else await asyncio.open_connection("127.0.0.1", port)
        pair[1].write(b"ask\n")
        await pair[0].readline()
        free.append(pair)
        done += 1
        seen.append((time.monotonic(), 1000.0 * (time.monotonic() - began_s)))

    next_s = told_s = time.monotonic()
    while True:
        now_s = time.monotonic()
        while next_s <= now_s:
            task = asyncio.create_task(one())
            running.add(task)
            task.add_done_callback(running.discard)
            next_s += 1.0 / RATE_PER_S
        if now_s - told_s >= 0.5:
            told_s = now_s
            while seen and seen[0][0] < now_s - WINDOW_S:
                seen.popleft()
            ordered = sorted(latency for _, latency in seen)
            if ordered:
                p50, p95 = ordered[len(ordered) // 2], ordered[int(0.95 * len(ordered))]
                lines = [f"work_total = {done}", f"load_per_s = {RATE_PER_S}"]
                lines += [f"latency_p50_ms = {p50}", f"latency_p95_ms = {p95}"]
                text = "\n".join(lines)
                Path(f"{indicators}.new").write_text(text)
                os.replace(f"{indicators}.new", indicators)
        await asyncio.sleep(max(0.001, next_s - time.monotonic()))


if __name__ == "__main__":
    role, *args = sys.argv[1:]
    asyncio.run(serve(*args) if role == "server" else ask(*args))
