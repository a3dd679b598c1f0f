"""The settings of ``healthd controller``: ``[controller]``.

As ``schema``: a docstring under every field, and nothing here reads a file or the machine.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from healthd.config.schema.daemon import MaybeAddress
from healthd.config.value_types import Glob, Label, Name, NodeUrl, SomeName
from healthd.core.setting_types import AbsolutePath, Seconds

Interval = Annotated[float, Meta(ge=0.2, le=120, description="seconds, from 0.2 to 120")]
LabelKey = Annotated[str, Meta(pattern=r"^[^=,\s]+\Z", description="the key of a label")]
LabelGlob = Annotated[Label, Meta(description="key=value, the value a glob")]
SyncTimeout = Annotated[float, Meta(ge=5, le=86_400, description="seconds, from 5 to 86400")]
SilenceTimeout = Annotated[float, Meta(ge=1, le=86_400, description="seconds, from 1 to 86400")]
CompareEvery = Annotated[float, Meta(ge=0, le=86_400, description="seconds, at most 86400; 0 for never")]
After = Annotated[float, Meta(ge=0, le=2_592_000, description="seconds, at most 2592000")]
Grace = Annotated[int, Meta(ge=0, le=86_400, description="seconds, at most 86400")]


class DrainRule(Struct, frozen=True, kw_only=True):
    """A rule for some pods on a node that healthd took out. The first rule that matches a pod decides."""

    name: SomeName
    """The name of the rule in the log."""

    mode: Literal["never", "complete", "evict", "evict_after"]
    """``never``: the pods stay. ``complete``: healthd waits for their end, and evicts them after ``after_s``, 0 for
    never. ``evict``: at once. ``evict_after``: once the node has been out for ``after_s``."""

    namespaces: tuple[Glob, ...] = ()
    """The pods' namespaces, as names or globs. Empty: any."""

    labels: tuple[LabelGlob, ...] = ()
    """The labels that a pod must all have, as ``key=value``, the value a name or a glob. Empty: any."""

    after_s: After = 0.0
    """Seconds since the node was taken out, by the clock of its agent."""

    grace_s: Grace | None = None
    """The grace period of an evicted pod, in seconds. Left out: the pod's own ``terminationGracePeriodSeconds``."""

    empty_dir: bool = False
    """Whether pods that use an emptyDir may be evicted, which deletes its data (kubectl's --delete-emptydir-data). An
    emptyDir with ``medium: Memory``, a job's /dev/shm, holds no lasting data, and needs no permission."""

    unmanaged: bool = False
    """Whether pods may be evicted that no controller creates again (kubectl's --force)."""

    tolerating: bool = False
    """Whether pods may be evicted that tolerate healthd's taint, such as by ``operator: Exists`` without a key. Off: a
    pod that tolerates the taint is meant to stay. On: it is evicted once for each hold of the node."""

    ends_process: bool = False
    """Whether the rule holds only on a node that is out for a fault whose row says that the process is dead (XID 79,
    95, 119, 120; column *ends process* of the findings). Elsewhere it is passed over, and the next rule decides. Such a
    pod cannot go on: evicted before it fails it gets the condition DisruptionTarget, which ``podFailurePolicy`` can
    ignore."""

    gang: Literal["wait", "members", "whole"] = "wait"
    """The treatment of a pod whose gang has members on other nodes too: pods of one JobSet, Kubeflow job, MPIJob,
    HyperPodPyTorchJob, RayCluster, group of a LeaderWorkerSet or Indexed Job with GPUs, or that Kueue, Volcano, KAI,
    YuniKorn, coscheduling or a Workload of Kubernetes's own schedules together; ``gang_labels`` names others. ``wait``:
    the pod stays, because without it all the others only hold their GPUs. ``whole``: every member is evicted, wherever
    it runs, or none. ``members``: the pod is evicted by itself, for jobs that go on without some (elastic ones). The
    owner or scheduler of a gang starts it again: Kueue (waitForPodsReady, the job itself), Volcano (``policies`` of the
    job), KAI."""

    def __post_init__(self) -> None:
        """Refuse a time that the mode does not use, and a mode without its time."""
        if self.mode == "evict_after" and not self.after_s:
            raise ValueError(f"controller.drain: {self.name!r} has mode evict_after and no after_s; give seconds")
        if self.mode in ("never", "evict") and self.after_s:
            raise ValueError(f"controller.drain: {self.name!r} has mode {self.mode}, which takes no after_s; remove it")


