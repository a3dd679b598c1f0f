"""The first configuration of a node, as text with its reasons, from what was found there. Pure: data in, text out.

What a person must decide stands there as a comment. The mode is *observe*: what this writes changes nothing in a
cluster. It must load on every kind of node, and one file should serve all nodes of a kind, so nothing of this node
alone is set.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from healthd.checklib.tables import InstanceProfile, instance_profile
from healthd.config.json_schema import FILE_NAME
from healthd.config.schema.provisioner import ProvisionerSection
from healthd.config.values import toml_value
from healthd.remediation.provisioners.aws_calls import Platform
from healthd.remediation.provisioners.registry import PLATFORMS, RepairChannel
from healthd.setup.survey import Survey


def first_config(found: Survey, *, version: str, now: datetime) -> str:
    """The file. ``now`` and ``version`` stand in its head."""
    parts = (
        _head(found, version, now),
        _node(found),
        _orchestrator(found),
        _REMEDIATION,
        _provisioner(found),
        _BUDGET,
        _devices(found),
        _mounts(found),
    )
    return "\n".join("\n".join(part).rstrip() + "\n" for part in parts if part)


# ---------------------------------------------------------------------------------------------------------------------


def _head(found: Survey, version: str, now: datetime) -> list[str]:
    return [
        f"#:schema ./{FILE_NAME}",
        f"# Written by `healthd init` (healthd {version}) on {_text(found.node)}, {now:%Y-%m-%d %H:%M} UTC.",
        "# Nothing in it takes a node out of service: the mode is observe. Check it with `healthd config validate`,",
        "# see every other setting with `healthd config show`, and what is missing on a node with `healthd doctor`.",
        "#",
        "# Found here:",
        *(f"#   {line}" for line in found_lines(found)),
        *(f"#   could not be told: {_text(problem)}" for problem in found.problems),
    ]


def found_lines(found: Survey) -> Iterator[str]:
    """What was found, a sentence a line, for a person."""
    profile = instance_profile(found.instance_type)
    yield f"instance type: {_text(found.instance_type) or 'not known'}{_known(found, profile)}"
    named = PLATFORMS[found.platform].title if found.platform else "none of AWS's"
    yield f"platform: {named}{_cluster(found)}, because {_text(found.platform_why)}"
    yield f"cluster: {_cluster_manager(found)}"
    yield f"devices: {_count(found.gpus)} NVIDIA GPUs, {_count(found.efa)} EFA devices"
    mounts = ", ".join(_text(f"{mount.point} ({mount.fstype})") for mount in found.mounts)
    yield f"mounts that need a server: {mounts or 'none'}"


def _known(found: Survey, profile: InstanceProfile | None) -> str:
    if profile is None:
        return ", which is not in healthd's table of GPU instance types" if found.instance_type else ""
    return f", which has {profile.gpus} {profile.gpu_model} and usually {profile.efa_usual} EFA devices"


def _cluster(found: Survey) -> str:
    return f" ({_text(found.cluster)})" if found.cluster else ""


def _cluster_manager(found: Survey) -> str:
    if found.slurm:
        return _text(found.slurm_why)
    if found.pod:
        return "Kubernetes: this is a pod with a ServiceAccount"
    if found.kubelet:
        return "Kubernetes: a kubelet runs here, and this is not its pod"
    return f"none: {_text(found.slurm_why)}; no pod and no kubelet"


def _node(found: Survey) -> list[str]:
    return [
        "[node]",
        "# What this node is called in its cluster and what instance it is are found out on each node by itself.",
        f"# name = {toml_value(found.node)}",
        f"# instance_type = {toml_value(found.instance_type or 'p5.48xlarge')}",
        '# labels = ["pool=train"]  # for [[match]] sections, so that one file serves a whole fleet',
    ]


def _orchestrator(found: Survey) -> list[str]:
    lines = ["[orchestrator]", "# What takes a node out of service and puts it back."]
    if found.slurm:
        return [*lines, 'kind = "slurm"']
    if found.pod:
        return [*lines, 'kind = "kubernetes"']
    if found.kubelet:
        return [
            *lines,
            "# A kubelet runs here: in Kubernetes healthd runs as a DaemonSet, see packaging/helm/healthd. On the host",
            '# itself set kind = "kubernetes" and [orchestrator.kubernetes] kubeconfig.',
            'kind = "auto"',
        ]
    return [*lines, "# None was found here. auto looks again at each start of the daemon.", 'kind = "auto"']


_REMEDIATION = [
    "[remediation]",
    "# observe: look, and say what would be done (`healthd plan`). quarantine: take a faulty node out and put it back.",
    "# repair: mend it too. Read what observe says for some days before you go on.",
    'mode = "observe"',
]


def _provisioner(found: Survey) -> list[str]:
    lines = ["[provisioner]", "# What reboots or replaces the machine. Used in mode repair only."]
    if found.platform is None:
        return [
            *lines,
            'kind = "none"',
            '# kind = "local"  # and below it, [provisioner.local] reboot_command = ["systemctl", "reboot"]',
        ]
    if found.fixed:
        lines.append(f"# Nothing replaces this machine: {_text(found.fixed)}. For the nodes that can be:")
    if (kind := PLATFORMS[found.platform]).drain_replaces:
        lines.append(f"# Under {kind.title} any drain is a replacement. Until repair is wanted healthd")
        lines.append("# keeps jobs off with a reservation alone, and drains nothing.")
    lines += ['kind = "none"', *_wanted(found, found.platform)]
    return lines


def _wanted(found: Survey, platform: Platform) -> Iterator[str]:
    yield f'# kind = "{platform}"  # {_text(found.platform_why)}'
    if found.slurm and PLATFORMS[platform].channel_of(ProvisionerSection()) is RepairChannel.SLURM:
        yield "# It is asked through Slurm: no right in AWS is needed."
        return
    if (found.pod or found.kubelet) and platform is Platform.HYPERPOD:
        yield "# [provisioner.hyperpod]"
        yield '# how = "label"  # on Kubernetes, by the label of the node\'s own Node: no right in AWS is needed'
        return
    if (found.pod or found.kubelet) and platform is Platform.AUTOSCALING:
        yield '# Or, for a managed node group whose node auto-repair is on: kind = "eks"'
    yield f"# The rights it needs: packaging/iam/{platform}-node.json; or none on the nodes, with healthd controller:"
    yield f'# act_from = "controller"  # packaging/iam/{platform}-controller.json, for the controller alone'


_BUDGET = [
    "[budget]",
    "# The most nodes that may be out at once, for any cause, while healthd still takes one out.",
    'max_out = "5%"',
]


def _devices(found: Survey) -> list[str]:
    """What the devices must be is learned by the checks; a node that is broken now would else set the measure."""
    rows = [("gpu.count", found.gpus, "GPUs"), ("efa.devices", found.efa, "EFA devices")]
    lines = ["# How many devices a node must have is learned from the most that were ever seen on it. Set it where all"]
    lines.append("# nodes that read this file are launched alike: then it counts from the first look.")
    for name, count, words in rows:
        if count:
            lines += [f'# [checks."{name}"]', f"# expected = {count}  # {words} are here now"]
    return lines if any(count for _, count, _ in rows) else []


def _mounts(found: Survey) -> list[str]:
    lustre = [mount.point for mount in found.mounts if mount.fstype == "lustre"]
    others = [mount for mount in found.mounts if mount.fstype != "lustre"]
    blanks = [mount for mount in others if len(mount.point.split()) != 1]
    lines = []
    if lustre:
        lines += [
            "# Without a list no Lustre mount can be missing. Take out what not every node has.",
            '[checks."lustre.mount"]',
        ]
        lines += [f"mounts = {toml_value(lustre)}", ""]
    if found.automounts:
        lines += [
            f"# Automounts not used yet: {_text(', '.join(found.automounts))}. Name those of Lustre above.",
            "",
        ]
    if wanted := [f"{mount.point} {mount.fstype}" for mount in others if mount not in blanks]:
        lines += ["# Mounts that must be here. Take out what not every node has.", '[checks."host.expect"]']
        lines += [f"mounts = {toml_value(wanted)}", ""]
    if blanks:
        lines.append(f"# Not listed, for the blanks in its name: {_text(', '.join(mount.point for mount in blanks))}")
    return lines


def _count(number: int | None) -> str:
    return "an unknown number of" if number is None else str(number)


def _text(words: str) -> str:
    """What stands in a comment stays in its line: a mount, a tag and a file may be named by anybody."""
    return " ".join("".join(each if each.isprintable() else "?" for each in words).split())
