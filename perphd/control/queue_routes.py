"""The part of the control API about jobs of the batch queue: submit, list, show, log, cancel.

A job runs as the user who submitted it, as reported by the kernel. Its owner and administrators see all of it and may
cancel it; other users see its number, name and state.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from perphd.agent.queue.batch_queue import BatchQueue
from perphd.agent.queue.rows import workload_name
from perphd.batch.job import JobSpec, QueuedJob
from perphd.batch.start_score import SCORED, CacheFill, CandidateStage, stages_of, start_score
from perphd.config.schema import show
from perphd.control.access import Access, Peer, Right
from perphd.control.errors import ApiError, Code
from perphd.control.limits import MAX_REASON
from perphd.control.port import AgentPort
from perphd.domain.policy import Snapshot
from perphd.domain.reading import Unavailable, available
from perphd.domain.wire import encode, json_of
from perphd.qos.bands import QosBand

KEYS: Final = (
    "command", "name", "cores", "memory_bytes", "deadline_in_s", "band", "after", "output", "environment",
    "directory", "retries", "array", "elastic", "hints",
)  # fmt: skip
SCORE_KEYS: Final = ("job", "stages")
EVENT_KEYS: Final = ("duration_s", "copper_share", "ramp_s", "reason")
MAX_EVENT_S: Final = 31 * 86400.0
DEFAULT_CORES: Final = 1.0
MAX_ARRAY: Final = 10_000
MAX_WORKERS: Final = 256
"""Maximum number of workers of an elastic job, equal to the greatest value of ``[tuning.queue] most_running``."""
MAX_DEADLINE_S: Final = 366 * 86400.0
MAX_RETRIES: Final = 1000
MAX_STAGES: Final = 100
MAX_STAGE_S: Final = 366 * 86400.0
MAX_DEMAND: Final = 1e18
MAX_STORED_BYTES: Final = 64 << 20
"""Maximum size of one submission in bytes, because an array may have many jobs with a large environment."""
DEFAULT_ROWS: Final = 500
MAX_ROWS: Final = 100_000
Body = Callable[[web.Request, Sequence[str]], Awaitable[dict[str, Any]]]


class QueueRoutes:
    """Answers about jobs. ``body``: reads a request's body."""

    def __init__(self, agent: AgentPort, access: Access, body: Body) -> None:
        self._agent, self._access, self._body = agent, access, body

    async def listed(self, request: web.Request, peer: Peer) -> Any:
        """GET /v1/jobs: running and waiting jobs; with ``all``, ended jobs as well."""
        queue = self._queue()
        limit = _whole(request.query.get("limit", str(DEFAULT_ROWS)), "limit", 1, MAX_ROWS)
        everything = request.query.get("all") == "1"
        rows = await queue.rows(lambda job: self._sees(peer, job), everything, limit)
        summary = queue.summary()
        text = await asyncio.to_thread(
            lambda: json_of({"jobs": encode(tuple(rows)), "queue": encode(summary)})
        )
        return web.Response(text=text, content_type="application/json")

    async def show(self, request: web.Request, peer: Peer) -> Any:
        """GET /v1/jobs/{name}: one job with its forecast."""
        queue = self._queue()
        job = await self._job(queue, request)
        return {"job": encode(await queue.row(job, self._sees(peer, job)))}

    async def log(self, request: web.Request, peer: Peer) -> Any:
        """GET /v1/jobs/{name}/log: a part of the output of one attempt."""
        queue = self._queue()
        job = await self._own(queue, request, peer)
        if job.spec.output:
            raise ApiError(
                Code.CONFLICT, f"the output of job {job.id} is in {job.spec.output}; read that file", "output"
            )
        attempt = _whole(request.query.get("attempt", str(max(1, job.attempt))), "attempt", 1, 1 << 31)
        offset = _whole(request.query.get("offset", "0"), "offset", 0, 1 << 62)
        part, until = await queue.log_part(job, attempt, offset)
        now = queue.find(job.id) or job
        return {
            "text": part.decode(errors="replace"),
            "until": until,
            "attempt": attempt,
            "state": now.state.value,
        }

    async def slots(self, request: web.Request, peer: Peer) -> Any:
        """GET /v1/jobs/{name}/slots: the slots of the elastic job to which this worker belongs."""
        queue = self._queue()
        job = await self._own(queue, request, peer)
        found = queue.slots(job)
        if found is None:
            raise ApiError(
                Code.CONFLICT, f"job {job.id} is not elastic", "job", "perphctl run --elastic MIN:MAX"
            )
        gang, slots, file = found
        return {"job": gang, "slots": encode(slots), "file": file}

    async def cancel(self, request: web.Request, peer: Peer) -> Any:
        """DELETE /v1/jobs/{name}: cancel a job."""
        queue = self._queue()
        job = await self._own(queue, request, peer)
        if job.state.ended:
            raise ApiError(Code.CONFLICT, f"job {job.id} has ended already ({job.state})", "job")
        done = await queue.cancel(job, peer.user)
        return {"cancelled": done.id, "state": done.state.value}

    async def submit(self, request: web.Request, peer: Peer) -> Any:
        """POST /v1/jobs: queue a job, an array or an elastic job."""
        queue = self._queue()
        specs = self._specs(await self._body(request, KEYS), peer, queue)
        await queue.ready()
        for number in specs[0].after:
            if (job := queue.find(number)) is not None and not self._sees(peer, job):
                raise ApiError(Code.NOT_PERMITTED, f"job {number} belongs to another user", "after")
        jobs = await queue.submit(specs)
        name = specs[0].name if specs[0].array is None else specs[0].name.removesuffix("[0]")
        return {"jobs": [job.id for job in jobs], "name": name}

    async def score(self, request: web.Request, peer: Peer) -> Any:
        """POST /v1/score: the fit of a job that starts now."""
        queue = self._queue()
        body = await self._body(request, SCORE_KEYS)
        await queue.ready()
        if (body.get("job") is None) == (body.get("stages") is None):
            raise ApiError(Code.REFUSED, "give either a job or stages", "job", "job or stages")
        if body.get("stages") is not None:
            stages, view = _stages(body), await queue.view()
        else:
            job = self._seen(_found(queue, _whole(body["job"], "job", 1, 1 << 62)), peer)
            if job.state.active or job.state.ended:
                raise ApiError(Code.CONFLICT, f"job {job.id} is {job.state}", "job", "a job that waits")
            view = await queue.view(job)
            stages = stages_of(view, job)
        numbers = {workload_name(each.job): each.job.id for each in view.active}
        cache = _cache(self._agent.snapshot(), numbers)
        return {"score": encode(await asyncio.to_thread(start_score, view, stages, cache))}

    async def event(self, request: web.Request, peer: Peer) -> Any:
        """GET /v1/event: the event, and what copper may use."""
        queue = self._queue()
        await queue.ready()
        summary = queue.summary()
        return {"event": encode(summary.event), "offer": encode(summary.offer)}

    async def begin_event(self, request: web.Request, peer: Peer) -> Any:
        """POST /v1/event: begin an event, which reduces copper."""
        queue = self._queue()
        body = await self._body(request, EVENT_KEYS)
        reason = _text(body, "reason")
        if len(reason) > MAX_REASON:
            raise ApiError(Code.REFUSED, "it is too long", "reason", f"at most {MAX_REASON} characters")
        begun = await queue.begin_event(
            _number(body.get("duration_s"), "duration_s", 1.0, MAX_EVENT_S),
            _number(body.get("copper_share"), "copper_share", 0.0, 1.0),
            _number(body.get("ramp_s", 0.0), "ramp_s", 0.0, MAX_EVENT_S),
            reason,
        )
        queue.announce(f"event: copper gets {begun.copper_share:.0%} of its offer", peer.actor())
        return {"event": encode(begun)}

    async def end_event(self, request: web.Request, peer: Peer) -> Any:
        """DELETE /v1/event: end the event."""
        queue = self._queue()
        left = await queue.end_event()
        queue.announce("event: ended by hand", peer.actor())
        return {"event": encode(left)}

    # -----------------------------------------------------------------------------------------------------------

    def _queue(self) -> BatchQueue:
        queue = self._agent.queue
        if queue is None:
            why = "the batch queue is off: set enabled = true in [queue] and restart perphd"
            raise ApiError(Code.UNAVAILABLE, why, "queue.enabled", "true")
        return queue

    def _sees(self, peer: Peer, job: QueuedJob) -> bool:
        return peer.uid == job.spec.uid or self._access.allows(peer, Right.CHANGE)

    async def _job(self, queue: BatchQueue, request: web.Request) -> QueuedJob:
        number = _whole(request.match_info["name"], "job", 1, 1 << 62)
        await queue.ready()
        return _found(queue, number)

    async def _own(self, queue: BatchQueue, request: web.Request, peer: Peer) -> QueuedJob:
        return self._seen(await self._job(queue, request), peer)

    def _seen(self, job: QueuedJob, peer: Peer) -> QueuedJob:
        if not self._sees(peer, job):
            raise ApiError(Code.NOT_PERMITTED, f"job {job.id} belongs to another user", "job")
        return job

    def _specs(self, body: Mapping[str, Any], peer: Peer, queue: BatchQueue) -> list[JobSpec]:
        if peer.gid is None:
            raise ApiError(Code.NOT_PERMITTED, "the kernel does not report the client's group")
        band = _band(body.get("band"))
        if band is QosBand.SILVER and not self._access.allows(peer, Right.CHANGE):
            allowed = self._access.needed(Right.CHANGE)
            raise ApiError(
                Code.NOT_PERMITTED,
                f"only administrators may submit silver jobs ({allowed}); leave the band out",
                "band",
                allowed,
            )
        command = _texts(body, "command")
        if not command:
            raise ApiError(Code.REFUSED, "there is no command", "command", "a list of words")
        memory = body.get("memory_bytes")
        deadline = body.get("deadline_in_s")
        elastic = _elastic(body)
        size = _optional_whole(body, "array", 1, MAX_ARRAY)
        if size is not None and elastic is not None:
            raise ApiError(
                Code.REFUSED, "a job cannot be both an array and elastic", "elastic", "one of the two"
            )
        size = size if elastic is None else elastic[1]
        index, count = (
            ("PERPHD_ARRAY_INDEX", "PERPHD_ARRAY_SIZE")
            if elastic is None
            else ("PERPHD_WORKER", "PERPHD_WORKERS_MOST")
        )
        name = _text(body, "name") or command[0].rpartition("/")[2] or "job"
        values: dict[str, Any] = {
            "command": tuple(command),
            "uid": peer.uid,
            "gid": peer.gid,
            "groups": tuple(sorted(peer.gids)),
            "directory": _text(body, "directory") or "/",
            "cpus": _number(body.get("cores", DEFAULT_CORES), "cores", 0.01, 100_000.0),
            "memory_bytes": queue.config.default_memory_bytes
            if memory is None
            else _whole(memory, "memory_bytes", 1 << 20, 1 << 62),
            "limited": memory is not None,
            "band": band,
            "deadline_s": None
            if deadline is None
            else time.time() + _number(deadline, "deadline_in_s", 1.0, MAX_DEADLINE_S),
            "after": tuple(_whole(each, "after", 1, 1 << 62) for each in _list(body, "after")),
            "output": _text(body, "output"),
            "retries": _optional_whole(body, "retries", 0, MAX_RETRIES) or 0,
            "elastic": elastic,
            "hints": _flag(body, "hints"),
        }
        environment = _environment(body)
        stored = (size or 1) * len(json_of(dict(body)))
        if stored > MAX_STORED_BYTES:
            raise ApiError(
                Code.REFUSED,
                f"the jobs of this request would take {stored} bytes together",
                "array" if elastic is None else "elastic",
                f"at most {MAX_STORED_BYTES} bytes",
            )
        try:
            if size is None:
                return [JobSpec(name=name, environment=environment, **values)]
            return [
                JobSpec(
                    name=f"{name}[{place}]",
                    environment=(
                        *environment,
                        (index, str(place)),
                        (count, str(size)),
                    ),
                    array=(place, size),
                    **values,
                )
                for place in range(size)
            ]
        except ValueError as exc:
            raise ApiError(Code.REFUSED, str(exc), "job") from exc


