"""kernel.xid: every published line shape, what it is judged as, and what folds into one fault."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.checklib.xids import NvLink5Rule, nvlink5_rules
from healthd.checks.kernel_xid import KernelXidSettings, explain, kernel_xid
from healthd.core.check import discover
from healthd.core.errors import SourceUnreadable
from healthd.core.model import NODE, ClearsBy, Outcome, Remedy, Repeats, Result, Severity, Status
from healthd.core.node import KernelRecord
from healthd.judge.history import History, observe
from healthd.testing import Entry, FakeNode
from tests.support.judgement import START, at, kernel_says, only

UUID = "GPU-6d7ec8a1-1111-2222-3333-444455556666"


def judge(*texts: str) -> Result:
    return judge_records(kernel_says(*texts))


def judge_records(records: Sequence[KernelRecord]) -> Result:
    return kernel_xid(FakeNode(kernel_records=records), KernelXidSettings())


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
    message = f"{finding.evidence['xid']} {finding.component} {finding.severity} {finding.remedy}"
    assert message == expected
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


def test_a_process_is_named_by_whichever_line_names_it() -> None:
    """As a driver 580 says a misaligned access: of three lines of one fault only the last has the process."""
    head = "NVRM: Xid (PCI:0000:00:06): 13, "
    finding = only(
        judge(
            f"{head}Graphics SM Warp Exception on (GPC 1, TPC 4, SM 0): Misaligned Address",
            f"{head}Graphics Exception: ESR 0x519730=0x500000f 0x519734=0x0 0x519728=0x1f81fb60 0x51972c=0x1174",
            f"{head}pid=665, name=bad, Graphics Exception: channel 0x0000000a, Class 0000cbc0, Offset 00000510",
        )
    )
    assert (finding.evidence["count"], finding.evidence["pid"], finding.evidence["process"]) == (3, 665, "bad")


def test_lines_that_a_driver_prints_as_it_starts_are_no_fault() -> None:
    """Recorded on an H200, driver 580.159.04."""
    assert (
        judge(
            "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build",
            "NVRM: gpuClearFbhubPoisonIntrForBug2924523_GA100: FBHUB Interrupt detected. Clearing it.",
            "NVRM: Persistence mode is deprecated and will be removed in a future release. "
            "Please use nvidia-persistenced instead.",
            "NVRM: GPU at PCI:0000:00:06: GPU-6d7ec8a1-1111-2222-3333-444455556666",
            "NVRM: GPU Board Serial Number: 1650000000000",
        ).findings
        == ()
    )


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
    assert findings[1].time == at(3)
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
    """A nonfatal link error in front does not hide the fatal one behind it; where no rule fits, the word decides."""
    line = "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  {}   XC0 i0 Link 08 (0x004505c6 0x77 0x0 0x0 0x0 0x0)"
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
    (real,) = kernel_says("NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.")
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
    (one,) = kernel_says(
        "NVRM: Xid (PCI:0000:01:00): 95, pid=7062, name=python, Uncontained: LTC TAG (0x2, 0x1). RST: Yes"
    )
    started = time.process_time()
    finding = only(judge_records([one] * 1_000_000))
    assert finding.evidence["count"] == 1_000_000
    assert time.process_time() - started < 60


def test_explain_knows_codes_in_any_spelling() -> None:
    """The forms of a code come from the tables: its row, the cases of its text, and registers that judge otherwise."""
    (form,) = explain("gpu.xid.79")
    assert explain("gpu.xid.79") == explain("79") == explain("xid 79")
    assert "fallen off the bus" in form.meaning
    assert form.remedy is Remedy.REBOOT_NODE
    assert form.source.startswith("NVIDIA")
    cases = {each.form: each.meaning for each in explain("154")}
    assert cases["to:2"] == "The driver recommends a node reboot"
    assert {each.form for each in explain("145")} == {"", "fatal", "registers"}
    assert "not in healthd's table" in explain("gpu.xid.4711")[0].meaning
    assert explain("gpu.ecc.dbe") == ()


def test_check_is_discovered() -> None:
    """The check runs on kernel batches that hold the driver's prefix."""
    found = discover()["kernel.xid"]
    assert (found.on, found.needles) == ("kernel", ("^NVRM: ",))


