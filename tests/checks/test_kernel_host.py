"""kernel.host: every row of its table on its own example, what is tied to a job, and what must not be mistaken."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from healthd.checklib.loglines import LineRow, line_rows
from healthd.checks.kernel_host import _NEEDLES, kernel_host
from healthd.checks.kernel_xid import KernelXidSettings, kernel_xid
from healthd.core.check import NoSettings
from healthd.core.model import REMEDY_RANK, ClearsBy, Remedy, Result, Severity, Status
from healthd.judge.diagnose import diagnose
from healthd.judge.history import History
from healthd.testing import Entry, FakeNode
from tests.support.judgement import START, answered, fold, kernel_says, looked, only

ROWS = line_rows("kernel.host")


def judge(*texts: str, proc: dict[str, Entry] | None = None) -> Result:
    return kernel_host(FakeNode(kernel_records=kernel_says(*texts), proc=proc or {}), NoSettings())


@pytest.mark.parametrize("row", [row for row in ROWS if not row.ends], ids=lambda row: row.example[:40])
def test_every_row_judges_its_own_example(row: LineRow) -> None:
    """Each line finds its code and no other row's, in front of which tags may stand."""
    for text in (row.example, f"[ T1946] {row.example}", f"<4>[12.5] {row.example}"):
        finding = only(judge(text))
        assert (finding.code, finding.severity, finding.remedy) == (row.code, row.severity, row.remedy)
        assert finding.evidence["line"] == text
        assert row.meaning in finding.message


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.example[:40])
def test_the_reader_of_the_log_is_told_to_look_for_it(row: LineRow) -> None:
    """Whatever a row can find holds one of the check's needles, or the reader would pass it over."""
    assert any(row.example.startswith(needle[1:]) if needle[0] == "^" else needle in row.example for needle in _NEEDLES)
    assert row.needle in row.example


def test_no_line_takes_the_node_out() -> None:
    """These lines are symptoms, or for a person: none is critical, none calls for a reset."""
    assert {row.severity for row in ROWS} <= {Severity.INFO, Severity.WARNING}
    assert all(REMEDY_RANK[row.remedy] <= REMEDY_RANK[Remedy.ASK_HUMAN] for row in ROWS)


