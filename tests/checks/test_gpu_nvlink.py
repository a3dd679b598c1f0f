"""gpu.nvlink: links against the type, reach, and errors that keep coming. Answers are constructed from nvml.h."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthd.checklib.nvlink import ALL_LINKS, TABLE
from healthd.checklib.nvlink_recoveries import outliers
from healthd.checklib.nvml_codes import field_key
from healthd.checklib.tables import instance_types
from healthd.checks.gpu_nvlink import gpu_nvlink
from healthd.core.check import NoSettings
from healthd.core.model import REMEDY_RANK, Component, Remedy, Result, Severity, Status
from healthd.core.node import GpuAnswer
from healthd.testing import (
    NOT_SUPPORTED,
    UNKNOWN,
    FakeNode,
    FakeNvml,
    codes,
    failed_gpu,
    fake_pci,
    gpu_uuid,
    gpu_with,
    healthy_gpu,
    pci_tree,
)
from tests.support.over_time import open_codes

P2P, MIG = "nvmlDeviceGetP2PStatus(2)", "nvmlDeviceGetMigMode"
CRC, REPLAY, RECOVERY = (f"nvmlDeviceGetNvLinkErrorCounter(5, {kind})" for kind in (2, 0, 1))
COUNTERS = tuple(f"nvmlDeviceGetNvLinkErrorCounter({link}, {kind})" for link in range(18) for kind in range(3))
AMPERE, HOPPER = "p4d.24xlarge", "p5.48xlarge"


def run(*gpus: GpuAnswer, instance_type: str | None = "p5.48xlarge") -> Result:
    node = FakeNode(sys=pci_tree(gpus=[fake_pci(0)]), nvml=FakeNvml(*gpus), instance_type=instance_type)
    result = gpu_nvlink(node, NoSettings())
    for finding in result.findings:  # unproven on hardware
        assert finding.severity is (Severity.CRITICAL if finding.code == "gpu.nvlink.dead" else Severity.WARNING)
        assert REMEDY_RANK[finding.remedy] < REMEDY_RANK[Remedy.RESET_GPU]
    return result


def state(link: int) -> str:
    return f"nvmlDeviceGetNvLinkState({link})"


def test_all_links_up() -> None:
    """Eighteen links up and every sibling in reach is ok; five counters of a GPU and two of each link are read."""
    result = run(healthy_gpu(0))
    assert result.status is Status.OK
    assert len(result.readings) == 5 + 2 * 18
    assert str(result.readings[-1].component) == f"nvlink:{gpu_uuid(0)}/17"


def test_links_down() -> None:
    """Links that are down are one finding of their GPU that names them, once it lasts."""
    sick = gpu_with(1, {state(3): 0, state(17): 0})
    result = run(healthy_gpu(0), sick)
    (finding,) = result.findings
    assert (finding.code, finding.component.id) == ("gpu.nvlink.down", gpu_uuid(1))
    assert finding.message == "16 of 18 NVLinks are up; down: 3, 17"
    assert open_codes("gpu.nvlink", [result] * 3) == [set(), set(), {"gpu.nvlink.down"}]


@pytest.mark.parametrize("key", ["nvmlDeviceGetNvLinkErrorCounter(5, 1)", "field:213/5"])
@pytest.mark.parametrize(("count", "found"), [(505, True), (100, True), (99, False)])
def test_a_link_that_stands_out_is_told_before_it_fails(key: str, count: int, found: bool) -> None:
    """505 recoveries on one link and none on its siblings are a warning of that link; 99 are noise."""
    gpus = [gpu_with(index, {key: count} if index == 3 else {}) for index in range(8)]
    findings = run(*gpus).findings
    assert [(each.code, str(each.component)) for each in findings] == (
        [("gpu.nvlink.stands_out", f"nvlink:{gpu_uuid(3)}/5")] if found else []
    )


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=144))
def test_links_alike_never_stand_out(counts: list[int]) -> None:
    """A link stands out only with 100 recoveries and 20 times the median; never more than half of all do."""
    by_link = {Component(kind="nvlink", id=f"GPU-0/{number}"): count for number, count in enumerate(counts)}
    usual = sorted(counts)[len(counts) // 2]
    told = [numbers["recoveries"] for _, _, numbers in outliers(by_link)]
    assert told == [count for count in counts if count >= 100 and count >= 20 * usual]
    assert len(told) <= len(counts) / 2


def test_a_link_whose_recoveries_are_not_told_ends_no_fault() -> None:
    """A fault that is open on a link stays while its GPU does not tell."""
    keys = [f"nvmlDeviceGetNvLinkErrorCounter({link}, 1)" for link in range(18)]
    keys += [f"field:213/{link}" if link else "field:213" for link in range(18)]
    silent = gpu_with(0, dict.fromkeys(keys, NOT_SUPPORTED))
    sick = gpu_with(0, {"field:213/5": 505})
    looks = [run(gpu, healthy_gpu(1)) for gpu in (sick, silent, healthy_gpu(0))]
    assert open_codes("gpu.nvlink", looks) == [{"gpu.nvlink.stands_out"}, {"gpu.nvlink.stands_out"}, set()]
    assert run(silent).findings == ()


def test_no_link_is_up() -> None:
    """A GPU with no link keeps jobs off once it lasts; when that is every GPU it is one fault of the node."""
    sick = gpu_with(1, dict.fromkeys(map(state, range(18)), 0))
    result = run(healthy_gpu(0), sick)
    assert [(each.code, each.component.id) for each in result.findings] == [
        ("gpu.nvlink.dead", gpu_uuid(1)),
        ("gpu.nvlink.down", gpu_uuid(1)),
    ]
    assert open_codes("gpu.nvlink", [result] * 3)[1:] == [set(), {"gpu.nvlink.dead", "gpu.nvlink.down"}]
    assert str(run(sick, gpu_with(0, dict.fromkeys(map(state, range(18)), 0))).findings[0].component) == "node"


@pytest.mark.parametrize(
    "answers",
    [
        {**dict.fromkeys(map(state, range(18)), 0), MIG: [1, 1]},
        {**dict.fromkeys(map(state, range(18)), 0), state(4): 1},
        {**dict.fromkeys(map(state, range(18)), 0), state(4): UNKNOWN},
        dict.fromkeys(map(state, range(18)), NOT_SUPPORTED),
    ],
)
def test_what_is_not_certainly_dead(answers: dict[str, Any]) -> None:
    """With MIG on, with one link up or silent, or where NVML knows no link at all, it is a warning as before."""
    assert codes(run(healthy_gpu(0), gpu_with(1, answers))) == ["gpu.nvlink.down"]


def test_a_link_that_is_not_known_is_down() -> None:
    """Where there must be 18 links, one that NVML does not know is missing; one that fails to tell is unknown."""
    assert codes(run(gpu_with(0, {state(17): NOT_SUPPORTED}))) == ["gpu.nvlink.down"]
    assert run(gpu_with(0, {state(17): UNKNOWN})).status is Status.UNKNOWN


def test_the_type_says_how_many() -> None:
    """An A100 has twelve links, and is not asked for more."""
    twelve: Mapping[str, Any] = {state(link): NOT_SUPPORTED for link in range(12, 18)}
    assert run(gpu_with(0, twelve), instance_type="p4d.24xlarge").status is Status.OK
    assert codes(run(gpu_with(0, {**twelve, state(11): 0}), instance_type="p4de.24xlarge")) == ["gpu.nvlink.down"]


@pytest.mark.parametrize("instance_type", ["p5.4xlarge", "g6e.48xlarge", "p99.metal", None])
def test_types_without_nvlink(instance_type: str | None) -> None:
    """A type without NVLink, or that nobody knows, is not judged, whatever its links show."""
    assert run(gpu_with(0, {state(0): 0}), instance_type=instance_type).status is Status.NOT_APPLICABLE


def test_every_type_with_nvlink_has_a_row() -> None:
    """No type with NVSwitch falls out of the table."""
    for profile in instance_types().values():
        assert profile.nvlink in ("none", "pcie") or profile.gpu_model in TABLE


def test_siblings_out_of_reach() -> None:
    """A GPU that cannot reach others is found with NVML's words for it; itself and absent ones are no matter."""
    (finding,) = run(gpu_with(0, {P2P: [0, 5, 0, 4, None, 9]})).findings
    assert finding.code == "gpu.nvlink.no_p2p"
    assert finding.evidence["by_index"] == {"1": "NOT_SUPPORTED", "3": "DISABLED_BY_REGKEY", "5": "status 9"}


