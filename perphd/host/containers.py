"""Identifies containers of Kubernetes, YARN and others by their cgroup paths, and finds their names.

The path contains runtime, container id and pod. Names come from files that runtimes and kubelet leave on
every node; no daemon is asked. Without such files, the id is shown.

Only CRI-O keeps a pod's own labels and annotations on disk. ``perphd-publish run --pods`` writes those of
this node's pods to a file, indexed by pod UID. ``perphd-yarn run --containers`` does the same for YARN.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from perphd.domain.errors import KernelError
from perphd.host import yarn
from perphd.host.fs import KernelFs

POD_LOGS: Final = "/var/log/pods"
"""kubelet keeps directories NAMESPACE_POD_UID here, with every runtime."""
PUBLISHED_PODS: Final = "/run/perphd-pods/pods.json"
"""Labels and annotations of this node's pods by UID, written by ``perphd-publish`` from the API server."""
KUBEPODS: Final = "kubepods"
"""kubelet's group of all pods with its cgroupfs driver."""
_KUBEPODS_IN: Final = re.compile(r"(?:^|/)(?:kubepods|(?:[^/]+-)?kubepods\.slice)(?=/|$)", re.ASCII)
"""kubelet's group as a part of a path. With the systemd driver, the names of ``cgroupRoot``'s groups precede its
name.
"""
_QOS: Final = re.compile(r"(?:.*kubepods-)?(burstable|besteffort)(?:\.slice)?", re.ASCII)
UNKNOWN_POD: Final = "pod "
"""Prefix of the name of a pod of which only the UID is known."""
_ID: Final = "[0-9a-f]{64}"
_SCOPE: Final = re.compile(rf"(docker|cri-containerd|crio|libpod|nerdctl)-({_ID})\.scope", re.ASCII)
_PLAIN: Final = re.compile(rf"(?:crio-)?({_ID})", re.ASCII)
_POD: Final = re.compile(
    r"(?:.*-)?pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?",
    re.ASCII,
)
_PARENTS: Final = {"docker": "docker", "libpod_parent": "libpod", "default": "containerd"}
_MAX_BYTES: Final = 4 << 20
DOCKER: Final = "/var/lib/docker/containers/{}/config.v2.json"
CONTAINERD: Final = "/run/containerd/io.containerd.runtime.v2.task/{}/{}/config.json"
CRIO: Final = "/run/containers/storage/overlay-containers/{}/userdata/config.json"
_NAME_NOTES: Final = (
    "io.kubernetes.cri.container-name",
    "nerdctl/name",
    "io.kubernetes.container.name",
    "io.podman.annotations.name",
)
_IMAGE_NOTES: Final = (
    "io.kubernetes.cri-o.ImageRef",
    "io.kubernetes.cri-o.Image",
    "io.kubernetes.cri-o.ImageName",
    "io.kubernetes.cri.image-name",
)
_SANDBOX: Final = ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType")
_OF_CONTAINER: Final = frozenset({"io.kubernetes.container.name", *_SANDBOX})
"""Labels that describe a container and not its pod."""
_CRI_NOTES: Final = {
    "io.kubernetes.cri.container-name": "io.kubernetes.container.name",
    "io.kubernetes.cri.sandbox-name": "io.kubernetes.pod.name",
    "io.kubernetes.cri.sandbox-namespace": "io.kubernetes.pod.namespace",
}
"""containerd's CRI names of labels -> their usual names in Kubernetes."""


@dataclass(frozen=True, slots=True)
class ContainerPath:
    """Information in a cgroup path; fields are empty if absent. ``pod_uid`` has dashes, as in Kubernetes."""

    runtime: str = ""
    container_id: str = ""
    pod_uid: str = ""
    qos: str = ""

    def __bool__(self) -> bool:
        return bool(self.container_id or self.pod_uid)

    @property
    def has_image(self) -> bool:
        """True for a container that is started from an image; YARN's containers are not."""
        return bool(self.container_id) and self.runtime != yarn.RUNTIME


def in_kubernetes(cgroup: str) -> bool:
    """True for kubelet's own tree and everything in it, with either of its cgroup drivers and any ``cgroupRoot``."""
    return _KUBEPODS_IN.search(cgroup) is not None


