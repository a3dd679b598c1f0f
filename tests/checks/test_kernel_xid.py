"""kernel.xid: every published line shape, what it is judged as, and what folds into one fault."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from healthd.check import NoSettings, discover
from healthd.checks.kernel_xid import explain, kernel_xid
from healthd.model import NODE, ClearsBy, Finding, Result, Severity, Status
from healthd.node import KernelRecord, Node

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
UUID = "GPU-6d7ec8a1-1111-2222-3333-444455556666"


class KernelNode:
    """A node of which only the batch of kernel records is asked."""

    def __init__(self, records: Sequence[KernelRecord]) -> None:
        self.kernel_records = records


def record(text: str, number: int = 0) -> KernelRecord:
    return KernelRecord(boot_id="boot", sequence=number, time=START + timedelta(seconds=number), text=text)


def judge(*texts: str) -> Result:
    return judge_records([record(text, number) for number, text in enumerate(texts)])


def judge_records(records: Sequence[KernelRecord]) -> Result:
    return kernel_xid(cast(Node, KernelNode(records)), NoSettings())


def only(result: Result) -> Finding:
    assert len(result.findings) == 1
    return result.findings[0]


def published() -> Iterator[tuple[str, str]]:
    """(expectation, line) of every line in xid_lines.txt."""
    for row in Path(__file__).with_name("xid_lines.txt").read_text(encoding="utf-8").splitlines():
        if not row.startswith("#"):
            expected, _, line = row.partition(" | ")
            yield expected, line.replace("\\n", "\n")


@pytest.mark.parametrize(("expected", "line"), list(published()), ids=lambda value: value[:40])
def test_published_lines(expected: str, line: str) -> None:
    """Every published line is recognised, on its GPU, and judged by the table."""
    finding = only(judge(line))
    said = f"{finding.evidence['xid']} {finding.component} {finding.severity} {finding.remedy}"
    assert said == expected
    assert finding.code == f"gpu.xid.{finding.evidence['xid']}"
    assert finding.evidence["line"] == line
    assert finding.time == START


def test_no_records_is_ok() -> None:
    """A node whose log holds nothing of the driver is fine."""
    assert judge().status is Status.OK
    assert judge("usb 1-1: new device", "NVRM: GPU serial number is 165.", "").status is Status.OK


def test_evidence_names_process_and_mig_instance() -> None:
    """The finding says which process, which MIG instance, which record, and why the remedy."""
    line = (
        "NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:01): 94, pid=7194, name=train.py, Contained: CE User Channel (0x9)."
    )
    finding = only(judge(line))
    evidence = finding.evidence
    assert (evidence["pid"], evidence["process"]) == (7194, "train.py")
    assert (evidence["gpu_instance"], evidence["compute_instance"]) == (5, 1)
    assert (evidence["sequence"], evidence["boot_id"], evidence["trusted"]) == (0, "boot", True)
    assert finding.clears_by is ClearsBy.GPU_RESET
    assert "NVIDIA" in evidence["source"]


def test_unknown_process_is_left_out() -> None:
    """'<unknown>' is not a name."""
    evidence = only(judge("NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen")).evidence
    assert "pid" not in evidence
    assert "process" not in evidence


def test_bus_drop_without_a_number_says_so() -> None:
    """A number-less bus drop is XID 79 by meaning, and its evidence tells the forms apart."""
    assert only(judge("NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.")).evidence["form"] == "number-less"
    assert only(judge("NVRM: Xid (PCI:0000:29:00): 79, GPU has fallen off the bus.")).evidence["form"] == "xid"


def test_both_forms_of_one_bus_drop_are_one_fault() -> None:
    """The driver prints both lines for one drop."""
    finding = only(
        judge(
            "NVRM: Xid (PCI:0000:29:00): 79, pid=1, name=x, GPU has fallen off the bus.",
            "NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.",
            "NVRM: GPU serial number is 165.",
        )
    )
    assert finding.evidence["count"] == 2


THREE_LINES = (
    "NVRM: The NVIDIA GPU 0000:29:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


def test_three_line_bus_drop_is_joined() -> None:
    """Split by syslog, the last line finds its GPU in the first."""
    assert str(only(judge(*THREE_LINES)).component) == "gpu:0000:29:00"
    assert str(only(judge(THREE_LINES[0], "usb 1-1: noise", *THREE_LINES[1:])).component) == "gpu:0000:29:00"


def test_last_line_alone_alarms_on_the_node() -> None:
    """Without its first line, the drop is still a fault: of the node, GPU unknown."""
    finding = only(judge(THREE_LINES[2]))
    assert finding.component == NODE
    assert finding.evidence["gpu"] == "unknown"
    assert finding.severity is Severity.CRITICAL


def test_another_driver_line_breaks_the_join() -> None:
    """A first line whose message went on otherwise lends its address to nobody."""
    unsupported = "NVRM: installed in this system is not supported by the driver."
    assert only(judge(THREE_LINES[0], unsupported, THREE_LINES[2])).component == NODE
    assert judge(*THREE_LINES[:2]).status is Status.OK


@pytest.mark.parametrize(
    ("words", "severity", "remedy", "clears_by"),
    [
        ("0x1 (GPU Reset Required)", "critical", "reset_gpu", "gpu_reset"),
        ("0x1 (PF FLR)", "critical", "reset_gpu", "gpu_reset"),
        ("0x2 (OS Reboot)", "critical", "reboot_node", "reboot"),
        ("0x3 (Drain P2P)", "critical", "ask_human", "gpu_reset"),
        ("0x4 (Drain and Reset)", "critical", "reset_gpu", "gpu_reset"),
        ("0x5 (Recover IMEX Domain)", "critical", "ask_human", "gpu_reset"),
        ("0x6", "critical", "reboot_node", "reboot"),
        ("0x7 (System Reboot)", "critical", "reboot_node", "reboot"),
        ("0x8 (None)", "warning", "ask_human", "gpu_reset"),
    ],
)
def test_recovery_action_is_its_second_number(words: str, severity: str, remedy: str, clears_by: str) -> None:
    """XID 154 is judged by the number behind "to", whatever words a driver prints; a new number asks a person."""
    finding = only(judge(f"NVRM: Xid (PCI:0000:03:00): 154, GPU recovery action changed from 0x2 (X) to {words}"))
    assert (finding.severity, finding.remedy, finding.clears_by) == (severity, remedy, clears_by)


def test_recovery_action_back_to_none_is_evidence() -> None:
    """Going back to 0 is news, and clears what asked for a reset of that GPU."""
    result = judge("NVRM: Xid (PCI:0000:03:00): 154, GPU recovery action changed from 0x1 (X) to 0x0 (None)")
    assert only(result).severity is Severity.INFO
    (clearance,) = result.clearances
    assert (clearance.by, str(clearance.component), clearance.time) == (ClearsBy.GPU_RESET, "gpu:0000:03:00", START)


def test_driver_load_is_evidence_for_the_node() -> None:
    """Loading the driver anew is told, for both module flavours, and by itself is no finding."""
    for flavour in ("x86_64 Kernel Module  535.161.08", "Open Kernel Module for x86_64  575.57.08"):
        result = judge(f"NVRM: loading NVIDIA UNIX {flavour}  Release Build  (dvs-builder@U16)")
        (clearance,) = result.clearances
        assert (clearance.by, clearance.component) == (ClearsBy.DRIVER_RELOAD, NODE)
        assert flavour.split()[-1] in clearance.note
        assert result.status is Status.OK


def test_nothing_folds_across_evidence() -> None:
    """The same code before and after a recovery is two faults, or the recovery would hide the second."""
    line = "NVRM: Xid (PCI:0000:03:00): 48, pid=1, name=x, DBE"
    over = "NVRM: Xid (PCI:0000:03:00): 154, GPU recovery action changed from 0x1 (X) to 0x0 (None)"
    findings = [finding for finding in judge(line, line, over, line).findings if finding.code == "gpu.xid.48"]
    assert [finding.evidence["count"] for finding in findings] == [2, 1]
    assert findings[1].time == START + timedelta(seconds=3)
    other = over.replace("03:00", "04:00")
    assert len([f for f in judge(line, other, line).findings if f.code == "gpu.xid.48"]) == 1


def test_uuid_is_learned_from_the_log() -> None:
    """The identity line names the GPU for good; the address stays as its alias, and is passed on as a reading."""
    result = judge(
        "NVRM: Xid (PCI:0000:55:00): 48, pid=1, name=x, DBE",
        f"NVRM: GPU at PCI:0000:55:00: {UUID}",
        "NVRM: GPU Board Serial Number: 1655024012345",
    )
    component = only(result).component
    assert (component.id, component.aliases) == (UUID, ("0000:55:00",))
    assert [str(reading.component) for reading in result.readings] == [f"gpu:{UUID}"]


def test_burst_is_one_fault() -> None:
    """Lines of one code on one GPU are one finding with count, first and last; other GPUs and codes are others."""
    storm = [f"NVRM: Xid (PCI:0000:01:00): 95, pid={pid}, Uncontained: LTC TAG" for pid in range(100)]
    other = "NVRM: Xid (PCI:0000:02:00): 95, pid=1, Uncontained: LTC TAG"
    first, second = judge(*storm, other).findings
    assert (first.evidence["count"], first.evidence["sequence"], first.evidence["last_sequence"]) == (100, 0, 99)
    assert len(first.evidence["pids"]) == 16
    assert second.evidence["count"] == 1


def test_fatal_and_nonfatal_are_not_folded() -> None:
    """A nonfatal link error in front does not hide the fatal one behind it."""
    line = "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  {}   XC0 i0 Link 08 (0x004505c6 0x0 0x0 0x0 0x0 0x0)"
    result = judge(line.format("Nonfatal"), line.format("Fatal"))
    assert [finding.severity for finding in result.findings] == [Severity.WARNING, Severity.CRITICAL]
    assert result.findings[1].evidence["nvlink_link"] == 8
    assert result.findings[1].evidence["nvlink_words"][0] == "0x004505c6"


@pytest.mark.parametrize(
    ("words", "severity"), [("a fatal link error", "critical"), ("a non-fatal link error", "warning")]
)
def test_link_error_of_a_new_shape_is_judged_by_its_word(words: str, severity: str) -> None:
    """Where the registers cannot be read, the word in the text still decides."""
    assert only(judge(f"NVRM: Xid (PCI:0018:01:00): 147, {words}")).severity == severity


def test_address_that_is_none_alarms_on_the_node() -> None:
    """A code whose address cannot be read is a fault of the node, and such an identity names nobody."""
    result = judge(f"NVRM: GPU at PCI:0:1:2:3: {UUID}", "NVRM: Xid (PCI:0:1:2:3): 79, GPU has fallen off the bus.")
    assert only(result).component == NODE
    assert result.readings == ()


def test_cause_of_a_secondary_error_is_kept() -> None:
    """An XID 45 that names the XID it follows is a symptom of that one."""
    finding = only(judge("NVRM: Xid (PCI:0000:01:00): 45, pid=1, name=x, Ch 00000008 caused by previous Xid 31"))
    assert finding.symptom_of == ("gpu.xid.31",)


def test_untrusted_lines_say_so() -> None:
    """A line that a user wrote, admitted for a drill, is labelled wherever it is read, and folds with no real one."""
    real = record("NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.")
    forged = replace(real, facility=1, trusted=False, sequence=1)
    first, second = judge_records([real, forged]).findings
    assert "trust_user_kmsg" not in first.message
    assert second.message.endswith("(not from the kernel: trust_user_kmsg)")
    assert second.evidence["trusted"] is False


@pytest.mark.parametrize(
    "line",
    [
        "tmpfs: Unknown parameter 'NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.'",
        "tmpfs: Unknown parameter 'x\nNVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.'",
        'overlayfs: unrecognized mount option "kernel: NVRM: GPU 0000:29:00.0: GPU has fallen off the bus."',
        "NVRM: Xid (PCI:[4711]: segfault at 0 ip 0 sp 0 error 4",
        "NVRM: Xid (): 79, no address",
        "NVRM: dump of Xid (PCI:0000:01:00): 79, text",
    ],
)
def test_words_of_a_user_that_the_kernel_echoes_are_no_xid(line: str) -> None:
    """Facility 0 proves who wrote the record, not who chose its words: a line must begin as the driver's do."""
    assert judge(line).status is Status.OK


def test_a_million_lines() -> None:
    """A storm far beyond any published one is folded, in time and in memory."""
    one = record("NVRM: Xid (PCI:0000:01:00): 95, pid=7062, name=python, Uncontained: LTC TAG (0x2, 0x1). RST: Yes")
    started = time.process_time()
    finding = only(judge_records([one] * 1_000_000))
    assert finding.evidence["count"] == 1_000_000
    assert time.process_time() - started < 60


def test_explain_knows_codes_in_any_spelling() -> None:
    """The text of a code comes from the table: meaning, remedy, reason, source; cases where its text decides."""
    text = explain("gpu.xid.79")
    assert text is not None
    assert text == explain("79") == explain("xid 79")
    assert "fallen off the bus" in text
    assert "reboot_node" in text
    assert "Source: NVIDIA" in text
    assert "to:2: The driver recommends a node reboot" in (explain("154") or "")
    assert "not in healthd's table" in (explain("gpu.xid.4711") or "")
    assert explain("gpu.ecc.dbe") is None


def test_check_is_discovered() -> None:
    """The check runs on kernel batches that hold the driver's prefix."""
    found = discover()["kernel.xid"]
    assert (found.on, found.needles) == ("kernel", ("NVRM:",))