@pytest.mark.parametrize(
    ("line", "code", "component"),
    [
        (
            "nvme nvme2: I/O tag 412 (1234) opcode 0x2 (I/O Cmd) QID 9 timeout, aborting req_op:READ(0) size:4096",
            "kernel.nvme_timeout",
            "disk:nvme2",
        ),
        ("nvme nvme1: I/O 12 QID 1 timeout, reset controller", "kernel.nvme_timeout", "disk:nvme1"),
        ("print_req_error: I/O error, dev nvme1n1, sector 895222784", "kernel.io_error", "disk:nvme1"),
        (
            "I/O error, dev nvme1n1, sector 8 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2",
            "kernel.io_error",
            "disk:nvme1",
        ),
        (
            "pcieport 0000:00:1c.0: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
            "kernel.pcie_corrected",
            "pci:0000:00:1c.0",
        ),
        (
            "nvidia 0000:53:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer",
            "kernel.pcie_nonfatal",
            "gpu:0000:53:00",
        ),
        ("Internal error: Oops: 0000000096000004 [#1] SMP", "kernel.bug", "node"),
        ("Oops: Oops: 0000 [#1] PREEMPT SMP NOPTI", "kernel.bug", "node"),
        ("BUG: kernel NULL pointer dereference, address: 0000000000000008", "kernel.bug", "node"),
        ("NMI watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [kworker/3:1:99]", "kernel.soft_lockup", "node"),
        ("INFO: rcu_sched self-detected stall on CPU", "kernel.rcu_stall", "node"),
        (
            'XFS (nvme1n1): metadata I/O error in "xfs_buf_ioend+0x1" at daddr 0x8 len 8 error 5',
            "kernel.fs_error",
            "disk:nvme1",
        ),
        ("XFS (dm-0): Filesystem has been shut down due to log error (0x2).", "kernel.fs_error", "disk:dm-0"),
        ("python3: attempt to access beyond end of device", "kernel.beyond_end", "node"),
        (
            "kworker/u8:1: attempt to access beyond end of device\nnvme1n1: rw=1, sector=8, nr_sectors = 8 limit=4",
            "kernel.beyond_end",
            "node",
        ),
        ("nfs: server fs-1.example not responding, timed out", "kernel.nfs_not_responding", "nfs:fs-1.example"),
        ("NFS: nfs4_reclaim_open_state: Lock reclaim failed!", "kernel.nfs_locks_lost", "node"),
        ("block nvme1n1: no available path - failing I/O", "kernel.nvme_no_path", "disk:nvme1"),
        ("EXT4-fs (vda3): I/O error while writing superblock", "kernel.fs_error", "disk:vda3"),
        (
            "NVRM: GPU 0001:00:00.0: RmInitAdapter failed! (0x63:0x55:2344)",
            "gpu.init_failed",
            "gpu:0001:00:00",
        ),
        ("NVRM: GPU4: GSP ERROR: LibOS Heartbeat Timeout detected.", "gpu.gsp.silent", "node"),
        (
            "NVRM: kgspHealthCheck_TU102: ********************* GSP-CrashCat Report *********************",
            "gpu.gsp.crashed",
            "node",
        ),
        (
            "NVRM: API mismatch: the client has the version 595.84, but\nNVRM: this kernel module has the version 595",
            "gpu.driver.client_mismatch",
            "driver:nvidia",
        ),
        (
            "nvidia 0000:53:00.0: can't change power state from D3cold to D0 (config space inaccessible)",
            "kernel.pcie_inaccessible",
            "gpu:0000:53:00",
        ),
        (
            "efa 0000:4f:00.0: Unable to change power state from D3cold to D0, device inaccessible",
            "kernel.pcie_inaccessible",
            "pci:0000:4f:00.0",
        ),
        ("pcieport 0000:00:01.1: pciehp: Slot(0-1): Card not present", "kernel.pcie_link_down", "pci:0000:00:01.1"),
        (
            "pcieport 0000:00:1c.0: AER: Multiple Uncorrected (Fatal) error received: 0000:54:00.0",
            "kernel.pcie_fatal",
            "pci:0000:54:00.0",
        ),
        (
            "pcieport 0000:00:1c.0: AER: Uncorrectable (Fatal) error message received from 0000:54:00.0 (no details)",
            "kernel.pcie_fatal",
            "pci:0000:54:00.0",
        ),
        ("nvidia 0000:53:00.0: AER: subordinate device reset failed", "kernel.pcie_recovery_failed", "gpu:0000:53:00"),
        ("nvme nvme1: Device not ready; aborting initialisation, CSTS=0x0", "kernel.nvme_not_ready", "disk:nvme1"),
        (
            "ena 0000:00:05.0 eth0: Lost TX completions are above the threshold (129 > 128). Completion",
            "kernel.ena_tx_lost",
            "nic:eth0",
        ),
        (
            "ena 0000:00:05.0 eth0: NETDEV WATCHDOG: CPU: 3: transmit queue 2 timed out 5432 ms",
            "kernel.tx_timeout",
            "nic:eth0",
        ),
        ("watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 5", "kernel.hard_lockup", "node"),
        ("INFO: task dd:456 blocked in I/O wait for more than 122 seconds.", "kernel.hung_task", "node"),
        ("general protection fault: 0000 [#1] SMP", "kernel.bug", "node"),
        (
            "Oops: general protection fault, probably for non-canonical address 0xdffffc0000000041: 0000 [#1] SMP PTI",
            "kernel.bug",
            "node",
        ),
        ("divide error: 0000 [#2] PREEMPT(voluntary) SMP NOPTI", "kernel.bug", "node"),
        ("Internal error: synchronous external abort: 0000000096000410 [#1]  SMP", "kernel.bug", "node"),
        ("Internal error: Oops - BUG: 00000000f2000800 [#1] SMP", "kernel.bug", "node"),
        ("Kernel BUG at __x+0x1/0x2 [verbose debug info unavailable]", "kernel.bug", "node"),
        ("BUG: KASAN: slab-out-of-bounds in kmem_cache_free+0x1b/0x30", "kernel.bug", "node"),
        (
            "NVRM: knvlinkDiscoverPostRxDetLinks_GB100_REV2: Getting peer17 postRxDetLinkMask failed!",
            "gpu.nvlink.discovery_failed",
            "node",
        ),
    ],
)
def test_other_wordings(line: str, code: str, component: str) -> None:
    """Older and newer kernels word some lines otherwise; the part is named as the other checks name it."""
    finding = only(judge(line))
    assert (finding.code, str(finding.component)) == (code, component)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nvme nvme1: 16/0/0 default/read/poll queues",
        "EXT4-fs (nvme0n1p1): mounted filesystem with ordered data mode.",
        "NFS: Registering the id_resolver key type",
        "block nvme0n1: the capability attribute has been deprecated.",
        "NVRM: knvlinkCoreShutdownDeviceLinks_IMPL: Need to shutdown all links unilaterally for GPU1",
        "XFS (nvme1n1): Mounting V5 Filesystem",
        "XFS (nvme1n1): Ending clean mount",
        "pcieport 0000:a9:10.0: pciehp: Slot(272): Link Down/Up ignored (recovered by DPC)",
        "pcieport 0000:a9:10.0: pciehp: Slot(272): Card present",
        "pcieport 0000:00:1c.0: AER: Correctable error message received from 0000:54:00.0",
        "pcieport 0000:00:1c.0: AER: device recovery successful",
        "ena 0000:00:05.0 eth0: Found a Tx that wasn't completed on time, qid 1, index 5.",
        "NVRM: GPU at PCI:0000:55:00: GPU-3a4b5c6d-0000-1111-2222-333344445555",
        "NVRM: kgspPrintGspBinBuildId_IMPL: GSP bin buildId: 4f09703c5c7d57baa527d6a189bb6d118bc60e49",
        "NVRM: *************************** LibOS Task Watchdog Report ***************************",
        "MCE: Killing x",
        "mce: [Hardware Error]: TSC 0 ADDR af34214200 ",
        "BUG: x",
        "EDAC MC: Ver: 3.0.0",
        "mce: CPU supports 32 MCE banks",
        "watchdog: Delayed init of the lockup detector failed: -19",
        "python3[4711]: segfault at 10 ip 00007f3a sp 00007ffd error 4 in libc.so.6[7f3a1c000000+195000]",
        "Oops: 0000 [#1][123]: segfault at 0 ip 0 sp 0 error 4",
        "traps: python3[4711] general protection fault ip:7f3a sp:7ffd error:0 in libc.so.6[195000,7f3a1c000000]",
        "divide error: [4711]: segfault at 0 ip 0 sp 0 error 4",
        "tmpfs: Unknown parameter 'BUG: unable to handle page fault'",
        'overlayfs: unrecognized mount option "EXT4-fs error (device loop0): x"',
    ],
)
def test_other_lines_are_no_findings(line: str) -> None:
    """A healthy boot, other programs' crashes, and texts that a user made the kernel echo find nothing."""
    assert judge(line).status is Status.OK


