"""Every setting of healthd: one frozen dataclass per section, one docstring under every field.

The reference page, ``config show`` and the loader are all made from this file. A docstring gives the unit, what the
empty value means, and why this default. Nothing here reads a file, the environment or the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from healthd.config.kinds import AbsolutePath, Glob, Label, MaybePath, MaybeUrl, Name, Seconds
from healthd.config.schema.controller import ControllerSection
from healthd.config.schema.daemon import DaemonSection
from healthd.config.schema.evidence import EvidenceSection
from healthd.config.schema.kubernetes import KubernetesSection
from healthd.config.schema.notify import MetricsSection, NotifySection
from healthd.config.schema.provisioner import ProvisionerSection
from healthd.config.schema.replay import ReplaySection
from healthd.config.schema.rule import PolicyRule
from healthd.core.model import Mode

KernelLogPath = Annotated[
    str, Meta(pattern=r"^(/[^\0]*|syslog)\Z", description='an absolute path such as /dev/kmsg, or "syslog"')
]
Count = Annotated[int, Meta(ge=1, le=1_000_000, description="a whole number of at least 1")]
Percent = Annotated[
    str,
    Meta(pattern=r"^(100|[0-9]{1,2}(\.[0-9]+)?)%\Z", description='a percentage such as "5%"'),
]
Few = Annotated[int, Meta(ge=1, le=100, description="a whole number from 1 to 100")]
Days = Annotated[float, Meta(gt=0, le=365, description="days, more than 0 and at most 365")]
Labels = Annotated[tuple[Label, ...], Meta(min_length=1, description='a list of labels such as "pool=train"')]
Patterns = Annotated[tuple[Glob, ...], Meta(min_length=1, description="a list of names or globs such as p5.*")]


@dataclass(frozen=True, kw_only=True)
class NodeSection:
    """Who this node is. Both are found out by healthd itself when left empty."""

    name: Name = ""
    """The node's name in its cluster, as the orchestrator writes it. Empty: the first label of the host's name (a hook
    without a daemon takes SLURMD_NODENAME). Set it where slurm.conf gives the node another NodeName."""

    instance_type: Name = ""
    """The EC2 instance type, such as ``p5.48xlarge``, which says what hardware must be there. Empty: found by itself
    (DMI, then the instance metadata service). Set it only for machines that cannot tell."""

    labels: tuple[Label, ...] = ()
    """What ``label`` of a ``[[match]]`` is compared with, such as ``["pool=train"]``. None by default: only whoever
    deploys healthd knows them. In Kubernetes, HEALTHD_NODE_LABELS may be filled from the downward API."""


@dataclass(frozen=True, kw_only=True)
class MatchSection:
    """When a ``[[match]]`` holds. Its sections then lie over those of all files, a later match over an earlier one.

    All conditions that are given must hold, of each one's list any; patterns are globs as a shell has them, case and
    all. ``[match.remediation]``, ``[match.checks."gpu.count"]`` and the like follow their ``[[match]]``; node, sources
    and daemon may not, because they are read first. Every match is checked for mistakes on every node, whether it holds
    there or not. What cannot be told is no match and a notice in every report. It is decided once, at the start.
    """

    host: Patterns = ()
    """The node's name in its cluster. Numbers in brackets are Slurm's hostlists: ``p5-[1-32,40]``, ``n[001-128]``.
    Empty: any."""

    label: Labels = ()
    """Labels of ``node.labels``, as ``key=value`` or with a glob in it (``pool=train*``). Empty: any."""

    instance_type: Patterns = ()
    """EC2 instance types, such as ``["p5.*", "p5e*"]``; ``ml.`` is stripped. Empty: any."""

    partition: Patterns = ()
    """Slurm partitions that the node is in: slurmctld is asked, when healthd starts, and only where a match that could
    hold needs it. A node that runs no Slurm is in none. Empty: any."""


@dataclass(frozen=True, kw_only=True)
class SourcesSection:
    """Where the machine is read. The defaults are the real machine; tests, drills and containers move them."""

    sys_root: AbsolutePath = "/sys"
    """Where sysfs is mounted. A container that mounts the host's elsewhere sets this."""

    proc_root: AbsolutePath = "/proc"
    """Where procfs is mounted. A container that mounts the host's elsewhere sets this."""

    dev_root: AbsolutePath = "/dev"
    """Where the device files are."""

    kmsg: KernelLogPath = "/dev/kmsg"
    """The kernel log: the device itself, or a FIFO or growing file whose lines have the device's record format.
    ``syslog``: by syslog(2), once a second, for a container without devices; CAP_SYSLOG is enough for it. The device is
    better where it can be had: it is followed as it grows."""

    nvml_library: MaybePath = ""
    """The NVIDIA management library to load. Empty: ``libnvidia-ml.so.1`` where the dynamic linker finds it, which is
    where the driver installs it."""

    all_reduce_perf: MaybePath = ""
    """nccl-tests' ``all_reduce_perf``, for active tests where healthd's extra ``nccl`` is not installed. Empty: PATH,
    ``/opt/nccl-tests/build``, and where AWS's images have it below ``/usr/local/cuda*``."""

    imds_endpoint: MaybeUrl = ""
    """The instance metadata service. Empty: ``http://169.254.169.254``, and only on machines whose DMI says Amazon
    EC2, so that nothing is ever sent to that address elsewhere. With another ``sys_root`` than ``/sys`` the DMI may be
    a simulated machine's or a recording's: then nobody is asked unless this names whom."""

    trust_user_kmsg: bool = False
    """Whether kernel-log records written from user space are believed, and labelled as such. Off, because any root
    process could then forge a fault; for tests and drills only."""