class ControllerSection(Struct, frozen=True, kw_only=True):
    """``healthd controller``, which acts for nodes with ``[provisioner] act_from = "controller"``, and for those that
    do not come back from a reboot. Only the controller reads this section. The mode, the rate of replacements and the
    access to AWS are in the sections that nodes have as well."""

    interval_s: Interval = 10.0
    """How often, in seconds, it reads the handoff records of all nodes: one request to slurmctld. Ten seconds are short
    beside a reboot, and 10,000 nodes cost slurmctld a tenth of a second each time. On Kubernetes, how often it counts
    nodes: one list from the API server's cache, and one read and one write of each budget's Lease. At most two
    minutes: ``HealthdControllerStopped`` takes five without a sync for a controller that has stopped."""

    state_dir: AbsolutePath = "/var/lib/healthd-controller"
    """The folder of its store and of the lock that only one controller holds. On Kubernetes a Lease is the lock, and
    the folder may be a pod's own. Two head nodes must share one folder: the second waits for the lock and continues
    from the first one's store. If a write finds the disk full, healthd deletes the ``ballast`` file (4 MB) there, so
    that the next sync can write."""

    http: MaybeAddress = "127.0.0.1:9810"
    """Address of its read-only HTTP server: ``/metrics``, ``/healthz`` and, for users of this machine alone, the page
    of the fleet at ``/``, which is closed where ``daemon.readers`` is set. As ``daemon.http``, and another port than
    that one, because a daemon may run beside it. Empty: none."""

    http_names: tuple[Name, ...] = ()
    """As ``daemon.http_names``: the name of a Service, or an alias, that a scraper uses."""

    node_url: NodeUrl = ""
    """Where the page of the fleet links to from a node, such as
    ``https://grafana/d/healthd-node?var-instance={node}``: ``{node}`` stands for the node's name. Empty: no link."""

    sync_timeout_s: SyncTimeout = 600.0
    """The timeout, in seconds, of one sync, or of one attempt to take the lead. After it the controller is stuck: it
    gives up the lead, so that another one takes over, and exits with an error. ``/healthz`` is 503 from then on; at
    half the timeout operators get a message. Every request has a deadline of its own: a long sync is one in which many
    requests time out."""

    silent_s: Seconds = 300.0
    """How long, in seconds, a node that did not come back from its reboot must be DOWN and not responding in every sync
    before its machine is replaced. Choose far more than slurmctld's own SlurmdTimeout, so that neither a restart of
    slurmctld nor a slow boot gives a machine away."""

    selector: str = ""
    """Kubernetes only: a label selector of the nodes that count, those that healthd runs on, such as
    ``node.kubernetes.io/instance-type=p5.48xlarge``. Empty: all nodes of the cluster, those without GPUs as well. If
    healthd keeps a node out that the selector no longer matches, it pages after ``silence_timeout_s``."""

    drain: tuple[DrainRule, ...] = ()
    """Kubernetes only: the rules by which pods are evicted from nodes that healthd took out, each
    ``[[controller.drain]]`` with ``name`` and ``mode``. A pod without a rule runs to its own end, so that healthd ends
    no training job of many hours unless you say so. DaemonSets' pods and mirror pods always stay."""

    compare_jobs_s: CompareEvery = 600.0
    """Slurm only: how often, in seconds, the nodes of each running job are compared, as ``healthd job 4711 --compare``
    does; 0: never. Stragglers and hangs are findings in shadow, in the log, the metrics and the ledger. It asks the
    nodes for ``/readings`` at the port of ``[daemon] http``, which must be reachable from the controller; a job of
    which no node answers is tried hourly. Ten minutes: the readings that are compared are those of ten minutes."""

    ultraservers: bool = False
    """Whether SageMaker is asked, every ten minutes, for the health and the spare instances of the UltraServers in your
    active training plans (ListTrainingPlans, ListUltraServersByReservedCapacity): in the log and the metrics. No
    decision reads it. The controller's role needs packaging/iam/ultraservers-controller.json."""

    drain_timeout_s: Seconds = 1800.0
    """Kubernetes only: the time, in seconds, after which healthd pages for a pod that a rule evicts and that is still
    there, with an Event on the Node and on the pod. Causes: a PodDisruptionBudget without room, a missing right, a
    finalizer, a volume that the rule does not allow. Half an hour: most budgets have room again by then."""

    silence_timeout_s: SilenceTimeout = 1_200.0
    """Kubernetes only: the time, in seconds, after which the controller pages, with an Event on the Node, for a node
    whose healthd has written nothing although the Node is Ready, and for a node that is not Ready without a request of
    healthd; and, without an Event, for missing admission policies. An agent writes every 330 s at the latest, and may
    take 450 s more after trouble with the API server. Only the time since the lead was taken counts. Nodes that opted
    out, are cordoned, or that other controllers keep jobs off, do not page."""
    policies: bool = True
    """Kubernetes only: whether the cluster must have healthd's admission policies. Off: their absence does not page,
    and any agent's token may change any Node."""

    gang_labels: tuple[LabelKey, ...] = ()
    """Kubernetes only: further label keys that identify a gang, for operators or schedulers that healthd does not know,
    such as ``["example.com/job"]``. Pods of one namespace with the same value are one gang."""

    def __post_init__(self) -> None:
        """Refuse names that are given twice: the log must name one rule."""
        names = [rule.name for rule in self.drain]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            raise ValueError(f"controller.drain: two have the name {twice!r}; rename one")
