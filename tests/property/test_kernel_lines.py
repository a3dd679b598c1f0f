"""Laws of the kernel log: nothing raises, what was written is read, a restart neither misses nor repeats."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from healthd.checklib import xids
from healthd.checklib.loglines import after_lead, line_rows
from healthd.checklib.xids import nvlink5_rules
from healthd.checks.kernel_rules import KernelRulesSettings as Rules
from healthd.checks.kernel_rules import SiteRule
from healthd.config.schema.config import CheckConfig
from healthd.core.check import discover
from healthd.core.model import Status
from healthd.core.node import KernelRecord
from healthd.replay.node import wanted_by
from healthd.sources.kmsg import Cursor, KernelLog, parse_record
from healthd.sources.kmsg_records import Lines, any_of
from healthd.testing import FakeNode
from tests.support.judgement import LUSTRE_IS_LOADED

BOOT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

# What a command name can be: up to 15 bytes, anything but NUL; names with ", " are ambiguous in the driver's format.
comms = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=15)
plain_comms = comms.filter(lambda name: ", " not in name and not name.endswith(",") and name != "<unknown>")
ACTION = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
addresses = st.tuples(st.integers(0, 0xFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F))


def escaped(text: str) -> bytes:
    """A text as the kernel writes it into a record (msg_add_ext_text in printk.c)."""
    raw = text.encode()
    return b"".join(bytes((c,)) if 32 <= c < 127 and c != ord("\\") else b"\\x%02x" % c for c in raw)


@given(st.integers(0, 10**9 - 1), st.integers(0, 2**22), plain_comms, texts, addresses)
def test_any_code_pid_and_name_round_trip(xid: int, pid: int, name: str, text: str, pci: tuple[int, int, int]) -> None:
    """Whatever the code, the process and its name, the line gives them back."""
    address = "{:04x}:{:02x}:{:02x}".format(*pci)
    line = xids.parse_line(f"NVRM: Xid (PCI:{address}): {xid}, pid={pid}, name={name}, {text}")
    assert isinstance(line, xids.XidLine)
    assert (line.xid, line.pci, line.pid, line.process, line.text) == (xid, address, pid, name, text)


@given(st.integers(0, 10**9 - 1), st.integers(0, 2**22), comms, texts)
@example(xid=79, pid=1, name=", ", text="")  # what comes before the first comma is no name at all
def test_no_name_hides_the_code(xid: int, pid: int, name: str, text: str) -> None:
    """A name with commas, brackets or a false code in it changes neither code nor process id, and none is lost."""
    line = xids.parse_line(f"NVRM: Xid (PCI:0000:01:00): {xid}, pid={pid}, name={name}, {text}")
    assert isinstance(line, xids.XidLine)
    assert (line.xid, line.pid) == (xid, pid)
    process = "<unknown>" if line.process is None else line.process
    assert f"{process}, {line.text}" == f"{name}, {text}"


@given(comms, st.sampled_from([(74, "NVLink: fatal error detected on link 14(0x0)", "fatal"), (154, ACTION, "to:1")]))
@example(name="<unknown>, 0x0", error=(154, ACTION, "to:1"))
@example(name="x, 0x0, 0x0", error=(154, ACTION, "to:1"))
def test_no_name_decides_how_bad_an_error_is(name: str, error: tuple[int, str, str]) -> None:
    """The driver's own words do, whatever a process is called: its name stands before them, commas and all."""
    xid, text, case = error
    line = xids.parse_line(
        f"NVRM: Xid (PCI:0000:01:00): {xid}, pid=7, name={name.encode()[:15].decode(errors='ignore')}, {text}"
    )
    assert isinstance(line, xids.XidLine)
    assert xids.case_of(line) == case


@given(
    switch=st.integers(0, 999),
    pci=addresses,
    sxid=st.integers(0, 10**9 - 1),
    word=st.sampled_from(["Fatal", "Non-fatal", "Correctable", None]),
    link=st.one_of(st.none(), st.integers(0, 63)),
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
)
def test_any_switch_error_round_trips(
    *, switch: int, pci: tuple[int, int, int], sxid: int, word: str | None, link: int | None, text: str
) -> None:
    """Whatever the switch, number, severity and link, the line gives them back; a text cannot change the number."""
    address = "{:04x}:{:02x}:{:02x}".format(*pci)
    message = f"{word}, " + (f"Link {link:02d} " if link is not None else "") if word else ""
    line = xids.parse_sxid(f"nvidia-nvswitch{switch}: SXid (PCI:{address}.0): {sxid:05d}, {message}{text}")
    assert line is not None
    assert (line.switch, line.pci, line.sxid) == (switch, address, sxid)
    if word:
        assert line.word == word
        assert line.link == link or link is None


LEADS = (
    "",
    "NVRM: ",
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 10001, ",
    "efa 0000:4f:00.0 rdmap79s0: ",
    "Lustre: ",
    "LustreError: 1:0:(x.c:1:f()) ",
    "LNetError: ",
    "INFO: task ",
    "oom-kill:constraint=CONSTRAINT_",
    "BUG: ",
    "mce: [Hardware Error]: ",
    "EDAC MC0: ",
    "nvme nvme0: ",
    "I/O error, dev ",
    "EXT4-fs error (device ",
    "XFS (",
    "<4>[",
)


