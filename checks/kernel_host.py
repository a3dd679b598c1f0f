"""The check ``kernel.host``: errors of this host in the kernel log. Its lines are in ``kernel_lines.csv``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from healthd.checklib.jobs import owner_named, owner_of
from healthd.checklib.loglines import Groups, LineRow, codes_of, explain_row, judge_lines, place_of, recognises
from healthd.core.check import NoSettings, check
from healthd.core.model import Component, Finding, Result, gpu_component, pci_address
from healthd.core.node import KernelRecord, Node

_NAME = "kernel.host"
_NVME = re.compile(r"(nvme\d+)n\d+(?:p\d+)?")
# Beginnings where that can be: a text that may stand anywhere costs every record of the log a search. PCIe errors begin
# with the name of a driver, so those of the devices that matter here are listed; the EFA driver's come anyway.
_NEEDLES = (
    *("^oom-kill:constraint=", "^INFO: task ", "^INFO: rcu_", "^rcu: INFO: ", "^watchdog: ", "^NMI watchdog: "),
    *(
        "^Watchdog detected hard LOCKUP",
        "^BUG: ",
        "^kernel BUG at ",
        "^Kernel BUG at ",
        "^Oops: ",
        "^Internal error: ",
        "^general protection fault",
        "^divide error: ",
        "^stack segment: ",
        "^Kernel panic - ",
    ),
    *("^mce: [Hardware Error]", "^mce: Uncorrected ", "^MCE: Killing ", "^{", "^EDAC MC", "^Memory failure: 0x"),
    *("^pcieport ", "^nvidia ", "^ena ", "^efa ", "^NETDEV WATCHDOG: "),
    *("^nvme ", "^critical medium error", "^blk_update_request: ", "^print_req_error: ", "^I/O error, dev "),
    *("^Buffer I/O error on dev", "beyond end of device", "^md/raid"),
    *("^EXT4-fs ", "^Aborting journal on device", "^XFS (", "^nfs: server ", "^nf_conntrack: "),
    *("^NFS: ", "^block nvme", " in libnccl.so", "^nvidia-peermem ", "^NVRM: knvlink"),
    *("^NVRM: GPU", "^NVRM: API mismatch: ", "^NVRM: kgsp", "^NVRM: _kgsp"),
)
# Faults of devices that explain a line about their own PCI function, by the driver that the line names.
_OF_DRIVER = {"gpu.": "nvidia", "kernel.nvme_": "nvme"}


@check(
    _NAME,
    on="kernel",
    needles=_NEEDLES,
    codes=codes_of(_NAME),
    wants=partial(recognises, _NAME),
    explain=partial(explain_row, _NAME),
)
def kernel_host(node: Node, _settings: NoSettings) -> Result:
    """Errors of the host itself in the kernel log.

    Memory that ran out, tasks and CPUs that hang, defects of the kernel, machine checks, PCIe and disk errors, file
    systems that stopped, servers that do not answer, GPUs and NVLinks that the driver cannot start or find, network
    interfaces that do not send, and programs that crashed inside NCCL. None of these lines drains a node by itself:
    they are symptoms, or the operator must judge them; the checks of the component itself decide. The Slurm job or pod
    of a process is in the evidence where it is known. Sources: in each row of the table, mostly the file of the Linux
    source that prints the line.
    """
    result = judge_lines(
        _NAME, node.kernel_records, place=_place, more=lambda record, groups: _owner(node, record, groups)
    )
    return replace(result, findings=tuple(map(_of_this_device, result.findings)))


def _place(row: LineRow, groups: Groups) -> Component:
    """A GPU by its PCI address as everywhere else; an NVMe disk by its controller, whatever part of it a line names."""
    if (groups.get("driver") == "nvidia" or row.component == "gpu:{pci}") and (pci := groups.get("pci")):
        return gpu_component(pci=pci_address(pci))
    part = _NVME.fullmatch(groups.get("disk") or "")
    return Component(kind="disk", id=part[1]) if part else place_of(row, groups)


def _of_this_device(found: Finding) -> Finding:
    """Without the causes that devices of another driver have: XID 79 explains no NIC that is gone. Below a port there
    may be any device."""
    driver = found.evidence.get("driver", "pcieport")
    if found.component.kind != "pci" or driver == "pcieport":
        return found
    strange = tuple(of for of, own in _OF_DRIVER.items() if own != driver)
    return replace(found, symptom_of=tuple(each for each in found.symptom_of if not each.startswith(strange)))


def _owner(node: Node, record: KernelRecord, groups: Groups) -> Mapping[str, Any]:
    """The job or pod of the process: from the control group in the line itself, else from /proc while it lives."""
    pid = groups.get("pid")
    found = owner_named(node, groups.get("cgroup") or "")
    return found or owner_of(node, int(pid) if pid else None, record.time)
