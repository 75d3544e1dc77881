"""Calls of the stock kube-scheduler, answered from cached node documents (k8s.io/kube-scheduler/extender/v1). Pure.

    filter       a node stays if the policy finds it feasible, and if copper has room for a copper pod
    prioritize   0 to 10: where a node's score lies between the worst and the best of the candidates

The scheduler sends names of nodes (``nodeCacheCapable: true``) or whole nodes; the answer has the same form. A node
without a document, or with a stale one, is judged by its requests alone, which the scheduler has checked itself: it
passes the filter, and ranks below every node that is known. If nothing here is known, scheduling goes on as without
perphd.

A document becomes a profile for the policies:

    requests      what is reserved, as one pod
    use           mean and 99 % bound of the next minute; N(mean, sd) on the grid of ``scheduling.distribution``
    interference  each LRA's loss for one core less, in proportion to the cores that its host would use beyond now
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from perphd.cluster.document import NodeDocument, ResourceForecast
from perphd.cluster.scheduling.distribution import FLEET_CELLS
from perphd.cluster.scheduling.fleet import Fleet, Scores
from perphd.cluster.scheduling.placement import POLICIES
from perphd.cluster.scheduling.profile import (
    CPU_STEPS,
    MEMORY_STEPS,
    NodeProfile,
    Pod,
    PodKind,
    Surface,
)
from perphd.domain.errors import PerphError
from perphd.domain.reading import available, value_or
from perphd.forecast.grid import GridDistribution, of_outcomes
from perphd.qos.bands import QosBand
from perphd.qos.ledger import Amounts

BAND_LABEL: Final = "perphd.io/band"
COPPER_CPU: Final = "perphd.io/copper-cpu"
"""Extended resource in thousandths of a CPU: extended resources are whole numbers."""
COPPER_MEMORY: Final = "perphd.io/copper-memory"
MOST_PRIORITY: Final = 10
NEUTRAL_PRIORITY: Final = 0
_QUANTITY: Final = re.compile(
    r"([+-]?[0-9]+(?:\.[0-9]*)?|[+-]?\.[0-9]+)([eE][+-]?[0-9]{1,2}|[numkMGTPE]|[KMGTPE]i)?"
)
_SUFFIX: Final = {
    "": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip


class ExtenderError(PerphError):
    """A call that is none: what is wrong with it, and where."""


@dataclass(frozen=True, slots=True)
class AskingPod:
    """A pod as the scheduler describes it."""

    pod: Pod
    band: QosBand

    @property
    def amounts(self) -> Amounts:
        """Its requests."""
        return Amounts(self.pod.cores, int(self.pod.memory_bytes))


class KnownNodes:
    """The newest document of every node, as profiles in columns. Stateless but for that: any copy answers the same."""

    def __init__(self) -> None:
        self.documents: dict[str, NodeDocument] = {}
        self.fleet = Fleet([])

    def put(self, node: str, document: NodeDocument) -> None:
        """Take in what a node has published; an older document than the known one is left."""
        known = self.documents.get(node)
        if known is None or document.made_unix_s >= known.made_unix_s:
            self.documents[node] = document
            self.fleet.put(profile_of(node, document))


def quantity(value: object) -> float:
    """A quantity of Kubernetes as a number.

    Raises:
        ExtenderError: it is none, or negative.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = repr(value)
    found = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ExtenderError(f"{str(value)[:40]!r} is no quantity")
    number, suffix = found[1], found[2] or ""
    result = float(number) * (_SUFFIX[suffix] if suffix in _SUFFIX else 10.0 ** int(suffix[1:]))
    if result < 0:
        raise ExtenderError(f"{value} is negative")
    return result