@given(texts, st.sampled_from(LEADS))
def test_no_kernel_check_raises(text: str, lead: str) -> None:
    """Any text, behind any of the beginnings that the kernel checks know, is judged or passed over."""
    record = KernelRecord(boot_id="b", sequence=0, time=BOOT, text=lead + text)
    for check in discover().values():
        if check.on == "kernel":
            result = check.run(FakeNode(kernel_records=[record]), check.settings())
            assert result.status is not Status.UNKNOWN


KERNEL = {name: check for name, check in discover().items() if check.on == "kernel"}
RULES = Rules(rules=(SiteRule(name="hang", pattern=r"ixgbe (?P<pci>\S+) .*Hang", clears=r"ixgbe .*is Up"),))
CONFIG = {
    name: CheckConfig(settings=RULES if name == "kernel.rules" else check.settings()) for name, check in KERNEL.items()
}
EXAMPLES = tuple(
    [row.example for check in ("kernel.efa", "kernel.host", "kernel.lustre") for row in line_rows(check)]
    + [
        "NVRM: Xid (PCI:0000:03:00): 4711, pid=1, name=x, Something new",
        "NVRM: GPU at PCI:0000:55:00: GPU-3a4b5c6d-0000-1111-2222-333344445555",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05  Release Build",
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20009, Non-fatal, Link 02 RX Short Error Rate",
        "ixgbe 0000:05:00.0 eth1: Detected Tx Unit Hang",
        "ixgbe 0000:05:00.0 eth1: NIC Link is Up",
        "usb 1-1: new high-speed USB device number 4 using xhci_hcd",
    ]
)


@given(
    st.sampled_from(["", "<4>", "[ T12] ", "python3[1]: ", "x: "]),
    st.one_of(st.sampled_from(EXAMPLES), st.tuples(st.sampled_from(LEADS), texts).map("".join)),
)
def test_what_a_check_finds_in_a_line_it_wants(lead: str, text: str) -> None:
    """A line that replay passes over, because no check wants it, is none of which a check would have said anything; and
    so is one that a check does not read."""
    line = lead + text
    node = FakeNode(kernel_records=[KernelRecord(boot_id="b", sequence=0, time=BOOT, text=line)], sys=LUSTRE_IS_LOADED)
    message = False
    for name, check in KERNEL.items():
        result = check.run(node, CONFIG[name].settings)
        says = bool(result.findings or result.clearances or result.readings)
        assert check.wants is not None
        assert check.wants(line, CONFIG[name].settings) or not says
        assert check.reads(node.kernel_records, CONFIG[name].settings) or not says
        message = message or says
    assert wanted_by(KERNEL, CONFIG)(line) or not message


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFFFFFF))
def test_no_word_fits_rules_that_disagree(intrinfo: int, noise: int) -> None:
    """The two register layouts exclude each other: whatever stands in the free bits, all rules that fit one word of one
    error agree on what it calls for, so the driver's version is not needed."""
    for rule in nvlink5_rules():
        for mask, value in rule.patterns:
            word = value | ((intrinfo ^ noise) & ~mask & 0xFFFFFFFF)
            verdicts = {
                (other.verdict.severity, other.verdict.remedy)
                for other in nvlink5_rules()
                if (other.xid, other.error_status) == (rule.xid, rule.error_status)
                and any(word & other_mask == fixed for other_mask, fixed in other.patterns)
            }
            assert len(verdicts) == 1


anchored = st.lists(
    st.sampled_from([b"^NVRM: ", b"^EXT4-fs ", b"SXid (", b"I/O error", b"^{", b"x"]), min_size=1, max_size=4
)
contents = st.lists(
    st.tuples(
        st.sampled_from(
            ["", "<4>", "[ T12] ", "<4>[1.5] ", "Jan  2 03:04:05 host kernel: ", "x ", "\t", "[ T12]\t", "[ T12] \r"]
        ),
        st.sampled_from(
            ["NVRM: y", "EXT4-fs error", "usb", "a SXid (b", "I/O error, dev", "{1}[Hardware", "NVRM: SXid ("]
        ),
    ),
    max_size=12,
)


@given(anchored, contents)
def test_the_reader_finds_what_holds_a_needle_and_nothing_else(
    needles: list[bytes], parts: list[tuple[str, str]]
) -> None:
    """Record by record, or in a whole block: what begins with or holds a needle is found, all else passed over."""
    wanted = any_of(tuple(needles))
    assert wanted is not None
    texts = [lead + words for lead, words in parts]
    block = b"".join(b"6,%d,1,-;%b\n" % (number, text.encode()) for number, text in enumerate(texts))
    expected = [
        any(
            text[after_lead(text) :].startswith(needle[1:].decode()) if needle[:1] == b"^" else needle.decode() in text
            for needle in needles
        )
        for text in texts
    ]
    lines = block.split(b"\n")[:-1]
    assert [wanted.holds(line) for line in lines] == expected
    found = {block.count(b"\n", 0, hit) for hit in wanted.hits(block)}
    assert found == {number for number, is_wanted in enumerate(expected) if is_wanted}


