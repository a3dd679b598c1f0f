"""The names that operators have for devices: where one is certain, and how many devices are one range."""

from __future__ import annotations

import pytest

from healthd.core.check import judged
from healthd.core.model import NODE, Component, Outcome, Reading, Severity, gpu_component
from healthd.judge.devices import (
    KINDS,
    DeviceNames,
    device_names,
    device_range,
    folded_about,
    folded_texts,
    known_devices,
    renamed,
    with_range,
)
from tests.support.judgement import at, fault

UUID = "GPU-51a1a7ed-0000-4000-8000-000000000003"
GPU = gpu_component(uuid=UUID, pci="0000:86:00", index=3)
WITHOUT_INDEX = gpu_component(uuid="GPU-9", pci="0000:97:00")
EFA = tuple(Component(kind="efa", id=f"rdmap{bus}s0") for bus in (101, 79))
LISTED = {
    "efa.counters": Outcome(
        check="efa.counters",
        result=judged([], [Reading(component=part, name="efa_rx_bytes", value=1) for part in EFA]),
        at=at(0),
        duration_s=0.1,
    )
}
NAMES = device_names(LISTED, (), {f"gpu:{alias}": GPU for alias in GPU.aliases} | {"gpu:0000:97:00": WITHOUT_INDEX})


@pytest.mark.parametrize(
    ("component", "name"),
    [
        (GPU, "GPU 3"),
        ("gpu:0000:86:00", "GPU 3"),
        ("gpu:3", "GPU 3"),
        (Component(kind="nvlink", id=f"{UUID}/5"), "GPU 3 NVLink 5"),
        (EFA[1], "EFA 0"),
        (EFA[0], "EFA 1"),
        (WITHOUT_INDEX, "GPU 0000:97:00"),
        ("gpu:0000:0a:00", "GPU 0000:0a:00"),
        (Component(kind="efa", id="rdmap7s0"), "efa:rdmap7s0"),
        (Component(kind="mount", id="/fsx/a"), "mount:/fsx/a"),
        ("nvlink:odd", "nvlink:odd"),
        (NODE, "node"),
    ],
)
def test_a_device_has_a_number_only_where_that_is_certain(component: Component | str, name: str) -> None:
    """NVML's index, or the place among the EFA devices that the last run listed; else a name that lasts."""
    assert NAMES.of(component) == name


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (f"gpu.xid.79 on gpu:{UUID} opened", "gpu.xid.79 on GPU 3 opened"),
        ("XID 79 on GPU 0000:86:00: lost", "XID 79 on GPU 3: lost"),
        (f"{UUID}, 0000:86:00.", "GPU 3, GPU 3."),
        (f"nvlink:{UUID}/5 is down", "GPU 3 NVLink 5 is down"),
        ("efa:rdmap79s0: no counter", "EFA 0: no counter"),
        ("see /sys/bus/pci/devices/0000:86:00.0/vendor", "see /sys/bus/pci/devices/0000:86:00.0/vendor"),
        ("below /sys/class/infiniband/rdmap79s0", "below /sys/class/infiniband/rdmap79s0"),
        ("gpu:30 and gpu:3", "gpu:30 and GPU 3"),
        ("a remap is pending on GPU 3 (0000:86:00)", "a remap is pending on GPU 3 (0000:86:00)"),
    ],
)
def test_a_sentence_names_devices_as_operators_do(text: str, plain: str) -> None:
    """By whatever name they stand there. A path stays as it is: it is there to be opened."""
    assert NAMES.plain(text) == plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("out for gpu.xid.79 on GPU 1 [c1]", "out for gpu.xid.79 on 3 GPUs (0-1,12) [c1]"),
        ("gpu.xid.79 on GPU 12: critical", "gpu.xid.79 on 3 GPUs (0-1,12): critical"),
        ("gpu.xid.79 on GPU 2", "gpu.xid.79 on GPU 2"),
        ("gpu.ecc on GPU 1", "gpu.ecc on GPU 1"),
        ("my.gpu.xid.79 on GPU 1", "my.gpu.xid.79 on GPU 1"),
    ],
)
def test_a_sentence_about_one_device_names_all_that_have_its_code(text: str, shown: str) -> None:
    """Of another code, and of a device without it, it stays; so does one about a code that a single device has."""
    assert with_range(text, "gpu.xid.79", ["GPU 0", "GPU 1", "GPU 12"]) == shown
    assert with_range(text, "gpu.xid.79", ["GPU 1"]) == text
    assert with_range(text, "gpu.xid.79", []) == text


