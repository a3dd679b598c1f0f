"""Every setting of healthd: one frozen struct per section, one docstring under every field.

The reference page, ``config show`` and the loader are all made from this file. A docstring gives the unit, what the
empty value means, and why this default. Nothing here reads a file, the environment or the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from healthd.config.schema.controller import ControllerSection
from healthd.config.schema.daemon import DaemonSection
from healthd.config.schema.evidence import EvidenceSection
from healthd.config.schema.kubernetes import KubernetesSection
from healthd.config.schema.ledger import LedgerSection
from healthd.config.schema.notify import MetricsSection, NotifySection
from healthd.config.schema.provisioner import ProvisionerSection
from healthd.config.schema.replay import ReplaySection
from healthd.config.schema.rule import OnJobText, PolicyRule
from healthd.config.value_types import Label, MaybeLabelKey, MaybePath, MaybeUrl, Name, SomeName
from healthd.core.model import CLUSTER, Mode
from healthd.core.setting_types import AbsolutePath, Seconds

KernelLogPath = Annotated[
    str, Meta(pattern=r"^(/[^\0]*|syslog)\Z", description='an absolute path such as /dev/kmsg, or "syslog"')
]
Count = Annotated[int, Meta(ge=1, le=1_000_000, description="a whole number of at least 1")]
MaybeCount = Annotated[int, Meta(ge=0, le=1_000_000, description="a whole number of at least 0")]
Percent = Annotated[str, Meta(pattern=r"^(100|[0-9]{1,2}(\.[0-9]+)?)%\Z", description='a percentage such as "5%"')]
SomePercent = Annotated[
    str,
    Meta(
        pattern=r"^(100|(0?[1-9]|[1-9][0-9])(\.[0-9]+)?|00?\.[0-9]*[1-9][0-9]*)%\Z",
        description='a percentage such as "5%", not 0',
    ),
]
Heartbeat = Annotated[float, Meta(ge=60, le=86_400, description="seconds, from 60 to 86400")]
Few = Annotated[int, Meta(ge=1, le=100, description="a whole number from 1 to 100")]
WithoutAnswer = Annotated[
    str,
    Meta(pattern=r"^(ask|go|go after [1-9][0-9]{0,3}[mhdw])\Z", description='"ask", "go", or a time: "go after 10m"'),
]
MaybeTime = Annotated[
    str,
    Meta(
        pattern=r"^([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2})?(Z|[+-][0-9]{2}:[0-9]{2}))?\Z",
        description="a time with its offset, such as 2026-12-20T18:00:00Z",
    ),
]
Days = Annotated[float, Meta(gt=0, le=365, description="days, more than 0 and at most 365")]
Labels = Annotated[tuple[Label, ...], Meta(min_length=1, description='a list of labels such as "pool=train"')]
Pattern = Annotated[str, Meta(pattern=r"^([^,\[]|\[[^\]]*\])+\Z")]
Patterns = Annotated[
    tuple[Pattern, ...],
    Meta(min_length=1, description="a list of names or globs such as p5.*, an element for each, none with a comma"),
]


class NodeSection(Struct, frozen=True, kw_only=True):
    """The identity of this node. healthd finds the name and the type itself where they are empty."""

    name: Name = ""
    """The node's name in its cluster, as the orchestrator writes it. Empty: the first label of the host's name (a hook
    without a daemon takes SLURMD_NODENAME). Set it where slurm.conf gives the node another NodeName."""

    instance_type: Name = ""
    """The EC2 instance type, such as ``p5.48xlarge``, which determines the expected hardware. Empty: healthd reads it
    (DMI, then the instance metadata service). Set it only for machines that do not report it."""

    labels: tuple[Label, ...] = ()
    """The labels that ``label`` of a ``[[match]]`` is compared with, such as ``["pool=train"]``. None by default: only
    the administrator knows them. In Kubernetes, HEALTHD_NODE_LABELS may be filled from the downward API."""


class MatchSection(Struct, frozen=True, kw_only=True):
    """When a ``[[match]]`` holds. Its sections then lie over those of all files, a later match over an earlier one.

    Each given condition must hold; one element of its list is enough. Patterns are shell globs and case-sensitive.
    ``[match.remediation]``, ``[match.checks."gpu.count"]`` and the like follow their ``[[match]]``; node, sources and
    daemon may not, because they are read first. Every node checks every match for mistakes, whether it holds there or
    not. A condition that cannot be decided does not hold, and every report has a notice; but where the match has a
    lower mode, the daemon is in that mode. A match is decided once, at the start; where slurmctld did not answer then,
    the daemon asks again every five minutes, and starts again once it does.

    Beside these a match may have conditions on the job that is on the node now, all on the same job. It then holds only
    ``[match.remediation] mode``, which is decided again at each decision, by Slurm. Where the job is not known, the
    lowest of the modes that are possible applies.
    """

    host: Patterns = ()
    """The node's name in its cluster. Numbers in brackets are Slurm's hostlists: ``p5-[1-32,40]``, ``n[001-128]``.
    Empty: any."""

    label: Labels = ()
    """Labels of ``node.labels``, as ``key=value``, with or without a glob (``pool=train*``). Empty: any."""

    instance_type: Patterns = ()
    """EC2 instance types, such as ``["p5.*", "p5e*"]``; ``ml.`` is stripped. Empty: any."""

    partition: Patterns = ()
    """Slurm partitions of the node. healthd asks slurmctld at its start, and only if a match that could hold needs it.
    A node without Slurm is in none. Empty: any."""

    job_partition: Patterns = ()
    """Slurm partitions of the job that is on the node. Empty: any."""

    job_qos: Patterns = ()
    """Its QOS. Empty: any."""

    job_account: Patterns = ()
    """Its account. Empty: any."""

    job_nodes: Annotated[int, Meta(ge=0, le=1_000_000, description="a whole number of at least 1; 0 for any")] = 0
    """The number of its nodes, or more: the size of the job. 0: any."""


class SourcesSection(Struct, frozen=True, kw_only=True):
    """The paths and addresses that healthd reads. The defaults are the real machine; tests, drills and containers
    change them."""

    sys_root: AbsolutePath = "/sys"
    """Where sysfs is mounted. A container that mounts the host's elsewhere sets this."""

    proc_root: AbsolutePath = "/proc"
    """Where procfs is mounted. A container that mounts the host's elsewhere sets this."""

    dev_root: AbsolutePath = "/dev"
    """Where the device files are."""

    kmsg: KernelLogPath = "/dev/kmsg"
    """The kernel log: the device itself, or a FIFO or growing file whose lines have the device's record format.
    ``syslog``: polls syslog(2) once a second, for a container without devices; it needs CAP_SYSLOG only. Prefer the
    device: healthd reads each line as it arrives."""

    nvml_library: MaybePath = ""
    """The NVIDIA management library to load. Empty: ``libnvidia-ml.so.1`` where the dynamic linker finds it, which is
    where the driver installs it."""

    all_reduce_perf: MaybePath = ""
    """nccl-tests' ``all_reduce_perf``, for active tests where healthd's extra ``nccl`` is not installed. Empty: PATH,
    ``/opt/nccl-tests/build``, and where AWS's images have it below ``/usr/local/cuda*``."""

    imds_endpoint: MaybeUrl = ""
    """The instance metadata service. Empty: ``http://169.254.169.254``, and only on machines whose DMI names Amazon
    EC2, so that healthd sends nothing to that address elsewhere. With another ``sys_root`` than ``/sys`` the DMI may be
    simulated or recorded: healthd then asks a metadata service only if this setting names one."""

    trust_user_kmsg: bool = False
    """Whether healthd trusts kernel-log records from user space, and labels them as such. Off, because any root process
    could then forge a fault; for tests and drills only."""


