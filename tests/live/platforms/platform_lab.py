"""A real Slurm cluster whose nodes are machines of AWS, one platform or another, for tests of whole repairs.

Real: munged, slurmctld, one slurmd a node, one ``healthd run`` a node, boto3, moto's EC2 and Auto Scaling. Stand-ins:
the machine (``SimulatedMachine``: GPUs, kernel log, boot id), its metadata service, HyperPod's API (``FakeHyperPod``),
and the platform's own hand, which ``players`` plays by looking at the cluster and at AWS, never at healthd.

What tests use, and may rely on:

* ``PlatformLab(folder, moto, forks, nodes=8)``: a context manager. ``lab.slurm`` is the ``SlurmLab``.
  ``lab.machine(platform)`` takes the next free node and returns its ``NodeMachine``, running and healthy;
  ``settings={"remediation.mode": "quarantine"}`` changes any setting of healthd's, by its dotted name. Scenarios of
  different nodes may run side by side in threads.
* ``NodeMachine``: ``name``; ``instance_id``; ``daemon``, the ``RunningNode`` of the machine as it is now, and
  ``daemons``, those of all machines that had the name, oldest first (each has its own state directory, so that the
  audit trail of one that was given away can be read); ``endpoint``, the ``AwsEndpoint`` that this node alone speaks to;
  ``clients``, the ``Interposed`` between its daemons and Slurm's commands; ``player``. Acts: ``fault()``,
  ``power_off()``, ``power_on()``, ``reboot()``, ``come_up()``, ``become(instance_id)``. Questions: ``asked()``,
  ``message()``, ``remediations()``, ``ends()``, ``fences()``, ``reason()``, ``flags()``, ``is_back()``.
  ``wait(condition, within_s, what)`` fails with everything that is known.
* ``Platform``: a row of the table; ``players.PLATFORMS`` has them all. ``reboot`` and ``replace`` are what ``asked()``
  must hold once after such a repair; "" where a node cannot do it itself. ``drains``: whether a drain leaves the
  machine alone there.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import boto3
from msgspec import Struct

from healthd.remediation.decide.remediation import End, Remediation
from healthd.sim.machine import SimulatedMachine
from healthd.sim.machine import main as ask_for_reboot
from healthd.sim.tree import new_boot
from healthd.state.store import Store
from tests.live.aws.aws_endpoint import REGION, AwsEndpoint
from tests.live.aws.aws_forks import AwsForks
from tests.live.aws.moto_server import dummy_env
from tests.live.slurm.interposed import Interposed
from tests.live.slurm.slurm_lab import LabError, SlurmLab
from tests.support.imds import Imds
from tests.support.limits import limit_s, pauses
from tests.support.running import RunningNode

if TYPE_CHECKING:
    from tests.live.platforms.players import Player

BAD_GPU = 3
INSTANCE_TYPE = "p5.48xlarge"
IMAGE = "ami-12c6146b"  # one of those that moto knows
SETTINGS: Mapping[str, object] = {
    "remediation.mode": "repair",
    "remediation.settle_s": 0.5,
    "remediation.opt_out_file": "",
    "policy.use": "nvidia",
    "policy.same_fault_nodes": 1000,
    "policy.storm_nodes": 100,
    "policy.storm_share": "100%",
    "policy.repairs_in_vain": 100,
    "policy.repairs_judged": 0,
    "policy.canary_repairs": 0,
    "policy.replacements_in_vain": 100,
    "budget.max_out": 1000,
    "budget.settle_s": 0.3,
    "budget.replacements_per_hour": 1000,
    "budget.replacements_per_day": 1000,
    "orchestrator.kind": "slurm",
    "orchestrator.slurm.timeout_s": 5,
    "orchestrator.slurm.unanswered_s": 10,
    "provisioner.aws.timeout_s": 10,
    "provisioner.aws.poll_s": 1,
}
"""Of every node, unless a test says otherwise: short waits, and no bound of the fleet's, which others are tests of."""

_ACTING = frozenset(
    {
        "BatchRebootClusterNodes",
        "BatchReplaceClusterNodes",
        "RebootInstances",
        "StartInstances",
        "StopInstances",
        "SetInstanceHealth",
        "TerminateInstanceInAutoScalingGroup",
    }
)
_BY_SCONTROL = {
    " state=fail reason=Action:Reboot": "Action:Reboot",
    " state=fail reason=Action:Replace": "Action:Replace",
    " reboot ASAP ": "scontrol reboot",
    " state=drain reason=healthd: to be replaced": "drain that replaces",
}


