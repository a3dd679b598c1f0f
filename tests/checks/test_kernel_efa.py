"""kernel.efa: what the EFA driver's lines are judged as. The lines are built from its published format strings."""

from __future__ import annotations

import pytest

from healthd.checklib.loglines import line_rows
from healthd.checks.kernel_efa import kernel_efa
from healthd.core.check import NoSettings
from healthd.core.model import Result, Severity, Status
from healthd.testing import FakeNode
from tests.support.judgement import kernel_says

DEVICE = "efa 0000:4f:00.0 rdmap79s0: "


def judge(*texts: str) -> Result:
    return kernel_efa(FakeNode(kernel_records=kernel_says(*texts)), NoSettings())


@pytest.mark.parametrize(
    ("words", "code", "severity", "remedy"),
    [
        ("Admin queue is closed", "efa.admin_queue", "critical", "reboot_node"),
        (
            "The device didn't send any completion for admin cmd CREATE_QP(1) status 1 (ctx 0x0",
            "efa.admin_queue",
            "critical",
            "reboot_node",
        ),
        (
            "The device sent a completion but the driver didn't receive any MSI-X interrupt for admin cmd X(1)",
            "efa.admin_queue",
            "critical",
            "reboot_node",
        ),
        ("Wait for completion (polling) timeout", "efa.admin_queue", "critical", "reboot_node"),
        ("Device isn't ready, can't reset device", "efa.start_failed", "warning", "ask_human"),
        ("Device isn't ready, abort com init 0x0", "efa.start_failed", "warning", "ask_human"),
        (
            "Reading register timed out. expected: req id[9] offset[0x28] actual: req id[8] offset[0x28]",
            "efa.registers",
            "warning",
            "ask_human",
        ),
        ("Failed to submit command CREATE_QP (opcode 1) err -19", "efa.command_failed", "warning", "watch"),
        ("Reset indication didn't turn on", "efa.start_failed", "warning", "ask_human"),
        ("Reset indication didn't turn off", "efa.start_failed", "warning", "ask_human"),
        ("EFA device init failed", "efa.start_failed", "warning", "ask_human"),
        (
            "Failed to process command CREATE_AH (opcode 5) comp_status 3 err -22",
            "efa.command_failed",
            "warning",
            "watch",
        ),
    ],
)
def test_published_lines(words: str, code: str, severity: str, remedy: str) -> None:
    """An unanswered command is the device's death; a refused one is mostly a program's mistake."""
    (finding,) = judge(f"{DEVICE}{words}").findings
    assert (finding.code, finding.severity, finding.remedy) == (code, severity, remedy)
    assert str(finding.component) == "efa:rdmap79s0"
    assert finding.component.aliases == ("0000:4f:00.0",)
    assert finding.evidence["line"] == f"{DEVICE}{words}"


@pytest.mark.parametrize("head", ["efa 0000:4f:00.0: ", "efa 0000:4f:00.0 (NULL device *): "])
def test_a_device_without_a_name_yet_is_named_by_its_place(head: str) -> None:
    """Before its RDMA device is registered, a device has its PCI address only."""
    (finding,) = judge(f"{head}EFA device init failed").findings
    assert str(finding.component) == "efa:0000:4f:00.0"


def test_lines_of_one_death_are_one_fault() -> None:
    """The time-out and every refusal after it are one finding with a count; another device is another."""
    lines = [
        f"{DEVICE}The device didn't send any completion for admin cmd X(1)",
        *[f"{DEVICE}Admin queue is closed"] * 9,
    ]
    first, second = judge(*lines, "efa 0000:50:00.0 rdmap80s0: Admin queue is closed").findings
    assert first.evidence["count"] == 10
    assert str(second.component) == "efa:rdmap80s0"


@pytest.mark.parametrize(
    "line",
    [
        "efa 0000:4f:00.0: Setup irq:123 name:efa-mgmnt@pci:0000:4f:00.0",
        "efa 0000:4f:00.0 rdmap79s0: IB device registered",
        "tmpfs: Unknown parameter 'efa 0000:4f:00.0 rdmap79s0: Admin queue is closed'",
        "ena 0000:00:05.0 eth0: Admin queue is closed",
    ],
)
def test_other_lines_are_no_findings(line: str) -> None:
    """A healthy start, another driver and an echoed text find nothing."""
    assert judge(line).status is Status.OK


def test_only_the_admin_queue_keeps_jobs_off() -> None:
    """No other row of this check is critical."""
    critical = {row.code for row in line_rows("kernel.efa") if row.severity is Severity.CRITICAL}
    assert critical == {"efa.admin_queue"}
