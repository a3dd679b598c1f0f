"""``healthd controller``, as it is configured: ``[controller]``.

As ``schema``: a docstring under every field, and nothing here reads a file or the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from healthd.config.kinds import AbsolutePath, Glob, Label, Name, Seconds
from healthd.config.schema.daemon import MaybeAddress

Interval = Annotated[float, Meta(ge=0.2, le=3_600, description="seconds, from 0.2 to 3600")]
LabelKey = Annotated[str, Meta(pattern=r"^[^=,\s]+\Z", description="the key of a label")]
LabelGlob = Annotated[Label, Meta(description="key=value, the value a glob")]
RoundPatience = Annotated[float, Meta(ge=5, le=86_400, description="seconds, from 5 to 86400")]
SilencePatience = Annotated[float, Meta(ge=1, le=86_400, description="seconds, from 1 to 86400")]
RuleName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]+\Z", description='letters, digits, ".", "_" and "-"')]
After = Annotated[float, Meta(ge=0, le=2_592_000, description="seconds, at most 2592000")]
Grace = Annotated[int, Meta(ge=0, le=86_400, description="seconds, at most 86400")]


@dataclass(frozen=True, kw_only=True)
class DrainRule:
    """What becomes of some pods on a node that healthd took out; the first rule that fits a pod decides."""

    name: RuleName
    """What the log calls it."""

    mode: Literal["never", "complete", "evict", "evict_after"]
    """``never``: they are left alone. ``complete``: they are awaited, and evicted ``after_s`` later, 0 for never.
    ``evict``: at once. ``evict_after``: once the node has been out for ``after_s``."""

    namespaces: tuple[Glob, ...] = ()
    """The namespaces, as names or globs. Empty: any."""

    labels: tuple[LabelGlob, ...] = ()
    """What labels a pod must all have, as ``key=value``, the value a name or a glob. Empty: any."""

    after_s: After = 0.0
    """Seconds since the node was taken out, by the clock of its agent."""

    grace_s: Grace | None = None
    """Seconds that a pod has to end. Left out: its own ``terminationGracePeriodSeconds``."""

    empty_dir: bool = False
    """Whether pods that use an emptyDir may be evicted, which loses what is in it (kubectl's --delete-emptydir-data).
    One with ``medium: Memory``, a job's /dev/shm, holds nothing that a job could keep, and needs no word."""

    unmanaged: bool = False
    """Whether pods may be evicted that no controller makes anew (kubectl's --force)."""

    tolerating: bool = False
    """Whether pods may be evicted that tolerate healthd's taint, such as by ``operator: Exists`` without a key. Off: a
    pod that tolerates the taint is meant to stay. On: it is evicted once for each hold of the node."""

    gang: Literal["wait", "members", "whole"] = "wait"
    """What becomes of a pod of a gang that has members on other nodes too: pods of one JobSet, Kubeflow job, MPIJob,
    HyperPodPyTorchJob, RayCluster, group of a LeaderWorkerSet or Indexed Job with GPUs, or that Kueue, Volcano, KAI,
    YuniKorn, coscheduling or a Workload of Kubernetes's own schedules together; ``gang_labels`` names others. ``wait``:
    it is left alone, because without it all the others only hold their GPUs. ``whole``: every member is evicted,
    wherever it runs, or none. ``members``: it is evicted by itself, for jobs that go on without some (elastic ones).
    Who starts a gang anew is its owner or scheduler: Kueue (waitForPodsReady, the job itself), Volcano (``policies`` of
    the job), KAI."""

    def __post_init__(self) -> None:
        """Refuse a time that would not be kept."""
        if self.mode == "evict_after" and not self.after_s:
            raise ValueError(f"controller.drain: {self.name!r} has mode evict_after and no after_s; give seconds")
        if self.mode in ("never", "evict") and self.after_s:
            raise ValueError(f"controller.drain: {self.name!r} has mode {self.mode}, which knows no after_s; remove it")


@dataclass(frozen=True, kw_only=True)
class ControllerSection:
    """``healthd controller``, which acts for nodes with ``[provisioner] act_from = "controller"``, and for those that
    do not come back from a reboot. Nothing else reads it; the mode, the rate of replacements and how AWS is reached are
    in the sections that nodes have as well."""

    interval_s: Interval = 10.0
    """How often, in seconds, it reads the marks of all nodes: one request to slurmctld. Ten seconds are nothing beside
    a reboot, and 10,000 nodes cost slurmctld a tenth of a second each time. On Kubernetes, how often it counts nodes:
    one list from the API server's cache, and of each budget's Lease one reading and one writing."""

    state_dir: AbsolutePath = "/var/lib/healthd-controller"
    """The folder of its store and of the lock that only one controller holds. On Kubernetes a Lease is the lock, and
    the folder may be a pod's own. Two head nodes must have the same folder,
    shared: the second waits for the lock and goes on from what the first wrote down. Its ``ballast`` (4 MB) is given up
    when a write finds the disk full, so that the next round can write."""

    http: MaybeAddress = "127.0.0.1:9810"
    """Address of its read-only HTTP server: ``/metrics`` and ``/healthz``. As ``daemon.http``, and another port than
    that one, because a daemon may run beside it. Empty: none."""

    http_names: tuple[Name, ...] = ()
    """As ``daemon.http_names``: the name of a Service or an alias by which a scraper asks for it."""

    round_patience_s: RoundPatience = 600.0
    """After how many seconds of one round, or of one try for the lead, the controller is stuck: it gives up the lead,
    so that another one takes over, and ends with an error. ``/healthz`` is 503 from then on, and people are told at
    half of it. Every request has a deadline of its own: a long round is one of many that run out."""

    silent_s: Seconds = 300.0
    """How long, in seconds, a node that did not come back from its reboot must have been DOWN and not responding, at
    every look, before its machine is replaced: long after slurmctld's own SlurmdTimeout, so that neither a restart of
    slurmctld nor a slow boot gives a machine away."""

    selector: str = ""
    """Kubernetes only: a label selector of the nodes that count, those that healthd runs on, such as
    ``node.kubernetes.io/instance-type=p5.48xlarge``. Empty: all nodes of the cluster, those without GPUs as well. A
    node that healthd keeps out, and that the selector does not cover any more, pages after ``silence_patience_s``."""

    drain: tuple[DrainRule, ...] = ()
    """Kubernetes only: which pods are evicted from nodes that healthd took out, each ``[[controller.drain]]`` with
    ``name`` and ``mode``. A pod that no rule names is left to end by itself; so is every pod where there is no rule:
    a training job of many hours is nobody's to end but its owner's. DaemonSets' pods and mirror pods always stay."""

    drain_patience_s: Seconds = 1800.0
    """Kubernetes only: after how many seconds a pod that a rule evicts, and that is still there, pages, with an Event
    on the Node and on the pod: a PodDisruptionBudget without room, a right that is missing, a finalizer, a volume that
    its rule does not allow for. Half an hour: most budgets have room again by then."""

    silence_patience_s: SilencePatience = 1_200.0
    """Kubernetes only: after how many seconds the controller pages, with an Event on the Node, for a node whose healthd
    has written nothing although the Node is Ready, and for one that is not Ready and for which nothing was asked; and,
    without an Event, for admission policies that are missing. An agent writes every 330 s at the latest, and may take
    450 s more after trouble with the API server. What a leader has not seen itself does not count. Nodes that opted
    out, that are cordoned, or that others keep jobs off, do not page."""

    policies: bool = True
    """Kubernetes only: whether healthd's admission policies are to be there. Off: their absence does not page, and any
    agent's token may change any Node."""

    gang_labels: tuple[LabelKey, ...] = ()
    """Kubernetes only: keys of labels by which operators or schedulers that healthd does not know mark their gangs,
    such as ``["example.com/job"]``: pods of one namespace with the same value are one gang."""

    def __post_init__(self) -> None:
        """Refuse names that are given twice: the log must tell which rule it was."""
        names = [rule.name for rule in self.drain]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            raise ValueError(f"controller.drain: two have the name {twice!r}; rename one")