# ---------------------------------------------------------------------------------------------------------------------
# NVLink registers


def link_line(rule: NvLink5Rule, layout: int, unit: str, *, noise: int = 0) -> str:
    """A line that the rule is for: its fixed bits, and ``noise`` in the others."""
    mask, value = rule.patterns[layout]
    intrinfo, word = value | (noise & ~mask & 0xFFFFFFFF), "Nonfatal" if rule.nonfatal else "Fatal"
    return (
        f"NVRM: Xid (PCI:0018:01:00): {rule.xid}, pid=876767, name=ray::WorkerDict, {unit} {word}   XC0 i0 Link 08 "
        f"(0x{intrinfo:08x} 0x{rule.error_status:08x} 0x00000000 0x00000000 0x00000000 0x00000000)"
    )


@pytest.mark.parametrize("rule", nvlink5_rules(), ids=lambda rule: f"{rule.xid} {rule.verdict.case}")
@pytest.mark.parametrize("layout", [0, 1], ids=["before 575", "from 575"])
def test_every_nvlink5_rule_is_found_in_both_layouts(rule: NvLink5Rule, layout: int) -> None:
    """Whatever stands in the other bits, and whichever name of its unit the line uses, the rule's verdict is given."""
    for unit in (*sorted(rule.units), "/".join(sorted(rule.units))):
        for noise in (0, 0xFFFFFFFF, 0x12345678):
            finding = only(judge(link_line(rule, layout, unit, noise=noise)))
            verdict = rule.verdict
            assert (finding.severity, finding.remedy, finding.clears_by) == (
                verdict.severity,
                verdict.remedy,
                verdict.clears_by,
            )
            assert finding.evidence["nvlink_subcode"] == rule.subcode
            assert finding.evidence["nvlink_immediate"] == rule.immediate
            assert finding.evidence["nvlink_investigate"] == rule.investigate


def test_rules_follow_nvidia() -> None:
    """A reset is a reset, 'see XID 154' and 'ignore' are watched at most; two sub-codes of 149 are hardware."""
    messages = {(rule.immediate, rule.verdict.remedy) for rule in nvlink5_rules() if rule.subcode not in (4, 10)}
    assert messages == {
        ("RESET_GPU", "reset_gpu"),
        ("XID_154_EVAL", "watch"),
        ("IGNORE", "watch"),
        ("IGNORE", "none"),
    }
    assert len(nvlink5_rules()) == 94
    assert sum(rule.immediate == "RESET_GPU" for rule in nvlink5_rules()) == 41


@pytest.mark.parametrize("subcode", [4, 10])
def test_a_bad_link_is_hardware(subcode: int) -> None:
    """149 with sub-code 4 (connector) or 10 (physical layer) asks for another node: a reset mends neither."""
    line = (
        f"NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x{0x5C6 | subcode << 20:08x} "
        "0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
    )
    finding = only(judge(line))
    assert (finding.severity, finding.remedy, finding.clears_by) == ("critical", "replace_node", "replace")


NVLINK5 = "NVRM: Xid (PCI:0018:01:00): {}, {} {} XC0 i0 Link 08 ({:#010x} {:#010x} 0x0 0x0 0x0 0x0)"


def test_several_status_bits_are_as_bad_as_the_worst() -> None:
    """Two errors at once: the reset that one of them needs is asked for."""
    tagstate = 0b0100000010  # RLW_TAGSTATE before 575
    finding = only(judge(NVLINK5.format(145, "RLW_TAGSTATE", "Nonfatal", tagstate, 0x1 | 0x2)))
    assert (finding.severity, finding.remedy) == ("critical", "reset_gpu")
    harmless = only(judge(NVLINK5.format(145, "RLW_TAGSTATE", "Nonfatal", tagstate, 0x1 | 0x10000)))
    assert (harmless.severity, harmless.remedy) == ("info", "none")