@dataclass(frozen=True, kw_only=True)
class SlurmSection:
    """How Slurm's own commands are reached."""

    conf: MaybePath = ""
    """The ``slurm.conf`` handed to Slurm's commands as SLURM_CONF. Empty: the variable as it stands, else Slurm's
    built-in search (``/etc/slurm``, configless)."""

    bin_dir: MaybePath = ""
    """The folder that holds ``scontrol`` and ``sinfo``. Empty: PATH, then the usual places, because hooks run without
    a PATH."""

    timeout_s: Seconds = 10.0
    """Deadline of one call, in seconds. A call past it is *unknown* and is read back. Slurm's own MessageTimeout is
    10 s by default, so a controller that will answer at all has answered by then."""

    unanswered_s: Seconds = 300.0
    """How long, in seconds, a claim, a drain or an undrain without an answer may still be applied by a slurmctld that
    slept. The node keeps its place in the budget for so long, although it is back or was never out, so that what comes
    late finds its case; and our drain that is gone meanwhile is made again, not taken for a person's order."""

    adopt_automatic_drains: bool = True
    """Whether repair mode repairs a node that Slurm drained by itself (``Kill task failed``, ``Epilog error``; all
    texts are in docs/reference/slurm-versions.md) and on which a fault calls for a repair. A verified repair then
    undoes Slurm's drain, if that stands as it was read. ``false``, and quarantine mode, leave such a node alone and
    page."""


@dataclass(frozen=True, kw_only=True)
class OrchestratorSection:
    """What takes the node out of service and puts it back."""

    kind: Literal["auto", "slurm", "kubernetes", "local"] = "auto"
    """Which orchestrator runs this node. ``auto`` is ``slurm`` where SLURM_CONF is set, a slurm.conf is in its usual
    place or a configless slurmd runs, and scontrol is there; else ``kubernetes`` in a pod with a ServiceAccount; else
    ``local``, which only writes down that the node is out. Slurm comes first: a slurmd may run in a pod."""

    slurm: SlurmSection = field(default_factory=SlurmSection)
    """Read where the kind is, or turns out to be, ``slurm``."""

    kubernetes: KubernetesSection = field(default_factory=KubernetesSection)
    """Read where the kind is, or turns out to be, ``kubernetes``."""