class SlurmSection(Struct, frozen=True, kw_only=True):
    """Access to Slurm's own commands."""

    conf: MaybePath = ""
    """The ``slurm.conf`` that Slurm's commands get as SLURM_CONF. Empty: the variable of healthd's own environment,
    else Slurm's built-in search (``/etc/slurm``, configless)."""

    bin_dir: MaybePath = ""
    """The folder that holds ``scontrol`` and ``sinfo``. Empty: PATH, then the usual places, because hooks run without
    a PATH, then the ``bin`` beside the slurmd that runs, as AWS PCS has it."""

    timeout_s: Seconds = 10.0
    """Deadline of one call, in seconds. A call past it is *unknown* and is read back. Slurm's own MessageTimeout is
    10 s by default, so a controller that will answer at all has answered by then."""

    report: bool = True
    """Whether the daemon leaves a summary of this node with slurmctld, as the node's ``Extra``: at most 200 bytes, for
    ``healthd fleet``. It changes no state and no job. An ``Extra`` that is not healthd's stays as it is."""

    heartbeat_s: Heartbeat = 600.0
    """How often, in seconds, a summary that has not changed is written again. A node whose summary is older than two
    and a half heartbeats is *silent*. In a fleet of more than 1,800 nodes set a third of their number, 3300 for
    10,000: all heartbeats together then cost slurmctld less than 1 % of a core (bench/README.md)."""

    unanswered_s: Seconds = 300.0
    """How long, in seconds, a slurmctld that hung may still apply a reservation, drain or undrain that it did not
    answer. For so long the node keeps its budget slot, even if it is back or was never out, so that a late drain finds
    its remediation. If healthd's drain is gone meanwhile, healthd drains again and assumes no operator's command."""

    blame_in_epilog: bool = True
    """Whether the Epilog tells slurmctld that this node is to blame for a job that failed (exit 1), so that Slurm 25.11
    and newer runs a job with ``--requeue=expedite`` again at once, and else holds it as its own fault. Only where
    ``SlurmctldParameters`` has ``enable_expedited_requeue``, outside observe mode, for a critical fault of the hardware
    that came while the job ran, and behind healthd's own drain. Everywhere else the Epilog exits 0."""

    nccl_log: Annotated[str, Meta(pattern=r"^(/.*%j.*)?\Z", description='an absolute path with %j, or ""')] = ""
    """Where jobs write NCCL's messages, with ``%j`` for the number of the job, such as ``/fsx/logs/%j/nccl.*``; ``*``
    and ``?`` stand for file names. ``healthd job 4711 --compare`` reads the watchdog's timeouts and the names of the
    flight recorder's dumps in the last MiB of each file, 64 MiB of a job at most and within 20 s, with the rights of
    its caller. Empty: no log is read."""

    max_blamed_per_hour: Count = 4
    """The most nodes of the whole fleet that may be blamed within an hour; beyond that Epilogs exit 0, and the audit
    trail says so. healthd counts the nodes that it drained or repaired within the hour, earlier than this one. Four: a
    large fleet loses one or two nodes an hour, and many at once have a cause that no requeue helps."""

    adopt_automatic_drains: bool = True
    """Whether repair mode repairs a node that Slurm drained by itself (``Kill task failed``, ``Epilog error``; all
    texts are in docs/reference/slurm-versions.md) and on which a fault calls for a repair. After a verified repair
    healthd undoes Slurm's drain, if that has not changed. ``false``, and quarantine mode, leave such a node alone and
    page."""


