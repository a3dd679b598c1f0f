"""A user chooses the names of processes, files and network devices, and nothing of what healthd finds in the log."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from healthd.checklib.loglines import NAME_BYTES, LineHead, LineRow, after_lead, line_rows, split_line
from healthd.checks.kernel_rules import KernelRulesSettings as Rules
from healthd.checks.kernel_rules import SiteRule
from healthd.core.check import discover
from healthd.core.model import REMEDY_RANK, Finding, Remedy, Severity
from healthd.core.node import RECORD_LEAD, KernelRecord
from healthd.sources.kmsg import parse_record
from healthd.testing import FakeNode
from tests.support.judgement import LUSTRE_IS_LOADED, START, kernel_says
from tests.support.sampling import examples

CHECKS = {name: check for name, check in discover().items() if check.on == "kernel"}
TABLES = ("kernel.efa", "kernel.host", "kernel.lustre")
ROWS: tuple[LineRow, ...] = tuple(row for check in TABLES for row in line_rows(check))

# Linux 6.18 (the first four as printed there), the others from the sources that loglines names. NAME is
# that of a process, FILE that of what it runs or has mapped.
FORMS = (
    "{name}[8050]: segfault at 0 ip 000056159167c19e sp 7ffff5329b70 error 6 in {file}[119e,5615+1000] likely on CPU 0",
    "{name}[8050]: segfault at 0 ip 00007f3a1c2d4e5f sp 00007ffd1c2d3e40 error 4 in {file}[7f3a1c000000+195000]",
    "{name} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "{name}: page allocation failure: order:5, mode:0xcc0(GFP_KERNEL), nodemask=(null),cpuset={file},mems_allowed=0",
    "{name}[8050] bad frame in rt_sigreturn frame:00000000c0ffee00 ip:7f sp:7f orax:ffffffff in {file}[7f3a1c0+1000]",
    "{name}[8050] vsyscall read attempt denied -- look up the vsyscall kernel parameter ip:ffffffffff600000 cs:33",
    "{name}[8050]: unhandled exception: DABT (lower EL), ESR 0x92000005, level 1 translation fault in {file}[1]",
    "{name}[8050]: unhandled signal 11 code 0x1 at 0x0000000000000000 in {file}[10000+1000]",
    "{name}[8050]: memfd_create() called without MFD_EXEC or MFD_NOEXEC_SEAL set",
    "{name}[8050]: bad frame in handle_rt_signal64: 00000000c0ffee00 nip 0000000000000000 lr 0000000000000000",
    "{name} (8050): VmData 12 exceed data ulimit 11. Update limits or use boot option ignore_rlimit_data.",
    "{name} (8050): Using mlock ulimits for SHM_HUGETLB is obsolete",
    "{name} (8050): /proc/8050/oom_adj is deprecated, please use /proc/8050/oom_score_adj instead.",
    "{name} (8050) used greatest stack depth: 11824 bytes left",
    "{name}/8050: potentially unexpected fatal signal 11.",
    "{name} uses obsolete (PF_INET,SOCK_PACKET)",
    "{name} calls setitimer() with new_value NULL pointer. Misfeature support will be removed",
    "traps: {name}[8050] trap invalid opcode ip:55c0 sp:7ffe error:0 in {file}[55c0+1000]",
    "x86/split lock detection: #AC: {name}/8050 took a split_lock trap at address: 0x55c0",
    "process '{file}' started with executable stack",
    "Out of memory: Killed process 8050 ({name}) total-vm:1kB, anon-rss:0kB, file-rss:0kB, shmem-rss:0kB, UID:65534",
    "NVRM: Xid (PCI:0000:01:00): 13, pid=8050, name={name}, Graphics Exception: ESR 0x505730=0x9",
)
# A network device of a user's own namespace: no white space, no colon, no slash (dev_valid_name).
DEVICE_FORMS = (
    "{name}: entered promiscuous mode",
    "{name}: renamed from eth0",
    "{name} (unregistering): left promiscuous mode",
    "{name}: Caught tx_queue_len zero misconfig",
    "{name}: link becomes ready",
)
SITE_RULES = (
    r"Lustre: .*LBUG",
    r"NVRM: GPU .*",
    r"nvme nvme\d+: .*failed",
    r"EDAC MC\d+: \d+ UE .*",
    r"mlx5_core .*: health poll failed",
    r"(?P<what>\w+): error reported",
    r"kernel BUG at .*",
    r"acme_nic\w* .*",
)
RULES = Rules(
    rules=tuple(
        SiteRule(name=f"rule_{number}", pattern=pattern, severity=Severity.CRITICAL, remedy=Remedy.REBOOT_NODE)
        for number, pattern in enumerate(SITE_RULES)
    )
)


def found(text: str) -> Iterator[Finding]:
    """What every kernel check, and the site's rules, make of one record."""
    for name, check in CHECKS.items():
        node = FakeNode(kernel_records=kernel_says(text), sys=LUSTRE_IS_LOADED)
        yield from check.run(node, RULES if name == "kernel.rules" else check.settings()).findings


def does_no_harm(text: str) -> None:
    """Nothing that keeps a job off, calls a person or changes the node."""
    for finding in found(text):
        assert finding.severity is not Severity.CRITICAL, (finding.code, text)
        assert REMEDY_RANK[finding.remedy] < REMEDY_RANK[Remedy.ASK_HUMAN], (finding.code, text)


def cut(text: str, size: int = 15) -> str:
    """As prctl(2) cuts a name: to so many bytes."""
    return text.encode("utf-8", "backslashreplace")[:size].decode("utf-8", "ignore").replace("\0", " ")


