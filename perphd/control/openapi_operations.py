"""Every route of the control API for OpenAPI: its parameters, and the types of its answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from perphd.batch.gangs import Slots
from perphd.batch.start_score import SCORED, StartScore
from perphd.batch.view import JobRow
from perphd.cluster.document import NodeDocument, PodImpact, Reserved
from perphd.control.limits import MAX_PAUSE_S, MAX_REASON
from perphd.control.node_routes import MOST_HOLDER
from perphd.control.openapi_schemas import (
    CLOCK,
    LIMIT,
    NAMED,
    OBJECT,
    SLI_BODY,
    TEXT,
    TEXTS,
    Operation,
    pod_schema,
    query,
    record_of,
    workload_schema,
)
from perphd.control.past_routes import LONGEST_S, MOST_SLOTS, SHORTEST_S
from perphd.control.queue_routes import (
    MAX_ARRAY,
    MAX_DEADLINE_S,
    MAX_DEMAND,
    MAX_EVENT_S,
    MAX_RETRIES,
    MAX_ROWS,
    MAX_STAGE_S,
    MAX_STAGES,
    MAX_WORKERS,
)
from perphd.control.sizing_routes import SAMPLES, STEPS
from perphd.domain.allocation import Settings
from perphd.domain.belief import ModelOrigin, ModelSummary, ModelView
from perphd.domain.capability import Capability
from perphd.domain.contention import ContendedDevice
from perphd.domain.control import Pause
from perphd.domain.decision import Consequences, Decision
from perphd.domain.event import EventKind
from perphd.domain.forecast import Forecasts
from perphd.domain.history import History, StoredEvent
from perphd.domain.host_account import HostAccount
from perphd.domain.queue import CopperOffer, EventStatus, QueueSummary
from perphd.domain.status import AgentStatus, TrialStatus, WorkloadStatus
from perphd.domain.suggestion import Suggestion
from perphd.domain.topology import Topology
from perphd.domain.whatif import WhatIf
from perphd.domain.workload import Kind, Mode
from perphd.isolation.restore_report import RestoreReport
from perphd.qos.bands import QosBand
from perphd.sizing.memory_fit import FitView
from perphd.sizing.shaper_view import ShaperView
from perphd.trial.design import (
    MAX_BLOCK_S,
    MAX_BOUND_PCT,
    MAX_HOURS,
    MAX_SEED,
    MIN_BLOCK_S,
    MIN_BOUND_PCT,
)
from perphd.trial.record import TrialRecord

OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    ("GET", "/v1/status"): Operation("The agent as a whole, now", AgentStatus, extra=(("clock", CLOCK),)),
    ("GET", "/v1/workloads"): Operation(
        "The declared workloads", record_of(workloads={"type": "array", "items": NAMED})
    ),
    ("GET", "/v1/doctor"): Operation(
        "The capabilities of the host",
        {
            "capabilities": tuple[Capability, ...],
            "topology": Topology,
            "limitations": tuple[str, ...],
            "bands": tuple[str, ...],
            "by_themselves": tuple[str, ...],
            "undeclared": tuple[str, ...],
        },
    ),
    ("GET", "/v1/explain"): Operation(
        "The latest decisions about an LRA, or those that changed a batch workload, newest first",
        {
            "decisions": tuple[Decision, ...],
            "aftermath": tuple[Consequences, ...],
            "mode": Mode,
            "kind": Kind,
            "in_force": Settings,
            "workload": WorkloadStatus,
            "host": HostAccount | None,
            "clock": CLOCK,
        },
        (query("workload", TEXT, True), query("at", {"type": "number"}), query("limit", LIMIT)),
    ),
    ("GET", "/v1/whatif"): Operation(
        "Predicted effect on the LRAs if this work started now", WhatIf, (query("add", TEXT, True),)
    ),
    ("GET", "/v1/node"): Operation("The state of this node for a scheduler, valid for 30 s", NodeDocument),
    ("POST", "/v1/whatif"): Operation(
        "Predicted cost to each LRA if this pod started now", PodImpact, body=pod_schema()
    ),
    ("POST", "/v1/reserve"): Operation(
        "Bid for room on this node; the highest score of all bids within 0.1 s wins",
        Reserved,
        body=pod_schema(
            holder={**TEXT, "minLength": 1, "maxLength": MOST_HOLDER}, generation={"type": "integer"}
        ),
        changes=True,
        status=201,
    ),
    ("POST", "/v1/reserve/{name}/commit"): Operation(
        "Keep a reservation until it is released",
        Reserved,
        body={
            "type": "object",
            "properties": {"token": {"type": "integer"}},
            "required": ["token"],
            "additionalProperties": False,
        },
        changes=True,
    ),
    ("DELETE", "/v1/reserve/{name}"): Operation(
        "Release a reservation or a grant", record_of(released=TEXT), changes=True
    ),
    ("GET", "/v1/shaper"): Operation(
        "The resource shaper's target for each workload, and the reclaimable memory", ShaperView
    ),
    ("GET", "/v1/memfit"): Operation("Every search for a memory limit", {"searches": tuple[FitView, ...]}),
    ("PUT", "/v1/memfit/{name}"): Operation(
        "Begin to search a workload's memory limit",
        record_of(started=TEXT),
        body={
            "type": "object",
            "properties": {
                "samples": {"type": "number", "minimum": SAMPLES[0], "maximum": SAMPLES[1]},
                "step": {"type": "number", "minimum": STEPS[0], "maximum": STEPS[1]},
            },
            "additionalProperties": False,
        },
        changes=True,
    ),
    ("POST", "/v1/memfit/{name}/apply"): Operation(
        "Keep the limit that a search has found in force",
        record_of(applied=TEXT, memory_high_bytes={"type": "integer"}),
        changes=True,
    ),
    ("DELETE", "/v1/memfit/{name}"): Operation(
        "End a search, or remove its limit", record_of(stopped=TEXT), changes=True
    ),
    ("GET", "/v1/suggest"): Operation(
        "Undeclared control groups that should be declared as batch", {"suggestions": tuple[Suggestion, ...]}
    ),
    ("GET", "/v1/models"): Operation("Summaries of the LRAs' models", {"models": tuple[ModelSummary, ...]}),
    ("GET", "/v1/models/{name}"): Operation("The state and the predictions of an LRA's model", ModelView),
    ("GET", "/v1/models/{name}/export"): Operation("The model as a file", OBJECT),
    ("GET", "/v1/models/{name}/origin"): Operation(
        "Where a workload's model and its forecasts came from", ModelOrigin
    ),
    ("GET", "/v1/forecasts"): Operation(
        "Predicted use by workloads and the host, as last published by the forecast worker; 404 before that",
        Forecasts,
    ),
    ("GET", "/v1/config"): Operation(
        "The configuration in force",
        record_of(sources=TEXTS, warnings=TEXTS, store_path=TEXT, daemon=OBJECT, tuning=OBJECT),
    ),
    ("GET", "/v1/jobs"): Operation(
        "Jobs of the batch queue that run or wait and, with all, those that have ended",
        {"jobs": tuple[JobRow, ...], "queue": QueueSummary},
        (
            query("all", {"enum": ["0", "1"]}),
            query("limit", {"type": "integer", "minimum": 1, "maximum": MAX_ROWS}),
        ),
    ),
    ("POST", "/v1/jobs"): Operation(
        "Queue a command; it runs as the client's user",
        record_of(jobs={"type": "array", "items": {"type": "integer"}}, name=TEXT),
        body={
            "type": "object",
            "properties": {
                "command": {"type": "array", "items": TEXT, "minItems": 1},
                "name": TEXT,
                "cores": {"type": "number", "minimum": 0.01, "maximum": 100_000},
                "memory_bytes": {"type": ["integer", "null"], "minimum": 1 << 20},
                "deadline_in_s": {"type": ["number", "null"], "minimum": 1, "maximum": MAX_DEADLINE_S},
                "band": {"enum": [QosBand.COPPER, QosBand.SILVER, None]},
                "after": {"type": "array", "items": {"type": "integer", "minimum": 1}},
                "output": TEXT,
                "environment": {"type": "object", "additionalProperties": TEXT},
                "directory": TEXT,
                "retries": {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_RETRIES},
                "hints": {"type": "boolean"},
                "array": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_ARRAY},
                "elastic": {
                    "type": ["array", "null"],
                    "items": {"type": "integer", "minimum": 1, "maximum": MAX_WORKERS},
                    "minItems": 2,
                    "maxItems": 2,
                },
            },
            "required": ["command"],
            "additionalProperties": False,
        },
        status=201,
        submits=True,
    ),
    ("GET", "/v1/jobs/{name}"): Operation(
        "One job by its number: why it waits, and when it will start and end", {"job": JobRow}
    ),
    ("DELETE", "/v1/jobs/{name}"): Operation(
        "Cancel a job", record_of(cancelled={"type": "integer"}, state=TEXT), submits=True
    ),
    ("GET", "/v1/jobs/{name}/slots"): Operation(
        "The elastic job to which this worker belongs: its number of running workers, and the file with this number",
        {"job": int, "slots": Slots, "file": str},
    ),
    ("GET", "/v1/jobs/{name}/log"): Operation(
        "A part of a job's output from an offset on; the output has ended when until no longer grows",
        record_of(text=TEXT, until={"type": "integer"}, attempt={"type": "integer"}, state=TEXT),
        (
            query("offset", {"type": "integer", "minimum": 0}),
            query("attempt", {"type": "integer", "minimum": 1}),
        ),
    ),
    ("POST", "/v1/score"): Operation(
        "How well a job that starts now fits: unused and over-allocated areas by resource",
        {"score": StartScore},
        body={
            "type": "object",
            "properties": {
                "job": {"type": ["integer", "null"], "minimum": 1},
                "stages": {
                    "type": ["array", "null"],
                    "minItems": 1,
                    "maxItems": MAX_STAGES,
                    "items": {
                        "type": "object",
                        "properties": {
                            "seconds": {"type": "number", "minimum": 0.001, "maximum": MAX_STAGE_S},
                            **{
                                name: {"type": "number", "minimum": 0, "maximum": MAX_DEMAND}
                                for name in SCORED
                            },
                        },
                        "required": ["seconds"],
                        "additionalProperties": False,
                    },
                },
            },
            "additionalProperties": False,
        },
    ),
    ("GET", "/v1/contention"): Operation(
        "Devices from which batch should back off, with each workload's share; all devices, or those of one workload",
        {"devices": tuple[ContendedDevice, ...]},
        (query("workload", TEXT),),
    ),
    ("GET", "/v1/event"): Operation(
        "The resources that copper may use now, and the event that reduces them",
        {"event": EventStatus | None, "offer": CopperOffer | None},
    ),
    ("POST", "/v1/event"): Operation(
        "Reduce copper to a share of its offer for a stated time",
        {"event": EventStatus},
        body={
            "type": "object",
            "properties": {
                "duration_s": {"type": "number", "minimum": 1, "maximum": MAX_EVENT_S},
                "copper_share": {"type": "number", "minimum": 0, "maximum": 1},
                "ramp_s": {"type": "number", "minimum": 0, "maximum": MAX_EVENT_S},
                "reason": {"type": "string", "maxLength": MAX_REASON},
            },
            "required": ["duration_s", "copper_share"],
            "additionalProperties": False,
        },
        changes=True,
        status=201,
    ),
    ("DELETE", "/v1/event"): Operation(
        "End the event; copper returns step by step", {"event": EventStatus | None}, changes=True
    ),
    ("GET", "/v1/trial"): Operation(
        "The running trial, or the last one",
        {"record": TrialRecord | None, "running": TrialStatus | None},
    ),
    ("GET", "/v1/metrics"): Operation("For Prometheus", TEXT, answer_type="text/plain"),
    ("GET", "/metrics"): Operation(
        "The metrics for Prometheus, at the path that it requests by default", TEXT, answer_type="text/plain"
    ),
    ("GET", "/v1/events"): Operation(
        "Future events, as server-sent events",
        TEXT,
        (query("kind", {"type": "string", "examples": list(EventKind)}), query("workload", TEXT)),
        answer_type="text/event-stream",
    ),
    ("GET", "/v1/recording"): Operation(
        "The next decision rounds with their input, one line of JSON each",
        TEXT,
        (query("rounds", {"type": "integer", "minimum": 1}),),
        answer_type="application/x-ndjson",
    ),
    ("GET", "/v1/history"): Operation(
        "Values over time from the store, in equal slots, and the changes among them",
        History,
        (
            query("workload", TEXT),
            query("until", {"type": "number"}),
            query("last_s", {"type": "number", "minimum": SHORTEST_S, "maximum": LONGEST_S}),
            query("slots", {"type": "integer", "minimum": 1, "maximum": MOST_SLOTS}),
        ),
        extra=(("clock", CLOCK),),
    ),
    ("GET", "/v1/past"): Operation(
        "The status at a past moment, as far as the store covers it",
        {
            "status": AgentStatus,
            "events": tuple[StoredEvent, ...],
            "stored_since_unix_s": float | None,
            "stored_until_unix_s": float | None,
            "clock": CLOCK,
        },
        (query("at", {"type": "number"}),),
    ),
    ("GET", "/v1/openapi.json"): Operation("This description", OBJECT),
    ("POST", "/v1/query"): Operation(
        "One SELECT statement on the store",
        record_of(
            columns=TEXTS, rows={"type": "array", "items": {"type": "array"}}, truncated={"type": "boolean"}
        ),
        body={
            "type": "object",
            "required": ["sql"],
            "properties": {"sql": TEXT, "limit": {"type": "integer", "minimum": 1, "maximum": 100_000}},
            "additionalProperties": False,
        },
    ),
    ("PUT", "/v1/mode"): Operation(
        "Observe or enforce, for one workload or for all",
        record_of(
            mode=TEXT,
            workload={"type": ["string", "null"]},
            configured_mode=TEXT,
            paused={"type": "boolean"},
        ),
        body={
            "type": "object",
            "properties": {"mode": {"enum": list(Mode)}, "workload": {"type": ["string", "null"]}},
            "required": ["mode"],
            "additionalProperties": False,
        },
        changes=True,
    ),
    ("POST", "/v1/pause"): Operation(
        "Restore one workload or all and change nothing until resumed; survives restarts",
        {"pause": Pause, "restored": RestoreReport},
        body={
            "type": "object",
            "properties": {
                "workload": {"type": ["string", "null"]},
                "for_s": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": MAX_PAUSE_S},
                "reason": {"type": "string", "maxLength": MAX_REASON},
            },
            "additionalProperties": False,
        },
        changes=True,
    ),
    ("POST", "/v1/resume"): Operation(
        "End the pause of one workload, or every pause that was set by hand",
        {"ended": tuple[Pause, ...], "still": tuple[Pause, ...]},
        body={
            "type": "object",
            "properties": {"workload": {"type": ["string", "null"]}},
            "additionalProperties": False,
        },
        changes=True,
    ),
    ("POST", "/v1/trial"): Operation(
        "Begin a randomised trial of observe and enforce",
        {"record": TrialRecord},
        body={
            "type": "object",
            "properties": {
                "hours": {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_HOURS},
                "block_s": {"type": "number", "minimum": MIN_BLOCK_S, "maximum": MAX_BLOCK_S},
                "washout_s": {"type": ["number", "null"], "minimum": 0, "maximum": MAX_BLOCK_S / 2},
                "bound_pct": {"type": "number", "minimum": MIN_BOUND_PCT, "maximum": MAX_BOUND_PCT},
                "seed": {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_SEED},
            },
            "required": ["hours"],
            "additionalProperties": False,
        },
        changes=True,
        status=201,
    ),
    ("DELETE", "/v1/trial"): Operation("End the running trial", {"record": TrialRecord}, changes=True),
    ("POST", "/v1/workloads"): Operation(
        "Add a workload",
        record_of(added=OBJECT, warnings=TEXTS),
        body=workload_schema(),
        changes=True,
        status=201,
    ),
    ("DELETE", "/v1/workloads/{name}"): Operation(
        "Restore a workload's settings and forget it",
        record_of(removed=TEXT, kind=TEXT, warnings=TEXTS),
        (query("kind", {"enum": list(Kind)}),),
        changes=True,
    ),
    ("POST", "/v1/workloads/{name}/sli"): Operation(
        "Push a reading from the application itself", record_of(workload=TEXT), body=SLI_BODY, changes=True
    ),
    ("PUT", "/v1/models/{name}"): Operation(
        "Replace an LRA's model by the file in the body",
        record_of(imported=TEXT, warnings=TEXTS),
        (query("rename", {"enum": ["0", "1"]}),),
        body=OBJECT,
        changes=True,
    ),
    ("DELETE", "/v1/models/{name}"): Operation("Discard an LRA's model", record_of(reset=TEXT), changes=True),
    ("POST", "/v1/restore"): Operation(
        "Restore every original value and return to observe",
        RestoreReport,
        (query("ignore_lock", {"enum": ["0", "1"]}),),
        changes=True,
    ),
    ("POST", "/v1/reload"): Operation(
        "Read the configuration files again",
        record_of(sources=TEXTS, workloads=TEXTS, warnings=TEXTS),
        changes=True,
    ),
}
