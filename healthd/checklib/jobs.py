"""The owner of a process: the Slurm job or the Kubernetes pod of a process id, read from its control group.

A process that is gone, or that started after the moment in question and so only inherited the number, has no known
owner: the answer is empty, never guessed. Nor has one in the slice of a user, who names the control groups there.

Slurm 26.05 names a job's control group by its SLUID, which does not hold the number of the job; the title of the job's
slurmstepd does, and no process of the job can be in that group.

Sources: Slurm, cgroup plugins (``…/slurmstepd.scope/job_42/step_0`` on cgroup v2, ``/slurm/uid_1000/job_42/step_0`` on
v1), release notes of 26.05 and cgroup.conf(5), CgroupJobIdPaths (``…/slurmstepd.scope/s5K1KKYAYG5D00/step_0``), sluid.c
(print_sluid), the title of slurmstepd (``slurmstepd: [42.0]``); Kubernetes, kubelet cm/pod_container_manager_linux.go
(``pod<uid>``, with ``_`` for ``-`` in systemd slices); systemd, Control Group APIs and Delegation
(``/user.slice/user-1000.slice/user@1000.service`` is the user's own);
proc_pid_stat(5) (field 22: start in clock ticks since boot, a hundred a second), proc_stat(5) (btime).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

from healthd.core.errors import SourceError
from healthd.core.node import Node

_JOB = re.compile(r"/job_(\d{1,10})(?:/|\Z)", re.MULTILINE)
_SLUID = re.compile(
    r"((?:/[^/\n]+)*/(?:[^/\n]+_)?slurmstepd\.scope/(s[0-9A-HJKMNP-TV-Z]{13})(?:/step_[^/\n]+)?)(?=/|$)", re.MULTILINE
)
_TITLE = re.compile(r"slurmstepd: \[(\d{1,10})[.+]")
_POD = re.compile(r"[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])")
_OF_A_USER = re.compile(r"^(?:\d+:[^:]*:)?(?:/\.\.)*/user\.slice/.*$", re.MULTILINE)
_TICKS_PER_S = 100
_SLACK_S = 2.0


def owner(cgroup: str) -> Mapping[str, str]:
    """``{"job": "42"}``, ``{"sluid": "s5K1KKYAYG5D00"}`` or ``{"pod_uid": "…"}`` from a control group's path or a whole
    /proc/PID/cgroup; else empty."""
    cgroup = _OF_A_USER.sub("", cgroup)
    if job := _JOB.search(cgroup):
        return {"job": job[1]}
    if job := _SLUID.search(cgroup):
        return {"sluid": job[2]}
    paths = (path for path in cgroup.split() if "kubepods" in path)
    pods = (_POD.search(path, path.index("kubepods")) for path in paths)
    return next(({"pod_uid": pod[1].replace("_", "-")} for pod in pods if pod), {})


def owner_named(node: Node, cgroup: str) -> Mapping[str, str]:
    """As ``owner``; a job by its number, also where the path has only its SLUID, while a slurmstepd of it lives."""
    found = owner(cgroup)
    number = _number_of(node, cgroup) if "sluid" in found else ""
    return {"job": number} if number else found


def owner_of(node: Node, pid: int | None, at: datetime) -> Mapping[str, str]:
    """The owner of the process that had this id at that time; empty where it is unknown."""
    if pid is None:
        return {}
    try:
        return owner_named(node, node.proc.read(f"{pid}/cgroup")) if _was_alive(node, pid, at) else {}
    except (SourceError, ValueError, IndexError):
        return {}


def _number_of(node: Node, cgroup: str) -> str:
    """The number of a job by its slurmstepd, which Slurm puts beside the job's own processes; "" where that is not
    readable."""
    step = _SLUID.search(_OF_A_USER.sub("", cgroup))
    try:
        pids = node.sys.read(f"fs/cgroup{step[1]}/slurm/cgroup.procs").split() if step else []
        titles = [_TITLE.match(node.proc.read(f"{pid}/cmdline")) for pid in pids]
    except SourceError:
        return ""
    numbers = {title[1] for title in titles if title}
    return numbers.pop() if len(numbers) == 1 else ""


def _was_alive(node: Node, pid: int, at: datetime) -> bool:
    """Whether the process that has the id now had it then. Raises SourceError, ValueError or IndexError."""
    started_ticks = int(node.proc.read(f"{pid}/stat").rpartition(") ")[2].split()[19])
    booted_s = int(node.proc.read("stat").partition("btime ")[2].split()[0])
    return booted_s + started_ticks / _TICKS_PER_S <= at.timestamp() + _SLACK_S
