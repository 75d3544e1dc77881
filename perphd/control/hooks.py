"""Sends notices to the webhooks and commands of ``[[notify]]``, without blocking the loop."""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp

from perphd import __version__
from perphd.agent import spawn
from perphd.agent.tally import Tally
from perphd.config.tables import NotifyConfig
from perphd.domain.decision import Cause, Decision, Health, target_reachable
from perphd.domain.incident import Condition, IncidentKind, Notice, NoticeFilter
from perphd.domain.sample import Quality
from perphd.domain.status import AgentStatus, WorkloadStatus
from perphd.domain.wire import encode, json_of
from perphd.domain.workload import Kind
from perphd.host.tls import verified

log = logging.getLogger("perphd")

LOOK_EVERY_S: Final = 5.0
RETRY_S: Final = (2.0, 10.0)
"""Pauses in seconds before the second and the third attempt."""
MOST_WAITING: Final = 32
"""Maximum number of waiting notices per receiver; beyond it, the oldest is dropped."""
SCHEMA: Final = 1


class DeliveryError(Exception):
    """A receiver did not accept a notice."""


class NoticeHooks:
    """Checks the status every few seconds and delivers due notices, one at a time for each receiver.

    Args:
        receivers: the receivers of the configuration.
        status, tally: return the present state and the counters of the agent.
        clock, wall: return monotonic seconds, and seconds since 1970.
        every_s: time between two checks.
    """

    def __init__(
        self,
        receivers: Sequence[NotifyConfig],
        status: Callable[[], AgentStatus],
        tally: Callable[[], Tally],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._receivers = [(receiver, NoticeFilter(receiver.rule)) for receiver in receivers]
        self._status, self._tally, self._clock, self._wall = status, tally, clock, wall
        self._every_s = every_s
        self._tasks: list[asyncio.Task[None]] = []
        self._queues: list[asyncio.Queue[dict[str, Any]]] = []

    async def start(self) -> None:
        """Start checking."""
        for receiver, _ in self._receivers:
            queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(MOST_WAITING)
            self._queues.append(queue)
            self._tasks.append(asyncio.create_task(_deliver_all(receiver, queue)))
        self._tasks.append(asyncio.create_task(self._look_on()))

    async def stop(self) -> None:
        """Stop; waiting notices are dropped."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._queues.clear()

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                self.look()
            except Exception:
                log.exception("notify: checking the status failed")

    def look(self) -> None:
        """Queue the notices that are due."""
        now_s, found = self._clock(), conditions(self._status(), self._tally())
        for (_, filtered), queue in zip(self._receivers, self._queues, strict=True):
            for notice in filtered.look(now_s, found):
                if queue.full():
                    queue.get_nowait()
                queue.put_nowait(payload(notice, now_s, self._wall()))


def payload(notice: Notice, now_s: float, wall_s: float) -> dict[str, Any]:
    """The body of a notice."""
    condition = notice.condition
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "perphd": __version__,
        "host": socket.gethostname(),
        "at": _rfc3339(wall_s),
        "state": "began" if notice.began else "ended",
        "kind": condition.kind.value,
        "workload": condition.workload,
        "text": condition.text,
        "since": _rfc3339(wall_s - (now_s - notice.since_s)),
        "left_out": notice.left_out,
        "decision": encode(condition.decision),
    }
    return body


def _rfc3339(wall_s: float) -> str:
    return datetime.datetime.fromtimestamp(wall_s, datetime.UTC).isoformat(timespec="seconds")


async def _deliver_all(receiver: NotifyConfig, queue: asyncio.Queue[dict[str, Any]]) -> None:
    """Deliver notices in order. Logs the start and the end of a receiver's failure, not each failed notice."""
    failing = False
    while True:
        body = await queue.get()
        error = await _deliver_with_retries(receiver, body)
        if error is not None and not failing:
            about = " ".join(filter(None, (body["kind"], body["workload"])))
            log.error("notify %s: a notice was not delivered (%s): %s", receiver.name, about, error)
        elif error is None and failing:
            log.info("notify %s: notices are delivered again", receiver.name)
        failing = error is not None


async def _deliver_with_retries(receiver: NotifyConfig, body: dict[str, Any]) -> DeliveryError | None:
    """Try to deliver a notice, up to three times. Returns None on success, else the last error."""
    error: DeliveryError | None = None
    for pause_s in (0.0, *RETRY_S):
        await asyncio.sleep(pause_s)
        try:
            async with asyncio.timeout(receiver.timeout_s):
                await (_post(receiver, body) if receiver.url else _run(receiver, body))
        except TimeoutError:
            what = "the webhook did not answer" if receiver.url else f"{receiver.argv[0]} did not end"
            error = DeliveryError(f"{what} within {receiver.timeout_s:g} s")
        except DeliveryError as exc:
            error = exc
        except (
            Exception
        ) as exc:  # for example, no thread or no memory is left: the receiver's task must survive
            log.exception("notify %s: delivering failed", receiver.name)
            error = DeliveryError(f"{type(exc).__name__}: {exc}")
        else:
            return None
    return error


async def _post(receiver: NotifyConfig, body: dict[str, Any]) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": f"perphd/{__version__}"}
    try:
        if receiver.bearer_token_file:
            text = await asyncio.to_thread(Path(receiver.bearer_token_file).read_text)
            token = text.partition("\n")[0].strip()
            headers["Authorization"] = f"Bearer {token}"
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                receiver.url,
                data=json_of(body).encode(),
                headers=headers,
                allow_redirects=False,
                **await verified(receiver.url),
            ) as answer,
        ):
            if answer.status >= 300:
                raise DeliveryError(f"the webhook answered {answer.status}")
    except (OSError, ValueError, aiohttp.ClientError) as exc:
        raise DeliveryError(str(exc) or type(exc).__name__) from exc


