"""Whose process it was: the forms of control groups. What /proc does is tested with kernel.xid."""

from __future__ import annotations

import pytest

from healthd.checklib.jobs import owner, owner_named
from healthd.core.errors import SourceUnreadable
from healthd.testing import Entry, FakeNode

UID = "0f3a1c2d-4e5f-6071-8293-a4b5c6d7e8f9"


@pytest.mark.parametrize(
    "path",
    [
        "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0",
        "0::/system.slice/node-1_slurmstepd.scope/job_42",
        "12:devices:/slurm/uid_1000/job_42/step_batch\n11:memory:/slurm/uid_1000/job_42",
        "/slurm_node1/uid_0/job_42/step_extern",
    ],
)
def test_slurm(path: str) -> None:
    """Both generations of Slurm's hierarchy name the job."""
    assert owner(path) == {"job": "42"}


SLUID = "s5K1KKYAYG5D00"
STEP = f"/system.slice/slurmstepd.scope/{SLUID}/step_0"


@pytest.mark.parametrize(
    "path", [f"0::{STEP}/user/task_0", STEP, f"0::/site.slice/n1_slurmstepd.scope/{SLUID}\n1:name=systemd:/x"]
)
def test_slurm_26_05(path: str) -> None:
    """From 26.05 on Slurm names a job's control group by its SLUID, unless CgroupJobIdPaths says otherwise."""
    assert owner(path) == {"sluid": SLUID}


@pytest.mark.parametrize(
    ("titles", "found"),
    [
        ({"7": "slurmstepd: [42.batch]\0\0"}, {"job": "42"}),
        ({"7": "slurmstepd: [42+1.0]", "8": "slurmstepd: [42.0]"}, {"job": "42"}),
        ({"7": "slurmstepd: [42.0]", "8": "slurmstepd: [43.0]"}, {"sluid": SLUID}),
        ({"7": "/usr/sbin/slurmstepd\0"}, {"sluid": SLUID}),
        ({"7": SourceUnreadable("/proc/7/cmdline: no")}, {"sluid": SLUID}),
        ({}, {"sluid": SLUID}),
    ],
)
def test_the_number_of_a_job_with_a_sluid(titles: dict[str, Entry], found: dict[str, str]) -> None:
    """It stands in the title of the step's slurmstepd, and nothing of the job's own is asked."""
    sys = {f"fs/cgroup{STEP}/slurm/cgroup.procs": "\n".join(titles)}
    node = FakeNode(sys=sys, proc={f"{pid}/cmdline": title for pid, title in titles.items()})
    assert owner_named(node, f"0::{STEP}/user/task_0") == found
    assert owner_named(node, "0::/system.slice/slurmstepd.scope/job_7/step_0") == {"job": "7"}
    assert owner_named(FakeNode(), f"0::{STEP}/user/task_0") == {"sluid": SLUID}


@pytest.mark.parametrize(
    "path",
    [
        f"0::/{SLUID}/step_0",
        f"0::/slurmstepd.scope/{SLUID}x/step_0",
        "0::/system.slice/slurmstepd.scope/system",
        f"0::/user.slice/user-1000.slice/user@1000.service{STEP}",
    ],
)
def test_no_sluid(path: str) -> None:
    """Only right below Slurm's own scope, and not in a user's slice."""
    assert owner(path) == {}


@pytest.mark.parametrize(
    "path",
    [
        f"0::/kubepods/besteffort/pod{UID}/0123",
        f"0::/kubepods/pod{UID}/0123",
        f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-0123.scope",
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable-pod{UID.replace('-', '_')}.slice/x",
    ],
)
def test_kubernetes(path: str) -> None:
    """cgroupfs and systemd spell the pod's uid differently; it is given as Kubernetes writes it."""
    assert owner(path) == {"pod_uid": UID}


def test_a_static_pod_has_a_hash_for_a_uid() -> None:
    """The kubelet names static pods by 32 hexadecimal digits."""
    assert owner(f"0::/kubepods/burstable/pod{'0a' * 16}/x") == {"pod_uid": "0a" * 16}


@pytest.mark.parametrize(
    "own",
    ["job_42/x", "system.slice/slurmstepd.scope/job_42/step_0", f"kubepods.slice/kubepods-pod{'0a' * 16}.slice/x"],
)
@pytest.mark.parametrize("above", ["", "/../.."])
def test_control_groups_that_a_user_names(own: str, above: str) -> None:
    """The groups in a user's slice are the user's own: their names blame no other's job. Below a job's they change
    nothing."""
    theirs = f"{above}/user.slice/user-1000.slice/user@1000.service/{own}"
    assert owner(f"0::{theirs}") == owner(theirs) == {}
    assert owner(f"1:name=systemd:{theirs}\n3:cpuset:/slurm/uid_1000/job_7/step_0") == {"job": "7"}
    assert owner(f"0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0/user.slice/{own}") == {"job": "7"}


@pytest.mark.parametrize("path", ["", "0::/", "0::/user.slice/job_", "0::/myjob_42/x", "0::/job_42x", "0::/pod" + UID])
def test_nobody(path: str) -> None:
    """What only looks like one is nobody's."""
    assert owner(path) == {}
