"""What the doctor's lines come to, and the looks that need nothing but folders and files."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.api.wire import Reply, write_answer
from healthd.config.load import load
from healthd.config.schema.config import Config
from healthd.core.check import discover
from healthd.core.errors import BackendBusy, BackendDenied, BackendRefused, BackendUnknown
from healthd.core.model import Mode
from healthd.setup.doctor import DoctorResult, DoctorStatus, as_json, as_text, exit_code
from healthd.setup.machine_probes import machine_probes
from healthd.setup.remote_probes import remote_probes, tried
from healthd.sim import tree
from healthd.sim.machine import SimulatedMachine
from healthd.sim.nvml import write_state
from healthd.sim.nvml_state import healthy_state

CHECKS = {name: check.settings for name, check in discover().items()}
OK = DoctorResult(about="a", status=DoctorStatus.OK, why="as it must be")
GONE = DoctorResult(about="b", status=DoctorStatus.MISSING, why="it is\nnot there\x1b[2J", fix="install it")
NOT_REPORTED = DoctorResult(about="c", status=DoctorStatus.NOT_REPORTED, why="no answer", fix="look")
SPARE = DoctorResult(about="d", status=DoctorStatus.MISSING, why="not there", fix="install it", optional=True)
UNNEEDED = DoctorResult(about="e", status=DoctorStatus.UNNEEDED, why="no GPU")


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ((), 0),
        ((OK, UNNEEDED), 0),
        ((OK, SPARE), 0),
        ((NOT_REPORTED, OK), 2),
        ((NOT_REPORTED, GONE, OK), 1),
        ((SPARE, NOT_REPORTED), 2),
    ],
)
def test_the_exit_code_is_the_worst_that_counts(lines: tuple[DoctorResult, ...], code: int) -> None:
    """Missing before could not tell before ok, as `healthd check` has critical before unknown; what healthd can do
    without never counts."""
    assert exit_code(lines) == code


def test_a_person_reads_what_why_and_the_fix() -> None:
    """A fix stands below its line, one that can be done without is in brackets, and no text reaches the terminal."""
    assert as_text((OK, GONE, NOT_REPORTED, SPARE, UNNEEDED)).splitlines() == [
        "ok               a: as it must be",
        "missing          b: it is?not there?[2J",
        "                 fix: install it",
        "could not tell   c: no answer",
        "                 fix: look",
        "(missing)        d: not there",
        "                 fix: install it",
        "not needed here: e (no GPU)",
        "2 missing, 1 unknown (1 of them optional, in brackets)",
    ]
    assert as_text((OK,)).splitlines()[-1] == "nothing is missing"


def test_a_program_reads_every_line() -> None:
    """All fields of all lines, what is not needed too."""
    data = json.loads(as_json((GONE, UNNEEDED)))
    assert data["schema"] == "healthd.doctor/v1"
    assert data["lines"][0] == {
        "about": "b",
        "status": "missing",
        "why": "it is\nnot there\x1b[2J",
        "fix": "install it",
        "optional": False,
    }
    assert [line["status"] for line in data["lines"]] == ["missing", "not needed"]


# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Of the simulated p5.48xlarge."""
    return load(SimulatedMachine(tmp_path / "machine").config, checks=CHECKS, environ={}).config


def line(config: Config, name: str, socket: str = "/nowhere/s") -> DoctorResult:
    (only,) = machine_probes(config, socket)[name]()
    return only


def test_folders_and_the_kernel_log(config: Config, tmp_path: Path) -> None:
    """Written to where it is, made where it can be, missing where it cannot; the log is read, a pipe is left alone."""
    assert line(config, "kernel log").status is DoctorStatus.OK
    assert (line(config, "socket").status, "is writable" in line(config, "socket").why) == (DoctorStatus.OK, True)
    assert "does not exist yet" in line(config, "state").why
    (tmp_path / "file").touch()
    lost = replace(
        config,
        daemon=replace(config.daemon, state_dir=f"{tmp_path}/file/state"),
        sources=replace(config.sources, kmsg=f"{tmp_path}/no-kmsg"),
    )
    assert (line(lost, "state").status, "[daemon] state_dir" in line(lost, "state").fix) == (DoctorStatus.MISSING, True)
    assert (line(lost, "kernel log").status, "CAP_SYSLOG" in line(lost, "kernel log").fix) == (
        DoctorStatus.MISSING,
        True,
    )
    assert list(tmp_path.glob("machine/tmp*")) == []