@pytest.mark.parametrize(
    ("unit", "intrinfo", "status"),
    [
        ("RLW_TAGSTATE", 0x102, 0x3 | 0x400),
        ("RLW_OTHER", 0x102, 0x1),
        ("RLW_TAGSTATE", 0x3FF, 0x1),
        ("RLW_TAGSTATE", 0x102, 0),
    ],
)
def test_where_no_rule_fits_the_word_decides(unit: str, intrinfo: int, status: int) -> None:
    """An unknown bit, unit, layout or status is not guessed at."""
    fatal, harmless = (judge(NVLINK5.format(145, unit, word, intrinfo, status)) for word in ("Fatal", "Nonfatal"))
    assert (only(fatal).severity, only(fatal).remedy) == ("critical", "reset_gpu")
    assert (only(harmless).severity, only(harmless).remedy) == ("warning", "watch")
    assert only(fatal).evidence["nvlink_immediate"] == "no published rule fits"
    assert only(fatal).evidence["nvlink_investigate"] == "no published rule fits"


def test_the_drivers_fatal_beats_a_rule_that_says_nonfatal() -> None:
    """Some events are made fatal at run time: the word of the line wins over the table."""
    finding = only(judge(NVLINK5.format(145, "RLW_TAGSTATE", "Fatal", 0x102, 0x1)))
    assert (finding.severity, finding.remedy) == ("critical", "reset_gpu")


def test_different_rules_of_one_code_do_not_fold() -> None:
    """What is to be ignored, and what needs a reset, are two findings."""
    lines = [NVLINK5.format(145, "RLW_TAGSTATE", "Nonfatal", 0x102, status) for status in (1, 1, 2)]
    assert [finding.evidence["count"] for finding in judge(*lines).findings] == [2, 1]


@pytest.mark.parametrize(
    ("registers", "hint"),
    [
        ("0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0", None),
        ("0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", ["an ECC or parity error"]),
        ("0x200030, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", ["an ECC or parity error", "bad signal integrity"]),
    ],
)
def test_registers_of_the_older_nvlink_error(registers: str, hint: list[str] | None) -> None:
    """XID 74 keeps its link and registers; the published bits are named, and the word decides what it calls for."""
    line = f"NVRM: Xid (PCI:0000:5b:00): 74, …, NVLink: fatal error detected on link 14({registers})"
    finding = only(judge(line))
    assert finding.evidence["nvlink_link"] == 14
    assert len(finding.evidence["nvlink_words"]) == 7
    assert finding.evidence.get("nvlink_hint") == hint
    assert (finding.severity, finding.remedy) == ("critical", "reset_gpu")


# ---------------------------------------------------------------------------------------------------------------------
# rate-limited prints

LIMITING = (
    "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:b3:00 (printing 1 of every 30)."
    "  The GPU likely needs to be reset."
)
TIMEOUT = (
    "NVRM: Xid (PCI:0000:b3:00): 119, pid=1580259, name=nvidia-smi, Timeout after 6s of waiting for RPC response from "
    "GPU4 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20803039 0x4)."
)


def test_rate_limited_prints_say_that_the_count_is_too_low() -> None:
    """After the notice, the number of lines is a lower bound, and the evidence says so; other GPUs' are not."""
    limited, other = judge(TIMEOUT, LIMITING, TIMEOUT, TIMEOUT.replace("b3:00", "b4:00")).findings
    assert limited.evidence["count_is_at_least"] == "1 in 30 printed"
    assert limited.evidence["count"] == 3
    assert "count_is_at_least" not in other.evidence


