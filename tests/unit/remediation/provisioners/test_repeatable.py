"""Which acts a provisioner calls safe to repeat: a row per platform, and the real ones have shown theirs elsewhere."""

from __future__ import annotations

from typing import Any, cast

import pytest

from healthd.core.model import Remedy
from healthd.remediation.ports import Provisioner
from healthd.remediation.provisioners.autoscaling import AutoScalingProvisioner
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.delegated import DelegatedProvisioner
from healthd.remediation.provisioners.ec2 import Ec2Provisioner
from healthd.remediation.provisioners.hyperpod import HyperPodProvisioner
from healthd.remediation.provisioners.instances import REBOOT_SHOWS_S
from healthd.remediation.provisioners.kube_nodes import ByProviderId, KarpenterProvisioner
from healthd.remediation.provisioners.local import LocalProvisioner
from healthd.remediation.provisioners.platform_reads import Paced
from healthd.remediation.provisioners.slurm_managed import SlurmManagedProvisioner
from healthd.remediation.provisioners.target_node import TargetNode
from tests.support.scontrol import ScriptedScontrol

SUBJECT = TargetNode(node="n1", here=False, instance_id="i-1")
AWS = cast("Aws", None)  # nobody is asked
SCONTROL = ScriptedScontrol("n1")
EC2 = Ec2Provisioner(subject=SUBJECT, aws=AWS)
MANAGED: dict[str, Any] = {"manager": "clustermgtd", "subject": SUBJECT, "aws": AWS, "scontrol": SCONTROL}

ROWS: dict[str, tuple[Provisioner, float | None, float | None]] = {
    "ec2": (EC2, REBOOT_SHOWS_S, 0.0),
    "autoscaling": (AutoScalingProvisioner(subject=SUBJECT, aws=AWS), REBOOT_SHOWS_S, 0.0),
    "hyperpod, api": (HyperPodProvisioner(subject=SUBJECT, aws=AWS, cluster="c"), REBOOT_SHOWS_S, 0.0),
    "hyperpod, scontrol": (
        HyperPodProvisioner(subject=SUBJECT, aws=AWS, cluster="c", scontrol=SCONTROL, by_api=False),
        0.0,
        0.0,
    ),
    "parallelcluster": (SlurmManagedProvisioner(kind="parallelcluster", **MANAGED), 0.0, 0.0),
    "karpenter": (
        KarpenterProvisioner(subject=SUBJECT, machine=lambda: "i-1", claims=None),
        0.0,
        0.0,
    ),
    "local": (LocalProvisioner(reboot_command=("reboot",)), None, None),
    "by provider id": (ByProviderId(EC2, machine=lambda: "i-1"), REBOOT_SHOWS_S, 0.0),
    "paced": (Paced(EC2, every_s=30.0), REBOOT_SHOWS_S, 0.0),
    "asks the controller": (
        DelegatedProvisioner(inner=EC2, instance_id="i-1", read=str, write=lambda _: None),
        0.0,
        0.0,
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_what_may_be_asked_twice(name: str) -> None:
    """At once, where a second request comes to nothing more; after a time, where it could come too late; or never."""
    provisioner, reboot_s, replace_s = ROWS[name]
    found = provisioner.repeats_after_s(Remedy.REBOOT_NODE), provisioner.repeats_after_s(Remedy.REPLACE_NODE)
    assert found == (reboot_s, replace_s)


def test_a_queued_reboot_has_shown_before_its_node_gives_it_up() -> None:
    """The node waits for half an hour by default: a repeat that came after that would be nobody's."""
    assert REBOOT_SHOWS_S < 1800.0