class OrchestratorSection(Struct, frozen=True, kw_only=True):
    """The orchestrator, which takes the node out of service and puts it back."""

    kind: Literal["auto", "slurm", "kubernetes", "local"] = "auto"
    """The orchestrator of this node. ``auto`` is ``slurm`` where SLURM_CONF is set, a slurm.conf is in its usual place
    or a configless slurmd runs, and scontrol is installed; else ``kubernetes`` in a pod with a ServiceAccount; else
    ``local``, which only records that the node is out. Slurm comes first: a slurmd may run in a pod."""

    slurm: SlurmSection = field(default_factory=SlurmSection)
    """Settings of the kind ``slurm``, also by ``auto``."""

    kubernetes: KubernetesSection = field(default_factory=KubernetesSection)
    """Settings of the kind ``kubernetes``, also by ``auto``."""


class ApproveSection(Struct, frozen=True, kw_only=True):
    """The end of each wait for an approval in the mode ``approve``, if you do not answer.

    ``ask``: the act waits for ``healthd approve``, for as long as it takes. ``go after 10m``: it goes ahead by itself
    after that time (``m``, ``h``, ``d`` or ``w``). ``go``: it needs no approval.
    """

    reset_gpu: WithoutAnswer = "ask"
    """The reset of the node's GPUs. Ask by default, as for all three: only you decide which act may go ahead unseen."""

    reboot_node: WithoutAnswer = "ask"
    """The reboot of the node."""

    replace_node: WithoutAnswer = "ask"
    """The replacement of the machine. It gives a machine away, and a new one may take long."""


