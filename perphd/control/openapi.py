"""The control API's description (OpenAPI 3.1), generated from the types of its routes.

``python -m perphd.control.openapi`` prints it as served at ``/v1/openapi.json`` and stored in
docs/openapi.json. A test checks that ``OPERATIONS`` and the routes agree.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, Final

from perphd import __version__
from perphd.control.errors import Code
from perphd.control.openapi_operations import OPERATIONS
from perphd.control.openapi_schemas import JSON, TEXT, Operation, record_of
from perphd.domain.wire import Components, Schema

_ERROR: Schema = {"$ref": "#/components/schemas/Error"}
_STATUSES: Final[Mapping[int, str]] = {
    400: "a value is refused; key names it, and allowed describes valid values",
    403: "the client lacks the right",
    404: "there is no such workload, job or other object, or no such path",
    405: "the path does not support this method",
    408: "the client or the query was too slow",
    409: "the request conflicts with the present state",
    413: "the body is too large",
    500: "the request was accepted, but the operation failed",
    503: "too many connections, queries or streams, the CPU budget of queries is used up, or the feature is disabled",
}


def document() -> dict[str, Any]:
    """The whole OpenAPI document."""
    components = Components()
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, operation, components)
    codes: Schema = {"enum": sorted({code.text for code in Code})}
    error = record_of(code=codes, message=TEXT, key=TEXT, allowed=TEXT)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "perphd control API",
            "version": __version__,
            "description": "HTTP over the daemon's Unix socket. Reading is for root and the members of the read and "
            "admin groups, changing for root and the admin group; the kernel identifies the client. A number that is "
            "not finite is the text inf, -inf or nan. A missing measurement is an object with the reason. A value "
            "that is not set is absent.",
        },
        "servers": [
            {"url": "http://localhost", "description": "the socket, /run/perphd/perphd.sock by default"}
        ],
        "paths": paths,
        "components": {
            "schemas": {**components.schemas, "Error": record_of(error=error)},
            "responses": {
                str(status): {"description": meaning, "content": {JSON: {"schema": _ERROR}}}
                for status, meaning in _STATUSES.items()
            },
        },
    }


def _operation(method: str, path: str, operation: Operation, components: Components) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "query", "required": required, "schema": schema}
        for name, schema, required in operation.query
    ]
    if "{name}" in path:
        parameters.append({"name": "name", "in": "path", "required": True, "schema": TEXT})
    who = "the admin group" if operation.changes else "the read group"
    if operation.submits:
        who = "the group of [queue]"
    described: dict[str, Any] = {
        "summary": operation.summary,
        "description": f"For root and {who}.",
        "operationId": f"{method.lower()}{path.replace('/', '_').translate(_PLAIN)}",
        "responses": _responses(operation, components),
    }
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": operation.body}}}
    return described


_PLAIN: Final = str.maketrans({"{": "", "}": "", ".": "_"})


def _responses(operation: Operation, components: Components) -> dict[str, Any]:
    schema = _answer(operation.answer, components)
    if operation.extra:
        schema = {"allOf": [schema, record_of(**dict(operation.extra))]}
    content = {operation.answer_type: {"schema": schema}}
    found: dict[str, Any] = {str(operation.status): {"description": operation.summary, "content": content}}
    for status in _STATUSES:
        found[str(status)] = {"$ref": f"#/components/responses/{status}"}
    return found


def _answer(answer: Any, components: Components) -> Schema:
    if not isinstance(answer, Mapping):
        return components.of(answer)
    if "type" in answer or "$ref" in answer:
        return answer
    return record_of(**{name: _answer(item, components) for name, item in answer.items()})


def text() -> str:
    """The document as JSON text."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