def test_mig_keeps_gpus_apart() -> None:
    """With MIG on a GPU reaches no sibling, and is reached by none; others must reach each other."""
    assert run(gpu_with(0, {P2P: [0, 5], MIG: [1, 1]})).status is Status.OK
    split = gpu_with(1, {P2P: [5, 0, 5], MIG: [1, 1]})
    assert run(gpu_with(0, {P2P: [0, 5, 0]}), split, gpu_with(2, {P2P: [0, 5, 0]})).status is Status.OK
    (finding,) = run(gpu_with(0, {P2P: [0, 5, 5]}), split, gpu_with(2, {P2P: [5, 5, 0]})).findings
    assert finding.evidence["by_index"] == {"2": "NOT_SUPPORTED"}
    assert codes(run(gpu_with(0, {P2P: [0, 5], MIG: NOT_SUPPORTED}))) == ["gpu.nvlink.no_p2p"]


def test_the_links_of_an_a100_sleep_in_mig() -> None:
    """They are down while MIG is on; those of an H100 are not, and nor are those of an A100 without MIG."""
    asleep = {state(link): 0 for link in range(18)}
    for instance_type, mode, found in (("p4d.24xlarge", 1, 0), ("p4d.24xlarge", 0, 1), ("p5.48xlarge", 1, 1)):
        result = run(gpu_with(0, {**asleep, MIG: [mode, mode]}), instance_type=instance_type)
        assert codes(result)[-1:] == ["gpu.nvlink.down"] * found