def test_a_program_that_ran_out_of_its_own_memory_names_its_job() -> None:
    """The control group in the line itself says whose it was: no process is needed any more."""
    line = next(row.example for row in ROWS if row.code == "kernel.oom_job")
    finding = only(judge(line))
    assert (finding.evidence["job"], finding.evidence["pid"], finding.evidence["task"]) == ("42", "4711", "python3")
    assert finding.severity is Severity.INFO
    pod = line.replace(
        "/system.slice/slurmstepd.scope/job_42/step_0/user/task_0",
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f3a1c2d_4e5f_6071_8293_a4b5c6d7e8f9.slice/cri-containerd-1.scope",
    )
    assert only(judge(pod)).evidence["pod_uid"] == "0f3a1c2d-4e5f-6071-8293-a4b5c6d7e8f9"


def test_a_hung_task_is_tied_to_its_job_while_it_lives() -> None:
    """/proc says whose a process is; one that is gone is nobody's."""
    line = "INFO: task python3:4711 blocked for more than 120 seconds."
    proc: dict[str, Entry] = {
        "stat": f"cpu 0\nbtime {int(START.timestamp()) - 1000}\n",
        "4711/stat": "4711 (python3) D 1 " + "0 " * 17 + "500 0",
        "4711/cgroup": "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0",
    }
    assert only(judge(line, proc=proc)).evidence["job"] == "42"
    assert "job" not in only(judge(line)).evidence