def asking_pod(data: Any) -> AskingPod:
    """The pod of a call: the greater of all containers together and of each init container.

    A pod is copper if its label or annotation says so, or if it requests copper's extended resources.

    Raises:
        ExtenderError: it is no pod.
    """
    metadata, spec = _object(data, "Pod.metadata"), _object(data, "Pod.spec")
    together: dict[str, float] = {}
    for container in _list(spec, "containers"):
        for name, amount in _requests(container).items():
            together[name] = together.get(name, 0.0) + amount
    for container in _list(spec, "initContainers"):
        for name, amount in _requests(container).items():
            together[name] = max(together.get(name, 0.0), amount)
    labels = {**_optional(metadata, "annotations"), **_optional(metadata, "labels")}
    named = labels.get(BAND_LABEL)
    is_copper = named == QosBand.COPPER or COPPER_CPU in together or COPPER_MEMORY in together
    band = QosBand.COPPER if is_copper else QosBand.GOLD if named == QosBand.GOLD else QosBand.SILVER
    cores = together.get(COPPER_CPU, 0.0) / 1000.0 or together.get("cpu", 0.0)
    memory = together.get(COPPER_MEMORY, 0.0) or together.get("memory", 0.0)
    owners = _list(metadata, "ownerReferences")
    owner = owners[0].get("name") if owners and isinstance(owners[0], Mapping) else None
    name = f"{metadata.get('namespace', 'default')}/{metadata.get('name', '')}"
    kind = PodKind.BATCH if is_copper else PodKind.SERVICE
    return AskingPod(Pod(name, str(owner or name), kind, cores, memory), band)


def profile_of(node: str, document: NodeDocument) -> NodeProfile:
    """The profile for the policies. Raises ExtenderError where the node does not know its own size."""
    cpus, memory = document.capacity.cpus, document.capacity.memory_bytes
    if not available(cpus) or not available(memory) or min(cpus, memory) <= 0:
        raise ExtenderError(f"the document of {node} has no capacity")
    forecast = {each.resource: each for each in document.forecast}
    used = (value_or(document.used.cpus, 0.0), value_or(document.used.memory_bytes, 0.0))
    cpu, ram = forecast.get("cpu"), forecast.get("memory")
    held = Pod(
        "reserved",
        "reserved",
        PodKind.SERVICE,
        value_or(document.reserved.cpus, used[0]),
        value_or(document.reserved.memory_bytes, used[1]),
        _interference(document, used[0] / cpus, cpus),
    )
    return NodeProfile(
        node,
        document.generation,
        document.made_unix_s,
        document.ttl_s,
        cpus,
        memory,
        (held,),
        *used,
        p99_cores=held.cores if cpu is None else value_or(cpu.p99, held.cores),
        mean_cores=used[0] if cpu is None else value_or(cpu.mean, used[0]),
        sd_cores=0.0 if cpu is None else value_or(cpu.sd, 0.0),
        running_cores=_law(cpu, cpus, max(used[0], held.cores)),
        running_memory=_law(ram, memory, max(used[1], held.memory_bytes)),
    )


def _interference(document: NodeDocument, cpu_ratio: float, cpus: float) -> Surface:
    """What all LRAs would lose together as the host's use grows from what it is now; unknown losses count as 0."""
    loss = sum(
        value_or(cost.loss_ratio, 0.0)
        for lra in document.lras
        for cost in lra.sensitivity
        if cost.resource == "cpu"
    )
    beyond = np.maximum(0.0, np.linspace(0.0, 1.0, CPU_STEPS) - cpu_ratio) * cpus
    lost = np.minimum(loss * beyond, float(len(document.lras)))
    return Surface(np.repeat(lost[:, None], MEMORY_STEPS, axis=1))


def _law(forecast: ResourceForecast | None, capacity: float, otherwise: float) -> GridDistribution:
    """The law of use; without a forecast, what is reserved or used for certain, whichever is more."""
    if forecast is None or not available(forecast.mean) or not available(forecast.sd) or forecast.sd <= 0:
        return of_outcomes({max(0.0, otherwise): 1.0}, capacity, FLEET_CELLS)
    points = np.arange(FLEET_CELLS + 1) * (capacity / FLEET_CELLS)
    up_to = 1.0 / (1.0 + np.exp(-1.702 * (points - forecast.mean) / forecast.sd))  # the normal law within .01
    return GridDistribution(capacity, np.diff(up_to, prepend=0.0), float(1.0 - up_to[-1]))