def _found(queue: BatchQueue, number: int) -> QueuedJob:
    job = queue.find(number)
    if job is None:
        raise ApiError(Code.NOT_FOUND, f"there is no job {number}; perphctl jobs --all lists all", "job")
    return job


def _stages(body: Mapping[str, Any]) -> tuple[CandidateStage, ...]:
    """A candidate's stages; all of them must name the same resources."""
    given = _list(body, "stages")
    if not 0 < len(given) <= MAX_STAGES:
        raise ApiError(Code.REFUSED, f"there are {len(given)} stages", "stages", f"1 to {MAX_STAGES} stages")
    allowed = f"objects of seconds and some of {', '.join(SCORED)}, each with the same keys"
    keys = [set(stage) if isinstance(stage, dict) else set() for stage in given]
    for stage, named in zip(given, keys, strict=True):
        if named != keys[0] or not {"seconds"} < named <= {"seconds", *SCORED}:
            raise ApiError(Code.REFUSED, f"{show(stage)} is not accepted", "stages", allowed)
    return tuple(
        CandidateStage(
            _number(stage["seconds"], "seconds", 0.001, MAX_STAGE_S),
            {name: _number(stage[name], name, 0.0, MAX_DEMAND) for name in SCORED if name in stage},
        )
        for stage in given
    )


