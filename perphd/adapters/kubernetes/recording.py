"""Records the extender's inputs and answers line by line, and replays them.

Each line is one JSON object, in order of time:
    {"start": VERSION}                        an extender started; it knows no node yet
    {"at", "put": NODE, "document": ...}      a document was accepted
    {"at", "hold": NODE, "slots": [...]}      the slots held on a node changed
    {"at", "forget": NODE}                    a node was removed
    {"names": DIGEST, "list": [...]}          candidates, written when they first occur
    {"at", "call": VERB, "policy", "pod": ..., "names": DIGEST, "answer": DIGEST}

An answer depends only on the documents, the slots, the call, the policy and the time. ``replayed`` recomputes each
answer and compares. An existing file is continued. At ``most_bytes`` it is renamed to FILE.1, and the new one
starts with the present state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

from perphd import __version__
from perphd.cluster.calls import SchedulerCall
from perphd.cluster.document import NodeDocument
from perphd.cluster.extender import Judged, KnownNodes, filter_answer, judged, priority_answer
from perphd.cluster.slots import Slot
from perphd.domain.errors import PerphError
from perphd.domain.wire import decode, encode, json_of

MOST_BYTES: Final = 256 << 20
_BLOCK_BYTES: Final = 1 << 16


def digest_of(value: Any) -> str:
    """Digest of a JSON value, independent of the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def answer_of(verdict: Judged, verb: str, names: Sequence[str]) -> Any:
    """The answer with node names, even if the recorded call held whole nodes."""
    return (
        filter_answer(verdict, SchedulerCall(None, names)) if verb == "filter" else priority_answer(verdict)
    )


class Recorder:
    """Writes the record. A disk error ends it with a message in ``problem``; the extender keeps answering."""

    def __init__(self, path: Path, known: KnownNodes, most_bytes: int = MOST_BYTES) -> None:
        self.path, self.known, self._most_bytes = path, known, most_bytes
        self.problem = ""
        self._written = self._state_bytes = 0
        self._names: set[str] = set()
        self._file: TextIO | None = None
        self._open()

    def put(self, at_unix_s: float, node: str, document: NodeDocument) -> None:
        """Record an accepted document."""
        self._write({"at": at_unix_s, "put": node, "document": encode(document)})

    def hold(self, at_unix_s: float, node: str, slots: tuple[Slot, ...]) -> None:
        """Record the slots held on a node."""
        self._write(_held(at_unix_s, node, slots))

    def forget(self, at_unix_s: float, node: str) -> None:
        """Record the removal of a node."""
        self._write({"at": at_unix_s, "forget": node})

    def call(self, at_unix_s: float, verb: str, policy: str, pod: Any, verdict: Judged) -> None:
        """Record a call and its answer."""
        names = list(verdict.names)
        digest = digest_of(names)
        if digest not in self._names:
            self._names.add(digest)
            self._write({"names": digest, "list": names})
        answer = digest_of(answer_of(verdict, verb, names))
        self._write(
            {
                "at": at_unix_s,
                "call": verb,
                "policy": policy,
                "pod": recorded_pod(pod),
                "names": digest,
                "answer": answer,
            }
        )

    def close(self) -> None:
        """Flush and close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> None:
        try:
            self._file = self.path.open("a", encoding="utf-8")
            self._written = continued = _continued(self.path)
        except (OSError, ValueError) as exc:
            self.problem = f"{self.path}: {getattr(exc, 'strerror', '') or exc}"
            self.close()
            return
        self._names.clear()
        self._line({"start": __version__})
        for node, document in self.known.documents.items():
            self._line({"at": document.made_unix_s, "put": node, "document": encode(document)})
        for node, slots in self.known.slots.items():
            self._line(_held(slots[0].since_unix_s if slots else 0.0, node, slots))
        self._state_bytes = self._written - continued

    def _write(self, line: dict[str, Any]) -> None:
        self._line(line)
        if self._written - self._state_bytes > self._most_bytes:
            try:
                self.close()
                self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            except OSError as exc:
                self.problem = f"{self.path}: {exc.strerror}"
                return
            self._open()

    def _line(self, line: dict[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._written += self._file.write(json_of(line) + "\n")
            self._file.flush()
        except (OSError, ValueError) as exc:
            self.problem = f"{self.path}: {exc}"
            self._file = None


def _continued(path: Path) -> int:
    """Cut off an incomplete last line, which a crash or a full disk leaves; returns the size in bytes.

    Raises:
        ValueError: the file is not a record.
    """
    with path.open("r+b") as file:
        if file.read(1) not in (b"", b"{"):
            raise ValueError("is not a record of perphd-extender: it must begin with {; name another file")
        size = _end_of_last_line(file)
        file.truncate(size)
        return size


def _end_of_last_line(file: BinaryIO) -> int:
    end = file.seek(0, 2)
    while end > 0:
        begin = max(0, end - _BLOCK_BYTES)
        file.seek(begin)
        at = file.read(end - begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        end = begin
    return 0


def _held(at_unix_s: float, node: str, slots: tuple[Slot, ...]) -> dict[str, Any]:
    return {"at": at_unix_s, "hold": node, "slots": encode(slots)}


def recorded_pod(pod: Any) -> dict[str, Any]:
    """The parts of a pod that affect decisions. Others, such as its containers' environment, are not recorded."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    kept = {key: metadata[key] for key in ("name", "namespace", "uid", "ownerReferences") if key in metadata}
    for key in ("labels", "annotations"):
        values = metadata.get(key) or {}
        kept[key] = {name: value for name, value in values.items() if name.startswith("perphd.io/")}
    parts = {
        key: [
            {name: each[name] for name in ("resources", "restartPolicy") if name in each}
            for each in spec.get(key) or []
            if isinstance(each, Mapping)
        ]
        for key in ("containers", "initContainers")
    }
    whole = {key: spec[key] for key in ("resources", "overhead") if key in spec}
    return {"metadata": kept, "spec": {**parts, **whole}}


@dataclass(frozen=True, slots=True)
class Replayed:
    """One call replayed. ``is_same``: the answer has the recorded digest."""

    at_unix_s: float
    verb: str
    pod: str
    policy: str
    is_same: bool
    verdict: Judged


def replayed(lines: Iterable[str]) -> Iterator[Replayed]:
    """Replay every recorded call.

    Raises:
        PerphError: a line is not from a record; the last one may be incomplete.
    """
    known = KnownNodes()
    lists: dict[str, list[str]] = {}
    for number, text in enumerate(lines, 1):
        if not text.endswith("\n"):
            return
        try:
            line = json.loads(text)
            if "put" in line:
                known.put(line["put"], decode(NodeDocument, line["document"]))
            elif "hold" in line:
                known.hold(line["hold"], tuple(decode(Slot, each) for each in line["slots"]))
            elif "forget" in line:
                known.forget(line["forget"])
            elif "start" in line:
                known = KnownNodes()
            elif "list" in line:
                lists[line["names"]] = line["list"]
            else:
                names, verb, policy = lists[line["names"]], line["call"], line["policy"]
                verdict = judged(known, SchedulerCall(line["pod"], names), policy, line["at"])
                is_same = digest_of(answer_of(verdict, verb, names)) == line["answer"]
                yield Replayed(line["at"], verb, verdict.asked.pod.name, policy, is_same, verdict)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise PerphError(f"line {number} is not a record line: {exc}") from exc
