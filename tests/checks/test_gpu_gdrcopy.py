"""gpu.gdrcopy: loaded, can be opened, fits. The trees and listings are constructed from gdrcopy's sources."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.checks.gpu_gdrcopy import GpuGdrcopySettings, gpu_gdrcopy
from healthd.core.errors import SourceError, SourceMissing, SourceUnreadable
from healthd.core.model import Remedy, Result, Severity, Status
from healthd.core.node import CommandResult
from healthd.testing import Entry, FakeNode, fake_pci, pci_tree
from tests.support.over_time import open_codes

LDCONFIG, PATH = ("/sbin/ldconfig", "-p"), "/usr/lib/x86_64-linux-gnu/libgdrapi.so.2"
LISTING = f"1021 libs found in cache `/etc/ld.so.cache'\n\tlibgdrapi.so.2 (libc6,x86-64) => {PATH}\n"
NO_LIBRARY = "1020 libs found in cache `/etc/ld.so.cache'\n\tlibc.so.6 (libc6,x86-64) => /lib/libc.so.6\n"
LOADED: dict[str, Entry] = {"module/gdrdrv/version": "2.4"}


def answered(*argv: str, stdout: str = "", code: int = 0) -> CommandResult:
    return CommandResult(argv=argv, code=code, stdout=stdout, stderr="", duration_s=0.01)


def run(
    module: dict[str, Entry] | None = None,
    *,
    instance_type: str | None = "p5.48xlarge",
    dev: dict[str, Entry] | None = None,
    listing: str | SourceError = LISTING,
    library: str = "libgdrapi.so.2.4",
    gpus: int = 1,
    **settings: Any,
) -> Result:
    node = FakeNode(
        instance_type=instance_type,
        sys={**pci_tree(gpus=[fake_pci(index) for index in range(gpus)]), **(LOADED if module is None else module)},
        dev={"gdrdrv": "", "null": ""} if dev is None else dev,
        commands={
            LDCONFIG: listing if isinstance(listing, SourceError) else answered(*LDCONFIG, stdout=listing),
            ("readlink", "-f", PATH): answered(stdout=f"/usr/lib/x86_64-linux-gnu/{library}\n"),
        },
    )
    return gpu_gdrcopy(node, GpuGdrcopySettings(**settings))


def the_code(result: Result) -> str:
    (finding,) = result.findings
    assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.ASK_HUMAN)
    assert str(finding.component) == "driver:gdrdrv"
    return finding.code


def test_all_is_there() -> None:
    """Loaded, with its device file and a library of the same major version, is ok."""
    assert run().status is Status.OK


def test_not_loaded_where_it_is_needed() -> None:
    """A missing module is a warning on the types that use it, or where the site says so."""
    assert the_code(run({})) == "gdrcopy.absent"
    assert the_code(run({}, instance_type="g5.48xlarge", required=True)) == "gdrcopy.absent"


@pytest.mark.parametrize("instance_type", ["p5.4xlarge", "g6e.48xlarge", "p99.metal", None])
def test_not_loaded_where_nobody_needs_it(instance_type: str | None) -> None:
    """Types without NVSwitch, unknown types, and nodes told to do without, do without."""
    assert run({}, instance_type=instance_type).status is Status.NOT_APPLICABLE
    assert run({}, required=False).status is Status.NOT_APPLICABLE
    assert run({}, gpus=0).status is Status.NOT_APPLICABLE


def test_what_the_site_no_longer_requires_is_over() -> None:
    """``required = false`` answers the warning. Where no GPU is on the bus, or the type is not known, it stays."""
    for then, stays in (
        (run({}, required=False), False),
        (run({}, instance_type="p5.4xlarge"), False),
        (run({}, gpus=0), True),
        (run({}, instance_type=None), True),
    ):
        assert open_codes("gpu.gdrcopy", [run({}), then])[-1] == ({"gdrcopy.absent"} if stays else set())


def test_no_device_file() -> None:
    """A driver that no program can open is told apart from one that is not there."""
    assert the_code(run(dev={"null": ""})) == "gdrcopy.no_device"


@pytest.mark.parametrize(("library", "found"), [("libgdrapi.so.2.5.1", False), ("libgdrapi.so.3.0", True)])
def test_the_major_version_decides(library: str, found: bool) -> None:
    """Another minor version works, another major version does not."""
    result = run(library=library)
    assert [finding.code for finding in result.findings] == ["gdrcopy.mismatch"] * found
    assert result.status is (Status.FINDINGS if found else Status.OK)


def test_no_library_on_the_host() -> None:
    """Jobs may bring the library in their containers."""
    assert run(listing=NO_LIBRARY).status is Status.OK


def test_versions_that_cannot_be_read_are_unknown() -> None:
    """Without a version nothing was compared, and that is not ok."""
    assert run({"module/gdrdrv/initstate": "live"}).status is Status.UNKNOWN
    assert run(listing=SourceMissing("/sbin/ldconfig is not there")).status is Status.UNKNOWN
    with pytest.raises(SourceUnreadable, match="expected one like 2.5"):
        run(library="libgdrapi.so")
