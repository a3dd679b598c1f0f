"""Slurm, through its own clients: slurmctld's view of this node and of the fleet, drain, and undrain.

Every call is one client process with a deadline of ours (the clients' own waits are 9 s, 59 s and for ever). It must
not decide anything, must not read one node by downloading all of them, and must not take silence for an answer: an
update that is not plainly refused is *unknown*, because slurmctld applies an update that timed out when it wakes up.

Texts and behaviour: Slurm 22.05.8 with a real slurmctld; tests/live/slurm repeats each observation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from healthd.config.schema.config import Config
from healthd.core.errors import BackendRefused, BackendUnknown, ConfigError, SlotTaken, SourceError, SourceMissing
from healthd.core.model import Mode, RunningJob
from healthd.core.node import CommandResult
from healthd.remediation.decide.freeze import Freeze, in_words
from healthd.remediation.orchestrators.slurm.incident_reservations import (
    fence_creation,
    fence_name,
    parse_notices,
    updates,
)
from healthd.remediation.orchestrators.slurm.power import is_asleep, may_sleep
from healthd.remediation.orchestrators.slurm.reasons import hold_of, is_automatic, without_remarks
from healthd.remediation.orchestrators.slurm.slots import (
    DUPLICATE,
    GONE,
    creation,
    freeze_creation,
    freeze_name,
    parse_freezes,
    parse_maintenance,
    parse_slots,
    slot_name,
)
from healthd.remediation.orchestrators.slurm.slurmd import clients_of_slurmd, configless_slurmd
from healthd.remediation.ports import (
    FleetSnapshot,
    HeldNode,
    Hold,
    ListedNode,
    NodeRecord,
    NodeView,
    ScopeSnapshot,
    Slot,
    is_drain,
)
from healthd.remediation.records.domain_fence import DomainFence
from healthd.remediation.records.incident_notices import IncidentNotice, IncidentNotices
from healthd.remediation.records.summary import NodeSummary
from healthd.sources.command import TRUNCATED, find_tool, run_command

# sinfo -O with a suffix and no size pads nothing and cuts nothing (sinfo(1): "type[:[.][size][suffix]]"). StateComplete
# has every flag, where %T hides DOWN behind "drained". Reason is last: it may hold any text, newlines included.
SINFO_FIELDS = "NodeList:|,StateComplete:|,CPUsState:|,User:|,Timestamp:|,Features:|,Features_act:|,Reason:|"

# None of the four may hold a blank: a name that useradd takes, and node names, have none. %A is the SLURM_JOB_ID of the
# job's own processes, where %i has 13_2 for a task of an array and 11+1 for a part of a heterogeneous job.
JOB_FIELDS = "%A %i %u %N"
_RUNNING_FIELDS = "%i|%P|%q|%a|%D"
_NONE = ("(null)", "N/A")
"""As squeue prints an account or a QOS that a job does not have, as where slurmdbd is not used."""

# The states that keep new jobs off a node for good. Not here: NOT_RESPONDING alone (2 to 3 s after every undrain),
# UNKNOWN (not registered yet after a restart of slurmctld), RESERVED, REBOOT_REQUESTED (jobs start there until the node
# is idle for once; with ASAP it is DRAIN as well).
_OUT = re.compile(r"DRAIN(ED|ING)?|DOWN|FAIL(ING)?|REBOOT(_ISSUED)?|INVALID_REG")
# A node in no partition has no Partitions=, and a comment or a reason may say the word as well.
_PARTITIONS = re.compile(r" MCS_label=\S*\s+(?:Partitions=(\S+))?")
_ROOT = "root"
_NODE_NAME_FIELD, _STATE = re.compile(r"NodeName=(\S+) "), re.compile(r" State=(\S+)")
_A_REASON = re.compile(r"(.*?) \[[^\[\]@\s]+@\d{1,11}\](?: |$)")
_A_SIGNED_REASON = re.compile(r"(.*?) \[([^\[\]@\s]+)@(\d{1,11})\](?: |$)")
_BEHIND_COMMENT = re.compile(r" (?:Extra|InstanceId)=")
_A_FURTHER_LINE = re.compile(r"\n(?!NodeName=)")
_OUR_REASON = re.compile(r"(healthd: .*?) \[[^\[\]@\s]+@(\d{1,11})\](?: |$)")  # with SLURM_TIME_FORMAT=%s
# A killed slurmctld can leave MAINTENANCE on a node for good, without RESERVED and a reservation; jobs run there.
_IN_MAINTENANCE = frozenset({"MAINTENANCE", "RESERVED"})

# scontrol's texts when slurmctld, or scontrol itself, has refused before anything was changed; and the next step.
# "Invalid node state specified" is not among them: right after a restart of slurmctld, when the node has not
# registered yet, state=undrain and state=resume print it, exit with 1, and the drain is gone all the same.
_REFUSALS = {
    "Invalid node name specified": "slurmctld has no node of this name: check [node] name",
    "Invalid user id": "healthd's user lacks the right: run as root, SlurmUser or with AdminLevel=Administrator",
    "RebootProgram isn't defined": "set RebootProgram in slurm.conf",
    "Permission denied": "healthd's user lacks the right: run as root, SlurmUser or with AdminLevel=Administrator",
    "You must specify a reason": "the reason is empty",
    "No valid entity in update command": "this Slurm has no such update (SuspendExcNodes+= came with 23.02)",
    "Invalid input": "this version of Slurm does not know a keyword: please report it, with the version",
    "Job has already finished": "slurmctld takes no change of it any more",
    "Requested nodes are busy": "another reservation holds the node alone: see scontrol show reservation",
    "Invalid account or account/partition": "AccountingStorageEnforce wants an association of a reservation's user:"
    " sacctmgr add user root account=root",
}

_NOT_THIS_STATE = "Invalid node state"  # "… specified"; "… transition" in 26.05
_MISREGISTERED = frozenset({"INVALID_REG", "DRAIN"})
_REGISTER_AGAIN = (
    "slurmctld keeps its drain, because its slurmd has registered less than slurm.conf says (INVALID_REG); compare"
    " `slurmd -C` and the node's GPUs with slurm.conf, then restart slurmd there"
)

_NODE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_CONF_FILES = ("etc/slurm/slurm.conf", "opt/slurm/etc/slurm.conf", "run/slurm/conf/slurm.conf")
_FOREIGN_SETTINGS = ("SINFO_", "SQUEUE_", "SCONTROL_", "SLURM_CLUSTERS")
MARK = "healthd "
"""The beginning of healthd's comments."""

