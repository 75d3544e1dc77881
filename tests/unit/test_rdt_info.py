"""What a machine offers: read once, of every kind of machine, and of kernels that are not known yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from perphd.sim.kernel.resctrl import MACHINES
from rdt import DEFAULT_GROUP, BandwidthUnit, Broken, RealFs, Resctrl, Schemata, Unsupported
from tests.unit.rdt_world import ROOT, World


@pytest.mark.parametrize("machine", MACHINES)
def test_a_fresh_group_has_what_the_description_says(machine):
    resctrl = World(machine).open()
    assert resctrl.schemata() == resctrl.info.default()
    assert hash(resctrl.info) == hash(World(machine).open().info)


def test_the_captured_machine():
    info = World().open().info
    (cache,) = info.cache()
    assert (cache.num_closids, cache.cbm_mask, cache.min_cbm_bits, cache.shareable_bits) == (
        16,
        0x7FF,
        1,
        0x600,
    )
    assert (cache.ways, cache.sparse_masks, cache.domains) == (11, None, (0, 1))
    assert cache.bit_usage == {0: "XXSSSSSSSSS", 1: "XXSSSSSSSSS"}
    bandwidth = info.bandwidths["MB"]
    assert (bandwidth.unit, bandwidth.minimum, bandwidth.granularity) == (BandwidthUnit.PERCENT, 10, 10)
    assert (bandwidth.linear, bandwidth.thread_throttle_mode, bandwidth.unthrottled) == (True, "max", 100)
    assert bandwidth.steps() == tuple(range(10, 101, 10))
    assert [bandwidth.rounded(value) for value in (10, 15, 21, 30)] == [10, 20, 30, 30]
    monitoring = info.monitoring
    assert monitoring is not None
    assert monitoring.features == ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")
    assert (monitoring.num_rmids, monitoring.max_threshold_occupancy_bytes) == (64, 262144)
    assert info.usable_closids == 8  # L3 alone has 16


def test_kernels_that_tell_of_sparse_masks():
    assert World("captured-6.12").open().info.caches["L3"].sparse_masks is False
    assert World("amd").open().info.caches["L3"].sparse_masks is True


def test_ids_have_gaps_and_every_resource_its_own():
    info = World("sparse-ids").open().info
    assert info.domains("L3") == info.domains("MB") == (0, 8)
    assert info.domains("L2") == ()


def test_code_and_data_apart():
    info = World("cdp").open().info
    assert {cache.name for cache in info.cache(3)} == {"L3CODE", "L3DATA"}
    assert info.mount.cdp
    assert info.caches["L3CODE"].num_closids == 8


def test_absolute_bandwidth_has_the_ceiling_that_the_file_shows():
    world = World("amd")
    world.mkdir("fresh")
    world.write("schemata", "MB:0=16;1=16;8=16;9=16\n")
    bandwidth = world.open().info.bandwidths["MB"]
    assert (bandwidth.unit, bandwidth.unthrottled, bandwidth.linear) == (BandwidthUnit.ABSOLUTE, 2048, False)
    assert bandwidth.thread_throttle_mode is None
    assert bandwidth.steps() == ()
    resctrl = world.open()
    assert resctrl.apply(DEFAULT_GROUP, Schemata.of({"MB": {9: 13}})).after.get("MB", 9) == 13


def test_bandwidth_steered_by_the_kernel():
    info = World("mba-mbps").open().info
    assert info.mount.mba_mbps
    assert info.bandwidths["MB"].unit is BandwidthUnit.MBPS
    assert info.bandwidths["MB"].unthrottled == 2**32 - 1


def test_parts_may_be_missing():
    assert World("no-monitoring").open().info.monitoring is None
    only = World("monitoring-only").open().info
    assert (only.can_control, only.usable_closids) == (False, 1)
    assert World("mb-only").open().info.cache() == ()


def test_clusters_below_a_domain():
    monitoring = World("snc").open().info.monitoring
    assert monitoring is not None
    assert monitoring.sub_domains == {
        0: ("mon_sub_L3_00", "mon_sub_L3_01"),
        1: ("mon_sub_L3_02", "mon_sub_L3_03"),
    }


def files(root: Path, texts: dict[str, str]) -> RealFs:
    for name, text in texts.items():
        path = Path(f"{root}/{name}" if name.startswith("proc/") else f"{root}{ROOT}/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return RealFs(root)


SMALL = {
    "schemata": "   NEW:0=fast\n    MB:3= 50\n    L3:2=ff\n",
    "info/last_cmd_status": "ok\n",
    "info/L3/cbm_mask": "ff\n",
    "info/L3/num_closids": "4\n",
    "info/MB/bandwidth_gran": "5\n",
    "info/MB/min_bandwidth": "5\n",
    "info/MB/num_closids": "6\n",
}


def test_an_older_kernel_with_fewer_files(tmp_path):
    info = Resctrl.open(files(tmp_path, SMALL)).info
    cache = info.caches["L3"]
    assert (cache.min_cbm_bits, cache.shareable_bits, cache.sparse_masks) == (1, 0, None)
    assert not cache.bit_usage
    assert (info.domains("L3"), info.domains("MB")) == ((2,), (3,))
    assert (info.bandwidths["MB"].linear, info.bandwidths["MB"].thread_throttle_mode) == (None, None)
    assert info.bandwidths["MB"].rounded(7) == 10


def test_what_is_not_known_is_kept(tmp_path):
    more = {
        "info/L3/io_alloc": "disabled\n",
        "info/NEW/num_closids": "3\n",
        "info/NEW/colour": "blue\n",
        "info/L3_MON/num_rmids": "32\n",
        "info/L3_MON/mon_features": "llc_occupancy\nnew_event\n",
        "info/L3_MON/mbm_assign_mode": "[mbm_event]\ndefault\n",
        "info/kernel_mode": "on\n",
        "mon_data/mon_L3_02/llc_occupancy": "0\n",
        "mon_data/mon_NEW_07/x": "0\n",
        "proc/mounts": f"resctrl {ROOT} resctrl rw,relatime,cdpl2,mba_MBps,debug,newopt 0 0\n",
    }
    info = Resctrl.open(files(tmp_path, SMALL | more)).info
    assert info.caches["L3"].extra == {"io_alloc": "disabled"}
    assert info.unknown == {"NEW": {"num_closids": "3", "colour": "blue"}}
    assert info.extra == {"kernel_mode": "on"}
    assert info.usable_closids == 3
    assert info.monitoring is not None
    assert info.monitoring.features == ("llc_occupancy", "new_event")
    assert info.monitoring.max_threshold_occupancy_bytes is None
    assert info.monitoring.extra == {"mbm_assign_mode": "[mbm_event]\ndefault"}
    assert info.monitoring.domains == (2,)
    assert info.mount.options == {"cdpl2", "mba_MBps", "debug"}
    assert info.bandwidths["MB"].unit is BandwidthUnit.MBPS


@pytest.mark.parametrize(("name", "text"), [("info/L3/cbm_mask", "xyz\n"), ("info/MB/num_closids", "many\n")])
def test_a_known_file_that_cannot_be_read_is_told(tmp_path, name, text):
    with pytest.raises(Broken, match=name):
        Resctrl.open(files(tmp_path, SMALL | {name: text}))
    (tmp_path / ROOT.lstrip("/") / name).unlink()
    with pytest.raises(Broken, match="missing"):
        Resctrl.open(RealFs(tmp_path))


@pytest.mark.parametrize(
    ("proc", "words"),
    [
        ({}, "the kernel has no resctrl"),
        (
            {"proc/filesystems": "nodev\tresctrl\n", "proc/cpuinfo": "flags\t: fpu cat_l3 mba\n"},
            "mount -t resctrl",
        ),
        ({"proc/mounts": "resctrl /mnt/a\\040b resctrl rw 0 0\n"}, "mounted at /mnt/a b"),
    ],
)
def test_not_mounted_says_what_can_be_done(tmp_path, proc, words):
    with pytest.raises(Unsupported, match=words):
        Resctrl.open(files(tmp_path, proc))
