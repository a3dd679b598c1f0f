"""The kernel log: every XID and SXid of the tables, every other kind of line, the site's rules, and the reader itself.

Lines are verbatim where one is published (``tests/checks/xid_lines.txt`` and ``sxid_lines.txt`` say where they are
from); the others are built in the form of the source that prints them (for the rows of ``kernel_lines.csv``, their
examples).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from healthd.checklib.loglines import LineRow, line_rows
from healthd.checklib.xids import NvLink5Rule, SxidRow, XidRow, nvlink5_rules, sxid_table, xid_table
from healthd.checks.kernel_rules import KernelRulesSettings, SiteRule
from healthd.core.model import Remedy, Severity, Status
from healthd.core.node import KernelLogState
from tests.faults.case import Case, Made
from tests.faults.cases_gpu import BLIND, held_by
from tests.faults.cases_storage import connection
from tests.faults.rig import Rig
from tests.faults.together import says, together

_LINES = Path(__file__).parents[1] / "checks"
GPU_2 = "0000:75:00"
PAUSED = BLIND
LOADING = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {}  Release Build  (dvs-builder@U16)"


def listed(file: str) -> Iterator[tuple[str, str, Made]]:
    """What is expected of each line, the line, and whether it is published: not below a note that it is built."""
    made = Made.LINE
    for row in (_LINES / file).read_text(encoding="utf-8").splitlines():
        if row.startswith("#"):
            made = Made.BUILT_LINE if row.startswith("# built") else made
            continue
        expected, _, line = row.partition(" | ")
        yield expected, line.replace("\\n", "\n"), made


def logged(check: str, state: str, lines: Sequence[str], diagnosis: str = "", **more: Any) -> Case:
    """The kernel writes these lines. Published, unless it says otherwise."""
    fixed = {"check": check, "state": state, "made": Made.LINE, "arrange": lambda rig: rig.says(*lines)}
    return Case(**{**fixed, "diagnosis": diagnosis, **more})


# -- kernel.xid -------------------------------------------------------------------------------------------------------


def xid(number: int, words: str, *, pci: str = GPU_2) -> str:
    """A line as the driver prints it."""
    return f"NVRM: Xid (PCI:{pci}): {number}, pid=4711, name=python3, {words}"


def of_published_lines() -> Iterator[Case]:
    """One case for each line of xid_lines.txt, which also says what it must be judged as."""
    seen: dict[str, int] = {}
    for expected, line, _ in listed("xid_lines.txt"):
        number, component, severity, remedy = expected.split(" ")
        seen[number] = seen.get(number, 0) + 1
        form = f", form {seen[number]}" if seen[number] > 1 else ""
        diagnosis = f"gpu.xid.{number}@{component} {severity} {remedy}"
        yield logged("kernel.xid", f"XID {number}{form}", [line], diagnosis, unknown=paused_by(int(number)))


def paused_by(number: int) -> frozenset[str]:
    """The checks that an XID makes blind for a while, because NVML may hang after it."""
    row = xid_table().get(number)
    return PAUSED if row is not None and row.pauses_nvml else frozenset()


def of_the_table(known: frozenset[int]) -> Iterator[Case]:
    """One case for each code of xid.csv of which no line is published."""
    for row in xid_table().values():
        if row.xid not in known:
            yield _built(row)


def _built(row: XidRow) -> Case:
    diagnosis = f"gpu.xid.{row.xid}@gpu:2 {row.severity} {row.remedy}"
    line, blind = xid(row.xid, row.meaning), paused_by(row.xid)
    return logged("kernel.xid", f"XID {row.xid}", [line], diagnosis, made=Made.BUILT_LINE, unknown=blind)


def nvlink5(rule: NvLink5Rule) -> Case:
    """A rule of NVLink5, by its registers as drivers before 575 and from 575 on write them."""
    unit, word = sorted(rule.units)[0], "Nonfatal" if rule.nonfatal else "Fatal"
    tail = f"0x{rule.error_status:08x} 0x00000000 0x00000000 0x00000000 0x00000000)"
    lines = [xid(rule.xid, f"{unit} {word}   XC0 i0 Link 08 (0x{value:08x} {tail}") for _, value in rule.patterns]
    verdict = rule.verdict
    diagnosis = f"gpu.xid.{rule.xid}@gpu:2 {verdict.severity} {verdict.remedy}"
    state = f"XID {rule.xid}, {verdict.case}"
    return logged("kernel.xid", state, lines, diagnosis, made=Made.BUILT_LINE)


_ACTION = "NVRM: Xid (PCI:0000:75:00): 154, GPU recovery action changed from {} to {}"
_ACTIONS = {
    "0x1 (GPU Reset Required)": "critical reset_gpu",
    "0x3 (Drain P2P)": "critical ask_human",
    "0x4 (Drain and Reset)": "critical reset_gpu",
    "0x5 (Recover IMEX Domain)": "critical ask_human",
    "0x6": "critical reboot_node",
    "0x7 (System Reboot)": "critical reboot_node",
    "0x8": "warning ask_human",
}


def job_error(rig: Rig, job: int) -> None:
    """A job's process meets XID 13 on GPU 2, and is looked at while it lives."""
    held_by(f"0::/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0")(rig)
    rig.put("proc/4711/stat", "4711 (python3) S 1 4711 4711 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0")
    rig.state("gpu2.nvmlDeviceGetComputeRunningProcesses = ")
    rig.says(xid(13, "Graphics SM Warp Exception"))