def over_time(key: str, *values: int, instance_type: str = HOPPER) -> list[set[str]]:
    looks = [run(gpu_with(0, {key: value}), instance_type=instance_type) for value in values]
    return open_codes("gpu.nvlink", looks)


@pytest.mark.parametrize(
    ("key", "instance_type"),
    [
        *((key, HOPPER) for key in (CRC, REPLAY, RECOVERY, "field:208/3")),
        *((f"field:{field}", AMPERE) for field in (38, 52, 59)),
    ],
)
def test_errors_that_keep_coming(key: str, instance_type: str) -> None:
    """Growth in 15 looks of half an hour is noise, in 16 it is not; old errors are none. By the field of the GPU, or
    by the counter of any link."""
    assert not set().union(*over_time(key, *range(50, 66), instance_type=instance_type))
    assert over_time(key, *range(50, 67), instance_type=instance_type)[-1] == {"gpu.nvlink.growing"}


def test_all_counters_of_a_minute_are_one_sample() -> None:
    """A CRC error has the packet sent again, and may retrain the link: three counters grow by one event. They are no
    three of the sixteen samples."""
    every = (CRC, REPLAY, RECOVERY)
    looks = [run(gpu_with(0, dict.fromkeys(every, look)), healthy_gpu(1)) for look in range(17)]
    assert not set().union(*open_codes("gpu.nvlink", looks[:-1]))
    assert open_codes("gpu.nvlink", looks)[-1] == {"gpu.nvlink.growing"}


def test_hopper_is_asked_link_by_link() -> None:
    """What all links counted is one reading of their GPU; fields of older GPUs, which say 0 there, are not asked."""
    gpus = FakeNvml(gpu_with(0, {CRC: 3, "nvmlDeviceGetNvLinkErrorCounter(17, 2)": 4, "field:38": 99}))
    node = FakeNode(sys=pci_tree(gpus=[fake_pci(0)]), nvml=gpus, instance_type=HOPPER)
    values = {reading.name: reading.value for reading in gpu_nvlink(node, NoSettings()).readings}
    assert values["gpu_nvlink_crc_errors_total"] == 7
    assert values["gpu_nvlink_replays_total"] == values["gpu_nvlink_recoveries_total"] == 0


def test_traffic_of_all_links_is_a_reading_of_the_gpu() -> None:
    """NVML counts KiB; a GPU that does not count them is no gap, and nothing is said."""
    sent = run(gpu_with(0, {field_key(138, ALL_LINKS): 3, field_key(139, ALL_LINKS): 5}))
    values = {reading.name: reading.value for reading in sent.readings}
    assert values["gpu_nvlink_transmitted_bytes_total"] == 3 * 1024
    assert values["gpu_nvlink_received_bytes_total"] == 5 * 1024
    silent = run(gpu_with(0, dict.fromkeys([field_key(field, ALL_LINKS) for field in (138, 139)], NOT_SUPPORTED)))
    assert (silent.status, silent.reason, len(silent.readings)) == (Status.OK, "", 3 + 2 * 18)


def test_counters_that_are_not_told_are_said_and_not_over() -> None:
    """A driver that does not know the question makes nobody well: the reason says so, and what was found stays. A sum
    of some links only is none."""
    silent = run(gpu_with(0, dict.fromkeys(COUNTERS, NOT_SUPPORTED)), healthy_gpu(1))
    assert (silent.status, silent.reason) == (Status.OK, "1 of 2 GPUs do not report all of their NVLink error counters")
    sick = [run(gpu_with(0, {CRC: value}), healthy_gpu(1)) for value in (0, 9000)]
    assert open_codes("gpu.nvlink", [*sick, silent])[-1] == {"gpu.nvlink.errors"}
    partly = run(gpu_with(0, {CRC: NOT_SUPPORTED}))
    assert "gpu_nvlink_crc_errors_total" not in {reading.name for reading in partly.readings}
    assert "gpu_nvlink_replays_total" in {reading.name for reading in partly.readings}