_EXTRA_HEAD, _EXTRA_TAIL = '{"healthd":"', '"}'
_EXTRA = re.compile(re.escape(_EXTRA_HEAD) + r'([^"]*)' + re.escape(_EXTRA_TAIL))

_ACTS = re.compile(rf" mode=(?:{'|'.join(mode for mode in Mode if mode is not Mode.OBSERVE)}) ?")
"""In the summary of a daemon that takes nodes out. One that only observes releases nothing of others, nor pages for
them."""

_SNAPSHOT_LIMIT_BYTES = 256 * 1024 * 1024  # scontrol -o show nodes writes 540 bytes per node


class RunSlurm(Protocol):
    """The runner of commands: run_command, or a test's wrapper of it."""

    def __call__(
        self, argv: list[str], *, timeout_s: float, env: Mapping[str, str], limit_bytes: int = ...
    ) -> CommandResult:
        """As run_command."""


class SlurmOrchestrator:
    """The Orchestrator of a node that runs slurmd.

    ``bin_dir``: where scontrol, sinfo and squeue are; "" looks in PATH, the usual places, and then beside the slurmd
    that runs by ``proc``. ``conf``: slurm.conf for them; "" takes SLURM_CONF from the environment, or Slurm's own
    default. ``timeout_s``: of each client call.
    """

    kind = "slurm"

    def __init__(
        self,
        *,
        node: str,
        bin_dir: str = "",
        conf: str = "",
        timeout_s: float = 5.0,
        run: RunSlurm = run_command,
        proc: Path = Path("/proc"),
    ) -> None:
        # Slurm takes "n[1-99]", "a,b" and "ALL" for many nodes at once.
        if not _NODE_NAME.fullmatch(node) or node.upper() == "ALL":
            problem = f"[node] name = {node!r}: expected the NodeName of this one node, as in slurm.conf"
            raise ConfigError((problem,))
        self._node, self._bin_dir, self._timeout_s, self._run, self._proc = node, bin_dir, timeout_s, run, proc
        self._env = client_environment(os.environ, conf)

    @classmethod
    def of(cls, config: Config, node: str, *, run: RunSlurm = run_command) -> SlurmOrchestrator:
        """The orchestrator of one node, by the Slurm section of a configuration."""
        slurm = config.orchestrator.slurm
        return cls(node=node, bin_dir=slurm.bin_dir, conf=slurm.conf, timeout_s=slurm.timeout_s, run=run)

    def view(self, *, jobs: bool = False) -> NodeView:
        """Read this node with one single-node request. ``jobs`` reads its jobs and the reservations before it, and
        slurmctld's start after it: the state is never older than a restart that may have lost it.

        A suspended job shows in squeue alone (22.05, 24.11, 26.05: the node is IDLE, with no CPU allocated). Raises
        BackendRefused if slurmctld does not know the node, BackendUnknown if it could not be read.
        """
        if not jobs:
            return self._as_signed(parse_view(self._node, self._state()))
        queue = self._read("squeue", "-h", "-a", "-w", self._node, "-o", JOB_FIELDS)
        reservations = self.reservations()
        window, freeze = parse_maintenance(reservations, self._node), in_words(parse_freezes(reservations).values())
        state = self._state()
        config = self._read("scontrol", "show", "config")
        view = self._as_signed(parse_view(self._node, state, controller=parse_boot_time(config)), config)
        ids, work = parse_jobs(queue)
        sleeps = may_sleep(config, self._node, view.flags, self.partitions)
        return replace(view, maintenance=window, freeze=freeze, may_sleep=sleeps, jobs=ids, work=work)

    def running(self) -> tuple[RunningJob, ...]:
        """The jobs on this node, suspended ones too. Raises BackendError."""
        return parse_running(self._read("squeue", "-h", "-a", "-w", self._node, "-o", _RUNNING_FIELDS))

    def snapshot(self) -> FleetSnapshot:
        """Read all nodes of all partitions, hidden ones too, in one request. Raises BackendUnknown."""
        return parse_snapshot(self._node, self.all_nodes())

    def fleet(self) -> FleetSnapshot:
        """The same from a machine that need not be a node, with no scopes of its own. Raises BackendUnknown."""
        return parse_snapshot("", self.all_nodes())

    def all_nodes(self) -> str:
        """The records of all nodes as scontrol prints them, for a reader of the fleet. Raises BackendUnknown."""
        return self._read("scontrol", "-a", "-o", "show", "nodes", limit_bytes=_SNAPSHOT_LIMIT_BYTES)

    def freezes(self) -> tuple[Freeze, ...]:
        """The freezes of the fleet that are on. Raises BackendUnknown."""
        return tuple(parse_freezes(self.reservations()).values())

    def freeze(self, reason: str, by: str, minutes: int) -> None:
        """Freeze the fleet from now on. Raises BackendRefused, BackendUnknown."""
        self.scontrol(*freeze_creation(freeze_name(reason, by), minutes))

    def unfreeze(self) -> None:
        """End every freeze of the fleet. Raises BackendRefused, BackendUnknown."""
        for name in parse_freezes(self.reservations()):
            self._delete(name, f"freeze {name}")

    def incident_notices(self) -> IncidentNotices:
        """The notices of open incidents. Raises BackendUnknown."""
        return parse_notices(self.reservations())

    def show_incidents(self, notices: Sequence[IncidentNotice], now: datetime) -> None:
        """Have exactly these notices stand there, and that a controller watches. Raises BackendRefused,
        BackendUnknown."""
        for update in updates(self.reservations(), notices, now):
            self.scontrol(*update)

    def fence_domain(self, fence: DomainFence) -> None:
        """Keep new jobs off all nodes of an NVLink domain. Raises BackendRefused, BackendUnknown."""
        self.scontrol(*fence_creation(fence))

    def lift_fence(self, fence: DomainFence) -> None:
        """End a fence. Raises BackendRefused, BackendUnknown."""
        self._delete(fence_name(fence), f"fence {fence_name(fence)}")

    def partitions(self) -> tuple[str, ...]:
        """The partitions of this node. Raises BackendUnknown if the answer could not be read, or names no node."""
        return parse_partitions(self._read("scontrol", "-o", "show", "node", self._node))

    def quarantine(self, text: str) -> None:
        """Drain the node with ``text`` as the reason.

        Raises BackendRefused for a text that would not read back as it is: more than one line, ``|``, white space or a
        double quote at either end (scontrol takes those off).
        """
        if not text or not text.isprintable() or "|" in text or text.strip(' "') != text:
            expected = "one line without '|' that neither begins nor ends with a space or a double quote"
            raise BackendRefused(f"drain of {self._node} not asked for: the reason is {text!r}, expected {expected}")
        self._update("state=drain", f"reason={text}")

    def release(self, *, resume: bool) -> None:
        """Clear the drain; ``resume`` clears DOWN as well. Either wipes the reason, and a FAIL.

        Refused for a node whose slurmd has registered less than slurm.conf says, as one that started before the GPU
        driver: the drain stays (22.05, 24.11, 26.05).
        """
        try:
            self._update("state=resume" if resume else "state=undrain")
        except BackendUnknown as error:
            if _NOT_THIS_STATE not in str(error) or not self.view().flags >= _MISREGISTERED:
                raise
            raise BackendRefused(f"release of {self._node}: {_REGISTER_AGAIN}") from error

    def slots(self) -> tuple[Slot, ...]:
        """Read all reservations: 0.2 ms of slurmctld's time for fifty of them, and no node is downloaded."""
        return parse_slots(self.reservations())

    def claim(self, scope: str, index: int) -> None:
        """Create the reservation. Raises SlotTaken, BackendRefused, BackendUnknown."""
        name = slot_name(scope, index)
        result = self.client("scontrol", *creation(name, self._node))
        if result.code and DUPLICATE in result.stderr + result.stdout:
            raise SlotTaken(f"slot {name} is taken: {DUPLICATE}")
        if result.code:
            raise update_error(f"claim of slot {name} for {self._node}", result.stderr + result.stdout)

    def fence(self) -> None:
        """Do nothing: the reservation is the slot and the fence in one."""

    def keep_awake(self, *, on: bool) -> None:
        """Add the node to SuspendExcNodes, or remove it (Slurm 23.02 and newer; a name that is there, or is not, is no
        error: 26.05.5)."""
        self.scontrol("update", f"SuspendExcNodes{'+' if on else '-'}={self._node}")

    def give_back(self, slot: Slot) -> None:
        """Delete the reservation, if it is still this node's: the name may be another's since it was read.

        Slurm has no compare-and-swap here either; the milliseconds between the reading and the deletion remain.
        """
        name = slot_name(slot.scope, slot.index)
        there = [each for each in self.slots() if (each.scope, each.index) == (slot.scope, slot.index)]
        if not there:
            return
        if there[0].node != self._node:
            raise BackendRefused(f"slot {name} not deleted: {there[0].node} holds it, not {self._node}")
        self._delete(name, f"slot {name}")

    def write_record(self, text: str) -> None:
        """Set the node's comment, which every undrain leaves alone. An administrator's comment is not overwritten."""
        if text and (not text.startswith(MARK) or not text.isprintable() or "|" in text or text.strip(' "') != text):
            expected = f"one line without '|' that begins with {MARK!r} and ends with neither space nor double quote"
            raise BackendRefused(f"comment of {self._node} not set: the text is {text!r}, expected {expected}")
        there = self._comment()
        if there and not there.startswith(MARK):
            raise BackendRefused(
                f"comment of {self._node} not set: the node already has a comment that is not healthd's: {there!r}"
            )
        self._update(f"comment={text}")

    def read_record(self) -> str:
        """The node's comment, if it is one of ours."""
        there = self._comment()
        return there if there.startswith(MARK) else ""

    def summarize(self, summary: NodeSummary) -> None:
        """Leave a summary as the node's Extra. Raises BackendRefused where another's text is in its place.

        It is a JSON object: with ``extra_constraints`` slurmctld reads Extra as one (slurm.conf(5), 23.11).
        """
        there, known, _ = self._read("sinfo", "-h", "-a", "-N", "-n", self._node, "-O", "Extra:|").partition("|")
        if not known:
            raise BackendRefused(f"Extra of {self._node} not set: slurmctld does not know it, or it is in no partition")
        if there not in ("", "(null)", "N/A") and _EXTRA.fullmatch(there) is None:
            raise BackendRefused(
                f"Extra of {self._node} not set: the node already has one that is not healthd's: {there!r}"
            )
        self._update(f"extra={_EXTRA_HEAD}{summary.text}{_EXTRA_TAIL}")

    def _comment(self) -> str:
        there = self._read("sinfo", "-h", "-a", "-N", "-n", self._node, "-O", "Comment:|").partition("|")[0]
        return "" if there in ("(null)", "N/A") else there

    def scontrol(self, *args: str) -> str:
        """Any other scontrol, for provisioners that work through Slurm. Raises BackendRefused or BackendUnknown."""
        result = self.client("scontrol", *args)
        if result.code:
            raise update_error(f"scontrol {' '.join(args)}", result.stderr + result.stdout)
        return result.stdout

    def _delete(self, reservation: str, what: str) -> None:
        """Delete a reservation. One that has ended since it was read is as good."""
        result = self.client("scontrol", "delete", "reservation", reservation)
        if result.code and GONE not in result.stderr + result.stdout:
            raise update_error(f"deletion of {what}", result.stderr + result.stdout)

    @property
    def node(self) -> str:
        """The name of this node."""
        return self._node

    def _state(self) -> str:
        return self._read("sinfo", "-h", "-a", "-N", "-n", self._node, "-O", SINFO_FIELDS)

    def reservations(self) -> str:
        """The records of all reservations, as scontrol prints them. Raises BackendUnknown."""
        return self._read("scontrol", "-a", "-o", "show", "reservation")

    def _update(self, *settings: str) -> None:
        result = self.client("scontrol", "update", f"nodename={self._node}", *settings)
        if result.code:
            raise update_error(f"scontrol update {self._node} {' '.join(settings)}", result.stderr + result.stdout)

    def _as_signed(self, view: NodeView, config: str = "") -> NodeView:
        """The view, in which a text of Slurm's own is Slurm's only if root or SlurmUser set it: another user's text is
        an operator's. ``config`` is read here where it is needed and empty."""
        hold = view.hold
        if hold is None or not hold.automatic or hold.user == _ROOT:
            return view
        if hold.user in parse_slurm_user(config or self._read("scontrol", "show", "config")):
            return view
        return replace(view, hold=replace(hold, automatic=False))

    def _read(self, tool: str, *args: str, limit_bytes: int = 4 * 1024 * 1024) -> str:
        result = self.client(tool, *args, limit_bytes=limit_bytes)
        if result.code or TRUNCATED in result.stdout[-100:]:
            output = _last_line(result.stderr) or result.stdout[-100:]
            raise BackendUnknown(f"{tool} {' '.join(args[-2:])}: exit status {result.code}: {output}")
        return result.stdout

    def client(self, tool: str, *args: str, limit_bytes: int = 4 * 1024 * 1024) -> CommandResult:
        """Run a client of Slurm; its exit status is the caller's to look at. Raises BackendUnknown where it did not run
        to its end."""
        bin_dir = self._bin_dir  # another thread may find the folder meanwhile
        argv = [os.path.join(bin_dir, tool), *args]
        try:
            return self._run(argv, timeout_s=self._timeout_s, env=self._env, limit_bytes=limit_bytes)
        except SourceMissing as error:
            if not bin_dir and (folder := clients_of_slurmd(self._proc)):
                self._bin_dir = folder
                return self.client(tool, *args, limit_bytes=limit_bytes)
            raise BackendUnknown(f"Slurm's client could not be run: {error}") from error
        except SourceError as error:
            raise BackendUnknown(f"Slurm did not answer: {error}") from error


