"""kernel.lustre: client lines, built from the format strings of lustre-release that the facts cite."""

from __future__ import annotations

import pytest

from healthd.checklib.loglines import line_rows
from healthd.checks.kernel_lustre import KernelLustreSettings, kernel_lustre
from healthd.core.model import NODE, ClearsBy, Repeats, Result, Severity, Status
from healthd.core.node import Mount
from healthd.testing import FakeNode
from tests.support.judgement import START, at, kernel_says

OBD = "6cz4zbev-OST0000-osc-ffff8f1c0a5b8800"
LOST = (
    f"Lustre: {OBD}: Connection to 6cz4zbev-OST0000 (at 192.168.50.246@tcp) was lost;"
    " in progress operations using this service will wait for recovery to complete"
)
CLIENT = "Lustre: 2345:0:(client.c:2295:ptlrpc_expire_one_request()) "
RESTORED = f"Lustre: {OBD}: Connection restored to 6cz4zbev-OST0000 (at 192.168.50.246@tcp)"
EVICTED = f"{OBD}: This client was evicted by 6cz4zbev-OST0000; in progress operations using this service will fail."
FSX = Mount(point="/fsx", fstype="lustre", source="192.168.50.246@tcp:/6cz4zbev", options=frozenset({"rw"}))


def judge(
    *texts: str, mounts: tuple[Mount, ...] | None = (FSX,), settings: KernelLustreSettings | None = None
) -> Result:
    node = FakeNode(kernel_records=kernel_says(*texts), mount_table=mounts, sys={"module/lnet/initstate": "live"})
    return kernel_lustre(node, settings or KernelLustreSettings())


@pytest.mark.parametrize(
    ("line", "code", "severity", "component"),
    [
        (f"LustreError: {EVICTED}", "lustre.evicted", "warning", "lustre:6cz4zbev-OST0000-osc"),
        (f"LustreError: 167-0: {EVICTED}", "lustre.evicted", "warning", "lustre:6cz4zbev-OST0000-osc"),
        (
            "Lustre: Evicted from 6cz4zbev-MDT0000 (at 192.168.50.246@tcp) after server handle changed from 0x1 to 0x2",
            "lustre.evicted",
            "warning",
            "lustre:6cz4zbev-MDT0000",
        ),
        (LOST, "lustre.connection_lost", "warning", "lustre:6cz4zbev-OST0000-osc"),
        (
            LOST.replace("wait for recovery to complete", "fail"),
            "lustre.connection_lost",
            "warning",
            "lustre:6cz4zbev-OST0000-osc",
        ),
        (
            f"LustreError: 11-0: {OBD}: operation ost_write to node 192.168.50.246@tcp failed: rc = -107",
            "lustre.operation_failed",
            "warning",
            "lustre:6cz4zbev-OST0000-osc",
        ),
        (
            f"{CLIENT}@@@ Request sent has timed out for slow reply: [",
            "lustre.request_timeout",
            "warning",
            "node",
        ),
        (
            f"{CLIENT}@@@ Request sent has failed due to network error: [",
            "lustre.request_timeout",
            "warning",
            "node",
        ),
        ("LNetError: 2345:0:(socklnd.c:1:ksocknal_x()) Error -110", "lustre.network_error", "warning", "node"),
        (
            "LNetError: 2345:0:(x.c:1:f()) Can't create socket: port 988 already in use",
            "lustre.port_in_use",
            "warning",
            "node",
        ),
        ("LustreError: 2345:0:(osc_cache.c:3151:osc_x()) LBUG", "lustre.assertion", "critical", "node"),
        (
            "LustreError: 2345:0:(osc_cache.c:3151:osc_x()) ASSERTION( ext->oe_start >= start ) failed:",
            "lustre.assertion",
            "critical",
            "node",
        ),
    ],
)
def test_published_lines(line: str, code: str, severity: str, component: str) -> None:
    """Every kind of line is recognised, with the old code in front or without, and placed on its import."""
    finding = judge(line).findings[0]
    assert (finding.code, finding.severity, str(finding.component)) == (code, severity, component)
    assert finding.evidence["line"] == line


def test_only_an_assertion_keeps_jobs_off() -> None:
    """What a server or the fabric can cause is a warning; LBUG is this client's own and needs a reboot."""
    critical = {row.code for row in line_rows("kernel.lustre") if row.severity is Severity.CRITICAL}
    assert critical == {"lustre.assertion"}
    assert judge("LustreError: 1:0:(x.c:1:f()) LBUG").findings[0].remedy == "reboot_node"


def test_a_restored_connection_ends_a_lost_one() -> None:
    """The evidence is for that import only, at its own time; a loss afterwards is a new fault."""
    result = judge(LOST, RESTORED, LOST)
    (over,) = result.clearances
    assert (over.by, str(over.component), over.code) == (
        ClearsBy.LOG_LINE,
        "lustre:6cz4zbev-OST0000-osc",
        "lustre.connection_lost",
    )
    lost = [finding for finding in result.findings if finding.code == "lustre.connection_lost"]
    assert [finding.time for finding in lost] == [START, at(2)]
    assert lost[0].clears_by is ClearsBy.LOG_LINE


@pytest.mark.parametrize("target", ["", "192.168.50.246@tcp"])
def test_a_restored_connection_need_not_name_its_target(target: str) -> None:
    """Clients of 2.15 print no name there, or the address once more; the connection is named before."""
    (over,) = judge(RESTORED.replace("to 6cz4zbev-OST0000", f"to {target}")).clearances
    assert str(over.component) == "lustre:6cz4zbev-OST0000-osc"


def test_the_mount_is_named_where_it_is_known() -> None:
    """A target's name begins with the file system's, which ends the mount's source; without a table it is left out."""
    assert judge(LOST).findings[0].evidence["mount"] == "/fsx"
    assert "mount" not in judge(LOST, mounts=()).findings[0].evidence
    assert "mount_unknown" in judge(LOST, mounts=None).findings[0].evidence


def test_again_and_again_is_counted_in_a_window() -> None:
    """Evictions and losses together count towards one warning for a person; the number and window are settings."""
    settings = KernelLustreSettings(unsteady_times=5, unsteady_window_s=60.0)
    found = judge(LOST, LOST, f"LustreError: {EVICTED}", settings=settings).findings
    unsteady = [finding for finding in found if finding.code == "lustre.unsteady"]
    assert [finding.evidence["count"] for finding in unsteady] == [2, 1]
    assert {finding.repeats for finding in unsteady} == {Repeats(times=5, window_s=60.0)}
    assert {(finding.severity, finding.remedy) for finding in unsteady} == {(Severity.WARNING, "ask_human")}


@pytest.mark.parametrize(
    "line",
    [
        "Lustre: Lustre: Build Version: 2.15.6",
        "Lustre: Mounted 6cz4zbev-client",
        "LNet: Added LI 10.0.0.1@tcp [8/256/0/180]",
        f"tmpfs: Unknown parameter '{LOST}'",
        "tmpfs: Unknown parameter 'LustreError: 1:0:(x.c:1:f()) LBUG'",
    ],
)
def test_other_lines_are_no_findings(line: str) -> None:
    """A healthy mount and an echoed text find nothing."""
    result = judge(line)
    assert (result.status, result.clearances) == (Status.OK, ())


def test_a_line_without_an_import_is_of_the_node() -> None:
    """Where a line names no target, the node is what is known."""
    assert judge("LNetError: x").findings[0].component == NODE