class FreezeWindow(Struct, frozen=True, kw_only=True):
    """One window in which healthd begins less: from ``start`` to ``end``, or for ``hours`` from each time of ``cron``.

    ``[[match.remediation.freeze]]`` below a ``[[match]]`` holds on some nodes or partitions only.
    """

    reason: Annotated[str, Meta(pattern=r"\S", max_length=200, description="a text that is not empty")]
    """The reason, for the operator who asks why nothing happens."""

    start: MaybeTime = ""
    """The begin, with its offset, such as ``2026-12-20T18:00:00Z``. Empty: by ``cron``."""

    end: MaybeTime = ""
    """The end, like ``start``."""

    cron: str = ""
    """The begin of each window as five fields of cron, such as ``0 18 * * fri``; days of the week by name. Empty: by
    ``start``."""

    hours: Annotated[float, Meta(ge=0, le=744, description="hours, at most 744")] = 0.0
    """How long each window of ``cron`` lasts, in hours."""

    timezone: str = "UTC"
    """The time zone of ``cron``, such as ``Europe/Berlin``."""

    allow: tuple[Literal["drain", "reset_gpu", "reboot_node", "replace_node"], ...] = ("drain",)
    """The steps that healthd may still begin. ``drain``, the default: a faulty node is taken out, and not repaired
    before the end. It always puts nodes back."""

    def __post_init__(self) -> None:
        """Refuse a window without a begin or an end, and a cron expression that is none."""
        if self.cron:
            if self.start or self.end or not self.hours:
                raise ValueError("freeze: cron goes with hours, and without start and end")
            self._check_cron()
            return
        try:
            times = [datetime.fromisoformat(each) for each in (self.start, self.end) if each]
        except ValueError as error:
            raise ValueError(f"freeze: start {self.start!r}, end {self.end!r}: {error}") from error
        if self.hours or len(times) < 2 or times[0] >= times[1]:
            raise ValueError("freeze: give start and a later end, or cron and hours")

    def _check_cron(self) -> None:
        """APScheduler counts days of the week from Monday, cron from Sunday: so only by name."""
        from apscheduler.triggers.cron import CronTrigger  # no configuration without a cron needs it

        fields = self.cron.split()
        if len(fields) == 5 and any(character.isdigit() for character in fields[4].partition("#")[0]):
            raise ValueError(f"freeze: cron {self.cron!r}: expected days of the week by name, such as fri or mon-wed")
        try:
            CronTrigger.from_crontab(self.cron, timezone=self.timezone)
        except (ValueError, LookupError) as error:
            raise ValueError(f"freeze: cron {self.cron!r} in {self.timezone!r}: {error}") from error