def test_a_lost_gpu_explains_no_other_device_that_is_lost() -> None:
    """XID 79 of a GPU says nothing of a NIC or a disk; a port names no device, and the GPU may be below it."""
    gone = "{}: Unable to change power state from D3cold to D0, device inaccessible"

    xid = "NVRM: Xid (PCI:0000:53:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."

    def diagnosed(*lines: str) -> set[str]:
        node = FakeNode(kernel_records=kernel_says(xid, *lines))
        of_gpu, of_host = kernel_xid(node, KernelXidSettings()), kernel_host(node, NoSettings())
        found = fold(History(), [answered(of_gpu, check="kernel.xid"), answered(of_host, check="kernel.host")])
        return {str(each.component) for each in diagnose(found)} - {"gpu:0000:53:00"}

    nic, disk, port = "efa 0000:4f:00.0", "nvme 0000:27:00.0", "pcieport 0000:00:01.1"
    assert diagnosed(gone.format(nic), gone.format(disk)) == {"pci:0000:4f:00.0", "pci:0000:27:00.0"}
    assert diagnosed(f"{nic}: AER: device recovery failed") == {"pci:0000:4f:00.0"}
    assert diagnosed("nvme nvme1: Disabling device after reset failure: -19", gone.format(disk)) == {"disk:nvme1"}
    assert diagnosed(gone.format("nvidia 0000:53:00.0")) == set()
    assert diagnosed(f"{port}: pciehp: Slot(0-1): Link Down", f"{port}: AER: device recovery failed") == set()


def test_an_nfs_server_that_answers_again_ends_its_fault() -> None:
    """OK of the same server is evidence. A request of a soft mount times out, and the kernel reports OK of none that it
    does not keep trying: such a line is listed for a day, and not until the next boot."""
    result = judge("nfs: server 10.0.3.7 not responding, still trying", "nfs: server 10.0.3.7 OK")
    (over,) = result.clearances
    assert (over.by, str(over.component), over.code) == (
        ClearsBy.LOG_LINE,
        "nfs:10.0.3.7",
        "kernel.nfs_not_responding",
    )
    timed_out = answered(judge("nfs: server 10.0.3.7 not responding, timed out"), check="kernel.host")
    known = fold(History(), [timed_out])
    assert [fault.code for fault in known.faults.values()] == ["kernel.nfs_not_responding"]
    assert fold(known, [answered(replace(result, findings=()), check="kernel.host", seconds=2)]).faults == {}
    assert fold(known, [looked(seconds=90_000)]).faults == {}


def test_the_lines_of_a_real_ext4_error_are_one_fault() -> None:
    """Error, journal and read-only remount, as recorded from a loop device on 6.18, are one finding of that disk."""
    finding = only(
        judge(
            "EXT4-fs error (device loop0): trigger_test_error:129: comm bash: x",
            "Aborting journal on device loop0-8.",
            "EXT4-fs (loop0): Remounting filesystem read-only",
        )
    )
    assert (str(finding.component), finding.evidence["count"]) == ("disk:loop0", 3)


def test_an_uncorrected_machine_check_is_told_by_its_status() -> None:
    """Bit 61 of the status register decides, whatever the bank."""
    line = "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: {}000000000000000"
    codes = {digit: only(judge(line.format(digit))).code for digit in "0123456789abcdef"}
    uncorrected = {digit for digit, code in codes.items() if code == "kernel.hardware_error"}
    assert uncorrected == {digit for digit in codes if int(digit, 16) & 2}


def test_a_storm_is_one_finding() -> None:
    """A hundred thousand equal lines are one fault with a count."""
    assert only(judge(*["I/O error, dev nvme1n1, sector 8"] * 100_000)).evidence["count"] == 100_000