def in_jobs(*jobs: int) -> Any:
    """The same error in these jobs, an hour apart."""

    def arrange(rig: Rig) -> Iterator[float]:
        for job in jobs:
            job_error(rig, job)
            yield 3600.0

    return arrange


STORM = [xid(95, "Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No")] * 800
_TIMEOUT = "Timeout after 6s of waiting for RPC response from GPU4 GSP! Expected function 76 (GSP_RM_CONTROL)"
_LIMITED = "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:75:00 (printing 1 of every 30)."
XID = (
    *of_published_lines(),
    *of_the_table(frozenset(int(expected.split(" ")[0]) for expected, _, _ in listed("xid_lines.txt"))),
    *(
        logged(
            "kernel.xid",
            f"XID 154 to {words}",
            [_ACTION.format("0x0 (None)", words)],
            f"gpu.xid.154@gpu:2 {verdict}",
            made=Made.BUILT_LINE,
        )
        for words, verdict in _ACTIONS.items()
    ),
    logged(
        "kernel.xid",
        "XID 154 back to none ends what asked for a reset",
        [
            xid(48, "An uncorrectable double bit error (DBE) has been detected on GPU"),
            _ACTION.format("0x1 (GPU Reset Required)", "0x0 (None)"),
        ],
        "gpu.xid.154@gpu:2 info none",
        made=Made.BUILT_LINE,
    ),
    *map(nvlink5, nvlink5_rules()),
    logged("kernel.xid", "800 lines of one fault", STORM, "gpu.xid.95@gpu:2 critical reset_gpu"),
    logged(
        "kernel.xid",
        "prints rate-limited to 1 in 30",
        [xid(119, _TIMEOUT), _LIMITED, xid(119, _TIMEOUT)],
        "gpu.xid.119@gpu:2 critical reset_gpu",
        unknown=PAUSED,
    ),
    logged(
        "kernel.xid",
        "a job's error, tied to the job",
        [],
        "gpu.xid.13@gpu:2 warning restart_app",
        arrange=in_jobs(41),
        made=Made.BUILT_LINE,
    ),
    logged(
        "kernel.xid",
        "a job's error in three jobs",
        [],
        "gpu.xid.repeated_across_jobs.13@gpu:2 warning ask_human",
        symptoms=("gpu.xid.13@gpu:2",),
        arrange=in_jobs(41, 42, 43),
        made=Made.BUILT_LINE,
    ),
    logged(
        "kernel.xid",
        "words of a user that the kernel echoes",
        ["tmpfs: Unknown parameter 'NVRM: Xid (PCI:0000:75:00): 79, GPU has fallen off the bus.'"],
    ),
)

# -- kernel.sxid ------------------------------------------------------------------------------------------------------

_SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): "


def sxid_forms() -> Iterator[Case]:
    """One case for each line of sxid_lines.txt; its expectation ends with the evidence that closes the fault."""
    for expected, line, made in listed("sxid_lines.txt"):
        number, component, severity, remedy, _ = expected.split(" ")
        word = next((f", {word}" for word in ("Fatal", "Non-fatal", "Correctable") if f" {word}," in line), "")
        diagnosis = f"nvswitch.sxid.{number}@{component} {severity} {remedy}"
        link = "" if ", Link " in line else ", no link"
        yield logged("kernel.sxid", f"SXid {number}{word}{link}", [line], diagnosis, made=made)