class RemediationSection(Struct, frozen=True, kw_only=True):
    """The mode, and the timeouts of remediations."""

    mode: Mode = Mode.OBSERVE
    """``observe`` reports what healthd would do; ``quarantine`` takes a faulty node out and puts it back; ``approve``
    also prepares its repair, and waits for ``healthd approve`` before a reset, reboot or replacement; ``repair``
    repairs it. Observe by default: installing healthd changes nothing until you set another mode."""

    approve: ApproveSection = field(default_factory=ApproveSection)
    """The end of each wait for an approval in the mode ``approve``, if you do not answer."""

    freeze: tuple[FreezeWindow, ...] = ()
    """Windows in which healthd begins less, each ``[[remediation.freeze]]`` with ``reason`` and its times. ``healthd
    freeze`` freezes the whole cluster at once. None by default."""

    settle_s: Seconds = 30.0
    """How long a node must stay healthy, in seconds, before its release. Thirty: two runs of the quickest checks. A
    node that fails again right after its release costs a job."""

    verify_timeout_s: Seconds = 600.0
    """How long a repaired node may take, in seconds, to pass its checks before the attempt counts as failed. Ten
    minutes cover the start of driver and Fabric Manager on eight GPUs with a wide margin."""

    active_tests: bool = True
    """Whether a node that was repaired runs the active tests (``nccl.nvlink``, ``nccl.loopback``, ``gdrcopy.copy``)
    before it returns. One with a finding stays out, and pages. A test that cannot run, for its library is not installed
    or the GPUs are in use, keeps no node out."""

    step_timeout_s: Seconds = 60.0
    """Deadline, in seconds, of the local provisioner's reboot command. The command only requests the reboot and does
    not wait for it."""

    reboot_timeout_s: Seconds = 1_800.0
    """How long, in seconds, until a requested reboot must show as a changed boot id. Half an hour: the firmware of a
    large GPU instance is slow, and giving up early would cause a second reboot."""

    replace_timeout_s: Annotated[float, Meta(gt=0, le=604_800, description="seconds, at most 604800")] = 14_400.0
    """How long, in seconds, until a requested replacement must show as another instance. Four hours: if capacity is
    short the platform keeps trying, and giving up early would gain nothing."""

    overdue_s: Annotated[float, Meta(ge=60, le=604_800, description="seconds, from 60 to 604800")] = 14_400.0
    """How long, in seconds, healthd may keep a node out of service, or a remediation may make no progress, before it
    pages. The page repeats each day. Four hours: most repairs end within one. A wait with a bound of its own counts by
    that: a replacement by ``replace_timeout_s``, an operator's ``healthd quarantine`` by one day."""

    wait_idle_timeout_s: Annotated[float, Meta(ge=60, le=604_800, description="seconds, from 60 to 604800")] = 3_600.0
    """How long, in seconds, jobs may run on a node with a fault that only a reboot or a replacement ends, before
    healthd pages. One hour: such a job rarely makes progress, and it holds its other nodes as well."""

    undrain_holds_s: Annotated[float, Meta(ge=60, le=2_678_400, description="seconds, from 60 to 2678400")] = 86_400.0
    """How long, in seconds, an operator who undoes healthd's drain by hand thereby acknowledges a critical fault. After
    that healthd decides about the fault again. One day: ``scontrol update nodename=ALL state=resume`` is a habit, and
    says nothing about one fault. ``healthd ack`` sets a time of its own."""

    gpu_reset: bool = True
    """Whether GPUs may be reset on this node, by a rule or by a command. Set it off where a reset cannot work: in a
    container that sees neither the host's devices nor the processes that hold them."""

    reset_services: tuple[str, ...] = (
        "nvidia-persistenced",
        "nvidia-fabricmanager",
        "nvidia-imex",
        "nvidia-dcgm",
        "dcgm-exporter",
    )
    """The systemd units that hold GPUs open. healthd stops the running ones before a GPU reset, the Fabric Manager
    last, and starts them again after it, in this order: with one holder left, no GPU can be reset. Add your own
    exporters: if a holder belongs to none of these units, healthd finds it before it stops anything."""

    max_attempts: Annotated[int, Meta(ge=1, le=10, description="a whole number from 1 to 10")] = 2
    """How often healthd tries one act (a reset, a reboot, a replacement) within one remediation before the next remedy
    of its ladder. An attempt fails if it is refused, has no effect, or leaves the fault open. Two: a third attempt
    rarely helps. ``policy.repairs_per_remedy`` counts repairs that worked and whose fault came back."""

    opt_out_file: MaybePath = "/etc/healthd/opt-out"
    """While this file exists, healthd only observes on this node, whatever the mode. Empty: no such file. A file,
    because an operator on the node at night needs no configuration language."""

    opt_out_feature: Name = "healthd-opt-out"
    """While the node has this Slurm feature, available or active, healthd only observes on it. Empty: none does."""

    opt_out_label: MaybeLabelKey = "healthd.io/opt-out"
    """While ``node.labels`` has this key with any value but ``false``, healthd only observes on the node. In Kubernetes
    a label or an annotation of the Node does it as well, for its agent and for ``healthd controller``. Empty: none
    does."""


