"""The first configuration of a node, as text with its reasons, from a survey of the node. Pure: data in, text out.

Comments hold the settings that the operator must decide. The mode is *observe*: this file changes nothing in a cluster.
It must load on every kind of node, and one file should serve all nodes of a kind, so it sets nothing that belongs to
this node alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from healthd.checklib.tables import InstanceProfile, instance_profile
from healthd.config.json_schema import FILE_NAME
from healthd.config.schema.provisioner import ProvisionerSection
from healthd.config.values import toml_lines, toml_value
from healthd.core.name_lists import listed
from healthd.remediation.provisioners.aws_calls import Platform
from healthd.remediation.provisioners.registry import PLATFORMS, RepairChannel
from healthd.setup.survey import Survey

_LONGEST_COMMENT = 400


def first_config(found: Survey, *, version: str, now: datetime, required: Sequence[str] | None = None) -> str:
    """The file. Its head has ``now`` and ``version``. ``required``: in place of the mounts that this node has."""
    parts = (
        _head(found, version, now),
        _node(found),
        _orchestrator(found),
        _REMEDIATION,
        _provisioner(found),
        _BUDGET,
        _devices(found),
        _mounts(found) if required is None else required,
    )
    return "\n".join("\n".join(part).rstrip() + "\n" for part in parts if part)


# ---------------------------------------------------------------------------------------------------------------------


def _head(found: Survey, version: str, now: datetime) -> list[str]:
    return [
        f"#:schema ./{FILE_NAME}",
        f"# Written by `healthd init` (healthd {version}) on {_text(found.node)}, {now:%Y-%m-%d %H:%M} UTC.",
        "# The mode is observe: healthd takes no node out of service. `healthd config validate` checks this file,",
        "# `healthd config show` lists every other setting, and `healthd doctor` finds what a node lacks.",
        "#",
        "# Found here:",
        *(f"#   {line}" for line in found_lines(found)),
        *(f"#   unknown: {_text(problem)}" for problem in found.problems),
    ]


def found_lines(found: Survey) -> Iterator[str]:
    """The facts of the survey, one sentence a line."""
    profile = instance_profile(found.instance_type)
    yield f"instance type: {_text(found.instance_type) or 'not known'}{_known(found, profile)}"
    named = PLATFORMS[found.platform].title if found.platform else "none of AWS's"
    yield f"platform: {named}{_cluster(found)}, because {_text(found.platform_why)}"
    yield f"cluster: {_cluster_manager(found)}"
    yield f"devices: {_count(found.gpus)} NVIDIA GPUs, {_count(found.efa)} EFA devices"
    mounts = listed([_text(f"{mount.point} ({mount.fstype})") for mount in found.mounts])
    yield f"network mounts: {mounts or 'none'}"


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
        return "Kubernetes: a kubelet runs here, and this process is in no pod"
    return f"none: {_text(found.slurm_why)}; no pod and no kubelet"


def _node(found: Survey) -> list[str]:
    return [
        "[node]",
        "# Each node finds its name in the cluster and its instance type itself.",
        f"# name = {toml_value(found.node)}",
        f"# instance_type = {toml_value(found.instance_type or 'p5.48xlarge')}",
        '# labels = ["pool=train"]  # for [[match]] sections, so that one file serves a whole fleet',
    ]


def _orchestrator(found: Survey) -> list[str]:
    lines = ["[orchestrator]", "# The orchestrator takes a node out of service and puts it back."]
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
    return [*lines, "# None was found here. auto searches at each start of the daemon.", 'kind = "auto"']


_REMEDIATION = [
    "[remediation]",
    "# observe: report what healthd would do (`healthd plan`). quarantine: take a faulty node out and put it back.",
    "# repair: also repair the node. Read the reports of observe for some days before you go on.",
    'mode = "observe"',
]


def _provisioner(found: Survey) -> list[str]:
    lines = ["[provisioner]", "# The provisioner reboots or replaces the machine, in mode repair only."]
    if found.platform is None:
        return [
            *lines,
            'kind = "none"',
            '# kind = "local"  # and below it, [provisioner.local] reboot_command = ["systemctl", "reboot"]',
        ]
    if found.fixed:
        lines.append(f"# This machine cannot be replaced: {_text(found.fixed)}. For nodes that can be:")
    if (kind := PLATFORMS[found.platform]).drain_replaces:
        lines.append(f"# On {kind.title} any drain is a replacement. Below mode repair healthd keeps jobs off")
        lines.append("# with a reservation alone, and drains nothing.")
    lines += ['kind = "none"', *_wanted(found, found.platform)]
    return lines


def _wanted(found: Survey, platform: Platform) -> Iterator[str]:
    yield f'# kind = "{platform}"  # {_text(found.platform_why)}'
    if found.slurm and PLATFORMS[platform].channel_of(ProvisionerSection()) is RepairChannel.SLURM:
        yield "# healthd asks it through Slurm and needs no permission at AWS."
        return
    if (found.pod or found.kubelet) and platform is Platform.HYPERPOD:
        yield "# [provisioner.hyperpod]"
        yield '# how = "label"  # on Kubernetes, by a label of the node\'s own Node; needs no permission at AWS'
        return
    if (found.pod or found.kubelet) and platform is Platform.AUTOSCALING:
        yield '# Or, for a managed node group whose node auto-repair is on: kind = "eks"'
    yield f"# Permissions of each node: packaging/iam/{platform}-node.json. With healthd controller nodes need none:"
    yield f'# act_from = "controller"  # packaging/iam/{platform}-controller.json, for the controller alone'


_BUDGET = [
    "[budget]",
    "# The most nodes that may be out at once, for any cause, while healthd still takes one out.",
    'max_out = "5%"',
]


def _devices(found: Survey) -> list[str]:
    """Comments for the number of devices. The checks learn it; else a faulty node would set a wrong number now."""
    rows = [("gpu.count", found.gpus, "GPUs"), ("efa.devices", found.efa, "EFA devices")]
    lines = [
        "# healthd learns the number of devices from the most that it ever saw on a node. Set the number where all"
    ]
    lines.append("# nodes with this file are launched alike: then it holds from the first check run.")
    for name, count, message in rows:
        if count:
            lines += [f'# [checks."{name}"]', f"# expected = {count}  # {message} found here"]
    return lines if any(count for _, count, _ in rows) else []


def _mounts(found: Survey) -> list[str]:
    lustre = [mount.point for mount in found.mounts if mount.fstype == "lustre"]
    others = [mount for mount in found.mounts if mount.fstype != "lustre"]
    blanks = [mount for mount in others if len(mount.point.split()) != 1]
    lines = []
    if lustre:
        lines += [
            "# healthd reports a missing Lustre mount only if it is listed. Remove mounts that not every node has.",
            '[checks."lustre.mount"]',
        ]
        lines += [f"mounts = {toml_lines(lustre)}", ""]
    if found.automounts:
        lines += [f"# Automounts not used yet: {_text(listed(found.automounts))}. Add those of Lustre above.", ""]
    if wanted := [f"{mount.point} {mount.fstype}" for mount in others if mount not in blanks]:
        lines += ["# Required mounts. Remove mounts that not every node has.", '[checks."host.expect"]']
        lines += [f"mounts = {toml_lines(wanted)}", ""]
    if blanks:
        lines.append(f"# Not listed, because of blanks: {_text(listed([mount.point for mount in blanks]))}")
    return lines


def _count(number: int | None) -> str:
    return "an unknown number of" if number is None else str(number)


def _text(words: str) -> str:
    """The text on one line of a comment, and no long one: any user may have chosen the name of a mount, tag or file."""
    text = " ".join("".join(each if each.isprintable() else "?" for each in words).split())
    return text if len(text) <= _LONGEST_COMMENT else f"{text[:_LONGEST_COMMENT]}…"
