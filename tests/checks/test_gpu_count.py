"""gpu.count: where a GPU is missing tells what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.checks.gpu_count import GpuCountSettings, gpu_count
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.model import Remedy, Result, Severity, Status
from healthd.testing import Entry, FakeNode, FakeNvml, codes, failed_gpu, fake_pci, healthy_gpu, pci_tree
from tests.support.over_time import codes_after_relearn, diagnoses, open_codes

NO_LIBRARY = SourceMissing("NVML: libnvidia-ml.so.1 is not there")


def unbound(sys: dict[str, Entry]) -> dict[str, Entry]:
    """The bus as a driver leaves it that has given up a GPU, or never got it."""
    return {path: entry for path, entry in sys.items() if not path.endswith("/driver")}


def node(
    *,
    on_pci: int = 8,
    listed: int = 8,
    files: int | None = None,
    instance_type: str | None = "p5.48xlarge",
    nvml: FakeNvml | None = None,
    **changes: Any,
) -> FakeNode:
    device_files = listed if files is None else files
    given: dict[str, Any] = {
        "sys": unbound(pci_tree(gpus=[fake_pci(index) for index in range(on_pci)])),
        "dev": {"null": "", "nvidiactl": "", **{f"nvidia{index}": "" for index in range(device_files)}},
        "nvml": nvml or FakeNvml(*(healthy_gpu(index) for index in range(listed))),
        "instance_type": instance_type,
    }
    return FakeNode(**{**given, **changes})


def run(machine: FakeNode, **settings: Any) -> Result:
    return gpu_count(machine, GpuCountSettings(**settings))


def test_all_there() -> None:
    """Eight on the bus, in the driver and as files is ok, and teaches the other names of each GPU."""
    result = run(node())
    assert result.status is Status.OK
    named = [reading.component.aliases[0] for reading in result.readings if reading.name == "gpu_index"]
    assert named == [fake_pci(index) for index in range(8)]


def test_the_last_gpu_was_taken_away_on_purpose() -> None:
    """After relearn none is expected on a machine of an unknown type, and none is missing."""
    one, none = (node(on_pci=count, listed=count, instance_type=None) for count in (1, 0))
    bare = node(on_pci=0, listed=0, instance_type=None, sys=pci_tree(efa=["0000:4f:00"]))
    looks = [run(one), run(bare)]
    assert open_codes("gpu.count", looks)[-1] == {"gpu.count.off_bus"}
    assert codes_after_relearn("gpu.count", looks, run(bare)) == set()
    assert open_codes("gpu.count", [*looks, run(none, expected=0)])[-1] == set()


def test_off_the_bus() -> None:
    """Seven of eight on the bus is critical, calls for a reboot, and XID 79 explains it."""
    result = run(node(on_pci=7, listed=7))
    (finding,) = result.findings
    assert (finding.code, finding.severity, finding.remedy) == (
        "gpu.count.off_bus",
        Severity.CRITICAL,
        Remedy.REBOOT_NODE,
    )
    assert finding.symptom_of == ("gpu.xid.79",)
    assert "7 of 8" in finding.message


def test_none_on_a_bus_that_has_other_devices() -> None:
    """A GPU instance whose bus lists other devices and no GPU has lost them all, library or not."""
    assert codes(run(node(on_pci=0, listed=0))) == ["gpu.count.off_bus"]
    result = run(node(on_pci=0, listed=0, nvml=FakeNvml(error=NO_LIBRARY)))
    assert codes(result) == ["gpu.count.off_bus"]
    assert result.undecided


def test_the_driver_does_not_list_one() -> None:
    """A GPU on the bus that NVML does not list is named by its PCI address, alone."""
    machine = node(nvml=FakeNvml(*(healthy_gpu(index) for index in range(8) if index != 5)), files=8)
    (finding,) = run(machine).findings
    assert (finding.code, str(finding.component)) == ("gpu.count.driver_lost", f"gpu:{fake_pci(5)}")
    assert finding.remedy is Remedy.REBOOT_NODE


BOUND = pci_tree(gpus=[fake_pci(index) for index in range(8)])


def hidden(listed: int, dev: dict[str, Any], *, bound: bool = True, excluded: int = 0) -> Result:
    """What a process finds to which NVML lists so many of eight GPUs."""
    sys = BOUND if bound else unbound(BOUND)
    gpus = FakeNvml(*(healthy_gpu(index) for index in range(listed)), excluded=excluded)
    return run(node(nvml=gpus, sys=sys, dev={"null": "", **dev}))


@pytest.mark.parametrize("others", [{}, dict.fromkeys(("nvidia2", "nvidia7"), SourceUnreadable("EPERM"))])
def test_gpus_that_are_kept_from_this_process_are_a_gap(others: dict[str, Any]) -> None:
    """As many files may be opened as NVML lists GPUs, and the driver has the others: a container or a cgroup."""
    result = hidden(2, {"nvidia0": "", "nvidia1": "", **others})
    assert (result.status, result.findings) == (Status.UNKNOWN, ())
    assert result.reason.startswith("this process sees 2 of 8 GPUs")


def test_what_explains_itself_otherwise_is_not_hidden() -> None:
    """More files than GPUs, a GPU that no driver has, or one that was excluded: found as ever."""
    two = {"nvidia0": "", "nvidia1": ""}
    assert set(codes(hidden(2, {**two, "nvidia2": ""}))) == {"gpu.count.driver_lost"}
    assert set(codes(hidden(2, two, bound=False))) == {"gpu.count.driver_lost"}
    assert set(codes(hidden(2, two, excluded=6))) == {"gpu.count.excluded"}


def test_excluded_gpus_are_explained() -> None:
    """A GPU that the driver was told to leave out is a question for a person, not a lost GPU."""
    gpus = [healthy_gpu(index) for index in range(7)]
    (finding,) = run(node(nvml=FakeNvml(*gpus, excluded=1), files=7)).findings
    assert (finding.code, finding.remedy) == ("gpu.count.excluded", Remedy.ASK_HUMAN)


def test_exclusion_explains_no_more_than_it_counts() -> None:
    """With one excluded and two missing, one is lost; which one cannot be told, so the node is named."""
    gpus = [healthy_gpu(index) for index in range(6)]
    result = run(node(nvml=FakeNvml(*gpus, excluded=1), files=6))
    assert [(finding.code, str(finding.component)) for finding in result.findings] == [
        ("gpu.count.excluded", "node"),
        ("gpu.count.driver_lost", "node"),
    ]


def test_an_old_driver_does_not_tell_what_it_excludes() -> None:
    """Where the driver does not tell the number of excluded GPUs, none are."""
    gpus = [healthy_gpu(index) for index in range(8)]
    assert run(node(nvml=FakeNvml(*gpus, excluded=None))).status is Status.OK


@pytest.mark.parametrize("named", [True, False])
def test_a_lost_gpu_that_is_still_listed_is_not_missing(named: bool) -> None:
    """A GPU that NVML lists and cannot reach is the business of gpu.recovery, named or not."""
    gpus = [healthy_gpu(index) if index != 3 else failed_gpu(index, named=named) for index in range(8)]
    assert run(node(nvml=FakeNvml(*gpus))).status is Status.OK


def test_a_gpu_gone_from_the_bus_while_nvml_still_lists_it() -> None:
    """NVML listing a GPU that does not answer does not make up for its place on the bus."""
    gpus = [*(healthy_gpu(index) for index in range(7)), failed_gpu(7)]
    assert codes(run(node(on_pci=7, nvml=FakeNvml(*gpus)))) == ["gpu.count.off_bus"]


def test_gpus_that_answer_are_there_whatever_sysfs_shows() -> None:
    """A container that hides PCI devices is not a machine that lost them."""
    assert run(node(on_pci=0)).status is Status.OK


def test_missing_device_files_ask_a_person() -> None:
    """Only the files missing is an installation: a warning that never acts."""
    (finding,) = run(node(files=6)).findings
    assert (finding.code, finding.severity, finding.remedy) == (
        "gpu.count.no_device_file",
        Severity.WARNING,
        Remedy.ASK_HUMAN,
    )


def test_more_than_expected_never_acts() -> None:
    """More GPUs than the table has is news about the table."""
    (finding,) = run(node(instance_type="g5.12xlarge")).findings
    assert (finding.code, finding.severity, finding.remedy) == (
        "gpu.count.unexpected",
        Severity.WARNING,
        Remedy.NONE,
    )


@pytest.mark.parametrize("instance_type", [None, "p99.metal"])
def test_an_unknown_type_expects_nothing(instance_type: str | None) -> None:
    """On a type that the table does not know any number of GPUs is ok, as long as bus and driver agree."""
    assert run(node(on_pci=3, listed=3, instance_type=instance_type)).status is Status.OK
    lost = node(on_pci=4, listed=3, instance_type=instance_type)
    assert codes(run(lost)) == ["gpu.count.driver_lost"]


def test_the_configured_number_comes_before_the_table() -> None:
    """What the operator expects decides, in both directions."""
    assert run(node(on_pci=4, listed=4), expected=4).status is Status.OK
    assert codes(run(node(instance_type=None), expected=9)) == ["gpu.count.off_bus"]


def test_a_ml_prefix_is_the_same_type() -> None:
    """HyperPod's name of a type finds the same row."""
    assert codes(run(node(on_pci=7, listed=7, instance_type="ml.p5.48xlarge"))) == ["gpu.count.off_bus"]