def _cache(snapshot: Snapshot, jobs: Mapping[str, int]) -> CacheFill | Unavailable:
    """The workloads that occupy the last-level caches. ``jobs``: numbers of running jobs by workload name."""
    capacity = snapshot.host.topology.most.get("llc_occupancy_bytes")
    fills = {
        each.spec.name: each.sample.llc_occupancy_bytes
        for each in snapshot.workloads
        if each.sample is not None and available(each.sample.llc_occupancy_bytes)
    }
    if capacity is None or not fills:
        return Unavailable("the cache size of the host or the cache occupancy of all workloads is not known")
    known = {name: fill for name, fill in fills.items() if name in jobs}
    return CacheFill(
        capacity,
        {jobs[name]: fill for name, fill in known.items()},
        sum(fill for name, fill in fills.items() if name not in jobs),
    )


def _elastic(body: Mapping[str, Any]) -> tuple[int, int] | None:
    if body.get("elastic") is None:
        return None
    bounds = [_whole(each, "elastic", 1, MAX_WORKERS) for each in _list(body, "elastic")]
    if len(bounds) != 2 or bounds[0] > bounds[1]:
        raise ApiError(
            Code.REFUSED,
            f"{show(body['elastic'])} is not accepted",
            "elastic",
            "numbers of workers as [least, most], least first",
        )
    return bounds[0], bounds[1]