def test_without_names_a_sentence_stays_as_it_is() -> None:
    """Nothing is guessed."""
    assert DeviceNames().plain("gpu:GPU-1 at 0000:86:00") == "gpu:GPU-1 at 0000:86:00"


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        ([], ""),
        (["node"], ""),
        (["GPU 3", "GPU 3"], "GPU 3"),
        ([f"GPU {n}" for n in range(8)], "8 GPUs (0-7)"),
        (["GPU 7", "GPU 0", "GPU 1", "EFA 4"], "3 GPUs (0-1,7), EFA 4"),
        ([f"EFA {n}" for n in range(32)], "32 EFA devices (0-31)"),
        (["GPU 3 NVLink 1", "GPU 3 NVLink 2"], "2 NVLinks of GPU 3"),
        (["mount:/a", "mount:/b"], "mount:/a, mount:/b"),
        ([f"mount:/{n}" for n in range(5)], "mount:/0, mount:/1, mount:/2 and 2 more"),
    ],
)
def test_many_devices_are_a_range(labels: list[str], shown: str) -> None:
    """Each once; those without a number by their names, up to three."""
    assert device_range(labels) == shown


def test_sentences_that_differ_in_their_device_and_in_numbers_are_one() -> None:
    """At the place of the first, with its numbers; any other difference, or no device at all, keeps them apart."""
    texts = ["x on GPU 1: 187 s", "other", "x on GPU 2: 190 s of GPU 2", "x on GPU 3: 200 s", "other", "other 2"]
    assert [(each.text, each.members) for each in folded_texts(texts)] == [
        ("x on 2 GPUs (1,3): 187 s", (0, 3)),
        ("other", (1, 4)),
        ("x on GPU 2: 190 s of GPU 2", (2,)),
        ("other 2", (5,)),
    ]
    about = folded_about([("EFA 1", "silent for 1 s"), ("EFA 2", "silent for 2.5 s"), ("EFA 3", "lost")])
    assert [(each.devices, each.text) for each in about] == [
        ("2 EFA devices (1-2)", "silent for 1 s"),
        ("EFA 3", "lost"),
    ]


def test_one_device_is_no_part_of_another_ones_name() -> None:
    """GPU 1 and GPU 12."""
    assert renamed("GPU 1, GPU 12", "GPU 1", "it") == "it, GPU 12"
    assert renamed("as it was", "", "it") == "as it was"


def test_a_device_is_known_from_a_run_a_fault_or_earlier() -> None:
    """News of no weight name none; a lost GPU that has only its index is the one that is no longer listed."""
    names = {"gpu:0000:86:00": GPU, "gpu:7": gpu_component(index=7), "nic:1": Component(kind="nic", id="e0")}
    faults = [
        fault("gpu.lost", gpu_component(index=3)),
        fault("gpu.lost", gpu_component(index=5)),
        fault("gpu.hot", gpu_component(pci="0000:86:00")),
        fault("gpu.xid.43", gpu_component(uuid="GPU-new"), severity=Severity.INFO),
        fault("gpu.odd", Component(kind="gpu")),
        fault("gpu.odd", gpu_component(uuid="GPU-without")),
    ]
    known = known_devices(KINDS[0], {}, faults, names)
    assert [str(part) for part in known.parts] == [f"gpu:{UUID}", "gpu:5", "gpu:GPU-without"]
    assert (known.numbers, known.listed) == (("3", "5", "0"), frozenset())
    assert [each.code for each in known.faults[f"gpu:{UUID}"]] == ["gpu.lost", "gpu.hot"]
    twice = {"a": gpu_component(uuid="GPU-a", index=1), "b": gpu_component(uuid="GPU-b", index=1)}
    assert known_devices(KINDS[0], {}, (), twice).numbers == ("1", "0")
    better = {"a": gpu_component(uuid="GPU-a"), "b": gpu_component(uuid="GPU-a", index=4)}
    assert known_devices(KINDS[0], {}, (), better).numbers == ("4",)
    assert WITHOUT_INDEX.gpu_index is None
    assert device_names({}, faults, names).of("gpu:3") == "GPU 3"


def test_a_number_is_that_of_the_gpu_which_has_it_now() -> None:
    """GPU 1 of 4 is gone and NVML lists three, with the numbers 0 to 2, as nvidia-smi does."""
    was = [gpu_component(uuid=f"GPU-{number}", pci=f"0000:5{number}:00", index=number) for number in range(4)]
    now = [gpu_component(uuid=f"GPU-{number}", pci=f"0000:5{number}:00", index=i) for i, number in enumerate((0, 2, 3))]
    result = judged([], [Reading(component=part, name="gpu_listed", value=1) for part in now])
    listed = {"gpu.count": Outcome(check="gpu.count", result=result, at=at(0), duration_s=0.1)}
    names = device_names(listed, [fault("gpu.xid.79", was[1])], {f"gpu:{part.aliases[0]}": part for part in was})
    assert [names.of(part) for part in was] == ["GPU 0", "GPU 0000:51:00", "GPU 1", "GPU 2"]
    assert names.plain("gpu.hot on gpu:GPU-3, gpu:1") == "gpu.hot on GPU 2, GPU 1"
    assert names.plain("gpu.xid.79 on gpu:GPU-1") == "gpu.xid.79 on GPU 0000:51:00"