def test_one_less_than_this_instance_had() -> None:
    """On a type that the table does not know, or knows with fewer, the most there ever were decides."""
    for instance_type, always in ((None, set()), ("p99.metal", set()), ("g5.12xlarge", {"gpu.count.unexpected"})):
        looks = [run(node(on_pci=n, listed=n, instance_type=instance_type)) for n in (8, 7, 8, 0)]
        found = open_codes("gpu.count", looks)
        assert found[:3] == [always, always | {"gpu.count.off_bus"}, always]
        assert "gpu.count.off_bus" in found[3]


def test_what_the_table_misses_need_not_be_learned() -> None:
    """Fewer than the type has is found at first sight, and once: the learned number adds no second finding."""
    assert open_codes("gpu.count", [run(node(on_pci=7, listed=7))]) == [{"gpu.count.off_bus"}]
    looks = [run(node()), run(node(on_pci=7, listed=7))]
    assert open_codes("gpu.count", looks) == [set(), {"gpu.count.off_bus"}]
    (only,) = diagnoses("gpu.count", looks)
    assert only.reasons == ("7 of 8 GPUs are on the PCI bus",)


def test_what_is_configured_is_not_learned() -> None:
    """A number that was configured lower since is right at once."""
    looks = [run(node(instance_type=None)), run(node(on_pci=4, listed=4, instance_type=None), expected=4)]
    assert open_codes("gpu.count", looks) == [set(), set()]


