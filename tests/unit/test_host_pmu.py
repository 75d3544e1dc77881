"""Event codes by what the processor's PMU really counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from perphd.domain.reading import Unavailable
from perphd.host.perf_event_types import COMMON_CODES, EventCode, EventCodes, PerfEventKind
from perphd.host.pmu import EVENT_SOURCES, read_event_codes
from tests.unit.host_tree import write_tree

CACHE = (PerfEventKind.LLC_REFERENCES, PerfEventKind.LLC_MISSES)
STALLS = (PerfEventKind.STALL_BACKEND, PerfEventKind.STALL_MEMORY)
COMMON = tuple(kind for kind in PerfEventKind if kind not in (*CACHE, *STALLS))
ARM = f"{EVENT_SOURCES}/armv8_pmuv3_0"


def x86(vendor: str, family: int, model: int) -> dict[str, str]:
    text = f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: X 9\n"
    return {"/proc/cpuinfo": f"{text}\nprocessor\t: 1\nmodel\t\t: 99\n", f"{EVENT_SOURCES}/cpu/type": "4\n"}


def arm(pmu: str = ARM, **events: int) -> dict[str, str]:
    files = {
        "/proc/cpuinfo": "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n",
        f"{pmu}/type": "8\n",
    }
    # As a Neoverse N1 writes them, and as Linux writes every event of the driver.
    return files | {f"{pmu}/events/{name}": f"event=0x{code:04x}\n" for name, code in events.items()}


def missing(codes: EventCodes, *kinds: PerfEventKind) -> str:
    reasons = {code.reason for kind in kinds if isinstance(code := codes[kind], Unavailable)}
    assert len(reasons) == 1, codes
    return reasons.pop()


@pytest.mark.parametrize(
    "files",
    [x86("GenuineIntel", 6, 0x55), x86("AuthenticAMD", 25, 1), arm(cpu_cycles=0x11), {}],
    ids=["intel", "amd", "arm", "nothing"],
)
def test_what_means_the_same_everywhere_has_one_code(tmp_path: Path, files: dict[str, str]) -> None:
    codes = read_event_codes(write_tree(tmp_path, files))
    assert set(codes) == set(PerfEventKind)
    for kind in COMMON:
        assert codes[kind] == COMMON_CODES[kind]


def test_intels_architectural_events_are_the_last_levels(tmp_path: Path) -> None:
    codes = read_event_codes(write_tree(tmp_path, x86("GenuineIntel", 6, 0x8F)))
    assert [codes[kind] for kind in CACHE] == [EventCode(0, 2), EventCode(0, 3)]
    # cpu/event=0xa3,umask=0x04,cmask=0x04/ and cpu/event=0xa3,umask=0x06,cmask=0x06/
    assert [codes[kind] for kind in STALLS] == [EventCode(4, 0x040004A3), EventCode(4, 0x060006A3)]


@pytest.mark.parametrize(("family", "model"), [(6, 0x97), (6, 0x3F), (15, 0x55)])
def test_stalls_of_other_intels_are_the_kernels_choice(tmp_path: Path, family: int, model: int) -> None:
    codes = read_event_codes(write_tree(tmp_path, x86("GenuineIntel", family, model)))
    assert codes[PerfEventKind.STALL_BACKEND] == EventCode(0, 8)
    assert "memory stalls" in missing(codes, PerfEventKind.STALL_MEMORY)


@pytest.mark.parametrize("vendor", ["AuthenticAMD", "HygonGenuine"])
def test_amds_cache_events_are_not_taken_for_the_last_levels(tmp_path: Path, vendor: str) -> None:
    codes = read_event_codes(write_tree(tmp_path, x86(vendor, 25, 1)))
    assert "amd_l3" in missing(codes, *CACHE)
    assert "memory stalls" in missing(codes, PerfEventKind.STALL_MEMORY)


def test_an_unknown_processor_has_no_cache_events(tmp_path: Path) -> None:
    codes = read_event_codes(write_tree(tmp_path, x86("  Shanghai  ", 7, 1)))
    assert "count is unknown" in missing(codes, *CACHE)
    assert EVENT_SOURCES in missing(read_event_codes(write_tree(tmp_path / "none", {})), *CACHE, *STALLS)


def test_arms_events_are_those_that_the_pmu_advertises(tmp_path: Path) -> None:
    files = arm(ll_cache_rd=0x36, ll_cache_miss_rd=0x37, stall_backend=0x24, stall_backend_mem=0x4005)
    codes = read_event_codes(write_tree(tmp_path, files))
    assert [codes[kind] for kind in CACHE] == [EventCode(8, 0x36), EventCode(8, 0x37)]
    assert [codes[kind] for kind in STALLS] == [EventCode(8, 0x24), EventCode(8, 0x4005)]


@pytest.mark.parametrize("name", ["armv8_pmuv3", "armv8_cortex_a72", "armv9_neoverse_v3"])
def test_arms_l1_is_never_taken_for_the_last_level(tmp_path: Path, name: str) -> None:
    """PERF_COUNT_HW_CACHE_MISSES is 0x3, L1D_CACHE_REFILL, in armv8_pmuv3_perf_map of Linux 6.1."""
    files = arm(
        f"{EVENT_SOURCES}/{name}", cpu_cycles=0x11, inst_retired=0x8, l1d_cache=0x4, l1d_cache_refill=0x3
    )
    codes = read_event_codes(write_tree(tmp_path, files))
    assert f"{name} does not advertise ll_cache_miss_rd" in missing(codes, PerfEventKind.LLC_MISSES)
    assert "does not advertise stall_backend" in missing(codes, PerfEventKind.STALL_BACKEND)


def test_cores_of_two_kinds_have_no_common_events(tmp_path: Path) -> None:
    little = f"{EVENT_SOURCES}/armv8_cortex_a53"
    files = arm(ll_cache_miss_rd=0x37) | arm(little, ll_cache_miss_rd=0x37)
    assert "different PMUs" in missing(read_event_codes(write_tree(tmp_path, files)), *CACHE, *STALLS)


@pytest.mark.parametrize("text", ["config1=0x1,event=0x37", "event=what", ""])
def test_terms_that_are_not_known_are_not_guessed(tmp_path: Path, text: str) -> None:
    files = arm() | {f"{ARM}/events/ll_cache_miss_rd": text}
    assert "in an unknown format" in missing(
        read_event_codes(write_tree(tmp_path, files)), PerfEventKind.LLC_MISSES
    )
