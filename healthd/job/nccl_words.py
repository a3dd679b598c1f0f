"""NCCL's own words in the log of a job: the watchdog's timeouts and the flight recorder's dumps, as PyTorch prints it.

Pure, over text that a user of the cluster wrote: its words are shown and permit nothing. A dump itself is a pickle,
which would run what its author wants: it is named, never opened.

Source: PyTorch, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, releases 2.2 to 2.8 ("Watchdog caught collective
operation timeout", "last enqueued", "Flight Recorder debug info").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

from healthd.core.name_lists import listed, number_of

MOST_RANKS = 100_000
_TIMEOUT = re.compile(r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d{1,18}), OpType=(\w{1,40})")
_RANK = re.compile(r"\[rank(\d{1,6})\]:|[Rr]ank ?(\d{1,6})\]")
"""``[rank13]:`` is the rank in the job, with which PyTorch's logger begins a line. ``Rank 5]`` is the rank in the group
of the collective, such as the tensor-parallel one; the text of the exception has no other."""
_BEFORE = 300
"""In so many characters before the words, on their line, is the rank."""
_DUMP = re.compile(r"Finished writing (?:Flight Recorder|NCCLPG) debug info to (\S{1,200})")


class NcclWords(Struct, frozen=True, kw_only=True):
    """``timeouts``: by rank the collective in which it timed out first, as (operation, number). ``dumps``: how many the
    flight recorder wrote, ``dump``: the first of them. ``unread``: which logs were not read, or ""."""

    timeouts: Mapping[int, tuple[str, int]]
    dumps: int = 0
    dump: str = ""
    unread: str = ""

    def sentences(self, ranks: int = 0) -> tuple[str, ...]:
        """Their meaning, one sentence each. ``ranks``: how many the job has, one for each GPU; 0: not known."""
        found = [self.unread] if self.unread else []
        for (operation, number), count in Counter(self.timeouts.values()).most_common(3):
            found.append(f"{number_of(count, 'rank')} timed out in {operation} number {number}")
        silent = sorted(set(range(ranks)) - self.timeouts.keys())
        if self.timeouts and 0 < len(silent) <= ranks // 2:
            found.append(f"no timeout of rank {listed([str(rank) for rank in silent])}: not in that collective")
        if self.dumps:
            found.append(f"{number_of(self.dumps, 'flight recorder dump')}, such as {self.dump}")
        return tuple(found)


def parse_words(texts: Iterable[str]) -> NcclWords:
    """The words in these logs. A rank's first timeout counts: what follows is the end of its process. Ranks in groups
    count where no line has one in the job."""
    in_job: dict[int, tuple[str, int]] = {}
    in_group: dict[int, tuple[str, int]] = {}
    dumps: dict[str, None] = {}
    for text in texts:
        for words in _TIMEOUT.finditer(text):
            line = text[max(words.start() - _BEFORE, 0) : words.start()].rpartition("\n")[2]
            ranks = _RANK.findall(line)
            of_job = [rank for rank, _ in ranks if rank]
            timeouts, rank = (in_job, of_job[-1]) if of_job else (in_group, ranks[-1][1] if ranks else "")
            if rank and len(timeouts) < MOST_RANKS:
                timeouts.setdefault(int(rank), (words[2], int(words[1])))
        dumps |= dict.fromkeys(_DUMP.findall(text))
    return NcclWords(timeouts=in_job or in_group, dumps=len(dumps), dump=next(iter(dumps), ""))
