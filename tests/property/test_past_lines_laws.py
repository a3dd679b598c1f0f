"""Laws of reading past logs: whatever a file holds, it is read or refused, and every line is accounted for."""

from __future__ import annotations

import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from healthd.core.errors import SourceError
from healthd.sources.pastlines import FORMATS, PLAIN, Dating
from healthd.sources.pastlogs import open_log
from tests.support.sampling import examples

LAW = settings(max_examples=examples(150), deadline=None)
WRITTEN = datetime(2026, 11, 21, 12, tzinfo=UTC)
XID = b"NVRM: Xid (PCI:0000:05:00): 95, pid=7, name=python, Uncontained"
HEADS = (
    b"3,2,2500000,-;",
    b"[    2.500000] ",
    b"[Sat Nov 21 05:18:14 2026] ",
    b"2026-11-21T05:18:14,5+00:00 ",
    b"Nov 21 05:18:14 n1 kernel: ",
    b"2026-11-21T05:18:14+00:00 n1 kernel: ",
    b"Sat 2026-11-21 05:18:14 UTC n1 kernel: ",
    b"__REALTIME_TIMESTAMP=1795238400000000\nMESSAGE=",
    b'{"__REALTIME_TIMESTAMP":"1795238400000000","MESSAGE":"',
)
garbled = st.one_of(
    st.binary(max_size=60),
    st.builds(
        lambda head, cut, tail: head[:cut] + tail,
        st.sampled_from(HEADS),
        st.integers(0, 60),
        st.binary(max_size=30),
    ),
    st.sampled_from(HEADS).map(lambda head: head + XID),
)


@LAW
@given(garbled, st.sampled_from([*FORMATS, PLAIN]))
def test_no_line_stops_the_reading(raw: bytes, form: object) -> None:
    """Any bytes are a line, no line of the kernel's, or unreadable: nothing raises."""
    assert form in FORMATS or form is PLAIN
    for each in (*FORMATS, PLAIN):
        each.parse(raw, Dating(modified=WRITTEN))


@LAW
@given(st.lists(garbled, max_size=12), st.sampled_from(HEADS))
@example(others=[b"\t"], head=HEADS[1])  # what is indented belongs to the record before it
def test_every_whole_line_is_found_among_any_others(others: list[bytes], head: bytes) -> None:
    """A file is refused whole, or each of its own lines with an XID is read, whatever stands between them."""
    own = head + XID + (b'"}' if head.startswith(b"{") else b"") + (b"\n" if b"MESSAGE=" in head else b"")
    quiet = [other.replace(b"\n", b" ").replace(b"NVRM", b"nvrm") for other in others]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(b"\n".join([own, *quiet, own, own]) + b"\n")
        os.utime(path, (WRITTEN.timestamp(),) * 2)
        try:
            log = open_log(path)
        except SourceError:
            return
        lines = log.read((b"^NVRM: ",))
        found = [line for line in lines if line.text.partition("\n")[0].endswith(XID.decode())]
        assert log.unread <= log.lines
        if head != HEADS[7]:  # records of an export end with an empty line, which the others do not keep
            assert len(found) == 3 or log.format.heads.search(b"\n" + own) is None