def parse_path(cgroup: str) -> ContainerPath:
    """Parse a path; groups inside a container count as the container."""
    parts = cgroup.strip("/").split("/")
    runtime = container_id = pod_uid = qos = ""
    is_kubelets = False
    for before, part in zip(["", *parts], parts, strict=False):
        is_kubelets = is_kubelets or in_kubernetes(part)
        if is_kubelets and not pod_uid and (found := _POD.fullmatch(part)):
            pod_uid = _dashed(found[1])
            qos = qos or "guaranteed"
        elif is_kubelets and not pod_uid and (named := _QOS.fullmatch(part)):
            qos = named[1]
        elif scope := _SCOPE.fullmatch(part):
            runtime, container_id = scope[1].removeprefix("cri-"), scope[2]
        elif yarn.is_container(part):
            runtime, container_id = yarn.RUNTIME, part
        elif (plain := _PLAIN.fullmatch(part)) and (pod_uid or before in _PARENTS):
            runtime, container_id = _PARENTS.get(before, runtime), plain[1]
        if container_id:
            break
    return ContainerPath(runtime, container_id, pod_uid, qos)


def is_sandbox(labels: Mapping[str, str]) -> bool:
    """True for the container that only holds a pod's namespaces (the sandbox), according to its runtime's labels."""
    if labels.get("io.kubernetes.container.name") == "POD":
        return True
    return any(labels.get(key) == "sandbox" for key in _SANDBOX)


