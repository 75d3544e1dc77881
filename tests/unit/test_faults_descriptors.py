"""When no descriptor is left: what needs one says so, and neither the loop nor the log is flooded."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perphd.agent import selfcost
from perphd.agent.triggers import EarlyTicks
from perphd.config.tables import WakeConfig
from perphd.control.limits import ApiLimits
from perphd.domain.errors import Full
from perphd.domain.reading import available
from perphd.host.cgroup.population import PopulationWatch
from perphd.host.psi import PsiTrigger
from tests.unit.control_fake import Served

Listening = Callable[[str], PopulationWatch | PsiTrigger]


@contextmanager
def no_more_than(more: int) -> Iterator[None]:
    """So many descriptors can be opened in this process, and none above."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.dup(0) for _ in range(more + 1)]
    for fd in free:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1], limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def group(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.events").write_text("populated 0\n")
    for kind in ("cpu", "memory", "io"):
        os.mkfifo(tmp_path / f"{kind}.pressure")  # which, other than a plain file, can be polled
    return tmp_path


@pytest.mark.parametrize("free", [0, 1], ids=["for the file", "for its epoll"])
@pytest.mark.parametrize(
    "listen",
    [
        lambda group: PopulationWatch(group, lambda: None),
        lambda group: PsiTrigger(f"{group}/cpu.pressure", lambda: None, lambda: None),
    ],
    ids=["batch that starts", "pressure"],
)
async def test_listening_is_refused_in_words_and_leaks_nothing(
    free: int, listen: Listening, group: Path
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with no_more_than(free), pytest.raises(Full, match=str(group)):
        listen(str(group))
    assert len(os.listdir("/proc/self/fd")) == before


async def test_the_waker_goes_on_without_and_listens_once_there_are_some_again(group: Path) -> None:
    now = [0.0]
    early_ticks = EarlyTicks(WakeConfig(), lambda _: str(group), lambda: now[0])
    for free in (0, 1):
        with no_more_than(free):
            early_ticks.await_batch({"job": "/g"}, (), ())
            early_ticks.follow({"app": "/g"})
        assert early_ticks.armed == 0
        now[0] += 60.0
    assert not early_ticks.refused, "that is not for good"
    early_ticks.await_batch({"job": "/g"}, (), ())
    early_ticks.follow({"app": "/g"})
    armed = early_ticks.armed
    early_ticks.close()
    assert armed == 3


def test_what_it_costs_itself_is_then_not_known() -> None:
    meter = selfcost.CostMeter()
    meter.tick(1.0, 0.001)
    with no_more_than(0):
        meter.tick(1.0 + selfcost.REFRESH_S, 0.001)
        cost = meter.cost()
        assert not available(cost.rss_bytes)
        if not os.stat("/proc/self/fd").st_size:  # before Linux 6.2 counting takes a descriptor
            assert not available(cost.open_fds)
        assert available(cost.cpu_pct), "that takes no descriptor"
        assert available(cost.tick_ms_p50)
    meter.tick(1.0 + 2 * selfcost.REFRESH_S, 0.001)
    cost = meter.cost()
    assert available(cost.rss_bytes)
    assert cost.open_fds == len(os.listdir("/proc/self/fd")) - 1


async def test_a_connection_that_cannot_be_taken_is_one_complaint_and_is_taken_later(tmp_path: Path) -> None:
    served = Served(tmp_path, ApiLimits())
    complaints: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(str(context["message"])))
    await served.server.start()
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        client.setblocking(False)
        with no_more_than(0):
            client.connect(served.socket)
            for _ in range(10):
                await asyncio.sleep(0)
        assert complaints == ["socket.accept() out of system resource"]
        await loop.sock_sendall(client, b"GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await loop.sock_recv(client, 1 << 16)).startswith(b"HTTP/1.1 200 ")
        assert len(complaints) == 1
    finally:
        client.close()
        await served.server.stop()