def test_a_state_directory_behind_a_link_is_where_the_link_leads(config: Config, tmp_path: Path) -> None:
    """The link lies on a disk, and its target in memory or on the instance store."""
    (tmp_path / "memory").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "memory")
    tree.mount(Path(config.sources.proc_root).parent, f"99 1 0:99 / {tmp_path}/memory rw - tmpfs tmpfs rw")
    linked = replace(config, daemon=replace(config.daemon, state_dir=f"{tmp_path}/state"))
    found = line(replace(linked, remediation=replace(config.remediation, mode=Mode.REPAIR)), "state")
    assert (found.status, "is on tmpfs, which a boot empties" in found.why) == (DoctorStatus.MISSING, True)
    daemon = line(config, "daemon")
    assert (daemon.status, "systemctl start" in daemon.fix) == (DoctorStatus.MISSING, True)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (write_answer(Reply(code=2, err="healthd: the daemon failed to answer: x\n")), "failed to answer: x"),
        (b"healthd/1 0 999 0\ncut", "answer is incomplete"),
    ],
)
def test_a_daemon_that_answers_with_an_error_is_unknown_by_its_words(
    config: Config, tmp_path: Path, answer: bytes, why: str
) -> None:
    """The fix is its log, and no traceback of the doctor's own is shown."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen()
        threading.Thread(target=_answers, args=(door, answer), daemon=True).start()
        (daemon,) = machine_probes(config, str(path))["daemon"]()
    assert (daemon.status, why in daemon.why) == (DoctorStatus.NOT_REPORTED, True)
    assert "journalctl -u healthd" in daemon.fix


def _answers(door: socket.socket, answer: bytes) -> None:
    client, _ = door.accept()
    with client:
        while client.recv(65536):
            pass
        client.sendall(answer)


def test_a_state_that_a_boot_empties_is_missing_in_mode_repair(config: Config, tmp_path: Path) -> None:
    """A daemon that only looks, or only takes nodes out, may forget."""
    table = Path(config.sources.proc_root) / "self/mountinfo"
    table.write_text(f"{table.read_text()}99 1 0:77 / {tmp_path} rw - tmpfs tmpfs rw\n")
    assert (line(config, "state").status, "is on tmpfs" in line(config, "state").why) == (DoctorStatus.MISSING, True)
    quarantine = replace(config, remediation=replace(config.remediation, mode=Mode.QUARANTINE))
    assert line(quarantine, "state").status is DoctorStatus.OK


def test_a_folder_that_takes_no_file_is_missing(config: Config) -> None:
    """/proc is there, and nobody can write to it, not even root."""
    sealed = replace(config, daemon=replace(config.daemon, state_dir="/proc"))
    assert line(sealed, "state").status is DoctorStatus.MISSING


@pytest.mark.process
def test_the_machine_is_asked_as_the_checks_ask_it(config: Config) -> None:
    """The simulated NVML answers for its GPUs, the type is in the table; a check that is off is not needed."""
    assert line(config, "NVML").why == "driver 580.95.05 answers for 8 of 8 GPUs on the bus"
    assert line(config, "instance").why.startswith("p5.48xlarge: 8 H100")
    assert line(config, "host.clock") == DoctorResult(
        about="host.clock", status=DoctorStatus.UNNEEDED, why="the check is disabled"
    )
    assert line(config, "gpu.gdrcopy").status is DoctorStatus.OK
    fi_info = line(config, "fi_info")
    if not os.path.exists("/opt/amazon/efa/bin/fi_info"):
        assert (fi_info.status, fi_info.optional, "EFA installer" in fi_info.fix) == (DoctorStatus.MISSING, True, True)


@pytest.mark.process
def test_a_driver_that_answers_with_an_error_is_loaded_by_the_operator(config: Config) -> None:
    """The line does not send the operator back to `healthd check`, which sent them here."""
    write_state(config.sources.nvml_library, {**healthy_state("p5.48xlarge"), "lib.fault": "driver_not_loaded"})
    status = line(config, "NVML")
    assert status.status is DoctorStatus.NOT_REPORTED
    assert "modprobe nvidia" in status.fix


@pytest.mark.process
def test_what_a_machine_does_not_need_is_named(tmp_path: Path) -> None:
    """Without GPU, EFA and Lustre none of their tools is missed."""
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").touch()
    path = tmp_path / "c.toml"
    path.write_text(f'[sources]\nsys_root = "{tmp_path}/sys"\nproc_root = "{tmp_path}/proc"\n')
    bare = load(path, checks=CHECKS, environ={}).config
    for name in ("NVML", "nvidia-smi", "nvidia-bug-report.sh", "fi_info", "lfs", "NCCL", "metadata", "efa.provider"):
        assert line(bare, name).status is DoctorStatus.UNNEEDED, name
    assert (line(bare, "instance").status, line(bare, "instance").optional) == (DoctorStatus.NOT_REPORTED, True)


@pytest.mark.process
def test_repair_is_tried_dry(config: Config) -> None:
    """A command that would run, and a remedy that nobody here can carry out: it pages, and does not count."""
    reboot, replaced = remote_probes(config, {})["repair"]()
    assert (reboot.status, "would run" in reboot.why) == (DoctorStatus.OK, True)
    assert (replaced.status, replaced.optional) == (DoctorStatus.MISSING, True)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BackendDenied("AccessDenied"), DoctorStatus.MISSING),
        (BackendRefused("no"), DoctorStatus.MISSING),
        (BackendBusy("throttled: it can be asked again"), DoctorStatus.NOT_REPORTED),
        (BackendUnknown("no answer"), DoctorStatus.NOT_REPORTED),
    ],
)
def test_no_answer_is_not_a_missing_right(error: Exception, status: DoctorStatus) -> None:
    """A policy gives a right that is missing; silence is a matter of the network, and says nothing of rights."""

    def dry_run() -> str:
        raise error

    found = tried("repair: reboot_node", dry_run, "")
    assert (found.status, found.why) == (status, str(error))
    assert found.fix