def of_sxid(row: SxidRow) -> Case:
    """A row of sxid.csv by a line without a severity word, under a driver for which it holds."""
    state = f"SXid {row.sxid}" + (f", drivers {row.drivers}" if row.drivers else "")
    driver = {"<550": "535.161.08", ">=550": "550.54.14"}.get(row.drivers, "")
    lines = [*([LOADING.format(driver)] if driver else []), f"{_SWITCH}{row.sxid:05}, {row.meaning}"]
    diagnosis = f"nvswitch.sxid.{row.sxid}@nvswitch:0000:05:00 {row.severity} {row.remedy}"
    return logged("kernel.sxid", f"{state}, no word", lines, diagnosis, made=Made.BUILT_LINE)


SXID = (
    *sxid_forms(),
    *map(of_sxid, sxid_table().values()),
    logged(
        "kernel.sxid",
        "continuation lines are not counted",
        [
            "nvidia-nvswitch2: SXid (PCI:0000:00:09.0): 11004, Non-fatal, Link 42 ingress invalid ACL",
            "nvidia-nvswitch2: SXid (PCI:0000:00:09.0): 11004, Severity 0 Engine instance 42 Sub-engine instance 00",
            "nvidia-nvswitch2: SXid (PCI:0000:00:09.0): 11004, Data {0x50610002, 0x10100030}",
        ],
        "nvswitch.sxid.11004@nvswitch:0000:00:09 warning ask_human",
    ),
    logged(
        "kernel.sxid",
        "heat that is over",
        [f"{_SWITCH}10004, NVSWITCH thermal slowdown started", f"{_SWITCH}10005, NVSWITCH thermal slowdown ended"],
        "nvswitch.sxid.10005@nvswitch:0000:05:00 info none",
        made=Made.BUILT_LINE,
    ),
)

# -- other lines ------------------------------------------------------------------------------------------------------

_NAMED = (r"efa \S+ (?P<efa>rdmap\w+):", r"\b(?P<disk>nvme\d+)(?:n\d+(?:p\d+)?)?\b")
# Where a line is about, by a part of it; the node, where it names no part.
_PLACES = {
    "efa 0000:4f:00.0: EFA device init failed": "efa:0000:4f:00.0",
    "6cz4zbev-MDT0000-mdc-ffff8f1c0a5b8800: operation": "lustre:6cz4zbev-MDT0000-mdc",
    "6cz4zbev-OST0000-osc-ffff8f1c0a5b8800": "lustre:6cz4zbev-OST0000-osc",
    "Evicted from 6cz4zbev-OST0000": "lustre:6cz4zbev-OST0000",
    "nvidia 0000:53:00.0": "gpu:0",
    "NVRM: GPU 0000:53:00.0": "gpu:0",
    "NVRM: API mismatch": "driver:nvidia",
    "received from 0000:54:00.0": "pci:0000:54:00.0",
    "eth0": "nic:eth0",
    "pcieport 0000:00:1c.0": "pci:0000:00:1c.0",
    "loop0": "disk:loop0",
    "server 10.0.3.7": "nfs:10.0.3.7",
    "fs-1.example": "nfs:fs-1.example",
}


def place(line: str) -> str:
    """The component of a line."""
    for part, component in _PLACES.items():
        if part in line:
            return component
    for pattern in _NAMED:
        if found := re.search(pattern, line):
            return next(f"{kind}:{name}" for kind, name in found.groupdict().items())
    return "node"


def of_rows(check: str) -> Iterator[Case]:
    """One case for each row of kernel_lines.csv, by its example."""
    seen: dict[str, int] = {}
    for row in line_rows(check):
        if not row.ends:
            seen[row.code] = seen.get(row.code, 0) + 1
            yield _of_row(row, seen[row.code])


def _of_row(row: LineRow, form: int) -> Case:
    diagnosis = f"{row.code}@{place(row.example)} {row.severity} {row.remedy}"
    state = f"{row.meaning}, form {form}" if form > 1 else row.meaning
    if row.code == "lustre.connection_lost":  # and the client has not connected again, as lustre.client would see
        return logged(row.check, state, [], diagnosis, arrange=together(says(row.example), connection("DISCONN")))
    return logged(row.check, state, [row.example], diagnosis, made=Made.BUILT_LINE)