def client_environment(environ: Mapping[str, str], conf: str = "") -> dict[str, str]:
    """``environ`` for Slurm's clients: it keeps the variables that find the cluster, and fixes the output.

    Variables that change the clients' output or their controller are removed. Times come as seconds since the epoch,
    because the default is the client's local time.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith(_FOREIGN_SETTINGS)}
    return {**kept, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C", **({"SLURM_CONF": conf} if conf else {})}


def parse_jobs(answer: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The numbers of the jobs, and their texts such as ``12_3 of alice on n[1-4]``, from the output of ``squeue -h -o
    JOB_FIELDS``. A job without nodes yet shows none."""
    found = [line.split() for line in answer.splitlines() if line.strip()]
    return tuple(fields[0] for fields in found), tuple(_job_text(*fields[1:]) for fields in found)


def parse_running(answer: str) -> tuple[RunningJob, ...]:
    """The jobs in the output of ``squeue -h -o "%i|%P|%q|%a|%D"``. Raises BackendUnknown for anything else."""
    return tuple(_running(line) for line in answer.splitlines() if line.strip())


def _running(line: str) -> RunningJob:
    fields = ["" if each in _NONE else each for each in line.strip().split("|")]
    if len(fields) != 5 or not fields[0]:
        raise BackendUnknown(f"squeue's answer is no job: {line[:200]!r}")
    job, partition, qos, account, nodes = fields
    size = int(nodes) if re.fullmatch(r"[0-9]{1,9}", nodes) else 0
    return RunningJob(id=job, partition=partition, qos=qos, account=account, nodes=size)


