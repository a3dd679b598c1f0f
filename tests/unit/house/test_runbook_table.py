"""Every code has a runbook: two to five steps, whose commands exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

import pytest

from healthd.api.grammar import parse
from healthd.checklib.runbooks import runbooks, steps
from healthd.checklib.xids import sxid_table, xid_cases, xid_table
from healthd.config.report import documented_fields
from healthd.core.check import discover
from healthd.core.model import Remedy
from healthd.remediation.decide.remediation import ORDERED
from tests.unit.house.test_english import Passage, hits

LONGEST_STEP, LONGEST_FIRST = 170, 100
"""In characters: a first step stands behind "do: " on one line of 120."""
QUOTED = re.compile(r"`([^`]+)`")
SLURM_CONF = re.compile(r"[A-Z][A-Za-z]+=\S+")  # SwitchType=switch/nvidia_imex
ENVIRONMENT = re.compile(r"[A-Z][A-Z_]+=\S+")
SETTING = re.compile(r'\[checks\."([a-z0-9.]+)"\](?: ([a-z_]+)(?: = \S+)?)?')
WORDS = frozenset(
    {"*_allowance_exceeded", "NVreg_ExcludedGpus", "MemSpecLimit", "log_buf_len=16M", "Restart=on-failure", "chrony"}
)
"""Names of counters and options that a step speaks of."""
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "AWS command line": ("aws",),
    "Slurm": ("sacct", "sbatch", "scancel", "scontrol", "squeue", "srun"),
    "Kubernetes and containers": ("docker", "kubectl", "nvidia-ctk"),
    "NVIDIA driver, Fabric Manager, IMEX, DCGM, CUDA": (
        "compute-sanitizer",
        "dcgmi",
        "nv-fabricmanager",
        "nvidia-bug-report.sh",
        "nvidia-imex-ctl",
        "nvidia-modprobe",
        "nvidia-smi",
    ),
    "libfabric, rdma-core, GDRCopy, nccl-tests": ("all_reduce_perf", "fi_info", "gdrcopy_sanity", "rdma"),
    "Lustre and NFS": ("lctl", "lfs", "nfsstat", "rpcinfo"),
    "systemd": ("coredumpctl", "journalctl", "networkctl", "resolvectl", "systemctl"),
    "time": ("chronyc", "munge"),
    "modules and packages": ("apt-mark", "dkms", "ldconfig", "modinfo", "modprobe"),
    "disks and file systems": (
        "dd", "df", "du", "findmnt", "fsck", "lsblk", "mkfs.xfs", "mount", "nvme", "stat", "swapoff", "swapon",
        "umount", "xfs_db", "xfs_fsr", "xfs_repair",
    ),
    "network": ("conntrack", "ethtool", "ip", "nc", "nstat", "openssl", "ss"),
    "hardware": ("chcpu", "cpupower", "dmidecode", "lscpu", "lspci", "ras-mc-ctl"),
    "processes": ("fuser", "iostat", "kill", "lsof", "pidstat", "ps"),
    "the rest of a distribution": ("cat", "find", "free", "getent", "grep", "last", "ls", "sysctl", "uname"),
}  # fmt: skip
KNOWN = frozenset(name for names in PROGRAMS.values() for name in names)
ROWS = sorted(runbooks().items(), key=str)
STEPS = sorted({(key[0], step) for key, found in ROWS for step in found})


def declared() -> set[str]:
    """Every code that healthd can write: those of the checks, each XID and SXid, and an operator's commands."""
    codes = {code.code for check in discover().values() for code in check.codes}
    return codes | set(ORDERED)


def test_every_code_has_a_runbook() -> None:
    """No finding leaves an operator without a next step; a family has one for a member that no table names."""
    examples = {code.replace(".*", ".0") for code in declared()}
    numbered = {f"gpu.xid.{xid}" for xid in xid_table()} | {f"nvswitch.sxid.{sxid}" for sxid, _ in sxid_table()}
    assert {code for code in examples | numbered if not steps(code)} == set()


def test_every_remedy_of_an_xid_has_one() -> None:
    """Also where the text of the line decides: no case falls back to the steps of a smaller remedy by accident."""
    for remedy in Remedy:
        assert steps("gpu.xid.9999", remedy) == runbooks()["gpu.xid.*", remedy]
    replaced = [steps(f"gpu.xid.{xid}", case.remedy) for (xid, _), case in xid_cases().items()
                if case.remedy is Remedy.REPLACE_NODE]  # fmt: skip
    assert replaced
    assert all("--step replace" in " ".join(found) for found in replaced)


def test_no_runbook_is_for_a_code_that_nothing_writes() -> None:
    """A renamed code does not leave its runbook behind."""
    numbered = {f"gpu.xid.{xid}" for xid in xid_table()}
    assert {code for code, _ in runbooks()} - declared() - numbered == set()


@pytest.mark.parametrize(("key", "found"), ROWS, ids=[f"{code} {remedy or ''}".strip() for (code, remedy), _ in ROWS])
def test_a_runbook_is_short_and_says_how(key: tuple[str, Remedy | None], found: tuple[str, ...]) -> None:
    """Two to five steps, the first on one line, each with its command."""
    assert 2 <= len(found) <= 5
    assert len(set(found)) == len(found)
    assert len(found[0]) <= LONGEST_FIRST, found[0]
    for step in found:
        assert len(step) <= LONGEST_STEP, step
        assert QUOTED.search(step), step
        assert step[0].isupper(), step
        assert not step.endswith((".", ":", ",")), step


def test_the_steps_use_the_fields_words() -> None:
    """No step has a banned phrase."""
    found = [hit for code, step in STEPS for hit in hits(Passage(path=code, line=1, text=QUOTED.sub("", step)))]
    assert found == []


def test_every_command_exists() -> None:
    """A command of healthd is one that its parser takes; another program is one of the list above; a setting exists."""
    wrong = [f"{code}: `{quoted}`" for code, step in STEPS for quoted in QUOTED.findall(step) if not exists(quoted)]
    assert wrong == []


def exists(quoted: str) -> bool:
    if (setting := SETTING.fullmatch(quoted)) is not None:
        check = discover()[setting[1]]
        return not setting[2] or setting[2] in {field.name for field in documented_fields(check.settings)}
    if quoted in WORDS or SLURM_CONF.fullmatch(quoted):
        return True
    words = shlex.split(quoted)
    while ENVIRONMENT.fullmatch(words[0]):
        words = words[1:]
    if words[0] == "healthd":
        return bool(parse(words[1:]).verb)
    return words[0] in KNOWN


def test_every_program_of_the_list_is_used() -> None:
    """The list grows no dead entries."""
    used = {shlex.split(quoted)[0] for _, step in STEPS for quoted in QUOTED.findall(step)}
    used |= {"all_reduce_perf"}  # behind a variable of the environment
    assert KNOWN - used == set()