def _band(value: Any) -> QosBand:
    if value is None:
        return QosBand.COPPER
    if value not in (QosBand.COPPER.value, QosBand.SILVER.value):
        raise ApiError(Code.REFUSED, f"{show(value)} is not a band of jobs", "band", "copper, silver")
    return QosBand(value)


def _environment(body: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    value = body.get("environment", {})
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ApiError(
            Code.REFUSED,
            f"{show(value)} is not an environment",
            "environment",
            "an object whose values are text",
        )
    return tuple(value.items())


def _list(body: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = body.get(key, [])
    if not isinstance(value, list):
        raise ApiError(Code.REFUSED, f"{show(value)} is not a list", key, "a list")
    return value


def _texts(body: Mapping[str, Any], key: str) -> list[str]:
    found = _list(body, key)
    if not all(isinstance(each, str) for each in found):
        raise ApiError(
            Code.REFUSED, f"{show(found)} is not a list of text values", key, "a list of text values"
        )
    return list(found)


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key) or ""
    if not isinstance(value, str):
        raise ApiError(Code.REFUSED, f"{show(value)} is not text", key, "text")
    return value


def _flag(body: Mapping[str, Any], key: str) -> bool:
    value = body.get(key, False)
    if not isinstance(value, bool):
        raise ApiError(Code.REFUSED, f"{show(value)} is not accepted", key, "true or false")
    return value


def _number(value: Any, key: str, low: float, high: float) -> float:
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if not numeric or not low <= value <= high:  # which a NaN is not either
        raise ApiError(
            Code.REFUSED, f"{show(value)} is not accepted", key, f"a number from {low:g} to {high:g}"
        )
    return float(value)


def _optional_whole(body: Mapping[str, Any], key: str, low: int, high: int) -> int | None:
    value = body.get(key)
    return None if value is None else _whole(value, key, low, high)


def _whole(value: object, key: str, low: int, high: int) -> int:
    allowed = f"a whole number from {low} to {high}"
    try:
        number = int(value) if isinstance(value, str | int) and not isinstance(value, bool) else low - 1
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise ApiError(Code.REFUSED, f"{show(value)} is not {allowed}", key, allowed)
    return number