def test_the_notice_alone_is_the_time_out() -> None:
    """It only follows time-outs: where a batch holds nothing else of them, the fault is still known."""
    finding = only(judge(LIMITING))
    assert (finding.code, str(finding.component), finding.severity) == ("gpu.xid.119", "gpu:0000:b3:00", "critical")
    assert finding.evidence["form"] == "number-less"


# ---------------------------------------------------------------------------------------------------------------------
# jobs

FAULT = "NVRM: Xid (PCI:0000:01:00): 31, pid={}, name=python3, Ch 00000008, MMU Fault"
POD = "0f3a1c2d-4e5f-6071-8293-a4b5c6d7e8f9"


def proc_of(processes: dict[int, str], started_s: float = -100.0) -> dict[str, Entry]:
    """A /proc with these processes and control groups, all started so long after the first record's time."""
    booted = int(START.timestamp()) - 1000
    ticks = int((1000 + started_s) * 100)
    entries: dict[str, Entry] = {"stat": f"cpu  1 2 3\nbtime {booted}\nprocesses 9"}
    for pid, cgroup in processes.items():
        entries[f"{pid}/stat"] = f"{pid} (a) b) R 1 {'0 ' * 17}{ticks} 0 0"
        entries[f"{pid}/cgroup"] = cgroup
    return entries


def judge_with(proc: dict[str, Entry], *texts: str, settings: KernelXidSettings | None = None) -> Result:
    return kernel_xid(FakeNode(kernel_records=kernel_says(*texts), proc=proc), settings or KernelXidSettings())


@pytest.mark.parametrize(
    ("cgroup", "key", "value"),
    [
        ("0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0", "job", "42"),
        ("5:memory:/slurm/uid_1000/job_42/step_batch\n1:name=systemd:/x", "job", "42"),
        ("0::/kubepods/burstable/pod0f3a1c2d-4e5f-6071-8293-a4b5c6d7e8f9/abc", "pod_uid", POD),
        (
            "0::/kubepods.slice/kubepods-pod0f3a1c2d_4e5f_6071_8293_a4b5c6d7e8f9.slice/cri-containerd-1.scope",
            "pod_uid",
            POD,
        ),
    ],
)
def test_a_process_is_tied_to_its_job_or_pod(cgroup: str, key: str, value: str) -> None:
    """The control group of the living process tells the Slurm job, on cgroup v1 and v2, or the pod."""
    finding = judge_with(proc_of({4711: cgroup}), FAULT.format(4711)).findings[0]
    assert finding.evidence[key] == value
    assert {"job", "pod_uid"} & finding.evidence.keys() == {key}


def test_a_job_that_slurm_names_by_its_sluid() -> None:
    """The number of the job is in the evidence where its slurmstepd has it, else the SLUID. Either counts as one of the
    jobs that met the error."""
    scope = "/system.slice/slurmstepd.scope"
    proc = proc_of({41: f"0::{scope}/s5K1KKYAYG5D00/step_0/user/task_0", 42: f"0::{scope}/s5K1KKYAYG5D01/step_0"})
    node = FakeNode(
        kernel_records=kernel_says(FAULT.format(41), FAULT.format(42)),
        proc={**proc, "9/cmdline": "slurmstepd: [7001.0]\0"},
        sys={f"fs/cgroup{scope}/s5K1KKYAYG5D00/step_0/slurm/cgroup.procs": "9"},
    )
    error, across = kernel_xid(node, KernelXidSettings()).findings
    assert (error.evidence["job"], error.evidence["sluid"]) == ("7001", "s5K1KKYAYG5D01")
    assert across.evidence["jobs"] == ["job:7001", "sluid:s5K1KKYAYG5D01"]


