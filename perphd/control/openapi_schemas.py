"""Parts of the control API's description: an operation, and the schemas that several operations share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from perphd.admission.settings import PolicySettings
from perphd.cluster.reservations import BANDS
from perphd.config.schema import TUNING, Key, expert_keys, keys_of, usual_keys
from perphd.config.workloads import WORKLOAD_TABLES
from perphd.control.node_routes import MOST_CPUS
from perphd.domain.wire import Schema
from perphd.domain.workload import Kind
from perphd.monitor.sli import PUSHED_FIELDS

JSON: Final = "application/json"
TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"type": "array", "items": TEXT}
OBJECT: Schema = {"type": "object"}
CLOCK: Schema = {
    "type": "object",
    "properties": {"monotonic_s": {"type": "number"}, "unix_s": {"type": "number"}},
    "required": ["monotonic_s", "unix_s"],
}


@dataclass(frozen=True, slots=True)
class Operation:
    """Description of a route's requests and answers.

    ``answer``: a schema, a type of the wire format, or a mapping of keys to schemas or types.
    """

    summary: str
    answer: Any = None
    query: tuple[tuple[str, Schema, bool], ...] = ()
    body: Schema | None = None
    answer_type: str = JSON
    extra: tuple[tuple[str, Schema], ...] = ()
    status: int = 200
    changes: bool = False
    submits: bool = False


def query(name: str, schema: Schema, required: bool = False) -> tuple[str, Schema, bool]:
    """A parameter of the query string."""
    return (name, schema, required)


def record_of(**properties: Schema) -> Schema:
    """An object with these properties, all of them required."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _key_schema(key: Key) -> Schema:
    schema: dict[str, Any] = {"description": key.doc or key.name}
    match key.type_name:
        case "boolean":
            schema["type"] = "boolean"
        case "integer" | "number" as kind:
            schema["type"] = kind
            schema |= {} if key.low is None else {"minimum": key.low}
            schema |= {} if key.high is None else {"maximum": key.high}
        case "size":
            schema["type"] = ["string", "integer"]
        case _:
            schema["type"] = "string"
    return schema


def workload_schema() -> Schema:
    """A workload as it is declared: the keys of its table in the configuration, and its kind."""
    kinds: list[Schema] = []
    for name, table in WORKLOAD_TABLES.items():
        if name not in tuple(Kind):
            continue
        properties = {key.name: _key_schema(key) for key in usual_keys(table)}
        required = ["kind", *(key.name for key in usual_keys(table) if key.required)]
        tuning = {key.name: _key_schema(key) for key in expert_keys(table)}
        if name == Kind.LRA:
            properties["sli"] = OBJECT
            tuning |= {key.name: _key_schema(key) for key in keys_of(PolicySettings)}
        properties[TUNING] = {"type": "object", "properties": tuning, "additionalProperties": False}
        properties["kind"] = {"const": name}
        kinds.append(
            {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        )
    return {"anyOf": kinds}


def pod_schema(**required: Schema) -> Schema:
    """A pod's requests; with ``required``, a bid for them."""
    properties: dict[str, Schema] = {
        "cpu": {"type": "number", "minimum": 0, "maximum": MOST_CPUS},
        "memory": {"type": ["integer", "string"], "minimum": 0},
        "band": {"enum": [band.value for band in BANDS]},
        **required,
    }
    if not required:
        properties["search"] = {"type": "boolean"}
    else:
        properties["score"] = {"type": "number", "minimum": -1e18, "maximum": 1e18}
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


LIMIT: Schema = {"type": "integer", "minimum": 1, "maximum": 1000}
NAMED: Schema = record_of(
    kind=TEXT, name=TEXT, cgroup=TEXT, present={"type": "boolean"}, effective_mode=TEXT, declared_by=TEXT
)
SLI_BODY: Schema = {
    "type": "object",
    "properties": {
        name: {"type": "number", "minimum": 0, "exclusiveMaximum": 1e18} for name in PUSHED_FIELDS
    },
    "additionalProperties": False,
    "minProperties": 1,
}