class Platform(Struct, frozen=True, kw_only=True):
    """One row of the table; see above. ``settings``: as of ``PlatformLab.machine``; ``{folder}`` in a text of theirs is
    the node's folder."""

    name: str
    player: Callable[[NodeMachine], Player]
    settings: Mapping[str, object]
    reboot: str
    replace: str
    drains: bool

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


class Account:
    """The hand of the platforms in the AWS account: it goes to moto directly, so that endpoints count healthd alone."""

    def __init__(self, moto: tuple[str, int]) -> None:
        url, keys = f"http://{moto[0]}:{moto[1]}", {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
        self.ec2: Any = boto3.client("ec2", region_name=REGION, endpoint_url=url, **keys)
        self.autoscaling: Any = boto3.client("autoscaling", region_name=REGION, endpoint_url=url, **keys)

    def launch(self, tags: Mapping[str, str] | None = None) -> str:
        """An instance at the address of every node of the lab; returns its id."""
        more: dict[str, Any] = {}
        if tags:
            listed = [{"Key": key, "Value": value} for key, value in tags.items()]
            more["TagSpecifications"] = [{"ResourceType": "instance", "Tags": listed}]
        answer = self.ec2.run_instances(
            ImageId=IMAGE, MinCount=1, MaxCount=1, InstanceType=INSTANCE_TYPE, PrivateIpAddress="127.0.0.1", **more
        )
        return str(answer["Instances"][0]["InstanceId"])

    def terminate(self, instance: str) -> None:
        self.ec2.terminate_instances(InstanceIds=[instance])

    def group(self, name: str) -> str:
        """An Auto Scaling group of one; returns its instance."""
        subnet = self.ec2.describe_subnets()["Subnets"][0]["SubnetId"]
        self.autoscaling.create_launch_configuration(
            LaunchConfigurationName=name, ImageId=IMAGE, InstanceType=INSTANCE_TYPE
        )
        self.autoscaling.create_auto_scaling_group(
            AutoScalingGroupName=name,
            LaunchConfigurationName=name,
            MinSize=1,
            MaxSize=1,
            DesiredCapacity=1,
            VPCZoneIdentifier=subnet,
        )
        return str(self.members(name)[0]["InstanceId"])

    def members(self, name: str) -> list[dict[str, Any]]:
        answer = self.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])
        return list(answer["AutoScalingGroups"][0]["Instances"])

    def close(self) -> None:
        self.ec2.close()
        self.autoscaling.close()


