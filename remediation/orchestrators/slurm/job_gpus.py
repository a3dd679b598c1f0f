"""The GPUs of a running job on each of its nodes, by ``scontrol show job -d``. Texts: 22.05.8, 24.11.5 and 26.05.5."""

from __future__ import annotations

import re
from collections.abc import Iterator

from healthd.core.hostlist import unfolded

_PLACE = re.compile(r"^ *Nodes=(\S+) CPU_IDs=\S+ Mem=\d+ GRES=(\S*)", re.MULTILINE)
_INDICES = re.compile(r"(?:\A|,)gpu(?::[^:(,]+)?:\d+\(IDX:([0-9,-]+)\)")
_MOST = 64


def parse_job_gpus(answer: str) -> dict[str, frozenset[int]]:
    """The indices of its GPUs by node, in Slurm's order of them, which is NVML's where gres.conf says AutoDetect=nvml.
    A node is missing where Slurm does not hand out its GPUs one by one: they are all the job's then."""
    found: dict[str, frozenset[int]] = {}
    for nodes, gres in _PLACE.findall(answer):
        indices = frozenset(index for text in _INDICES.findall(gres) for index in _numbers(text))
        if indices:
            found.update(dict.fromkeys(unfolded(nodes), indices))
    return found


def _numbers(text: str) -> Iterator[int]:
    """0, 2, 3, 4 of ``0,2-4``."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            yield from range(int(first), min(int(last or first), int(first) + _MOST) + 1)