@pytest.mark.parametrize(
    "proc",
    [
        {},
        proc_of({4711: "0::/user.slice/user-1000.slice/session-3.scope"}),
        proc_of({4711: "0::/system.slice/slurmstepd.scope/job_x/step_0"}),
        proc_of({4711: "0::/system.slice/slurmstepd.scope/job_42/step_0"}, started_s=60.0),
        {**proc_of({4711: "0::/system.slice/slurmstepd.scope/job_42/step_0"}), "stat": "no boot time"},
        {**proc_of({4711: "0::/x/job_42"}), "4711/cgroup": SourceUnreadable("permission denied")},
        {**proc_of({4711: "0::/x/job_42"}), "4711/stat": "4711 (a"},
    ],
    ids=["gone", "no job", "no number", "another process since", "no boot time", "unreadable", "torn"],
)
def test_a_process_that_cannot_be_tied_is_nobodys(proc: dict[str, Entry]) -> None:
    """Gone, of no job, started after the line, or unreadable: the finding stands, and names no job."""
    (finding,) = judge_with(proc, FAULT.format(4711)).findings
    assert not {"job", "pod_uid", "jobs"} & finding.evidence.keys()
    assert finding.evidence["pid"] == 4711


def test_the_same_error_in_different_jobs_is_counted_for_the_gpu() -> None:
    """A job-level code in a known job counts towards a finding of the GPU itself, each job once, within a day."""
    cgroups = {pid: f"0::/system.slice/slurmstepd.scope/job_{pid}/step_0" for pid in (41, 42)}
    result = judge_with(proc_of(cgroups), FAULT.format(41), FAULT.format(42), FAULT.format(43))
    error, across = result.findings
    assert error.evidence["jobs"] == ["41", "42"]
    assert across.code == "gpu.xid.repeated_across_jobs.31"
    assert (across.component, across.evidence["jobs"]) == (error.component, ["job:41", "job:42"])
    assert across.repeats == Repeats(times=3, window_s=86_400.0, distinct="jobs")
    assert (across.severity, across.remedy) == (Severity.WARNING, "ask_human")


@pytest.mark.parametrize("xid", [45, 48, 79, 94, 154])
def test_other_codes_are_not_counted_across_jobs(xid: int) -> None:
    """News, and errors of the GPU itself, need no second job to be what they are."""
    proc = proc_of({4711: "0::/system.slice/slurmstepd.scope/job_42/step_0"})
    line = f"NVRM: Xid (PCI:0000:01:00): {xid}, pid=4711, name=python3, text"
    assert [finding.code for finding in judge_with(proc, line).findings] == [f"gpu.xid.{xid}"]


def test_an_error_of_nobody_is_not_counted_across_jobs() -> None:
    """Three processes that are gone may have been one job: nothing is counted that could not be named."""
    assert len(judge_with({}, *[FAULT.format(pid) for pid in (1, 2, 3)]).findings) == 1


def test_how_many_jobs_is_a_setting() -> None:
    """A site may ask for more jobs, or a shorter time."""
    proc = proc_of({4711: "0::/system.slice/slurmstepd.scope/job_42/step_0"})
    settings = KernelXidSettings(same_error_jobs=5, same_error_window_s=60.0)
    across = judge_with(proc, FAULT.format(4711), settings=settings).findings[1]
    assert across.repeats == Repeats(times=5, window_s=60.0, distinct="jobs")


def test_the_third_job_opens_the_fault_of_the_gpu() -> None:
    """Through history: two jobs are two jobs' errors, a third within the day makes the GPU itself suspect."""
    history, opened = History(), []
    for number, job in enumerate((41, 41, 42, 43)):
        proc = proc_of({4711: f"0::/system.slice/slurmstepd.scope/job_{job}/step_0"})
        now = START + timedelta(hours=number)
        seen = KernelRecord(boot_id="boot", sequence=number, time=now, text=FAULT.format(4711))
        result = kernel_xid(FakeNode(kernel_records=[seen], proc=proc), KernelXidSettings())
        outcome = Outcome(check="kernel.xid", result=result, at=now, duration_s=0.0)
        history, changes = observe(history, outcome, (), now)
        opened.append([change.fault.code for change in changes if change.opened])
    assert opened == [["gpu.xid.31"], [], [], ["gpu.xid.repeated_across_jobs.31"]]