def ended(check: str, code: str) -> Case:
    """A line, and the line that says it is over."""
    begin = next(row.example for row in line_rows(check) if row.code == code and not row.ends)
    end = next(row.example for row in line_rows(check) if row.code == code and row.ends)
    return logged(check, f"{code}, and over", [begin, end], made=Made.BUILT_LINE)


LOST = next(row.example for row in line_rows("kernel.lustre") if row.code == "lustre.connection_lost")
RESTORED = next(row.example for row in line_rows("kernel.lustre") if row.ends)
OTHER = (
    *of_rows("kernel.host"),
    ended("kernel.host", "kernel.nfs_not_responding"),
    *of_rows("kernel.efa"),
    *of_rows("kernel.lustre"),
    ended("kernel.lustre", "lustre.connection_lost"),
    logged("kernel.lustre", "a connection is lost, and lustre.client sees it restored", [LOST], made=Made.BUILT_LINE),
    logged(
        "kernel.lustre",
        "a process that is called as an assertion begins crashes",
        ["Lustre: LBUG[8050]: segfault at 0 ip 000056159167c19e sp 00007ffff5329b70 error 6 in seg[119e,5615+1000]"],
    ),
    logged(
        "kernel.lustre",
        "a connection lost three times in an hour",
        [LOST, RESTORED] * 3,
        "lustre.unsteady@lustre:6cz4zbev-OST0000-osc warning ask_human",
        made=Made.BUILT_LINE,
    ),
)

# -- kernel.rules, kmsg.reader ----------------------------------------------------------------------------------------

_HANG = "ixgbe 0000:05:00.0 eth1: Detected Tx Unit Hang"
_PATTERN = r"ixgbe (?P<pci>\S+) (?P<nic>\w+): Detected Tx Unit Hang"
_OVER = r"ixgbe (?P<pci>\S+) (?P<nic>\w+): NIC Link is Up"


def ruled(state: str, lines: Sequence[str], diagnosis: str = "", **rule: Any) -> Case:
    """A rule of the site, and what the kernel writes."""
    mine = SiteRule(name="nic_hang", pattern=_PATTERN, component="nic:{nic}", **rule)
    return logged(
        "kernel.rules", state, lines, diagnosis, settings={"kernel.rules": KernelRulesSettings(rules=(mine,))}
    )


def reader(**state: Any) -> Any:
    """How the reader of the kernel log is doing."""

    def arrange(rig: Rig) -> None:
        rig.node.kernel_log = KernelLogState(**{"source": "/dev/kmsg", "alive": True, **state})

    return arrange


def read(state: str, diagnosis: str = "", **more: Any) -> Case:
    """A case of the reader."""
    how = more.pop("how")
    return Case(check="kmsg.reader", state=state, made=Made.FAKE, arrange=reader(**how), diagnosis=diagnosis, **more)


_BLIND: dict[str, Any] = {"status": Status.UNKNOWN, "unknown": frozenset({"kmsg.reader"})}
RULES = (
    ruled("a line that fits", [_HANG], "site.nic_hang@nic:eth1 warning watch"),
    ruled(
        "critical, as the rule says",
        [_HANG],
        "site.nic_hang@nic:eth1 critical reboot_node",
        severity=Severity.CRITICAL,
        remedy=Remedy.REBOOT_NODE,
    ),
    ruled("three lines of three in the window", [_HANG] * 3, "site.nic_hang@nic:eth1 warning watch", count=3),
    ruled("two lines of three", [_HANG] * 2, count=3),
    ruled("a line, and the one that ends it", [_HANG, "ixgbe 0000:05:00.0 eth1: NIC Link is Up"], clears=_OVER),
    read(
        "records were overwritten unread",
        "kmsg.gap@node warning watch",
        symptoms=("kmsg.incomplete@node",),
        how={"gaps": 1},
    ),
    read("the reader has ended", how={"alive": False}, **_BLIND),
    read("the reader does not come round", how={"idle_s": 40.0}, **_BLIND),
    read("its source cannot be read", how={"error": "/dev/kmsg: Operation not permitted"}, **_BLIND),
)

CASES: tuple[Case, ...] = (*XID, *SXID, *OTHER, *RULES)