async def _run(receiver: NotifyConfig, body: dict[str, Any]) -> None:
    """Run the command in a thread: starting a process can take long on a busy machine, and the loop must not
    block.
    """
    stop = threading.Event()
    data = json_of(body).encode()
    try:
        status = await asyncio.to_thread(
            spawn.tell, receiver.argv, data, os.environ, receiver.timeout_s, stop
        )
    except TimeoutError:
        raise
    except OSError as exc:
        raise DeliveryError(f"{receiver.argv[0]} cannot be run: {exc.strerror or exc}") from exc
    finally:
        stop.set()
    if status != 0:
        raise DeliveryError(f"{receiver.argv[0]} ended with status {status}")


def conditions(status: AgentStatus, tally: Tally) -> tuple[Condition, ...]:
    """All present problems, in a fixed order."""
    found: list[Condition] = []
    for item in status.workloads:
        if item.spec.kind is Kind.LRA and item.present:
            found += _of_lra(item)
    for pause in status.pauses:
        why = f": {pause.reason}" if pause.reason else ""
        text = f"{pause.workload or 'all workloads'}: paused by {pause.by}{why}"
        found.append(Condition(IncidentKind.PAUSE, pause.workload, text))
    for workload, path, text in tally.conflicts:
        found.append(Condition(IncidentKind.CONFLICT, workload, text, path))
    return tuple(found)


def _of_lra(item: WorkloadStatus) -> list[Condition]:
    name, found = item.spec.name, []
    sample = item.full_sample or item.sample
    if item.spec.sli is not None and sample is not None and sample.has(Quality.SLI_MISSING):
        text = f"{name}: the indicator ({item.spec.sli.source}) does not answer"
        found.append(Condition(IncidentKind.SLI_LOST, name, text))
    decision = item.decision
    if decision is not None and decision.verdict.health is Health.DEGRADED:
        found.append(Condition(IncidentKind.DEGRADED, name, _degraded(name, decision), decision=decision))
        if target_reachable(decision) is False:
            text = f"{name}: no setting is predicted to meet its target"
            found.append(Condition(IncidentKind.UNREACHABLE, name, text, decision=decision))
    return found


def _degraded(name: str, decision: Decision) -> str:
    verdict = decision.verdict
    short = "" if verdict.cause in (Cause.NONE, Cause.UNKNOWN) else f", short of {verdict.cause}"
    culprit = f" because of {verdict.culprit}" if verdict.culprit else ""
    return f"{name}: below its target{short}{culprit}"