# What a row or rule matches, cut anywhere: its beginning is the name, its end the file.
lines = st.one_of(
    st.sampled_from(ROWS).flatmap(lambda row: st.one_of(st.just(row.example), st.from_regex(row.pattern))),
    st.sampled_from(SITE_RULES).flatmap(st.from_regex),
    st.sampled_from(
        [
            "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.",
        ]
    ),
)
begun = st.sampled_from(["", "a", "a[1]: ", "x (1): ", "\n", "[a] ", "<4>", "[1][", "a: left "])


@pytest.mark.sampled(7)
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=examples(60))
@given(lead=begun, line=lines, at=st.integers(1, 15), skipped=st.integers(0, 40))
@example(lead="", line="Lustre: LBUG", at=15, skipped=0)
@example(lead="", line="python3: attempt to access beyond end of device", at=1, skipped=0)
@example(lead="", line="EDAC MC0: 1 UE ", at=15, skipped=0)
@example(lead="", line="Oops: 0000 [#1]", at=15, skipped=0)
@example(lead="", line="kernel BUG at x", at=15, skipped=0)
@example(lead="", line="XFS (nvme1n1): Internal error", at=15, skipped=0)
@example(lead="", line="Lustre: Can't create socket: port 1 already in use", at=8, skipped=0)
@example(lead="", line="BUG: unable to handle page fault", at=5, skipped=0)
def test_no_name_is_a_fault(form: str, lead: str, line: str, at: int, skipped: int) -> None:
    """Whatever a process and its file are called, and whichever record of the kernel's they stand in."""
    name, file = cut(lead + line[:at]), line[at + skipped :].replace("\0", " ")
    does_no_harm(form.format(name=name, file=file))
    does_no_harm(form.format(name=cut(lead + line), file=line.replace("\0", " ")))


@pytest.mark.parametrize("form", DEVICE_FORMS)
@settings(max_examples=examples(60))
@given(line=lines)
@example(line="BUG: x")
@example(line="NVRM: x")
def test_no_network_device_is_a_fault(form: str, line: str) -> None:
    """A device may be called BUG, Lustre or NVRM."""
    word = cut("".join(line.replace(":", " ").replace("/", " ").split()[:1]))
    does_no_harm(form.format(name=word or "x"))


@given(name=st.binary(min_size=0, max_size=15), form=st.sampled_from(FORMS[:16]), lead=st.sampled_from(["", "<4>"]))
def test_behind_any_name_stand_the_kernels_own_words(name: bytes, form: str, lead: str) -> None:
    """Whatever bytes a name has, escaped as the kernel escapes them: the words that are judged are not among them."""
    head, _, words = form.partition("{name}")
    escaped = b"".join(bytes((c,)) if 32 <= c < 127 and c != 0x5C else b"\\x%02x" % c for c in name.replace(b"\0", b""))
    raw = b"4,1,1,-;%b%b%b" % (lead.encode(), escaped, words.replace("{file}", "f").encode())
    record = parse_record(raw, boot_id="b", boot_time=START)
    assert not head
    assert isinstance(record, KernelRecord)
    behind = record.text[split_line(record.text).at :]
    assert words.replace("{file}", "f").endswith(behind)


leads = st.sampled_from(
    ["", " ", "<4>", "[ T1] ", "Jan  2 03:04:05 h kernel: ", "2026-11-21T05:18:14Z h kernel: ", "Jan "]
)


@given(leads, st.text(max_size=20))
def test_no_short_cut_changes_where_a_record_begins(lead: str, text: str) -> None:
    """What is passed over at a glance has nothing before its words, by the pattern that says what may."""
    found = re.compile(RECORD_LEAD, re.ASCII).match(lead + text)
    assert found is not None
    assert after_lead(lead + text) == found.end()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.example[:40])
def test_no_row_begins_with_a_name(row: LineRow) -> None:
    """No line that the tables know passes for one that begins with a name, but for the two that do."""
    named = row.code in ("nccl.segfault", "kernel.beyond_end") and row.example[0] not in "a"
    assert (split_line(row.example).task is not None) is named


@pytest.mark.parametrize("row", [row for row in ROWS if REMEDY_RANK[row.remedy] >= REMEDY_RANK[Remedy.ASK_HUMAN]])
def test_no_row_of_weight_fits_a_name_alone(row: LineRow) -> None:
    """What a row of weight asks for is longer than a name: its end, or the place in the source, stands behind it."""
    head = row.example[:NAME_BYTES]
    for rest in ("[8050]: x", " (8050): x", ": x", " x"):
        assert not row.pattern.match(f"{head}{rest}")


def test_what_the_kernel_is_not_known_to_say_behind_a_name_has_no_words() -> None:
    """It may be the rest of the name: such a record is judged by nothing."""
    line = "a[1]: NVRM: Xid[8050] took: a trap"
    assert split_line(line) == LineHead(len(line), "a[1]: NVRM: Xid", "8050")
    assert split_line("traps: python3[4711] general protection fault").at == 0
    assert split_line("a very long name of something[1]: segfault at 0").at == 0


def test_lines_of_crashed_programs_are_judged_by_what_follows_the_name() -> None:
    """A segfault inside NCCL keeps its program; the site finds such lines by a pattern that begins with ``.*``."""
    line = "python3[4711]: segfault at 10 ip 00007f sp 00007f error 4 in libnccl.so.2.18.1[7f3a1c000000+5e00000]"
    (crash,) = found(line)
    assert (crash.code, crash.evidence["task"], crash.evidence["pid"]) == ("nccl.segfault", "python3", "4711")
    rules = Rules(rules=(SiteRule(name="crash", pattern=r".*segfault at \S+ .*libnccl"),))
    (own,) = CHECKS["kernel.rules"].run(FakeNode(kernel_records=kernel_says(line)), rules).findings
    assert own.code == "site.crash"