@given(st.lists(st.sampled_from(["[T1] ", "[T1]", "<4>", " ", "\n", "\t", "\r", "x"]), max_size=4).map("".join))
def test_reader_and_judge_agree_where_the_words_begin(lead: str) -> None:
    """Whatever white space a record holds, and the kernel writes as an escape: what the one passes over is nothing to
    the other either."""
    text = f"{lead}NVRM: Xid (PCI:0000:01:00): 79, x"
    raw, wanted = b"6,1,1,-;%b\n" % escaped(text), any_of((b"^NVRM: ",))
    record = parse_record(raw, boot_id="b", boot_time=BOOT)
    assert wanted is not None
    assert record is not None
    assert record.text == text
    assert wanted.holds(raw) is (xids.parse_line(record.text) is not None)


@given(texts)
def test_no_text_raises(text: str) -> None:
    """Any text is parsed or refused, alone or behind any of the driver's beginnings."""
    for lead in ("", "NVRM: ", "NVRM: Xid (", "NVRM: Xid (PCI:0000:01:00): 154, ", "NVRM: GPU at PCI:", "NVRM: GPU "):
        line = xids.parse_line(lead + text)
        xids.parse_sxid(lead + text)
        if isinstance(line, xids.XidLine):
            xids.case_of(line)


@given(st.binary(max_size=200))
def test_no_bytes_raise(raw: bytes) -> None:
    """Any bytes are a record or None."""
    parse_record(raw, boot_id="b", boot_time=BOOT)
    parse_record(b"6,1,1,-;" + raw, boot_id="b", boot_time=BOOT)


@given(st.integers(0, 191), st.integers(0, 10**17), st.integers(0, 10**15), texts)
def test_records_round_trip(prefix: int, sequence: int, usec: int, text: str) -> None:
    """What the kernel would write for a text is read back as that text."""
    record = parse_record(b"%d,%d,%d,-;%b\n" % (prefix, sequence, usec, escaped(text)), boot_id="b", boot_time=BOOT)
    assert record is not None
    assert (record.facility * 8 + record.level, record.sequence, record.text) == (prefix, sequence, text)
    assert record.time == BOOT + timedelta(microseconds=usec)


junk = st.binary(max_size=30).map(lambda raw: raw.replace(b"\n", b""))
bodies = st.one_of(junk, st.just(b"NVRM: wanted"), st.just(b"wanted NVRM: NVRM:"))
logs = st.lists(bodies, max_size=30)


@given(logs, st.lists(st.integers(1, 40), max_size=20), st.booleans())
def test_lines_arrive_however_they_are_cut(bodies: list[bytes], cuts: list[int], filtered: bool) -> None:
    """However the writing is cut into pieces, every wanted line is read once, in order, and none before it is whole."""
    lines = [b"6,%d,1,-;%b" % (number, body) for number, body in enumerate(bodies)]
    data = b"".join(line + b"\n" for line in lines)
    wanted = any_of((b"NVRM:",)) if filtered else None
    seen: list[bytes] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.touch()
        with path.open("rb") as reader, path.open("ab", buffering=0) as writer:
            source = Lines(reader.fileno(), str(path))
            for size in [*cuts, len(data)]:
                writer.write(data[:size])
                data = data[size:]
                while got := source.read(wanted):
                    seen += got
    assert [line for line in seen if b"NVRM:" in line or not filtered] == [
        line for line in lines if b"NVRM:" in line or not filtered
    ]
    assert seen[-1:] == lines[-1:]


@given(
    st.lists(st.booleans(), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 12)), max_size=8),
)
def test_restart_neither_misses_nor_repeats(wanted: list[bool], lives: list[tuple[int, int]]) -> None:
    """Wherever the reader dies and starts again from its saved cursor, every record is judged exactly once."""
    lines = [f"6,{n},{n},-;{'NVRM: x' if w else 'usb'}\n" for n, w in enumerate(wanted)]
    seen: list[int] = []
    cursor: Cursor | None = None
    written = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        for batch_records, more in [*lives, (1024, len(lines))]:
            with path.open("a") as log:
                log.writelines(lines[written : written + more])
            written += more
            cursor = live_once(path, cursor, batch_records, seen)
        live_once(path, cursor, 1024, seen)
    assert seen == [number for number, is_wanted in enumerate(wanted) if is_wanted]


def live_once(path: Path, cursor: Cursor | None, batch_records: int, seen: list[int]) -> Cursor | None:
    """One life of the reader: a batch is read and saved together with its cursor; then the process is gone."""
    log = KernelLog(
        str(path), boot_id="b", boot_time=BOOT, cursor=cursor, needles=(b"NVRM:",), batch_records=batch_records
    )
    try:
        batch = log.read_batch(0.0)
    finally:
        log.close()
    seen += [record.sequence for record in batch.records]
    return batch.cursor
