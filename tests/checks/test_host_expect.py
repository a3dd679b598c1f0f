"""host.expect: what is configured to be here is here, and nothing else is judged. Inputs are constructed."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.checks.host_expect import HostExpectSettings, host_expect
from healthd.core.errors import SourceError, SourceMissing, SourceUnreadable
from healthd.core.model import Result, Severity, Status
from healthd.core.node import Mount
from healthd.testing import Entry, FakeNode

TABLE = (
    Mount(point="/", fstype="ext4", source="/dev/nvme0n1p1", options=frozenset({"rw"})),
    Mount(point="/home", fstype="nfs4", source="fs-1:/home", options=frozenset({"rw"})),
)
PROC: dict[str, Entry] = {
    "1/stat": "1 (systemd) S 0 1",
    "12/stat": "12 (node_exporter) S 1 12",
    "13/stat": "13 (dcgm-exporter-l) S 1 13",
    "self/stat": "14 (python) R 1 14",
    "uptime": "300.00 600.00",
}


def run(
    proc: dict[str, Entry] | None = None,
    sys: Any = None,
    table: tuple[Mount, ...] | SourceError = TABLE,
    **settings: Any,
) -> Result:
    modules = {"module/nvidia_peermem/initstate": "live", "module/ext4/uevent": ""} if sys is None else sys
    return host_expect(
        FakeNode(sys=modules, proc=PROC if proc is None else proc, mount_table=table), HostExpectSettings(**settings)
    )


def found(result: Result) -> list[tuple[str, str]]:
    return [(each.code.removeprefix("host.expect."), str(each.component)) for each in result.findings]


def test_nothing_is_expected_unless_it_is_named() -> None:
    """Without configuration there is nothing to judge, and nothing is asked."""
    assert run(proc={}, sys={}, table=SourceMissing("no table")).status is Status.NOT_APPLICABLE


def test_a_node_that_has_everything_is_ok() -> None:
    """Loaded and built-in modules, processes and mounts that are there are no findings."""
    result = run(
        modules=("nvidia-peermem", "ext4"),
        processes=("systemd", "node_exporter", "dcgm-exporter-long-name"),
        forbidden_processes=("xmrig",),
        mounts=("/home", "/home nfs4", "/home nfs4 fs-1:/home"),
        min_uptime_s=299,
    )
    assert (result.status, result.findings) == (Status.OK, ())


def test_a_module_that_is_not_loaded() -> None:
    """It is named as the driver that it is."""
    result = run(modules=("lustre", "ext4"))
    assert found(result) == [("module", "driver:lustre")]
    assert result.findings[0].severity is Severity.WARNING


def test_processes_that_are_missing_or_must_not_be() -> None:
    """Names are compared as the kernel cuts them, to 15 characters."""
    assert found(run(processes=("slurmd",))) == [("process", "process:slurmd")]
    assert found(run(forbidden_processes=("dcgm-exporter-long-name",))) == [
        ("forbidden_process", "process:dcgm-exporter-long-name")
    ]


@pytest.mark.parametrize(
    ("line", "part"),
    [("/scratch", "nothing is mounted"), ("/home lustre", "nfs4"), ("/home nfs4 fs-2:/home", "expected nfs4 of fs-2")],
)
def test_a_mount_that_is_missing_or_another(line: str, part: str) -> None:
    """Missing, of another type, and from another source are told apart in the message."""
    (finding,) = run(mounts=(line,)).findings
    assert finding.code == "host.expect.mount"
    assert str(finding.component) == f"mount:{line.split(maxsplit=1)[0]}"
    assert part in finding.message


def test_what_is_mounted_last_counts() -> None:
    """A later mount on the same point covers the one before."""
    over = Mount(point="/home", fstype="tmpfs", source="tmpfs", options=frozenset())
    assert found(run(table=(*TABLE, over), mounts=("/home nfs4",))) == [("mount", "mount:/home")]


def test_a_node_that_has_just_booted() -> None:
    """Up for less than configured is reported, and ends by itself."""
    assert found(run(min_uptime_s=301)) == [("uptime", "node")]


def test_one_source_that_fails_hides_no_other() -> None:
    """What could be read is judged; the rest is a gap."""
    result = run(table=SourceUnreadable("mountinfo: EIO"), mounts=("/home",), modules=("lustre",))
    assert found(result) == [("module", "driver:lustre")]
    assert result.undecided == ("mountinfo: EIO",)


@pytest.mark.parametrize(
    "settings",
    [{"modules": ("lustre",), "sys": {}}, {"processes": ("slurmd",), "proc": {"uptime": "1 1"}}, {"min_uptime_s": 1}],
)
def test_a_hidden_tree_is_unknown(settings: dict[str, Any]) -> None:
    """Without the host's /sys or /proc nothing is missing: it could not be told."""
    result = run(**{"proc": {"uptime": "up"}, **settings})
    assert (result.status, result.findings) == (Status.UNKNOWN, ())


def test_a_process_that_ends_meanwhile_is_no_trouble() -> None:
    """One that is gone when its turn comes is skipped; one that is there and cannot be read is a gap."""
    gone = {**PROC, "15/": ""}
    assert run(proc=gone, processes=("systemd",)).status is Status.OK
    broken = {**PROC, "15/stat": SourceUnreadable("EIO")}
    with pytest.raises(SourceUnreadable):
        FakeNode(proc=broken).proc.exists("15/stat")
    assert run(proc=broken, processes=("systemd",)).status is Status.UNKNOWN


@pytest.mark.parametrize("line", ["home", "/home nfs4 fs-1:/home rw"])
def test_a_line_that_names_no_mount_is_refused(line: str) -> None:
    """A mistake in the configuration is said at start, not found missing later."""
    with pytest.raises(ValueError, match="expected 'POINT'"):
        HostExpectSettings(mounts=(line,))