def _job_text(job: str = "?", user: str = "", nodes: str = "", *_: str) -> str:
    return f"{job}{f' of {user}' if user else ''}{f' on {nodes}' if nodes else ''}"


def parse_nodes(answer: str) -> Iterator[ListedNode]:
    """Each node in the output of ``scontrol -a -o show nodes``, as it stands there. FUTURE nodes do not exist yet. A
    reason of several lines becomes one line, so that it hides nothing that follows it."""
    for name, state, out, label, fields, free in _node_records(_A_FURTHER_LINE.sub(" ", answer)):
        reason = _A_SIGNED_REASON.match(free)
        tail = free[reason.end() - 1 :] if reason else free or fields
        yield ListedNode(
            name=name,
            state=state,
            flags=_flags_of(state),
            out=out,
            asleep=is_asleep(state),
            dead=_is_dead(state) or "NOT_RESPONDING" in state or "*" in state,
            hold=_listed_hold(free, reason) if out else None,
            partitions=tuple(filter(None, label.split(","))),
            record=_comment(free or fields),
            summary=_summary(tail),
        )


def _node_records(answer: str) -> Iterator[tuple[str, str, bool, str, str, str]]:
    """Of each node that exists: its name, state, whether it is out, its partitions, the fields before its reason, and
    the text from its reason on. Many nodes have the same state, which is judged once."""
    known: dict[str, bool | None] = {}
    for line in answer.split("\n"):
        fields, _, free = line.partition(" Reason=")
        match, state = _NODE_NAME_FIELD.match(fields), _STATE.search(fields)
        if not match or not state:
            continue
        if state[1] not in known:
            known[state[1]] = _is_out(state[1])
        if (out := known[state[1]]) is None:
            continue
        label = _PARTITIONS.search(fields, state.end())
        yield match[1], state[1], out, (label[1] or "") if label else "", fields, free


