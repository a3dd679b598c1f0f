"""The check ``host.kernel``: failures that the kernel itself has recorded since boot, and panics before."""

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
    meaning="The kernel has had an oops or BUG since it booted, and runs on in an unreliable state",
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
    meaning="The kernel found a memory page in an impossible state",
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
    """The kernel has not failed since it booted, and pstore has no panic of an earlier boot.

    The taint bits stay until the next boot, so a failure whose log lines are gone is still visible. A panic is in
    pstore after the reboot that it caused, until systemd-pstore (at boot) or the operator removes it. ``kernel.rules``
    reads the details in the log as they arrive.

    Sources: Linux, Documentation/admin-guide/tainted-kernels.rst, Documentation/admin-guide/ramoops.rst (the names in
    pstore).
    """
    taint = whole(node.proc.read(_TAINT), _TAINT)
    findings = [
        code.at(NODE, f"{code.meaning} (/proc/{_TAINT} has bit {bit} set)", tainted=taint, bit=bit)
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
        yield PANIC.at(
            NODE,
            f"an earlier boot ended in a panic or oops: /sys/{_PSTORE} has {', '.join(names[:3])}",
            count=len(names),
            names=names[:3],
        )
