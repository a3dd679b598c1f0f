"""The check ``kernel.efa``: lines of the EFA driver in the kernel log. They are rows of ``kernel_lines.csv``."""

from __future__ import annotations

from functools import partial

from healthd.checklib.loglines import Groups, LineRow, codes_of, explain_row, judge_lines, recognises
from healthd.core.check import NoSettings, check
from healthd.core.model import Component, Result
from healthd.core.node import Node

_NAME = "kernel.efa"


@check(
    _NAME,
    on="kernel",
    needles=("^efa ",),
    codes=codes_of(_NAME),
    wants=partial(recognises, _NAME),
    explain=partial(explain_row, _NAME),
)
def kernel_efa(node: Node, _settings: NoSettings) -> Result:
    """EFA driver errors in the kernel log.

    A device that does not answer commands is most likely dead: the driver then closes the device's admin queue for
    good, and no program can open it until a reset. A command that the device refuses is mostly a program's own mistake.
    Sources: amzn-drivers and Linux, efa_com.c; unproven on hardware.
    """
    return judge_lines(_NAME, node.kernel_records, place=_device)


def _device(_row: LineRow, groups: Groups) -> Component:
    """Named as ``efa.devices`` names it: by its RDMA device, by its PCI address before it has one."""
    pci, device = groups["pci"] or "", groups["device"] or ""
    named = bool(device) and not device.startswith("(")
    return Component(kind="efa", id=device if named else pci, aliases=(pci,) if named else ())
