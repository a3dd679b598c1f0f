"""Versions: found where tables say, compared number by number, absent where they are nowhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthd.checklib.tables import instance_types
from healthd.checklib.versions import all_minimums, matches, minimums, older, places, read_stack
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.node import CommandResult
from healthd.sources.command import run_command
from healthd.testing import FakeNode

# Verbatim from aws-parallelcluster-cookbook pull request 1882, and aws/libfabric issue 3, shortened.
RPM = """# EFA installer version: 1.22.0
# Debug packages installed: no
# Packages installed:
efa-config-1.13-1.el8.noarch efa-profile-1.5-1.el8.noarch libfabric-aws-1.17.0-1.el8.x86_64"""
DEB = """# EFA installer version: 1.5.1
# Debug packages installed: no
# Packages installed:
efa_1.3.0-1.amzn1_amd64 ibacm_25.0-1_amd64 libfabric1_1.8.0amzn1.0_amd64 libfabric-bin_1.8.0amzn1.0_amd64"""
EFA_FILE = ("cat", "/opt/amazon/efa_installed_packages")
(NCCL,) = (place for place in places() if place.part == "nccl")
NUMBERS = st.lists(st.integers(0, 999), min_size=1, max_size=4)


def result(*argv: str, stdout: str = "", code: int = 0) -> CommandResult:
    return CommandResult(argv=argv, code=code, stdout=stdout, stderr="", duration_s=0.0)


def installed(text: str) -> FakeNode:
    return FakeNode(commands={EFA_FILE: result(*EFA_FILE, stdout=text)})


@pytest.mark.parametrize(
    ("text", "installer", "libfabric"), [(RPM, "1.22.0", "1.17.0"), (DEB, "1.5.1", "1.8.0amzn1.0")]
)
def test_the_installers_own_list(text: str, installer: str, libfabric: str) -> None:
    """Both forms of EFA's list of packages tell the installer and libfabric, and no plug-in that is not there."""
    stack = read_stack(installed(text), ("efa_installer", "libfabric", "aws_ofi_nccl"))
    assert (dict(stack.versions), stack.undecided) == ({"efa_installer": installer, "libfabric": libfabric}, ())


@pytest.mark.parametrize("package", ["libnccl-ofi-1.15.0-1.el9.x86_64", "libnccl-ofi-ngc_1.15.0-1_amd64"])
def test_the_plugin_in_the_list(package: str) -> None:
    """NCCL's plug-in is found under its package name (constructed after the forms above)."""
    assert read_stack(installed(f"{RPM} {package}"), ("aws_ofi_nccl",)).versions == {"aws_ofi_nccl": "1.15.0"}


def test_every_place_reads_what_its_source_writes() -> None:
    """Each kind of text is understood (constructed after the sources that the table cites)."""
    texts = {
        "cat /usr/local/cuda/version.json": '{\n"cuda" : {\n"name" : "CUDA SDK",\n"version" : "12.8.1"\n},\n"nccl":{}}',
        NCCL.where: "/usr/lib64/libnccl.so.2.27.3\n/usr/local/cuda-12.8/lib/libnccl.so.2.25.1",
        "nvidia-ctk --version": "NVIDIA Container Toolkit CLI version 1.17.4\ncommit: 9b69590c",
        "ucx_info -v": "# Library version: 1.18.0\n# Library path: /usr/lib/libucs.so.0",
    }
    sys = {
        "module/nvidia/version": "580.95.05",
        "module/efa/version": "3.1.0g",
        "module/gdrdrv/version": "2.5",
        "module/nvidia_fs/version": "2.24.2",
        "fs/lustre/version": "2.15.6",
    }
    commands = {tuple(words.split()): result(stdout=text) for words, text in texts.items()}
    node = FakeNode(sys=sys, proc={"sys/kernel/osrelease": "6.8.0-1015-aws"}, commands=commands)
    assert dict(read_stack(node).versions) == {
        "driver": "580.95.05",
        "efa": "3.1.0g",
        "gdrcopy": "2.5",
        "nvidia_fs": "2.24.2",
        "lustre": "2.15.6",
        "kernel": "6.8.0-1015-aws",
        "cuda": "12.8.1",
        "nccl": "2.27.3",
        "container_toolkit": "1.17.4",
        "ucx": "1.18.0",
    }


class RealCommands(FakeNode):
    """Runs what it is asked to."""

    def command(self, *argv: str, timeout_s: float = 5.0) -> CommandResult:
        return run_command(argv, timeout_s=timeout_s)


@pytest.mark.process
def test_python_packages_are_read_from_their_folders(tmp_path: Path) -> None:
    """The first home that has a package counts; other folders, other packages and missing homes do not."""
    for folder in (
        "a/lib/python3.12/site-packages/nvidia_nccl_cu13-2.28.9.dist-info",
        "a/lib/python3.12/site-packages/nvidia_nccl_cu13",
        "a/lib/python3.12/site-packages/nixlbench-9.9.dist-info",
        "a/lib/python3.12/lib/nixl-8.8.dist-info",
        "b/lib/python3.10/site-packages/nvidia_nccl_cu12-2.21.5.dist-info",
        "b/lib/python3.10/dist-packages/nixl_cu12-1.5.1.dist-info",
    ):
        (tmp_path / folder).mkdir(parents=True)
    homes = [f"{tmp_path}/gone", f"{tmp_path}/a/", f"{tmp_path}/b"]
    stack = read_stack(RealCommands(), ("torch_nccl", "nixl"), python_homes=homes)
    assert (dict(stack.versions), stack.undecided) == ({"torch_nccl": "2.28.9", "nixl": "1.5.1"}, ())
    assert read_stack(RealCommands(), ("torch_nccl", "nixl")).versions == {}