def _listed_hold(free: str, signed: re.Match[str] | None) -> Hold | None:
    """The hold of a node that is out. A reason without its signature, from slurm.conf, has no user."""
    if signed is not None:
        return hold_of(signed[1], signed[2], int(signed[3]))
    return Hold(text=free.partition(" [")[0].strip(), user="", stamp=0) if free else None


def parse_view(node: str, answer: str, *, jobs: tuple[str, ...] = (), controller: str = "") -> NodeView:
    """The view from the output of ``sinfo -h -N -n NODE -O SINFO_FIELDS``.

    sinfo prints the same record once for every partition of the node, and nothing for a node it does not know.
    Raises BackendRefused for an unknown node, BackendUnknown for anything that is not such a record.
    """
    if not answer.strip():
        problem = f"slurmctld does not know {node}, or it is in no partition"
        raise BackendRefused(f"{problem}: check [node] name against NodeName in slurm.conf")
    fields = answer.split("|", 7)
    if len(fields) != 8 or fields[0] != node or not re.fullmatch(r"\d+/\d+/\d+/\d+", fields[2]):
        expected = "name|state|cpus|user|time|features|active features|reason|"
        raise BackendUnknown(f"sinfo for {node}: expected {expected}, got {answer[:200]!r}")
    head, reason = "|".join(fields[:7]) + "|", fields[7]
    first, again, _ = reason.partition(f"|\n{head}")
    reason = first if again else reason.removesuffix("\n").removesuffix("|")
    flags = _flags_of(fields[1])
    is_out = any(_OUT.fullmatch(flag) for flag in flags)
    reserved = "MAINT" in flags or flags >= _IN_MAINTENANCE
    return NodeView(
        name=node,
        in_service=not is_out and not reserved,
        flags=flags,
        hold=_hold(reason, fields[3], fields[4]) if is_out else None,
        fenced=reserved and not is_out,
        allocated_cpus=_allocated_cpus(fields[2], flags),
        jobs=jobs,
        controller=controller,
        features=frozenset(",".join(fields[5:7]).split(",")) - {"", "(null)"},
    )


