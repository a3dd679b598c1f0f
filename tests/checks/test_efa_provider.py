"""efa.provider: what a program gets of EFA. Outputs are constructed after fi_info(1) and EFA's installer."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.checks.efa_provider import efa_provider
from healthd.core.check import NoSettings
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.model import REMEDY_RANK, Remedy, Result, Severity, Status
from healthd.core.node import CommandResult
from healthd.testing import Entry, FakeNode, codes, fake_pci, pci_tree

EFA = ("0000:4f:00", "0000:50:00")
FI_INFO, PACKAGES = ("/opt/amazon/efa/bin/fi_info", "-p", "efa"), ("cat", "/opt/amazon/efa_installed_packages")
ONE = """provider: efa
    fabric: efa
    domain: {0}-rdm
    version: 122.0
    type: FI_EP_RDM
    protocol: FI_PROTO_EFA
provider: efa
    fabric: efa
    domain: {0}-dgrm
    version: 122.0
    type: FI_EP_DGRAM
    protocol: FI_PROTO_EFA
"""
BOTH = ONE.format("rdmap79s0") + ONE.format("rdmap80s0")
LIST = "# EFA installer version: {}\n# Packages installed:\nlibfabric-aws-2.1.0-1.x86_64 libnccl-ofi-{}-1.x86_64"
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max locked memory         {0}            {0}            bytes"""
MEMINFO = "MemTotal: 100 kB\nHugePages_Total:    5128\nHugePages_Free:     5000\nHugepagesize:       2048 kB"


def answered(argv: tuple[str, ...], stdout: str, code: int = 0, stderr: str = "") -> CommandResult:
    return CommandResult(argv=argv, code=code, stdout=stdout, stderr=stderr, duration_s=0.1)


def run(
    info: str | CommandResult | SourceError = BOTH,
    *,
    packages: str = LIST.format("1.44.0", "1.17.1"),
    instance_type: str = "p5.48xlarge",
    proc: dict[str, Entry] | None = None,
    sys: dict[str, Entry] | None = None,
) -> Result:
    commands: dict[tuple[str, ...], Any] = {PACKAGES: answered(PACKAGES, packages)}
    commands[FI_INFO] = answered(FI_INFO, info) if isinstance(info, str) else info
    node = FakeNode(
        instance_type=instance_type,
        sys=pci_tree(gpus=[fake_pci(0)], efa=EFA) if sys is None else sys,
        proc={"meminfo": MEMINFO, **(proc or {})},
        commands=commands,
    )
    result = efa_provider(node, NoSettings())
    for finding in result.findings:  # unproven on hardware
        assert finding.severity is Severity.WARNING
        assert REMEDY_RANK[finding.remedy] < REMEDY_RANK[Remedy.RESET_GPU]
    return result


def parent(name: str, locked: str, *, uid: int = 0, cgroup: str = "0::/system.slice/x.service") -> dict[str, Entry]:
    status = f"Name:\t{name}\nState:\tS (sleeping)\nUid:\t{uid}\t{uid}\t{uid}\t{uid}"
    return {"812/comm": name, "812/limits": LIMITS.format(locked), "812/status": status, "812/cgroup": cgroup}


def test_every_device_is_a_domain() -> None:
    """Two devices, each with two domains, are two; huge pages are readings."""
    result = run()
    assert result.status is Status.OK
    assert {reading.name: reading.value for reading in result.readings} == {
        "efa_domain_count": 2,
        "host_huge_pages_total_count": 5128,
        "host_huge_pages_free_count": 5000,
    }


def test_a_domain_without_a_suffix() -> None:
    """Newer libfabric names a domain by its device alone."""
    assert run(BOTH.replace("-rdm", "").replace("-dgrm", "")).status is Status.OK


def test_a_device_that_libfabric_does_not_see() -> None:
    """A device without a domain is named."""
    (finding,) = run(ONE.format("rdmap79s0")).findings
    assert (finding.code, str(finding.component)) == ("efa.provider.no_domain", "efa:rdmap80s0")