def filtered(known: KnownNodes, call: Any, policy: str, now_s: float) -> dict[str, Any]:
    """The answer to a filter call, in the words of the API.

    Raises:
        ExtenderError: it is no such call.
    """
    asked, names, whole = _asked(call)
    failed = _failures(known, asked, names, policy, now_s)
    kept = [name for name in names if name not in failed]
    answer: dict[str, Any] = {"FailedNodes": failed, "FailedAndUnresolvableNodes": {}, "Error": ""}
    if whole is None:
        return {**answer, "Nodes": None, "NodeNames": kept}
    return {**answer, "Nodes": {**call["Nodes"], "items": [whole[name] for name in kept]}, "NodeNames": None}


def prioritized(known: KnownNodes, call: Any, policy: str, now_s: float) -> list[dict[str, Any]]:
    """The answer to a prioritize call: every candidate with 0 to 10.

    Raises:
        ExtenderError: it is no such call.
    """
    asked, names, _ = _asked(call)
    scores, places = _scored(known, asked, names, policy, now_s)
    given = dict.fromkeys(names, NEUTRAL_PRIORITY)
    if scores is not None and len(places):
        feasible = scores.feasible
        values = scores.score[feasible]
        least, most = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
        for place, name in enumerate(places):
            if feasible[place]:  # 1 to 10: above every node of which nothing is known
                share = 1.0 if most <= least else (float(scores.score[place]) - least) / (most - least)
                given[name] = 1 + round((MOST_PRIORITY - 1) * share)
    return [{"Host": name, "Score": score} for name, score in given.items()]


def _failures(
    known: KnownNodes, asked: AskingPod, names: Sequence[str], policy: str, now_s: float
) -> dict[str, str]:
    scores, places = _scored(known, asked, names, policy, now_s)
    failed: dict[str, str] = {}
    if scores is None:
        return failed
    feasible = scores.feasible
    for place, name in enumerate(places):
        room = known.documents[name].copper.allocatable
        left = Amounts(value_or(room.cpus, 0.0), int(value_or(room.memory_bytes, 0.0)))
        if asked.band is QosBand.COPPER and not asked.amounts.fits(left):
            failed[name] = f"perphd: {asked.amounts} are requested, and copper may still take {left}"
        elif not feasible[place]:
            failed[name] = "perphd: " + "; ".join(scores.against(place))
    return failed


def _scored(
    known: KnownNodes, asked: AskingPod, names: Sequence[str], policy: str, now_s: float
) -> tuple[Scores | None, list[str]]:
    """The scores of those candidates whose documents are fresh, with their names in the same order."""
    rows, fresh = [], []
    for name in names:
        document, row = known.documents.get(name), known.fleet.row(name)
        if document is not None and row is not None and now_s - document.made_unix_s <= document.ttl_s:
            rows.append(row)
            fresh.append(name)
    if not rows:
        return None, []
    return POLICIES[policy](known.fleet, asked.pod, np.array(rows, dtype=np.intp)), fresh


def _asked(call: Any) -> tuple[AskingPod, list[str], dict[str, Any] | None]:
    """The pod, the candidates' names, and the candidates themselves where the call has them."""
    if not isinstance(call, Mapping):
        raise ExtenderError("the call is no object")
    asked = asking_pod(call.get("Pod"))
    names = call.get("NodeNames")
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return asked, names, None
    nodes: dict[str, Any] = {}
    for item in _list(call.get("Nodes"), "items"):
        name = _object(item, "Nodes.items.metadata").get("name")
        if not isinstance(name, str):
            raise ExtenderError("a node has no name")
        nodes[name] = item
    if call.get("Nodes") is None:
        raise ExtenderError("the call has neither NodeNames nor Nodes")
    return asked, list(nodes), nodes


def _object(data: Any, path: str) -> Mapping[str, Any]:
    found = data.get(path.rpartition(".")[2]) if isinstance(data, Mapping) else None
    if not isinstance(found, Mapping):
        raise ExtenderError(f"{path} is no object")
    return found


def _optional(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = data.get(key)
    return found if isinstance(found, Mapping) else {}


def _list(data: Any, key: str) -> list[Any]:
    found = data.get(key) if isinstance(data, Mapping) else None
    if found is None:
        return []
    if not isinstance(found, list):
        raise ExtenderError(f"{key} is no list")
    return found


def _requests(container: Any) -> dict[str, float]:
    resources = _optional(container, "resources") if isinstance(container, Mapping) else {}
    return {str(name): quantity(amount) for name, amount in _optional(resources, "requests").items()}