def parse_snapshot(node: str, answer: str) -> FleetSnapshot:
    """The fleet snapshot from the output of ``scontrol -a -o show nodes``.

    FUTURE nodes do not exist yet and do not count. A node that sleeps is a name without a machine: it is neither out
    nor part of the total, and its comment and reason remain evidence. A node that is named twice is out if either
    record says so. Our own node has a machine: we run on it. Raises BackendUnknown if there is no node, or not our own:
    a list that lacks nodes proves nothing. ``node`` "": none of them is ours.
    """
    is_out: dict[str, bool] = {}
    partitions: dict[str, str] = {}
    asleep: set[str] = set()
    down: set[str] = set()
    drained: set[str] = set()
    acts: set[str] = set()
    records, held = [], []
    for name, state, out, label, fields, free in _node_records(answer):
        if name != node and is_asleep(state):
            asleep.add(name)
        else:
            is_out[name] = is_out.get(name, False) or out
            down |= {name} if out and _is_dead(state) else set()
            partitions[name] = label
        summary = _summary(free or fields)
        acts |= {name} if _ACTS.search(summary) and " stopped=" not in summary else set()
        if comment := _comment(free or fields):
            records.append(NodeRecord(node=name, text=comment))
        is_drained = bool(out) and is_drain(_flags_of(state))  # 24.11 keeps the reason of a node that is back
        text = _A_REASON.match(free) if is_drained and name in asleep else None
        drained |= {name} if text is not None and is_automatic(text[1]) else set()
        is_left = is_drained or (name in asleep and "DOWN" in _flags_of(state))  # its drain may be lost
        if is_left and (ours := _OUR_REASON.match(free)):
            held.append(HeldNode(node=name, text=without_remarks(ours[1])[0], stamp=int(ours[2])))
    if node not in is_out and (node or not asleep | is_out.keys()):
        problem = f"scontrol lists {len(is_out)} nodes, but not {node}, this node" if node else "scontrol lists no node"
        raise BackendUnknown(f"{problem}: check [node] name, and PrivateData in slurm.conf")
    own = sorted(filter(None, partitions.get(node, "").split(",")))
    in_service = {name for name, out in is_out.items() if not out}
    return FleetSnapshot(
        out=frozenset(name for name, out in is_out.items() if out),
        total=len(is_out),
        scopes=tuple(_scope(name, partitions, is_out) for name in own),
        records=tuple(records),
        held=tuple(held),
        asleep=frozenset(asleep),
        drained=frozenset(drained),
        down=frozenset(down),
        speakers=tuple(sorted(in_service & acts or in_service)[:2]),
    )