class ScopeBudget(Struct, frozen=True, kw_only=True):
    """The budget of one partition or instance group."""

    name: SomeName
    """The name of the Slurm partition. Not ``cluster``: that is the whole fleet's, ``budget.max_out``."""

    max_out: Count | SomePercent
    """The most of its nodes that may be out: a number, or a percentage of them, rounded down but at least 1."""


class BudgetSection(Struct, frozen=True, kw_only=True):
    """How many nodes may be out at once."""

    max_out: Count | SomePercent = "5%"
    """The most nodes that may be out of service for any cause while healthd still takes one out: a number, or a
    percentage of the cluster's nodes, rounded down but at least 1. Five per cent: a fault that many nodes share, or a
    mistake of healthd's, then stops early; you may allow more. On Kubernetes the Lease of the budget holds the limit
    for every node: ``healthd controller`` writes its own setting there, or Helm the value ``budget``."""

    settle_s: Seconds = 10.0
    """The wait, in seconds, between a node's budget slot and its drain, after which the node reads the cluster again.
    It must exceed the age of a cluster reading, which is the deadline of a call. The slot itself keeps new jobs off
    from the first moment. A machine without a cluster does not wait."""

    replacements_per_hour: Count = 4
    """The most machines of the whole fleet that may be replaced within an hour, by the handoff records of the nodes. A
    node counts all of its own replacements, and those of each other node once an hour and twice a day at most, so that
    one node does not use up the limit. Four: an image that breaks every new machine then ends in a page, not in a loop
    through the fleet."""

    replacements_per_day: Count | SomePercent = "1%"
    """The most machines that may be replaced within a day: a number, or a percentage of the cluster's nodes, rounded
    down but at least 4. Beyond it each replacement waits and pages; ``healthd repair --step replace`` on the node
    allows that one. One per cent: wear needs less (Llama 3 met four failures of GPUs or their memory a day on 2,048
    nodes), so that more has another cause, which an operator must find."""

    max_domains_out: MaybeCount = 1
    """The most NVLink domains (UltraServers) that ``healthd controller`` keeps new jobs off as a whole, for an incident
    of their own hardware. Their nodes do not count against ``max_out``. Not in observe mode; 0: none. One: an
    UltraServer is 9 or 18 nodes, and several that break together have a cause that an operator must find."""

    scope: tuple[ScopeBudget, ...] = ()
    """Further budgets, each ``[[budget.scope]]`` with ``name`` and ``max_out``: a node of such a partition needs a slot
    there as well as in the cluster's. None: the cluster's alone."""

    def __post_init__(self) -> None:
        """Refuse two limits for one scope."""
        names = [scope.name for scope in self.scope]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            raise ValueError(f"budget.scope: two have the name {twice!r}; keep one")
        if CLUSTER in names:
            raise ValueError(f"budget.scope: the name {CLUSTER!r} is the whole fleet's; set budget.max_out")

    @property
    def quotas(self) -> Mapping[str, int | str]:
        """The most nodes that may be out, by scope; the whole fleet's comes first."""
        return {CLUSTER: self.max_out, **{scope.name: scope.max_out for scope in self.scope}}