@dataclass(frozen=True, kw_only=True)
class RemediationSection:
    """How far healthd may go, and how patient it is."""

    mode: Mode = Mode.OBSERVE
    """``observe`` looks and says what it would do; ``quarantine`` takes a faulty node out and puts it back;
    ``repair`` also repairs it. Observe by default: installing healthd changes nothing until someone says so."""

    settle_s: Seconds = 30.0
    """How long a node must stay good, in seconds, before it is released. Long enough for two rounds of the quickest
    checks; a node that is let in and falls over again costs a job."""

    verify_timeout_s: Seconds = 600.0
    """How long a repaired node may take, in seconds, to pass its checks before the attempt counts as failed. Covers
    driver start and fabric manager on eight GPUs with a wide margin."""

    step_timeout_s: Seconds = 60.0
    """Deadline, in seconds, of the local provisioner's reboot command. It only has to ask for the reboot, not to see
    it through."""

    reboot_timeout_s: Seconds = 1_800.0
    """How long, in seconds, until a reboot that was asked for must show as a changed boot id. Half an hour: a large
    GPU instance is slow through its firmware, and giving up early would pay for a second reboot."""

    replace_timeout_s: Annotated[float, Meta(gt=0, le=604_800, description="seconds, at most 604800")] = 14_400.0
    """How long, in seconds, until a replacement that was asked for must show as another instance. Four hours: where
    capacity is short the platform keeps trying, and giving up early would pay for nothing."""

    overdue_s: Annotated[float, Meta(ge=60, le=604_800, description="seconds, from 60 to 604800")] = 14_400.0
    """How long, in seconds, healthd may hold a node out of service, or a case may stand still, before that pages; the
    page is told again each day that it lasts. Four hours: most repairs end within one. A wait with a bound of its own
    counts by that: a replacement by ``replace_timeout_s``, an operator's ``healthd quarantine`` by one day."""

    idle_patience_s: Annotated[float, Meta(ge=60, le=604_800, description="seconds, from 60 to 604800")] = 3_600.0
    """How long, in seconds, the jobs of a node may run on under a fault that only a reboot or a replacement ends, until
    that pages. One hour: such a job seldom makes progress, and it holds its other nodes as well."""

    undrain_holds_s: Annotated[float, Meta(ge=60, le=2_678_400, description="seconds, from 60 to 2678400")] = 86_400.0
    """How long, in seconds, an operator who undoes a drain of healthd's by hand thereby acknowledges a critical fault;
    after that the node is decided about again. One day: ``scontrol update nodename=ALL state=resume`` is a habit, and
    no word about one fault. ``healthd ack`` sets a time of its own."""

    gpu_reset: bool = True
    """Whether GPUs may be reset on this node, by a rule or by an order. Off where that cannot go well: in a container
    that sees neither the host's devices nor the processes that hold them."""

    reset_services: tuple[str, ...] = (
        "nvidia-persistenced",
        "nvidia-fabricmanager",
        "nvidia-imex",
        "nvidia-dcgm",
        "dcgm-exporter",
    )
    """The systemd units that hold GPUs open. Those that run are stopped before a GPU reset, the Fabric Manager last,
    and started again after it, in this order: with one holder left, no GPU can be reset. Add your own exporters: a
    holder that belongs to none of these units is found before anything is stopped."""

    max_attempts: Annotated[int, Meta(ge=1, le=10, description="a whole number from 1 to 10")] = 2
    """How often one act (a reset, a reboot, a replacement) is tried within one case, while the node is out, before the
    next remedy of its ladder: it was refused, did not show, or the fault was still there afterwards. Two: what two did
    not mend, a third seldom does. What a fault gets that comes back after a repair that worked is counted in
    ``policy.repairs_per_remedy``."""

    opt_out_file: MaybePath = "/etc/healthd/opt-out"
    """While this file exists, healthd only observes on this node, whatever the mode. Empty: no such file is looked
    for. A file, because a person on the node at night needs no configuration language."""

    opt_out_feature: Name = "healthd-opt-out"
    """While the node has this Slurm feature, available or active, healthd only observes on it. Empty: none does."""

    opt_out_label: str = "healthd.io/opt-out"
    """Where ``node.labels`` has this key with any value but ``false``, the same holds. In Kubernetes a label or an
    annotation of the Node does it as well, for its agent and for ``healthd controller``. Empty: none does."""


@dataclass(frozen=True, kw_only=True)
class ScopeBudget:
    """The budget of one partition or instance group."""

    name: Name
    """The name of the Slurm partition."""

    max_out: Count | Percent
    """The most of its nodes that may be out: a number, or a percentage of them, rounded down but at least 1."""


