"""The check ``host.kernel``: what the kernel remembers of its own failures."""

from __future__ import annotations

from collections.abc import Iterator

from healthd.checklib.host_text import whole
from healthd.core.check import FindingCode, NoSettings, check, judged
from healthd.core.errors import SourceMissing
from healthd.core.model import NODE, Finding, Remedy, Result, Severity
from healthd.core.node import Node

_TAINT = "sys/kernel/tainted"
_PSTORE = "fs/pstore"

OOPS = FindingCode(
    code="host.kernel.oops",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="The kernel has had an oops or BUG since it booted, and has gone on with what was left",
)
SOFT_LOCKUP = FindingCode(
    code="host.kernel.soft_lockup",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="A CPU was stuck in the kernel for longer than the watchdog allows, at some time since boot",
)
BAD_PAGE = FindingCode(
    code="host.kernel.bad_page",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="The kernel has met a page of memory in a state that cannot be",
)
MACHINE_CHECK = FindingCode(
    code="host.kernel.machine_check",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="The processor has reported a hardware error since boot",
    symptom_of=("host.memory.uncorrected",),
)
PANIC = FindingCode(
    code="host.kernel.panic_recorded",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="An earlier boot ended in a panic or oops, and its record is in pstore",
)

# Linux, Documentation/admin-guide/tainted-kernels.rst: bit, code. Other bits (proprietary, out-of-tree, unsigned) are
# how the NVIDIA, EFA and Lustre modules leave every GPU node.
_TAINTS = ((4, MACHINE_CHECK), (5, BAD_PAGE), (7, OOPS), (14, SOFT_LOCKUP))


@check("host.kernel", interval_s=120, codes=(OOPS, SOFT_LOCKUP, BAD_PAGE, MACHINE_CHECK, PANIC))
def host_kernel(node: Node, _settings: NoSettings) -> Result:
    """The kernel has not failed since it booted, nor left the record of a panic before.

    The taint bits stay until the next boot, so a failure whose log lines are gone is still seen. A panic is found in
    pstore after the reboot that it caused, until someone (systemd-pstore at boot, mostly) removes it. What happened in
    detail is in the log, where ``kernel.rules`` reads it as it comes.

    Sources: Linux, Documentation/admin-guide/tainted-kernels.rst, Documentation/admin-guide/ramoops.rst (the names in
    pstore).
    """
    taint = whole(node.proc.read(_TAINT), _TAINT)
    findings = [
        code.at(NODE, f"/proc/{_TAINT} has bit {bit} set: {code.meaning}", tainted=taint, bit=bit)
        for bit, code in _TAINTS
        if taint >> bit & 1
    ]
    return judged([*findings, *_panics(node)])


def _panics(node: Node) -> Iterator[Finding]:
    try:
        names = [name for name in node.sys.names(_PSTORE) if name.startswith("dmesg-")]
    except SourceMissing:
        return  # a kernel without pstore keeps no records
    if names:
        yield PANIC.at(NODE, f"/sys/{_PSTORE} holds {', '.join(names[:3])}", count=len(names), names=names[:3])