class PolicySection(Struct, frozen=True, kw_only=True):
    """The rules for each fault, and the limits beyond which healthd pages instead."""

    use: Literal["nvidia", "replace-first"] = "nvidia"
    """The shipped policy behind the site's own rules. ``nvidia`` follows NVIDIA's catalogue and the finding's own
    remedy: reset, then reboot, then replace. ``replace-first`` is AWS's advice for clusters with spare capacity: it
    replaces the machine for memory errors and lost GPUs. ``healthd policy show`` prints every rule. NVIDIA's by
    default: a replacement gives a machine away, and a new one may take long."""

    rule: tuple[PolicyRule, ...] = ()
    """The site's own rules, each ``[[policy.rule]]`` with ``name``, ``codes``, ``reason`` and ``source``, and
    optionally ``components``, ``instance_types``, ``together_with``, ``ladder`` and ``mode``. They come before the
    shipped ones; the first that matches decides. ``healthd policy test CODE`` shows which."""

    on_job: OnJobText = "wait"
    """The act on a Slurm job that cannot go on, where its rule has no ``on_job``: after an XID whose row says that the
    process is dead (79, 95, 119, 120; 48 unless contained) the other nodes of the job wait for nothing.
    ``requeue after 5m``: once the node is drained, healthd requeues the job after that time (``s``, ``m`` or ``h``), or
    at once where it has failed by then. ``signal:USR1 then requeue after 60s``: it sends this signal first, as ``sbatch
    --signal`` does (``B:USR1`` to the batch script alone); a job that does not handle the signal ends by it. A job that
    forbids requeue, that is no batch job, that shares the node, or that ends or is requeued by itself is left alone.
    ``wait``, the default: healthd acts on no job."""

    notify_owner: bool = True
    """Whether the owner of a Slurm job gets notices, where no rule of the fault says otherwise: when healthd drains a
    node under the job, and at the end of a job that failed (``notify.owner_command``). In observe mode only the
    latter."""

    relapse_days: Days = 7.0
    """The days after a repair within which the same fault on the same component counts as a return, so that healthd
    tries the next remedy of its ladder. A week: a fault that a reset only hides is back within days under training
    load, and a new one a month later deserves a reset again."""

    repairs_per_remedy: Few = 2
    """The most repairs by one remedy of the same fault on the same component within ``relapse_days``, whatever the
    ladder says: remediations after which the node was back in service and the fault came back. Two: a third rarely
    helps. The attempts within one remediation (``remediation.max_attempts``) count as one."""

    repairs_per_fault: Few = 4
    """The same limit over all remedies. Beyond it healthd keeps the node out and pages. Four: the longest shipped
    ladder has three."""

    lemon_repairs: Few = 4
    """The most repairs of this node, for any fault, within ``lemon_days``. Instead of a further repair healthd keeps
    the node out and pages: a node that fails too often is a lemon. Four, so that the fifth pages, as in NVSentinel
    (five remediations in seven days)."""

    lemon_days: Days = 7.0
    """The window of ``lemon_repairs``, in days."""

    same_fault_nodes: Annotated[int, Meta(ge=2, le=100_000, description="a whole number of at least 2")] = 4
    """The number of nodes, this one among them, from which the same finding within ``same_fault_minutes`` has a common
    cause. healthd then takes no node out for it and pages, until fewer nodes have it or you command otherwise. A node
    that was repaired for it within the window counts; one that gets it within the day after is held with the others.
    Four: at the rate of Llama 3 on 16,384 GPUs (an interruption of any kind every three hours), four in ten minutes are
    chance less than once in ten years."""

    same_fault_minutes: Annotated[float, Meta(gt=0, le=1_440, description="minutes, at most 1440")] = 10.0
    """The window of ``same_fault_nodes``, in minutes. Ten: the fault of a switch, server or rollout shows on every node
    within minutes, and checks run up to five minutes apart."""

    returns_per_day: Annotated[int, Meta(ge=1, le=8, description="a whole number from 1 to 8")] = 4
    """The most returns of a node that was out for a finding within a day, with a repair or without. Without a repair
    the node must be healthy for twice as long each time (``remediation.settle_s`` at first); beyond the limit it stays
    out until it is healthy for a day, and pages. Your own `healthd release` does not count. Four: a fault that comes
    and goes so often has an unknown cause. At most eight: the record of a node has no room for more."""

    storm_nodes: Few = 8
    """The number of nodes from which the same finding within ``storm_hours`` has a common cause: healthd then reboots
    and replaces no node for it, and pages once for all. The larger of this and ``storm_share`` counts. Eight: a rollout
    that makes a good node look bad every few minutes is held before it has cost a machine."""

    storm_share: Percent = "2%"
    """The same as a share of the fleet. Two per cent: Llama 3 met failures of any kind on 0.4 % of its nodes a day, so
    that one finding on five times as many is no wear."""

    storm_hours: Annotated[float, Meta(gt=0, le=168, description="hours, at most 168")] = 24.0
    """The window of ``storm_nodes``, in hours. A node counts by the time of its finding, not by how long it is out.
    Once so many nodes got it within the window, healthd holds back until fewer of them are out for it. A day: rollouts
    take hours."""

    repairs_in_vain: Few = 5
    """The number of consecutive repairs of one finding, on any nodes, that did not end it. From then on healthd makes
    no further one, and pages. Five: by then the remedy is wrong."""

    repairs_judged: Annotated[int, Meta(ge=0, le=100, description="a whole number from 0 to 100")] = 20
    """The number of the fleet's last repairs within ``relapse_days``, of whatever fault, of which at least half must
    have worked. Otherwise healthd falls back to quarantine by itself: it takes faulty nodes out, repairs none, and
    pages. Your own `healthd repair` goes on, and counts. 0: never. Twenty: of fewer, half is chance."""

    canary_repairs: Annotated[int, Meta(ge=0, le=8, description="a whole number from 0 to 8")] = 3
    """The number of repairs that must have worked in the fleet after a change of healthd, of its policy or of the
    driver, before healthd repairs without an approval: until then each repair waits for ``healthd approve``, also in
    mode ``repair``. 0: none waits. Three: a policy or a driver that breaks every node then meets an operator three
    times, not the whole fleet. At most eight: the record of a node has no room for more, and a fleet may be one
    node."""

    replacements_in_vain: Few = 2
    """The number of nodes that had the finding again on their new machine. From then on healthd replaces no machine for
    it. Two: the second new machine with the same finding shows that the machine was not the cause."""

    def __post_init__(self) -> None:
        """Refuse names that are given twice: a decision must name the one rule behind it."""
        names = [rule.name for rule in self.rule]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            raise ValueError(f"policy.rule: two have the name {twice!r}; rename one")