@dataclass(frozen=True, kw_only=True)
class BudgetSection:
    """How many nodes may be out at once."""

    max_out: Count | Percent = "5%"
    """The most nodes that may be out of service for any cause while healthd still takes one out: a number, or a
    percentage of the cluster's nodes, rounded down but at least 1. Five per cent: a fault that many nodes share, or a
    mistake of ours, then stops early; more is for people to allow. On Kubernetes the Lease of the budget says it for
    every node: ``healthd controller`` writes its own setting there, or Helm the value ``budget``."""

    settle_s: Seconds = 10.0
    """How long, in seconds, after a node took its place in the budget it looks again before it is drained: longer than
    a reading of the cluster may be old, which is the deadline of a call. The place itself keeps new jobs off from the
    first moment. A machine without a cluster does not wait."""

    replacements_per_hour: Count = 4
    """How many machines of the whole fleet may be replaced within an hour, as the marks at their nodes say. Another
    name counts once an hour and twice a day at most, so that one node does not use it up; a node counts all of its
    own. Four: an image that breaks every new machine then ends in a page, not in a loop through the fleet."""

    replacements_per_day: Count | Percent = "1%"
    """How many machines may be replaced within a day before a person has to look: a number, or a percentage of the
    cluster's nodes, rounded down but at least 4. Past it each replacement waits and pages; ``healthd repair --step
    replace`` on the node lets that one go on. One per cent: hardware that wears out needs less (Llama 3 met four
    failures of GPUs or their memory a day on 2,048 nodes), and what needs more is no wear."""

    scope: tuple[ScopeBudget, ...] = ()
    """Further budgets, each ``[[budget.scope]]`` with ``name`` and ``max_out``: a node of such a partition needs a
    place there as well as in the cluster's. None: the cluster's alone."""


@dataclass(frozen=True, kw_only=True)
class PolicySection:
    """What is done about which fault, and when a person is needed instead."""

    use: Literal["nvidia", "replace-first"] = "nvidia"
    """The shipped policy behind the site's own rules. ``nvidia`` follows NVIDIA's catalogue and the finding's own
    remedy: reset, then reboot, then replace. ``replace-first`` is what AWS publishes for clusters with spare capacity:
    memory errors and lost GPUs are answered by another machine. ``healthd policy show`` prints every rule. NVIDIA's by
    default: a replacement gives a machine away, and a new one may be long in coming."""

    rule: tuple[PolicyRule, ...] = ()
    """The site's own rules, each ``[[policy.rule]]`` with ``name``, ``codes``, ``reason`` and ``source``, and where
    wanted ``components``, ``instance_types``, ``together_with``, ``ladder`` and ``mode``. They come before the shipped
    ones; the first that matches decides. ``healthd policy test CODE`` says which."""

    relapse_days: Days = 7.0
    """Within how many days of a repair the same fault on the same component counts as having come back, so that the
    next remedy of its ladder is tried. A week: a fault that a reset only hides is back within days under training load,
    and a new one a month later deserves a reset again."""

    repairs_per_remedy: Few = 2
    """How many repairs by one remedy the same fault on the same component gets within ``relapse_days``, whatever the
    ladder says: cases after which the node was back and the fault came back too. Two: a third time has seldom helped.
    How often an act is tried within one case is ``remediation.max_attempts``, and counts as one here."""

    repairs_per_fault: Few = 4
    """The same over all remedies. After so many the node is kept out, and it pages. Four: the longest shipped ladder
    has three."""

    lemon_repairs: Few = 4
    """How many repairs of this node, for any fault, may fall within ``lemon_days``. What would be one more keeps the
    node out and pages: a node that comes back too often is a lemon. Four, so that the fifth pages, as NVSentinel has it
    (five remediations in seven days)."""

    lemon_days: Days = 7.0
    """The window of ``lemon_repairs``, in days."""

    same_fault_nodes: Annotated[int, Meta(ge=2, le=100_000, description="a whole number of at least 2")] = 4
    """On how many nodes, this one among them, the same finding within ``same_fault_minutes`` is no node's fault: then
    nothing is taken out for it, and it pages, until fewer show it or you order otherwise. A node that was repaired for
    it within the window counts; one that gets it within the day after is held with the others. Four: at the rate that
    Llama 3 met on 16,384 GPUs (an interruption of any kind every three hours), four in ten minutes are chance less than
    once in ten years."""

    same_fault_minutes: Annotated[float, Meta(gt=0, le=1_440, description="minutes, at most 1440")] = 10.0
    """The window of ``same_fault_nodes``, in minutes. Ten: a switch, a server or a rollout shows on every node within
    minutes, and checks run up to five minutes apart."""

    returns_per_day: Annotated[int, Meta(ge=1, le=8, description="a whole number from 1 to 8")] = 4
    """How often a node that was out for a finding may be let in again within a day, with a repair or without. Without
    one it must be healthy for twice as long each time (``remediation.settle_s`` at first); after so many it stays out
    until it is healthy for a day, and pages. What you let in by `healthd release` is not counted. Four: what comes and
    goes so often has a cause that is still unknown. At most eight: the record of a node has no room for more."""

    storm_nodes: Few = 8
    """On how many nodes the same finding within ``storm_hours`` is no node's own: then no node is rebooted or replaced
    for it, and it pages once for all. Whichever is more of this and ``storm_share``. Eight: a rollout that makes a
    good node look bad every few minutes is held before it has cost a machine."""

    storm_share: Percent = "2%"
    """The same as a share of the fleet. Two per cent: Llama 3 met failures of any kind on 0.4 % of its nodes a day, so
    that one finding on five times as many is no wear."""

    storm_hours: Annotated[float, Meta(gt=0, le=168, description="hours, at most 168")] = 24.0
    """The window of ``storm_nodes``, in hours. A node counts by when it got the finding, not for how long it is out.
    Once so many got it within the window, that holds until fewer of them are out for it. A day: rollouts go on for
    hours."""

    repairs_in_vain: Few = 5
    """After how many repairs of one finding in a row, on whichever nodes, that did not end it none is made any more,
    and it pages. Five: by then it is the cure that is wrong."""

    replacements_in_vain: Few = 2
    """From how many nodes on that had the finding again on another machine no machine is given away for it any more.
    Two: the second new machine with the same finding says that the machine was not the cause."""

    def __post_init__(self) -> None:
        """Refuse names that are given twice: a decision must tell which rule made it."""
        names = [rule.name for rule in self.rule]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            raise ValueError(f"policy.rule: two have the name {twice!r}; rename one")