class ContainerNames:
    """Finds names, reading each file once; use one instance per listing."""

    def __init__(self, fs: KernelFs) -> None:
        self._fs = fs
        self._pods: dict[str, str] | None = None
        self._published: dict[str, Any] | None = None
        self._published_yarn: dict[str, Any] | None = None
        self._containers: dict[str, str] = {}

    def label(self, cgroup: str) -> str:
        """The group's name for display; empty if it is no pod's or container's.

        ``namespace/pod/container``, ``namespace/pod``, a container's name or its short id, or the id of a YARN
        container.
        """
        path = parse_path(cgroup)
        if not path:
            return ""
        if path.runtime == yarn.RUNTIME:
            return path.container_id
        name = self._container(path) if path.container_id else ""
        if path.pod_uid:
            pod = self._pod_names().get(path.pod_uid, f"{UNKNOWN_POD}{path.pod_uid}")
            return f"{pod}/{name}" if name else pod
        return name

    def pod(self, cgroup: str, labels: Mapping[str, str]) -> str:
        """A pod's ``namespace/pod``.

        ``labels``: the pod's own labels, which may contain its name earlier than other files.
        """
        name = self.label(cgroup)
        named = [labels.get(f"io.kubernetes.pod.{key}", "") for key in ("namespace", "name")]
        return "/".join(named) if name.startswith(UNKNOWN_POD) and all(named) else name

    def labels(self, cgroup: str) -> dict[str, str] | None:
        """Labels of this container that are on disk; None if none of its files is readable.

        Docker: all labels. CRI-O: the pod's and the container's labels. containerd: only the labels
        of its CRI plugin about the pod, since the labels are in a private database. Containers of Kubernetes always
        have ``io.kubernetes.pod.name``, ``io.kubernetes.pod.namespace`` and ``io.kubernetes.container.name``. Pod
        labels and annotations written by ``perphd-publish`` are added; a container's own labels take precedence.
        YARN: the labels written by ``perphd-yarn``.
        """
        path = parse_path(cgroup)
        if path.runtime == yarn.RUNTIME:
            known = _table(self._of_yarn().get("containers")).get(path.container_id)
            return {str(key): str(value) for key, value in known.items()} if isinstance(known, dict) else None
        container_id = path.container_id
        docker = _table(_table(self._json(DOCKER.format(container_id)).get("Config")).get("Labels"))
        found = {str(key): str(value) for key, value in docker.items()}
        notes = next((notes for path in self._configs(container_id) if (notes := self._notes(path))), {})
        for key, value in notes.items():
            found.setdefault(_CRI_NOTES.get(key, key), str(value))
        crio = notes.get("io.kubernetes.cri-o.Labels")
        if isinstance(crio, str):
            with suppress(ValueError, RecursionError):
                found |= {str(key): str(value) for key, value in _table(json.loads(crio)).items()}
        for key, value in self._of_pod(path.pod_uid).items():
            found.setdefault(key, value)
        return found if found or self._is_there(container_id) else None

    def pod_labels(
        self, cgroup: str, of_containers: Sequence[Mapping[str, str] | None]
    ) -> dict[str, str] | None:
        """Labels and annotations of a pod; None if none of its files is readable.

        ``of_containers``: labels of its sandbox or, where that is unknown, of all its containers.
        """
        readable = [each for each in of_containers if each is not None]
        found = self._of_pod(parse_path(cgroup).pod_uid)
        if not readable and not found:
            return None
        common = set.intersection(*(set(each.items()) for each in readable)) if readable else set()
        return {key: value for key, value in common if key not in _OF_CONTAINER} | found

    def image(self, cgroup: str) -> str:
        """The container's image: its digest, else its name; empty if neither is known."""
        container_id = parse_path(cgroup).container_id
        docker = self._json(DOCKER.format(container_id))
        if digest := docker.get("Image"):
            return str(digest)
        notes = next((notes for path in self._configs(container_id) if (notes := self._notes(path))), {})
        return next((str(notes[key]) for key in _IMAGE_NOTES if notes.get(key)), "")

    def yarn_hierarchy(self) -> str:
        """Control group of YARN's containers."""
        return yarn.checked_hierarchy(self._of_yarn().get("hierarchy"))

    def _of_yarn(self) -> dict[str, Any]:
        if self._published_yarn is None:
            self._published_yarn = self._json(yarn.PUBLISHED_CONTAINERS)
        return self._published_yarn

    def _of_pod(self, uid: str) -> dict[str, str]:
        """A pod's annotations and labels; labels take precedence."""
        if not uid:
            return {}
        pod = _table(self._published_pods().get(uid))
        both = _table(pod.get("annotations")) | _table(pod.get("labels"))
        return {str(key): str(value) for key, value in both.items()}

    def _published_pods(self) -> dict[str, Any]:
        if self._published is None:
            self._published = _table(self._json(PUBLISHED_PODS).get("pods"))
        return self._published

    def _is_there(self, container_id: str) -> bool:
        return any(
            self._fs.exists(path) for path in (DOCKER.format(container_id), *self._configs(container_id))
        )

    def _configs(self, container_id: str) -> tuple[str, ...]:
        """Possible paths of a container's OCI configuration."""
        return (
            *(CONTAINERD.format(namespace, container_id) for namespace in ("k8s.io", "moby", "default")),
            CRIO.format(container_id),
        )

    def _notes(self, path: str) -> dict[str, Any]:
        return _table(self._json(path).get("annotations"))

    def _pod_names(self) -> dict[str, str]:
        if self._pods is None:
            self._pods = {}
            try:
                folders = self._fs.listdir(POD_LOGS)
            except KernelError:
                folders = []
            for folder in folders:
                namespace, _, rest = folder.partition("_")
                pod, _, uid = rest.rpartition("_")
                if pod:
                    self._pods[_dashed(uid)] = f"{namespace}/{pod}"
            for uid, known in self._published_pods().items():  # may know a pod before it has a log
                if isinstance(known, dict) and known.get("namespace") and known.get("name"):
                    self._pods.setdefault(uid, f"{known['namespace']}/{known['name']}")
        return self._pods

    def _container(self, path: ContainerPath) -> str:
        found = self._containers.get(path.container_id)
        if found is None:
            found = self._look_up(path.container_id) or path.container_id[:12]
            self._containers[path.container_id] = found
        return found

    def _look_up(self, container_id: str) -> str:
        docker = self._json(DOCKER.format(container_id))
        labels = _table(_table(docker.get("Config")).get("Labels"))
        name = labels.get("io.kubernetes.container.name") or docker.get("Name")
        if name:
            return str(name).lstrip("/")
        for path in self._configs(container_id):
            notes = self._notes(path)
            if name := next((str(notes[key]) for key in _NAME_NOTES if notes.get(key)), ""):
                return name
        return ""

    def _json(self, path: str) -> dict[str, Any]:
        try:
            data = self._fs.read(path)
            return _table(json.loads(data)) if len(data) <= _MAX_BYTES else {}
        except (KernelError, ValueError, RecursionError):
            return {}


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dashed(uid: str) -> str:
    text = uid.replace("_", "-")
    if "-" in text or len(text) != 32:
        return text
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