def _is_out(state: str) -> bool | None:
    """Whether a state takes a node out; None for a node that does not exist yet."""
    flags = _flags_of(state)
    return None if "FUTURE" in flags else any(_OUT.fullmatch(flag) for flag in flags)


def _is_dead(state: str) -> bool:
    """Whether a node is DOWN and does not answer: ``DOWN*`` (22.05) or ``DOWN+NOT_RESPONDING``."""
    return "DOWN" in _flags_of(state) and ("*" in state or "NOT_RESPONDING" in _flags_of(state))


def _scope(name: str, partitions: Mapping[str, str], is_out: Mapping[str, bool]) -> ScopeSnapshot:
    members = [node for node, names in partitions.items() if name in names.split(",")]
    return ScopeSnapshot(scope=name, out=frozenset(node for node in members if is_out[node]), total=len(members))


def _comment(tail: str) -> str:
    """A comment of ours. It stands behind the reason, which may hold any text, before Extra and the cloud instance."""
    text = _BEHIND_COMMENT.split(tail.rpartition(" Comment=")[2], maxsplit=1)[0] if " Comment=" in tail else ""
    return text.rstrip() if text.startswith(MARK) else ""


def _summary(tail: str) -> str:
    """A summary of ours, which stands behind the reason in Extra; "" for none."""
    found = _EXTRA.search(tail, tail.rfind(" Extra=") + 1) if " Extra=" in tail else None
    return found[1] if found else ""


def parse_partitions(answer: str) -> tuple[str, ...]:
    """The partitions in the output of ``scontrol -o show node NAME``. Raises BackendUnknown if that is no node."""
    match = _PARTITIONS.search(answer)
    if not match or not _NODE_NAME_FIELD.match(answer):
        raise BackendUnknown(f"scontrol show node printed no node: {answer[:200]!r}")
    return tuple(match[1].split(",")) if match[1] else ()