AMPERE_FIELDS, BLACKWELL = tuple(f"field:{field}" for field in (38, 52, 59)), "p6-b200.48xlarge"


@pytest.mark.parametrize("other", [healthy_gpu(1), gpu_with(1, dict.fromkeys(AMPERE_FIELDS, NOT_SUPPORTED))])
def test_fields_that_are_not_told_are_said_and_not_over(other: GpuAnswer) -> None:
    """The same where a GPU is asked by fields, whether one GPU does not know them or all."""
    quiet = gpu_with(0, dict.fromkeys(AMPERE_FIELDS, NOT_SUPPORTED))
    looks = [run(gpu_with(0, {"field:38": 700 * look}), healthy_gpu(1), instance_type=AMPERE) for look in range(17)]
    looks.append(run(gpu_with(0, {"field:38": 99_000}), healthy_gpu(1), instance_type=AMPERE))
    both = {"gpu.nvlink.errors", "gpu.nvlink.growing"}
    assert open_codes("gpu.nvlink", looks)[-1] == both
    silent = run(quiet, other, instance_type=AMPERE)
    assert silent.status is Status.OK
    assert "of 2 GPUs do not report all of their NVLink error counters" in silent.reason
    assert open_codes("gpu.nvlink", [*looks, *[silent] * 40])[-1] == both


def test_what_other_fields_feed_is_told() -> None:
    """A GPU that never had one of its counters grows, or not, by the others; CRC errors have none beside their own."""
    without = [gpu_with(0, {f"field:{field}": NOT_SUPPORTED}) for field in (38, 59)]
    (crc, recoveries) = (run(gpu, instance_type=AMPERE) for gpu in without)
    assert [code for _, code in crc.not_reported] == ["gpu.nvlink.errors"]
    assert (recoveries.not_reported, recoveries.reason) == ((), "")


def test_blackwell_tells_by_link() -> None:
    """There each link has its own counter, and one that goes quiet is not over; a GPU that is lost ends
    nothing of its links either."""
    looks = [run(gpu_with(0, {"field:208/3": look}), instance_type=BLACKWELL) for look in range(17)]
    assert open_codes("gpu.nvlink", looks)[-1] == {"gpu.nvlink.growing"}
    quiet = run(gpu_with(0, {"field:208/3": NOT_SUPPORTED}), instance_type=BLACKWELL)
    assert (quiet.status, [str(part) for part, _ in quiet.not_reported]) == (Status.OK, [f"nvlink:{gpu_uuid(0)}/3"])
    assert open_codes("gpu.nvlink", [*looks, *[quiet] * 40])[-1] == {"gpu.nvlink.growing"}
    lost = run(failed_gpu(0, named=True), instance_type=BLACKWELL)
    assert lost.status is Status.OK
    assert open_codes("gpu.nvlink", [*looks, *[lost] * 40])[-1] == {"gpu.nvlink.growing"}


def test_a_burst_is_not_growth() -> None:
    """Many errors at once, and then none, do not keep coming."""
    assert not set().union(*over_time(REPLAY, 0, *[500] * 20))


def test_errors_in_masses() -> None:
    """A hundred CRC errors a second are too many, fewer are not."""
    assert "gpu.nvlink.errors" in over_time(CRC, 0, 6001)[-1]
    assert "gpu.nvlink.errors" not in over_time(CRC, 0, 6000)[-1]


def test_a_failed_recovery_is_news() -> None:
    """One recovery that failed is told for a day; what the counter had before is not."""
    assert over_time("field:214/7", 4, 5, 5) == [set(), {"gpu.nvlink.recovery_failed"}, {"gpu.nvlink.recovery_failed"}]
    assert over_time("field:214", 4, 4) == [set(), set()]


def test_older_gpus_have_no_counters_by_link() -> None:
    """Fields that a GPU does not know are no fault."""
    fields = {
        f"field:{field}/{link}" if link else f"field:{field}": NOT_SUPPORTED
        for field in (208, 214)
        for link in range(18)
    }
    result = run(gpu_with(0, fields))
    assert (result.status, len(result.readings)) == (Status.OK, 5)


def test_a_gpu_that_does_not_answer_is_unknown() -> None:
    """It hides no finding of another."""
    result = run(failed_gpu(0, UNKNOWN), gpu_with(1, {state(3): 0}))
    assert (codes(result), len(result.undecided)) == (["gpu.nvlink.down"], 1)
