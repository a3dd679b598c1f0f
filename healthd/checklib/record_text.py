"""The start of the kernel's own words in a record: behind its lead, and behind a name that a user chose. Pure.

Facility 0 proves that the kernel wrote a record, not that it chose the words. Some of its records begin with the name
of a process, which its user sets (prctl(2), PR_SET_NAME): a process called ``Lustre: LBUG`` that segfaults must not
read as an assertion of Lustre's. So the text after such a name is judged, and nothing of the name.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from healthd.core.node import RECORD_LEAD

NAME_BYTES = 15
"""The longest name of a process or of a network device: TASK_COMM_LEN and IFNAMSIZ less the NUL."""

_LEAD = re.compile(RECORD_LEAD, re.ASCII)
_LEADS_BEGIN = frozenset(" <[0123456789")  # or as the name of a month
_BEHIND_COLON = (
    r"page\ allocation\ |vmalloc|attempt\ to\ access\ beyond\ end\ of\ device|unhandled\ page\ fault\ \("
    r"|sending\ ioctl\ |potentially\ unexpected\ fatal\ signal|entered\ |left\ |renamed\ from\ |port\ \d"
    r"|link\ becomes\ |Caught\ tx_queue"
)
_BEHIND_BLANK = r"invoked\ oom-killer:|uses\ obsolete\ \(PF_INET|calls\ setitimer\(\)"
_OWN = re.compile(
    r"segfault\ at\ |unhandled\ exception:\ |unhandled\ signal\ |bad\ frame\ in\ |vsyscall\ read"
    rf"|memfd_create\(\)\ called|used\ greatest\ stack\ depth|Using\ mlock\ ulimits|{_BEHIND_COLON}|{_BEHIND_BLANK}",
    re.VERBOSE | re.ASCII,
)
_SEPARATOR = re.compile(
    r"\[(\d{1,10})\]:?\ |\((\d{1,10})\):?\ |/(\d{1,10}):\ (?=potentially\ unexpected\ fatal\ signal)"
    r"|(?:\ \((?:uninitialized|unregister(?:ing|ed)|released|dummy|unknown)\))?"
    rf":\ (?={_BEHIND_COLON})|\ (?={_BEHIND_BLANK})",
    re.VERBOSE | re.ASCII,
)
"""The text between a name and the kernel's own words, in Linux 6.18. ``NAME[PID]: ``: show_signal_msg of x86 (mm/
fault.c) and powerpc, arm64_show_signal, do_trap of riscv, memfd_create; ``NAME[PID] ``: signal_fault of x86 and
warn_bad_vsyscall; ``NAME (PID): ``: mm/mmap.c, fs/hugetlbfs/inode.c, fs/proc; ``NAME (PID) used``: kernel/exit.c;
``NAME: ``: warn_alloc (mm/page_alloc.c), bio_check_eod (block/blk-core.c) and, of network devices, net/core/dev.c;
``NAME invoked``: dump_header (mm/oom_kill.c); ``NAME uses``: net/packet/af_packet.c."""
_NOT_A_NAME = ("traps: ", "process '", "process `")
"""Heads of the kernel's own, before the name of a process (arch/x86/kernel/traps.c) or of a file (fs/exec.c), which may
be long enough to hold any text that the kernel writes behind a name."""
_BYTE = re.compile(r"\\x[0-9a-fA-F]{2}|#[0-7]{3}|.", re.DOTALL)  # bytes that are no text are escaped
_LONGEST_NAME = 4 * NAME_BYTES
_WINDOW = _LONGEST_NAME + 45


class Words(NamedTuple):
    """Where the words begin. ``task`` and ``pid``: of the name before them; None where the record begins with none."""

    at: int
    task: str | None = None
    pid: str | None = None


def after_lead(text: str) -> int:
    """The start of a record behind priority, syslog header and tags, if there are any."""
    first = text[:1]
    if first not in _LEADS_BEGIN and not (first.isupper() and text[1:2].islower()):
        return 0  # nvme, NVRM:, EXT4-fs: no lead begins so, and storms of such lines are what has to be quick
    lead = _LEAD.match(text)
    return lead.end() if lead else 0


def words_of(text: str) -> Words:
    """The start of the kernel's own words: no user can choose the text there.

    A name may itself look like the end of one, so the last match within the length of a name counts. Where no known
    text of the kernel follows, it may be the name's end, and there are no words.
    """
    at = after_lead(text)
    words = Words(at)
    if text.startswith(_NOT_A_NAME, at):
        return words
    for found in _SEPARATOR.finditer(text, at, at + _WINDOW):
        if not _is_name(text[at : found.start()]):
            break
        pid = next((group for group in found.groups() if group), None)
        begins = found.end() if _OWN.match(text, found.end()) else len(text)
        words = Words(begins, text[at : found.start()].rstrip(" "), pid)
    return words


def _is_name(text: str) -> bool:
    return len(text) <= NAME_BYTES + 1 or len(_BYTE.findall(text)) <= NAME_BYTES + 1