def test_a_hidden_bus_is_not_a_loss() -> None:
    """A container that no longer shows the bus, while the library is silent, has lost nothing that can be told."""
    blind = node(sys={"bus/": ""}, instance_type=None, nvml=FakeNvml(error=SourceTimeout("no answer in 5 s")))
    assert open_codes("gpu.count", [run(node(instance_type=None)), run(blind)]) == [set(), set()]
    hidden = node(on_pci=0, instance_type=None)
    assert open_codes("gpu.count", [run(node(instance_type=None)), run(hidden)]) == [set(), set()]


def test_another_type_under_the_same_id_is_learned_anew() -> None:
    """A stopped instance may be made another type and keeps its id: one GPU is then all there are."""
    looks = [run(node()), run(node(on_pci=1, listed=1, instance_type="p5.4xlarge"))]
    assert open_codes("gpu.count", looks) == [set(), set()]


def test_a_node_without_gpus() -> None:
    """No GPU on the bus, none expected, no library: not applicable; a library that lists none, too."""
    for nvml in (FakeNvml(error=NO_LIBRARY), FakeNvml()):
        assert run(node(on_pci=0, nvml=nvml, instance_type=None)).status is Status.NOT_APPLICABLE


@pytest.mark.parametrize(
    "error", [NO_LIBRARY, SourceTimeout("NVML: no answer in 5 s"), SourceUnreadable("NVML: DRIVER_NOT_LOADED (9)")]
)
def test_a_silent_driver_is_unknown(error: SourceError) -> None:
    """GPUs on the bus and no answer from NVML is unknown, with the reason."""
    result = run(node(nvml=FakeNvml(error=error), sys=BOUND))
    assert result.status is Status.UNKNOWN
    assert str(error) in result.reason


def test_gpus_without_a_driver_are_told_by_gpu_driver() -> None:
    """That the driver has none is certain and told once: no gap here, and nothing that only it tells is over."""
    machine = node(nvml=FakeNvml(error=NO_LIBRARY))
    assert (run(machine).status, run(machine).undecided) == (Status.OK, ())
    one_lost = run(node(nvml=FakeNvml(*(healthy_gpu(index) for index in range(8) if index != 5)), files=8))
    assert open_codes("gpu.count", [one_lost, one_lost, run(machine)])[-1] == {"gpu.count.driver_lost"}
    assert codes(run(node(on_pci=7, nvml=FakeNvml(error=NO_LIBRARY)))) == ["gpu.count.off_bus"]


def test_a_silent_driver_does_not_hide_what_the_bus_shows() -> None:
    """A GPU off the bus is found while NVML hangs, and the gap is still said."""
    result = run(node(on_pci=7, nvml=FakeNvml(error=SourceTimeout("NVML: no answer in 5 s"))))
    assert codes(result) == ["gpu.count.off_bus"]
    assert result.undecided == ("NVML: no answer in 5 s",)


def test_a_hanging_library_is_not_a_node_without_gpus() -> None:
    """An empty bus and a library that hangs is unknown: something is there."""
    machine = node(on_pci=0, instance_type=None, nvml=FakeNvml(error=SourceTimeout("NVML: no answer in 5 s")))
    assert run(machine).status is Status.UNKNOWN


@pytest.mark.parametrize("sys", [{"": SourceUnreadable("/sys: EIO")}, {"bus/pci/devices/": ""}, {}])
def test_an_unreadable_bus_is_unknown(sys: dict[str, Any]) -> None:
    """A bus that cannot be listed, lists nothing at all, or has no /sys around it is unknown and no lost GPUs."""
    with pytest.raises(SourceError):
        run(node(sys=sys, nvml=FakeNvml(error=NO_LIBRARY)))


def test_unreadable_device_files_hide_nothing() -> None:
    """Findings stay when /dev cannot be read; without any the result is unknown."""
    dev = {"": SourceUnreadable("/dev: EIO")}
    assert run(node(dev=dev)).status is Status.UNKNOWN
    result = run(node(on_pci=7, listed=7, dev=dev))
    assert codes(result) == ["gpu.count.off_bus"]
    assert result.undecided == ("/dev: EIO",)