@dataclass(frozen=True, kw_only=True)
class CheckSection:
    """What can be set for every check, beside the check's own settings in the same table."""

    enabled: bool = True
    """Whether the check runs. A disabled check has no outcome at all, so it makes no verdict worse."""

    interval_s: Seconds | None = None
    """How often the daemon runs it, in seconds. Left out: the check's own interval, chosen for what it costs."""

    timeout_s: Seconds | None = None
    """How long, in seconds, whoever asks for the verdict waits for a run of this check; past that it is unknown. The
    run itself ends by the deadlines of its questions. Left out: the check's own."""

    optional: bool = False
    """Whether an *unknown* of this check is left out of the node's verdict. Off: what cannot be told is not healthy."""


@dataclass(frozen=True, kw_only=True)
class CheckConfig(CheckSection):
    """One ``[checks."<name>"]`` table: the common part, and ``settings``, an instance of the check's own class."""

    settings: Any
    """An instance of the settings class that the check declares."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything, with every check that exists present in ``checks``."""

    node: NodeSection = field(default_factory=NodeSection)
    """Who this node is."""

    sources: SourcesSection = field(default_factory=SourcesSection)
    """Where the machine is read."""

    orchestrator: OrchestratorSection = field(default_factory=OrchestratorSection)
    """What takes the node out of service and puts it back."""

    provisioner: ProvisionerSection = field(default_factory=ProvisionerSection)
    """What reboots or replaces the machine behind the node."""

    remediation: RemediationSection = field(default_factory=RemediationSection)
    """How far healthd may go, and how patient it is."""

    policy: PolicySection = field(default_factory=PolicySection)
    """What is done about which fault, and when a person is needed instead."""

    budget: BudgetSection = field(default_factory=BudgetSection)
    """How many nodes may be out at once."""

    evidence: EvidenceSection = field(default_factory=EvidenceSection)
    """What is saved before a repair."""

    replay: ReplaySection = field(default_factory=ReplaySection)
    """What ``healthd replay FILES`` assumes of what no log tells."""

    daemon: DaemonSection = field(default_factory=DaemonSection)
    """The daemon itself."""

    metrics: MetricsSection = field(default_factory=MetricsSection)
    """Metrics as a file."""

    notify: NotifySection = field(default_factory=NotifySection)
    """Who is told what is wrong."""

    controller: ControllerSection = field(default_factory=ControllerSection)
    """``healthd controller`` on the head node."""

    checks: Mapping[str, CheckConfig] = field(default_factory=dict)
    """One table per check, ``[checks."gpu.ecc"]``: the common keys and the check's own."""