class PlatformLab:
    """One cluster and one account. ``forks``: what the daemons' calls to AWS are forked from. ``conf``: settings of
    slurm.conf."""

    def __init__(
        self,
        folder: Path,
        moto: tuple[str, int],
        forks: AwsForks,
        *,
        nodes: int = 8,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.moto, self.forks = folder, moto, forks
        names = [f"ip-10-1-2-{number}" for number in range(1, nodes + 1)]  # as HyperPod has them, by its API's model
        self.slurm = SlurmLab(names=names, conf={"RebootProgram": "/bin/true", **(conf or {})})
        self.machines: list[NodeMachine] = []
        self._free = list(self.slurm.nodes)
        self._taking, self._stack = threading.Lock(), ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.slurm)
            self.account = Account(self.moto)
            stack.callback(self.account.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for machine in self.machines:
            machine.close()
        self._stack.close()

    def machine(self, platform: Platform, *, settings: Mapping[str, object] | None = None) -> NodeMachine:
        """Take the next free node; its daemon answers when this returns."""
        with self._taking:
            name = self._free.pop(0)
            machine = NodeMachine(self, platform, name, dict(settings or {}))
            self.machines.append(machine)
        machine.begin()
        return machine


class NodeMachine:
    """One node: its name in Slurm, and the machine that has the name now. Made by ``PlatformLab.machine``.

    ``broken``: the machine's fault is in its hardware, and there again after each boot.
    """

    def __init__(self, lab: PlatformLab, platform: Platform, name: str, settings: Mapping[str, object]) -> None:
        self.lab, self.platform, self.name = lab, platform, name
        self.folder = lab.folder / name
        self.folder.mkdir(parents=True)
        self.clients = Interposed(self.folder / "bin", ":")
        self.endpoint = AwsEndpoint(moto=lab.moto)
        self.imds = Imds({"instance-type": INSTANCE_TYPE, "placement/region": REGION})
        self.broken, self.instance_id = False, ""
        self.daemons: list[RunningNode] = []
        self.hardware: list[SimulatedMachine] = []
        self._settings, self._stack = settings, ExitStack()
        self._off_since_s = 0.0
        self.player = platform.player(self)

    @property
    def daemon(self) -> RunningNode:
        """The daemon of the machine as it is now; it may be dead."""
        return self.daemons[-1]

    @property
    def machine(self) -> SimulatedMachine:
        """The machine as it is now."""
        return self.hardware[-1]

    def begin(self) -> None:
        """Serve what the machine asks, start its daemon, and let the platform look after it."""
        self._stack.enter_context(self.endpoint.serving())
        serving = threading.Thread(target=self.imds.serve_forever)
        serving.start()
        self._stack.callback(self.imds.server_close)
        self._stack.callback(serving.join)
        self._stack.callback(self.imds.shutdown)
        self._unpack(self.player.first_instance())
        self.daemon.start()
        self.player.start()
        self._stack.callback(self.player.stop)
        self.daemon.well()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything of this node but its slurmd, which is the cluster's. May be called twice."""
        self._stack.close()
        for daemon in self.daemons:
            daemon.stop()

    # -- what happens to the machine ----------------------------------------------------------------------------------

    def fault(self) -> None:
        """A GPU falls off the bus: XID 79."""
        self.machine.gpu_falls_off_the_bus(BAD_GPU)

    def power_off(self) -> None:
        """The machine is gone without a word: its daemon and its slurmd."""
        self.daemon.kill()
        self.lab.slurm.slurmd_stop(self.name)
        self._off_since_s = time.monotonic()

    def power_on(self) -> None:
        """A boot: slurmd with a new boot time, and the daemon, as its service manager starts it, until it has read the
        cluster: what a platform does next to the node takes longer than that."""
        self._off_for_a_second()
        self.lab.slurm.slurmd_boots(self.name)
        self.daemon.start()
        self.lab.slurm.wait(self._has_decided, 60.0, f"the daemon of {self.name} reads the cluster")

    def _has_decided(self) -> bool:
        """Whether the daemon's present life has logged a decision."""
        return '"event": "engine"' in self.daemon.log.read_text(errors="replace").rpartition('"daemon.started"')[2]

    def _off_for_a_second(self) -> None:
        """A boot takes longer. Stamps and boot times are whole seconds: in the second of the last answer a boot goes
        unnoticed by slurmctld, and one in the second of the drain is none since the drain."""
        time.sleep(max(0.0, self._off_since_s + 1.1 - time.monotonic()))

    def reboot(self) -> None:
        """The same machine with a new boot id, an empty kernel log, and its fault gone unless it is ``broken``."""
        self.power_off()
        self.come_up()

    def come_up(self) -> None:
        """The second half of a reboot, of a machine that is off."""
        ask_for_reboot([str(self.machine.folder)])
        self._off_for_a_second()
        self.machine.reboot()
        if self.broken:
            self.fault()
        self.power_on()

    def become(self, instance_id: str, *, broken: bool = False) -> None:
        """Another machine has the name: a new instance id, hardware of its own, an empty state directory."""
        if self.daemon.process is not None:
            self.power_off()
        self._off_for_a_second()
        self.broken = broken
        self._unpack(instance_id)
        if broken:
            self.fault()
        self.power_on()

    def _unpack(self, instance_id: str) -> None:
        folder = self.folder / f"machine-{len(self.hardware)}"
        folder.mkdir()
        machine = SimulatedMachine(folder / "simulated")
        new_boot(machine.root)
        (machine.root / "sys/devices/virtual/dmi/id/board_asset_tag").write_text(f"{instance_id}\n")
        self.imds.items["instance-id"] = instance_id
        self.instance_id = instance_id
        self.hardware.append(machine)
        environ = {
            **dummy_env(str(folder / "none")),
            **self.lab.slurm.env(),
            **self.lab.forks.environ(),
            "AWS_EC2_METADATA_DISABLED": "false",  # it is asked where [sources] imds_endpoint says, which is here
        }
        sections = self._sections(machine)
        self.daemons.append(RunningNode(folder / "healthd", self.name, sections=sections, environ=environ))

    def _sections(self, machine: SimulatedMachine) -> str:
        settings = {
            **SETTINGS,
            "orchestrator.slurm.bin_dir": str(self.clients.folder),
            "provisioner.aws.endpoint_url": self.endpoint.url,
            # A busy machine's metadata service may be too late to tell it, and then nothing asks for it again.
            "provisioner.aws.region": REGION,
            **self.platform.settings,
            **self._settings,
        }
        tables: dict[str, list[str]] = {}
        for name, value in settings.items():
            table, _, key = name.rpartition(".")
            text = json.dumps(value).replace("{folder}", str(self.folder))  # its texts, numbers and lists are TOML's
            tables.setdefault(table, []).append(f"{key} = {text}")
        own = "".join(f"[{table}]\n" + "\n".join(lines) + "\n" for table, lines in tables.items())
        return own + machine.sections(imds_endpoint=self.imds.endpoint)

    # -- what can be seen of it ---------------------------------------------------------------------------------------

    def asked(self) -> list[str]:
        """Every request that would reboot or replace the machine and was carried out, in no order between the two ways:
        the operations that AWS applied, and what was asked of Slurm's commands."""
        by_api = [operation for operation, _ in list(self.endpoint.applied) if operation in _ACTING]
        calls = [f" {call.partition(' ')[2]}" for call in self.clients.calls()]
        return by_api + [meant for call in calls for words, meant in _BY_SCONTROL.items() if words in call]

    def log_text(self) -> str:
        """The audit trails of all machines that had the name, oldest first."""
        return "\n".join(f"--- {daemon.folder.parent.name}\n{daemon.log_text()}" for daemon in self.daemons)

    def remediations(self) -> list[Remediation]:
        """The cases of the machine as it is now, oldest first."""
        store = Store(self.daemon.state_dir / "healthd.db", now=datetime.now(UTC))
        try:
            return list(store.remediations())
        finally:
            store.close()

    def ends(self) -> list[End | None]:
        """How these remediations ended; None for one that has not."""
        return [remediation.end for remediation in self.remediations()]

    def state(self) -> tuple[frozenset[str], str]:
        """The words of the node's state as slurmctld has it, and the reason without the stamp; empty where it does not
        answer."""
        line = self.lab.slurm.scontrol("-o", "show", "node", self.name).stdout
        state, reason = re.search(r" State=(\S+)", line), re.search(r" Reason=(.*?) \[[^\[\]@\s]+@[^\]\s]+\]", line)
        flags = frozenset(word.rstrip("*~#!%$@^-") for word in state[1].split("+")) if state else frozenset()
        is_out = any(flag.startswith(("DRAIN", "DOWN", "FAIL", "REBOOT")) for flag in flags)
        return flags, reason[1] if reason and is_out else ""  # 24.11 shows the reason of a node that is back

    def flags(self) -> frozenset[str]:
        """The words of the node's state, as slurmctld has it."""
        return self.state()[0]

    def reason(self) -> str:
        """The node's reason, without the stamp."""
        return self.state()[1]

    def comment(self) -> str:
        """The node's comment."""
        return self.lab.slurm.shows(self.name, "Comment")

    def fences(self) -> list[str]:
        """The reservations on this node."""
        lines = self.lab.slurm.scontrol("-o", "show", "reservation").stdout.splitlines()
        return [line.split()[0].partition("=")[2] for line in lines if f" Nodes={self.name} " in line]

    def is_back(self) -> bool:
        """In service, and no reservation is left that keeps jobs off.

        The flag of one goes a moment later, or stays for good where slurmctld was killed meanwhile; jobs run all the
        same.
        """
        return self.flags() - {"MAINTENANCE"} == {"IDLE"} and not self.fences()

    def takes_a_job(self) -> bool:
        """Whether a job runs on the node, to its end."""
        job = self.lab.slurm.submit(self.name, "true")
        return self.lab.slurm.wait_job(job, "COMPLETED", within_s=30.0)["NodeList"] == self.name

    def wait(self, condition: Callable[[], object], within_s: float, what: str) -> None:
        """Poll until it is so. Fails at once with a player's own failure; else with all that is known of the node."""
        end_s, pause_s = time.monotonic() + limit_s(within_s), pauses()
        while not condition():
            if self.player.failed is not None:
                raise AssertionError(f"{self.name}: the platform's player failed") from self.player.failed
            if time.monotonic() > end_s:
                raise AssertionError(
                    f"{self.name} ({self.platform}): not within {limit_s(within_s):g} s: {what}\n{self.shown()}"
                )
            time.sleep(
                max(0.5, next(pause_s))
            )  # each time costs some of Slurm's commands, and six lives share two cores

    def shown(self) -> str:
        """All that is known, for a failure's message."""
        parts = {
            "state": "+".join(sorted(self.flags())),
            "reason": self.reason(),
            "comment": self.comment(),
            "reservations": ", ".join(self.fences()),
            "the platform did": ", ".join(self.player.did),
            "healthd asked": ", ".join(self.asked()),
            "requests": ", ".join(operation for operation, _ in self.endpoint.requests[-20:]),
        }
        log = self.daemon.log.read_text(errors="replace")[-1500:] if self.daemon.log.exists() else ""
        return "\n".join(f"{name}: {text}" for name, text in parts.items()) + f"\n{self.log_text()}\n--- log\n{log}"


__all__ = ["Account", "LabError", "NodeMachine", "Platform", "PlatformLab"]
