"""What is spared where nothing has changed must not be seen in what comes out."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.controller.lra_state import LraState
from perphd.domain import quick
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Gone, KernelError
from perphd.domain.quick import changer, maker
from perphd.domain.reading import Reading, Unavailable
from perphd.domain.sample import NOTHING_MEASURED, Quality, Sample, sample_of, with_flag
from perphd.host.cgroup.hierarchy import Hierarchy
from perphd.host.fs import KernelFile
from perphd.host.perf_event_types import PerfEventKind
from perphd.isolation import journal_format
from perphd.monitor.events import EventMeter
from perphd.monitor.files import _Place, _Source, _Want
from perphd.monitor.ladder import HARDWARE_ORDER, SOFTWARE, EventLadder
from perphd.monitor.meters import CpuStat, Gauge, MemoryStat, Meter, PressureMeter, Readings

_CPU = [b"usage_usec %d\nnr_periods %d\nnr_throttled %d\n" % n for n in ((0, 0, 0), (10, 1, 0), (99, 9, 4))]
_PSI = [b"some avg10=0.00 total=%d\nfull avg10=0.00 total=%d\n" % n for n in ((0, 0), (7, 2), (5000, 900))]
_SIZE = [b"4096\n", b"8192\n", b"max\n"]
_STAT = [
    b"anon 1\nworkingset_refault_anon 0\nworkingset_refault_file %d\npgmajfault %d\n" % n
    for n in ((0, 0), (3, 1), (4, 9))
]
_KINDS: dict[str, tuple[Callable[[], Meter], list[bytes]]] = {
    "cpu": (lambda: CpuStat(usage=True, throttling=True), _CPU),
    "psi": (lambda: PressureMeter("cpu_some_pct", "io_full_pct"), _PSI),
    "size": (lambda: Gauge("memory_current_bytes"), _SIZE),
    "memory": (MemoryStat.v2, _STAT),
}


class _File:
    """A kernel file that reads what it is told."""

    def __init__(self) -> None:
        self.now: bytes | KernelError = b""

    def read(self) -> bytes:
        if isinstance(self.now, KernelError):
            raise self.now
        return self.now

    def close(self) -> None:
        pass


class _Fs:
    def __init__(self, file: _File) -> None:
        self._file = file

    def open(self, path: str) -> KernelFile:
        return self._file


_STEP = st.tuples(
    st.integers(0, 3),  # which content; 3: it cannot be read this time
    st.sampled_from((0.0, 0.1, 1.0, 1.0, 1.0, 2.5)),  # seconds since the last look
)


@given(kind=st.sampled_from(sorted(_KINDS)), steps=st.lists(_STEP, max_size=25))
def test_a_file_that_is_not_parsed_again_gives_the_same_readings(
    kind: str, steps: list[tuple[int, float]]
) -> None:
    make, contents = _KINDS[kind]
    plain = make()
    file = _File()
    tree = Hierarchy(2, "/sys/fs/cgroup", frozenset())
    source = _Source(_Want(plain.fields, (_Place(tree, "x", make),), ""))
    source.open(_Fs(file), "/a")  # type: ignore[arg-type]
    now_s = 100.0
    for which, later_s in steps:
        now_s += later_s
        wanted: Readings = {}
        got: Readings = {}
        if which == len(contents):
            file.now = KernelError("/x", "read", 5)
            assert not source.take(now_s, got)
            assert set(got) == set(plain.fields)
            assert all(isinstance(value, Unavailable) for value in got.values())
            continue
        file.now = contents[which]
        plain.take(contents[which], now_s, wanted)
        assert not source.take(now_s, got)
        assert got == wanted


def test_a_file_that_vanished_says_so_until_it_is_opened_again() -> None:
    file = _File()
    tree = Hierarchy(2, "/sys/fs/cgroup", frozenset())
    source = _Source(_Want(("threads",), (_Place(tree, "x", lambda: Gauge("threads")),), ""))
    source.open(_Fs(file), "/a")  # type: ignore[arg-type]
    out: Readings = {}
    for now_s in (1.0, 2.0, 3.0):
        file.now = b"5\n"
        out.clear()
        assert not source.take(now_s, out)
        assert out == {"threads": 5.0}
    file.now = Gone("/x", "read", 19)
    assert source.take(4.0, out)
    assert out == {"threads": Unavailable("/x vanished")}
    assert not source.is_open
    assert not source.take(5.0, out)
    source.open(_Fs(file), "/a")  # type: ignore[arg-type]
    file.now = b"5\n"
    assert not source.take(6.0, out)
    assert out == {"threads": 5.0}


def test_a_sample_made_fast_is_a_sample() -> None:
    made = sample_of("a", 1.0, 2.0, {**NOTHING_MEASURED, "mips": 3.0}, (Quality.FIRST,))
    plain = Sample("a", 1.0, 2.0, mips=3.0, quality=(Quality.FIRST,))
    assert made == plain
    assert type(made) is Sample
    assert (hash(made), repr(made)) == (hash(plain), repr(plain))
    assert pickle.loads(pickle.dumps(made)) == copy.copy(made) == replace(made) == plain
    with pytest.raises(FrozenInstanceError):
        made.mips = 4.0  # type: ignore[misc]
    with pytest.raises(KeyError):
        sample_of("a", 1.0, 2.0, {"mips": 3.0}, ())
    assert with_flag(made, Quality.LATE) == replace(plain, quality=(Quality.FIRST, Quality.LATE))


@dataclass(frozen=True, slots=True)
class _Checked:
    number: int

    def __post_init__(self) -> None:
        assert self.number > 0


@dataclass(frozen=True)
class _WithoutSlots:
    number: int


def test_only_plain_frozen_values_are_made_fast() -> None:
    for kind in (_Checked, _WithoutSlots, int):
        with pytest.raises(TypeError, match="not a plain frozen dataclass"):
            maker(kind)
    with pytest.raises(TypeError, match="no field mops"):
        changer(Sample, "mops")


@given(st.text(), st.text(), st.binary(), st.integers(0, 2**64), st.integers(0, 2**64), st.text())
def test_the_journals_lines_are_those_of_a_json_library(
    path: str, text: str, raw: bytes, device: int, inode: int, name: str
) -> None:
    """They are put together by hand because there is one for every write; what reads them does not know that."""
    entry = journal_format.Original(path, raw, (device, inode), text, name, 7)
    for line, wanted in (
        (journal_format.intent_line(path, text), {"kind": "intent", "path": path, "value": text}),
        (
            journal_format.original_line(entry),
            {"kind": "original", "seq": 7, "workload": name, "knob": text, "path": path}
            | {"raw": raw.decode("latin-1"), "dev": device, "ino": inode},
        ),
    ):
        assert line == journal_format._line(wanted)


class _Group:
    """An event group that counts what it is told; the same object where nothing was counted meanwhile."""

    lost_cpus, starved_cpus, fds, events = CpuSet(), CpuSet(), 0, (*HARDWARE_ORDER, *SOFTWARE)

    def __init__(self, keeps: bool) -> None:
        self._keeps, self._total = keeps, 0.0
        self._counts: dict[PerfEventKind, Reading] = {}

    def count(self, more: float) -> None:
        self._total += more
        if more or not self._counts:
            self._counts = dict.fromkeys(PerfEventKind, self._total)

    def read(self) -> Mapping[PerfEventKind, Reading]:
        return self._counts if self._keeps else dict(self._counts)

    def close(self) -> None:
        pass


@given(
    st.lists(
        st.tuples(st.sampled_from((0.0, 0.0, 5e6, 1e9)), st.sampled_from((0.0, 0.1, 1.0, 1.0))), max_size=25
    )
)
def test_events_of_a_group_that_did_not_run_are_those_that_are_counted(
    steps: list[tuple[float, float]],
) -> None:
    groups = {keeps: _Group(keeps) for keeps in (True, False)}
    meters = {
        keeps: EventMeter(EventLadder(lambda *_, group=group: group), "/x", CpuSet.of([0]))
        for keeps, group in groups.items()
    }
    now_s = 10.0
    for more, later_s in steps:
        now_s += later_s
        outs: dict[bool, Readings] = {}
        for keeps, meter in meters.items():
            groups[keeps].count(more)
            outs[keeps] = {"cpu_usage_cores": Unavailable("no file")}
            assert not meter.take(now_s, outs[keeps], CpuSet)
        assert outs[True] == outs[False]


@dataclass(frozen=True, slots=True)
class _One:
    number: int


def test_replacing_fields_quickly_gives_what_dataclasses_gives() -> None:
    state = LraState(1.0, scores=(0.5,))
    for changes in ({}, {"stride": 4}, {"scores": (1.0, 2.0), "quiet_since_s": 3.0}):
        found = quick.replace(state, **changes)
        assert found == replace(state, **changes)
        assert type(found) is LraState
        assert found is not state
    with pytest.raises(FrozenInstanceError):
        quick.replace(state, stride=4).stride = 5  # type: ignore[misc]
    assert state == LraState(1.0, scores=(0.5,))
    with pytest.raises(TypeError, match="stridee"):
        quick.replace(state, stridee=1)


def test_what_has_no_quick_way_is_replaced_all_the_same() -> None:
    assert quick.replace(_One(1), number=2) == _One(2)
    with pytest.raises(ValueError, match="negative"):  # its __post_init__ is not left out
        quick.replace(CpuSet(1), mask=-1)
    assert quick.replace(CpuSet(1), mask=6) == CpuSet(6)
