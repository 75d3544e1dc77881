"""Routes of the control API for workloads: list, add, remove, and readings pushed by applications."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web

from perphd.config.match import is_lasting
from perphd.config.schema import show
from perphd.config.workloads import (
    Declared,
    check_workloads,
    forget_runtime,
    read_runtime,
    read_workload,
    remember_runtime,
    to_table,
)
from perphd.control.access import Access, Peer, check_harmless
from perphd.control.errors import ApiError, Code
from perphd.control.port import AgentPort
from perphd.control.request import BODY, done, only, reading
from perphd.domain.errors import ConfigError
from perphd.domain.masking import without_secrets
from perphd.domain.status import WorkloadStatus
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.monitor.sli import PUSHED_FIELDS, SLI_FIELDS, told


class WorkloadRoutes:
    """Handlers of ``/v1/workloads``; also finds workloads for other routes.

    ``check_host``: raises ConfigError for workloads unsuitable for this host, and returns warnings. ``body``: reads a
    request's body.
    """

    def __init__(
        self,
        agent: AgentPort,
        access: Access,
        check_host: Callable[[Sequence[WorkloadSpec]], Sequence[str]],
        body: Callable[..., Awaitable[dict[str, Any]]],
    ) -> None:
        self._agent, self._access, self._check_host, self._body = agent, access, check_host, body

    async def listed(self, request: web.Request, peer: Peer) -> Any:
        """GET /v1/workloads: every workload in the form of a configuration file."""
        runtime = {item.spec.name for item in read_runtime(self._agent.config.daemon.state_dir)}
        return {
            "workloads": [
                {
                    "kind": item.spec.kind.value,
                    **table_of(item.spec),
                    "present": item.present,
                    "effective_mode": item.mode.value,
                    "added_at_run_time": item.spec.name in runtime or not _may_stand_in_a_file(item.spec),
                    "declared_by": item.spec.declared_by,
                }
                for item in self._agent.status().workloads
            ]
        }

    async def add(self, request: web.Request, peer: Peer) -> Any:
        """POST /v1/workloads: add a workload, which stays declared after a restart."""
        body = await self._body(request)
        raw_kind = body.pop("kind", None)
        if raw_kind not in tuple(Kind):
            why = "it is missing" if raw_kind is None else f"{show(raw_kind)} is not accepted"
            raise ApiError(Code.REFUSED, why, "kind", ", ".join(Kind))
        kind = Kind(raw_kind)
        spec = read_workload(kind, body, BODY, kind.value)
        if not self._access.is_owner(peer):
            check_harmless(spec)
        here = {item.spec.name: item.spec for item in self._agent.status().workloads}
        # A declaration keeps its name even if the workloads found for it have others.
        here = {item.name: item for item in self._agent.declared} | here
        # An operator's declaration displaces a workload that declared itself.
        existing = [
            Declared(item, "the running daemon", item.name) for item in here.values() if not item.declared_by
        ]
        try:
            check_workloads([*existing, Declared(spec, BODY, kind.value)])
        except ConfigError as exc:
            raise ApiError(Code.CONFLICT, str(exc), exc.key, exc.allowed) from exc
        warnings = list(self._check_host([spec]))
        if not _may_stand_in_a_file(spec):
            warnings.append(f"{spec.match} is forgotten when perphd restarts")
        # Stored first, so that a workload that the agent accepts survives a crash in between.
        state_dir = self._agent.config.daemon.state_dir
        remember_runtime(state_dir, spec)
        try:
            await done(self._agent.add_workload(spec, peer.actor()))
        except BaseException:
            forget_runtime(state_dir, spec.name)
            raise
        return {"added": {"kind": kind.value, **table_of(spec)}, "warnings": warnings}

    async def remove(self, request: web.Request, peer: Peer) -> Any:
        """DELETE /v1/workloads/NAME: restore its settings and forget it."""
        only(request.query, ("kind",))
        name, kind = request.match_info["name"], request.query.get("kind")
        if kind is not None and kind not in tuple(Kind):
            raise ApiError(Code.REFUSED, f"{show(kind)} is not accepted", "kind", ", ".join(Kind))
        spec = self.declared(name) or self.find(name).spec
        if kind not in (None, spec.kind):
            raise ApiError(
                Code.NOT_FOUND,
                f"{show(name)} is declared as {spec.kind}: perphctl {spec.kind} rm {name} removes it",
                "kind",
            )
        if spec.match and self.declared(name) is None:
            self._refuse_to_remove(spec)
        await done(self._agent.remove_workload(name, peer.actor()))
        remembered = forget_runtime(self._agent.config.daemon.state_dir, name)
        warnings = []
        if not remembered and _may_stand_in_a_file(spec):
            warnings.append(f"{name!r} is declared in a configuration file: the next reload adds it again")
        return {"removed": name, "kind": spec.kind.value, "warnings": warnings}

    async def push(self, request: web.Request, peer: Peer) -> Any:
        """POST /v1/workloads/NAME/sli: readings from the application itself."""
        name = request.match_info["name"]
        spec = self.find(name).spec
        if spec.sli is None or spec.sli.source != "push":
            have = (
                f"its SLI source is {spec.sli.source!r}" if spec.sli is not None else "it has no SLI source"
            )
            raise ApiError(
                Code.CONFLICT, f"{name!r} accepts no pushed readings: {have}", "lra.sli.source", '"push"'
            )
        body = await self._body(request, PUSHED_FIELDS)
        values = {key: reading(key, value) for key, value in body.items()}
        if not values.keys() & set(SLI_FIELDS):
            raise ApiError(Code.REFUSED, "no reading was given", "", ", ".join(SLI_FIELDS))
        await done(self._agent.push_sli(name, told(values)))
        return {"workload": name, **values}

    def _names(self, kind: Kind | None = None) -> list[str]:
        return [item.spec.name for item in self._agent.status().workloads if kind in (None, item.spec.kind)]

    def declared(self, name: object) -> WorkloadSpec | None:
        """The declaration with this name."""
        return next((spec for spec in self._agent.declared if spec.name == name), None)

    def _refuse_to_remove(self, found: WorkloadSpec) -> None:
        """Refuse to remove a workload that was found for a declaration, because perphd would find it again."""
        for spec in self._agent.declared:
            if spec.match == found.match and found.name.startswith(f"{spec.name}."):
                text = (
                    f"{found.name!r} was found for {spec.name!r} ({spec.match}) and would be found again: remove "
                    f"{spec.name!r}, or let {found.name!r} be only observed (its mode)"
                )
                raise ApiError(Code.CONFLICT, text, "workload", spec.name)

    def find(self, name: object) -> WorkloadStatus:
        """The status of a workload. Raises ApiError for an unknown name."""
        for item in self._agent.status().workloads:
            if item.spec.name == name:
                return item
        names = self._names()
        shown = ", ".join(names) if names else "none is declared"
        if not name:
            raise ApiError(Code.REFUSED, "a workload must be named", "workload", shown)
        raise ApiError(Code.NOT_FOUND, f"there is no workload {show(name)}", "workload", shown)

    def check_lra(self, name: str) -> None:
        """Raise ApiError unless an LRA has this name."""
        status = self.find(name)
        if status.spec.kind is not Kind.LRA:
            raise ApiError(
                Code.REFUSED,
                f"{status.spec.name!r} is batch: only LRAs have models and decisions",
                "workload",
                ", ".join(self._names(Kind.LRA)),
            )


def _may_stand_in_a_file(spec: WorkloadSpec) -> bool:
    return not spec.match or is_lasting(spec.match)


def table_of(spec: WorkloadSpec) -> dict[str, Any]:
    """The workload in the form of a configuration file, without secrets."""
    return to_table(without_secrets(spec))