class CheckSection(Struct, frozen=True, kw_only=True):
    """The settings that every check has, beside the check's own in the same table."""

    enabled: bool = True
    """Whether the check runs. A disabled check has no outcome, so it makes no verdict worse."""

    interval_s: Seconds | None = None
    """How often the daemon runs it, in seconds. Left out: the check's own interval, chosen for what it costs."""

    timeout_s: Seconds | None = None
    """How long, in seconds, a request for the verdict waits for a run of this check; after that the check is unknown.
    The run itself ends by the deadlines of its sources. Left out: the check's own."""

    optional: bool = False
    """Whether the node's verdict ignores an *unknown* of this check. Off: unknown is not healthy."""


class CheckConfig(CheckSection, frozen=True, kw_only=True):
    """One ``[checks."<name>"]`` table: the common part, and ``settings``, an instance of the check's own class."""

    settings: Any
    """An instance of the settings class that the check declares."""


class Config(Struct, frozen=True, kw_only=True):
    """Everything, with every check that exists present in ``checks``."""

    node: NodeSection = field(default_factory=NodeSection)
    """The identity of this node."""

    sources: SourcesSection = field(default_factory=SourcesSection)
    """The paths and addresses that healthd reads."""

    orchestrator: OrchestratorSection = field(default_factory=OrchestratorSection)
    """The orchestrator, which takes the node out of service and puts it back."""

    provisioner: ProvisionerSection = field(default_factory=ProvisionerSection)
    """The provisioner, which reboots or replaces the machine of the node."""

    remediation: RemediationSection = field(default_factory=RemediationSection)
    """The mode, and the timeouts of remediations."""

    policy: PolicySection = field(default_factory=PolicySection)
    """The rules for each fault, and the limits beyond which healthd pages instead."""

    budget: BudgetSection = field(default_factory=BudgetSection)
    """How many nodes may be out at once."""

    evidence: EvidenceSection = field(default_factory=EvidenceSection)
    """The evidence that is saved before a repair."""

    replay: ReplaySection = field(default_factory=ReplaySection)
    """The durations that ``healthd replay FILES`` assumes, because no log has them."""

    daemon: DaemonSection = field(default_factory=DaemonSection)
    """The daemon itself."""

    metrics: MetricsSection = field(default_factory=MetricsSection)
    """Metrics as a file."""

    notify: NotifySection = field(default_factory=NotifySection)
    """The receivers of messages."""

    controller: ControllerSection = field(default_factory=ControllerSection)
    """``healthd controller`` on the head node."""

    ledger: LedgerSection = field(default_factory=LedgerSection)
    """The memory of the fleet, which the controller keeps."""

    checks: Mapping[str, CheckConfig] = field(default_factory=dict)
    """One table per check, ``[checks."gpu.ecc"]``: the common keys and the check's own."""