def parse_boot_time(answer: str) -> str:
    """slurmctld's BOOT_TIME from ``scontrol show config``. Raises BackendUnknown if it is not there."""
    match = re.search(r"^BOOT_TIME\s*=\s*(\S+)", answer, re.MULTILINE)
    if not match:
        raise BackendUnknown(f"scontrol show config has no BOOT_TIME: {answer[:200]!r}")
    return match[1]


def parse_slurm_user(answer: str) -> frozenset[str]:
    """SlurmUser's name and number from ``scontrol show config`` (``SlurmUser = slurm(64030)``); none if it is not
    there."""
    match = re.search(r"^SlurmUser\s*=\s*([^\s(]+)(?:\((\d+)\))?", answer, re.MULTILINE)
    return frozenset(filter(None, match.groups())) if match else frozenset()


def update_error(what: str, message: str) -> BackendRefused | BackendUnknown:
    """The error for an update that failed: BackendRefused if the text is a known refusal, else BackendUnknown."""
    for text, advice in _REFUSALS.items():
        if text in message:
            line = next(line for line in message.splitlines() if text in line)
            return BackendRefused(f"{what}: {line.strip()}; {advice}")
    return BackendUnknown(f"{what}: {_last_line(message) or 'no output'}; slurmctld may have applied it")


def detect(*, environ: Mapping[str, str] = os.environ, root: str = "/", bin_dir: str = "") -> tuple[bool, str]:
    """Whether this machine belongs to a Slurm cluster, and why, as a sentence for the log.

    ``root``: the file system to look in, for tests. A machine is in a cluster if a configuration is there, or slurmd
    runs without one because slurmctld sends it (``--conf-server``), and scontrol can be found. This reads in the
    caller's own thread: call it where a hanging file system may block it.
    """
    evidence = _configuration(environ, Path(root)) or configless_slurmd(Path(root, "proc"))
    if not evidence:
        places = ", ".join(_CONF_FILES)
        return False, f"no Slurm: no SLURM_CONF, no file {places}, no slurmd that runs with --conf-server"
    try:
        tool = _scontrol(environ, bin_dir, Path(root, "proc"))
    except SourceMissing as error:
        return False, f"{evidence}, but Slurm cannot be used: {error}"
    return True, f"Slurm: {evidence}, {tool}"


def _scontrol(environ: Mapping[str, str], bin_dir: str, proc: Path) -> str:
    """The path of scontrol, as a client of this orchestrator finds it. Raises SourceMissing."""
    try:
        return find_tool("scontrol", [bin_dir] if bin_dir else [], env=environ)
    except SourceMissing:
        if bin_dir or not (folder := clients_of_slurmd(proc)):
            raise
        return find_tool(f"{folder}/scontrol")


def _configuration(environ: Mapping[str, str], root: Path) -> str:
    if environ.get("SLURM_CONF"):
        return f"SLURM_CONF={environ['SLURM_CONF']}"
    return next((str(root / name) for name in _CONF_FILES if (root / name).exists()), "")


def _flags_of(state: str) -> frozenset[str]:
    """``idle+drain`` or ``DOWN*+DRAIN`` as upper-case words, without the suffixes that sinfo and scontrol append."""
    return frozenset(word.rstrip("*~#!%$@^-").upper() for word in state.split("+") if word)


def _hold(reason: str, user: str, stamp: str) -> Hold | None:
    """The hold in a reason. No reason shows as ``none``, by ``Unknown`` at ``Unknown``; one from slurm.conf has no
    time."""
    if not reason or (reason, user, stamp) == ("none", "Unknown", "Unknown"):
        return None
    return hold_of(reason, user, int(stamp) if re.fullmatch(r"\d{1,11}", stamp) else 0)


def _allocated_cpus(cpus_state: str, flags: frozenset[str]) -> int:
    """Allocated CPUs of ``allocated/idle/other/total``, at least 1 while the state itself says that work is there.

    The count lags by seconds behind the start of a job: ``allocated`` with ``0/4/0/4`` was seen.
    """
    return max(int(cpus_state.partition("/")[0]), 1 if flags & {"ALLOCATED", "MIXED"} else 0)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""