@pytest.mark.parametrize("info", [answered(FI_INFO, "", code=61, stderr="fi_getinfo: -61 (No data available)"), ""])
def test_no_provider_at_all(info: str | CommandResult) -> None:
    """No domain, or a failed fi_info, is one finding and not one for each device."""
    assert codes(run(info)) == ["efa.provider.failed"]


def test_no_software_on_the_host() -> None:
    """Without libfabric on the host, jobs bring it; without EFA devices there is nothing to provide."""
    assert run(SourceMissing("fi_info")).status is Status.NOT_APPLICABLE
    assert run(sys=pci_tree(gpus=[fake_pci(0)])).status is Status.NOT_APPLICABLE


def test_fi_info_that_hangs_is_unknown() -> None:
    """A question without an answer is no missing domain; nor is one that was killed because memory ran out."""
    with pytest.raises(SourceTimeout):
        run(SourceTimeout("20 s"))
    with pytest.raises(SourceUnreadable, match="killed by signal 9"):
        run(answered(FI_INFO, "", code=-9))


def test_the_plugin() -> None:
    """EFA's software without NCCL's plug-in is found where there are GPUs."""
    bare = LIST.format("1.44.0", "1").replace("libnccl-ofi", "openmpi")
    assert codes(run(packages=bare)) == ["efa.provider.no_plugin"]
    assert run(packages=bare, sys=pci_tree(efa=EFA)).status is Status.OK


@pytest.mark.parametrize(
    ("instance_type", "installer", "plugin", "found"),
    [
        ("p6-b200.48xlarge", "1.40.0", "1.15.0", 1),
        ("p6-b200.48xlarge", "1.41.0", "1.15.0", 0),
        ("p6-b300.48xlarge", "1.43.9", "1.16.0", 2),
        ("p6e-gb200.36xlarge", "1.42.0", "1.14.2", 1),
        ("p5.48xlarge", "1.30.0", "1.7.4", 0),
    ],
)
def test_the_minimum_of_the_family(instance_type: str, installer: str, plugin: str, found: int) -> None:
    """Each part older than the family needs is found; families without published minimum need none."""
    result = run(packages=LIST.format(installer, plugin), instance_type=instance_type)
    assert codes(result) == ["efa.provider.too_old"] * found


@pytest.mark.parametrize(
    ("locked", "found"), [("unlimited", False), (str(16 << 30), False), (str((16 << 30) - 1), True), ("65536", True)]
)
@pytest.mark.parametrize("name", ["slurmd", "containerd"])
def test_locked_memory(name: str, locked: str, found: bool) -> None:
    """What starts jobs must be allowed to lock memory, or they are not either."""
    assert codes(run(proc=parent(name, locked))) == ["efa.provider.memlock"] * found


def test_other_processes_may_lock_little() -> None:
    """A limit of what starts no job says nothing, and a process that ends while it is read is nobody."""
    assert run(proc=parent("chronyd", "65536")).status is Status.OK
    assert run(proc={"812/comm": "slurmd"}).status is Status.OK


@pytest.mark.parametrize(
    "other",
    [
        {"uid": 1000},
        {"cgroup": "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0"},
        {"cgroup": f"0::/kubepods.slice/kubepods-pod{'0a' * 16}.slice/cri-containerd-0.scope"},
    ],
    ids=["user", "job", "pod"],
)
def test_a_name_that_anybody_may_have(other: dict[str, Any]) -> None:
    """A user's process, and a containerd in a container, start none of this host's jobs."""
    assert run(proc=parent("containerd", "65536", **other)).status is Status.OK


def test_an_unreadable_proc_is_a_gap() -> None:
    """What was seen of libfabric stays seen."""
    assert run(proc={"812/comm": SourceUnreadable("EIO")}).status is Status.UNKNOWN
    broken = run(ONE.format("rdmap79s0"), proc={"812/comm": SourceUnreadable("EIO")})
    assert (codes(broken), len(broken.undecided)) == (["efa.provider.no_domain"], 1)