@pytest.mark.parametrize(
    ("error", "undecided"), [(SourceMissing("no find"), ()), (SourceTimeout("5 s"), ("torch_nccl: 5 s",))]
)
def test_homes_that_cannot_be_searched(error: SourceError, undecided: tuple[str, ...]) -> None:
    """Without find nothing is known to be installed; a home that hangs is a gap."""
    (first, *others) = (f"*-packages/{place.where}-*.dist-info" for place in places() if place.kind == "python")
    names = ("-path", first, *(word for name in others for word in ("-o", "-path", name)))
    words = ("find", "-H", "/opt/x/lib", "-xdev", "-maxdepth", "3", *names)
    stack = read_stack(FakeNode(commands={words: error}), ("torch_nccl",), python_homes=("/opt/x",))
    assert (stack.versions, stack.undecided) == ({}, undecided)
    killed = read_stack(FakeNode(commands={words: result(*words, code=-9)}), ("nixl",), python_homes=("/opt/x",))
    assert killed.undecided == ("nixl: find was killed by signal 9",)
    absent = FakeNode(commands={words: result(*words, code=127)})
    assert read_stack(absent, ("torch_nccl",), python_homes=("/opt/x",)).undecided == ()


def test_homes_that_hang_are_searched_once() -> None:
    """Not again for each part: a `find` in uninterruptible sleep stays, and each one takes the deadline."""
    searched: list[tuple[str, ...]] = []

    class Hanging(FakeNode):
        def command(self, *argv: str, timeout_s: float = 5.0) -> CommandResult:
            searched.append(argv)
            raise SourceTimeout(f"no end within {timeout_s:g} s")

    stack = read_stack(Hanging(), ("torch_nccl", "nixl"), python_homes=("/fsx/pytorch",))
    assert [argv[0] for argv in searched] == ["find"]
    assert stack.undecided == ("torch_nccl: no end within 5 s", "nixl: no end within 5 s")


def test_an_nvidia_fs_without_a_module_version() -> None:
    """Its own file tells the version too, with fewer numbers; a node without it has no gap."""
    node = FakeNode(sys={"module/nvidia/version": "1"}, proc={"driver/nvidia-fs/version": "version: 2.28"})
    assert read_stack(node, ("nvidia_fs",)).versions == {"nvidia_fs": "2.28"}
    assert read_stack(FakeNode(sys={"module/nvidia/version": "1"}), ("nvidia_fs",)).undecided == ()


def test_absent_and_failing_are_two_things() -> None:
    """A part that is nowhere is absent; a place that does not answer is a gap."""
    node = FakeNode(proc={"sys/kernel/osrelease": "6.1.0"}, commands={EFA_FILE: SourceTimeout("cat: 5 s")})
    stack = read_stack(node, ("kernel", "efa_installer", "ucx"))
    assert (dict(stack.versions), stack.undecided) == ({"kernel": "6.1.0"}, ("efa_installer: cat: 5 s",))
    assert read_stack(FakeNode(), ("kernel",)).undecided


@pytest.mark.parametrize(
    ("version", "than", "is_older"),
    [
        ("570.86.15", "580", True),
        ("580.65.06", "580", False),
        ("580", "580.0", False),
        ("1.9.0", "1.41.0", True),
        ("3.1.0g", "3.1.0", False),
        ("1.8.0amzn1.0", "1.8.1", True),
        ("6.8.0-1015-aws", "6.12", True),
    ],
)
def test_older(version: str, than: str, is_older: bool) -> None:
    """Numbers compare as numbers, missing ones are zero, and what follows them does not count."""
    assert older(version, than) is is_older


@given(NUMBERS, NUMBERS)
def test_order_is_total(left: list[int], right: list[int]) -> None:
    """Of two versions at most one is older, and neither only where both are the same but for zeros."""
    a, b = (".".join(map(str, numbers)) for numbers in (left, right))
    longest = max(len(left), len(right))
    same = left + [0] * (longest - len(left)) == right + [0] * (longest - len(right))
    assert older(a, b) + older(b, a) == (0 if same else 1)


def test_a_version_without_a_number_is_no_version() -> None:
    """What cannot be compared is not guessed."""
    with pytest.raises(SourceUnreadable, match="expected one that begins with a number"):
        older("unknown", "1")


def test_a_short_pin_pins_the_line() -> None:
    """580 is all of 580, and not 5800."""
    assert matches("580.95.05", "580")
    assert matches("580.95.05", "580.95.05")
    assert not matches("5800.1", "580")
    assert not matches("580.95.05", "580.95.0")


def test_the_tables_hold_together() -> None:
    """Every pattern has one group, every minimum is of a part that is read and of a type that is known."""
    parts = {place.part for place in places()}
    for place in places():
        assert re.compile(place.pattern).groups == 1, place
        assert place.kind in ("sys", "proc", "command", "python")
    for row in all_minimums():
        assert row.part in parts
        assert any(name.startswith(row.family) for name in instance_types())
        assert not older(row.minimum, "0")


def test_minimums_are_of_a_family() -> None:
    """A type has the rows of its family, with or without SageMaker's prefix; others have none."""
    assert {row.part for row in minimums("ml.p6-b200.48xlarge")} == {"driver", "cuda", "efa_installer", "aws_ofi_nccl"}
    assert minimums("p5.48xlarge") == minimums(None) == ()
