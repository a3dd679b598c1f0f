"""A HyperPod cluster whose nodes have no right at AWS, and a controller that has: real Slurm, real daemons, real boto3.

Stand-ins: HyperPod's API (``FakeHyperPod`` behind an endpoint that counts), the metadata service of each machine, and
whoever starts the machines: the test. The nodes speak to an endpoint of their own, at which nothing must ever arrive.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from healthd.core.check import discover
from healthd.notify.notifier import NEWS
from healthd.remediation.records.handoff import HandoffRecord, parse
from healthd.state.store import Store
from tests.live.aws.aws_endpoint import REGION, AwsEndpoint
from tests.live.aws.aws_forks import AwsForks
from tests.live.aws.fake_hyperpod import CLUSTER, FakeHyperPod
from tests.live.aws.moto_server import dummy_env
from tests.live.slurm.slurm_lab import SlurmLab
from tests.support.imds import Imds
from tests.support.limits import limit_s
from tests.support.ports import free_ports
from tests.support.running import ROOT, Running, RunningNode, command_line

NOBODY = ("127.0.0.1", 9)
COMMON = """
[orchestrator]
kind = "slurm"
[orchestrator.slurm]
timeout_s = 8
unanswered_s = 10
[provisioner]
kind = "hyperpod"
act_from = "controller"
[provisioner.hyperpod]
how = "api"
cluster = "{cluster}"
[provisioner.aws]
region = "{region}"
endpoint_url = "{url}"
timeout_s = 20
[remediation]
mode = "{mode}"
reboot_timeout_s = {reboot_timeout_s}
replace_timeout_s = 300
settle_s = 0.5
max_attempts = 1
opt_out_file = ""
[budget]
max_out = 8
settle_s = 0.3
[policy]
use = "{policy}"
same_fault_nodes = 1000
storm_nodes = 100
storm_share = "100%"
repairs_in_vain = 100
repairs_judged = 0
canary_repairs = 0
replacements_in_vain = 100
"""


ONLY_THE_KERNEL_LOG = "".join(
    f'[checks."{name}"]\nenabled = false\n' for name in discover() if name not in ("kernel.xid", "kmsg.reader")
)
"""Every other check would judge the machine that the tests run on."""


class RunningController(Running):
    """One ``healthd controller`` in a process of its own."""

    def __init__(self, folder: Path, sections: str, state_dir: Path, environ: dict[str, str]) -> None:
        folder.mkdir(parents=True)
        self.state_dir, self.config, self.log = state_dir, folder / "config.toml", folder / "log"
        self._environ, self.port = environ, free_ports(1)[0]
        self.configure(sections)

    def configure(self, sections: str) -> None:
        own = f'[controller]\ninterval_s = 1\nsilent_s = 2\nstate_dir = "{self.state_dir}"\n'
        own += f'http = "127.0.0.1:{self.port}"\n'
        self.config.write_text(own + sections)

    def command(self, *more: str) -> subprocess.CompletedProcess[str]:
        return command_line(["controller", "--config", str(self.config), *more], self._environ, limit_s(60.0))

    def verb(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another verb on its head node."""
        return command_line([*arguments, "--config", str(self.config)], self._environ, limit_s(60.0))

    def start(self) -> Self:
        self.begin("controller", self.config, self.log, self._environ)
        return self

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.command("--status", "--json").stdout)
        return answer

    def page(self) -> str:
        """Its metrics, by HTTP."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=limit_s(10)) as answer:
            text: str = answer.read().decode()
            return text

    def serves(self) -> bool:
        """Whether its metrics can be asked for: it logs what it does before that."""
        try:
            return bool(self.page())
        except urllib.error.URLError:
            return False

    def audit(self) -> str:
        with closing(self.store()) as store:
            return "\n".join(event.text for event in store.events())

    def undelivered(self) -> dict[str, Any]:
        """The messages that the next leader will send, by receiver."""
        with closing(self.store()) as store:
            return dict(json.loads(store.fact(NEWS)).get("waiting", {}))

    def store(self) -> Store:
        return Store(self.state_dir / "controller.db", now=datetime.now(UTC))


class ControllerLab:
    """One cluster of two nodes, one account, and machines that come when they are asked for. ``forks``: what the
    controllers' calls to AWS are forked from."""

    def __init__(self, folder: Path, slurm: SlurmLab, forks: AwsForks) -> None:
        self.folder, self.slurm, self.forks = folder, slurm, forks
        self.hyperpod = FakeHyperPod(delay_s=0.3, became=self._became)
        self.aws = AwsEndpoint(moto=NOBODY, hyperpod=self.hyperpod)
        self.nowhere = AwsEndpoint(moto=NOBODY)
        self.nodes: list[RunningNode] = []
        self.controllers: list[RunningController] = []
        self.new_machines: list[tuple[str, str]] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.aws.serving())
        self._stack.enter_context(self.nowhere.serving())
        for host in self.slurm.nodes:
            self.hyperpod.add(host)
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.stop()
        for controller in self.controllers:
            controller.stop()
        self._stack.close()

    def sections(self, url: str, *, mode: str = "repair", policy: str = "replace-first", reboot_s: float = 600) -> str:
        return COMMON.format(
            cluster=CLUSTER, region=REGION, url=url, mode=mode, policy=policy, reboot_timeout_s=reboot_s
        )

    def instance(self, host: str) -> str:
        return [node.id for node in self.hyperpod.nodes if node.host == host][-1]

    def node(self, name: str, instance: str, *, more: str = "", **settings: Any) -> RunningNode:
        """A machine with this instance id takes the name; its daemon answers when this returns. ``more``: sections of
        its configuration; with any it has credentials, for what they name."""
        imds = Imds({"instance-id": instance, "instance-type": "ml.p5.48xlarge"})
        thread = threading.Thread(target=imds.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        self._stack.callback(imds.server_close)
        self._stack.callback(thread.join)
        self._stack.callback(imds.shutdown)
        folder = self.folder / f"{name}-{len(self.nodes)}"
        environ = {
            key: value for key, value in dummy_env(str(self.folder / "none")).items() if more or "ACCESS" not in key
        }
        environ = {**environ, **self.slurm.env(), "AWS_EC2_METADATA_DISABLED": "false"}
        node = RunningNode(folder, name, environ=environ)
        sources = f'[sources]\nkmsg = "{node.kmsg}"\nimds_endpoint = "{imds.endpoint}"\n'
        node.configure(sources + self.sections(self.nowhere.url, **settings) + ONLY_THE_KERNEL_LOG + more)
        self.nodes.append(node)
        node.start(within_s=60)
        return node

    def controller(self, *, state: str = "shared", **settings: Any) -> RunningController:
        """A controller that is not started yet; those with the same ``state`` share a folder."""
        forks = self.forks.environ()
        path = {"PYTHONPATH": os.pathsep.join([str(ROOT), forks["PYTHONPATH"]])}
        environ = {**os.environ, **dummy_env(str(self.folder / "none")), **self.slurm.env(), **forks, **path}
        controller = RunningController(
            self.folder / f"controller-{len(self.controllers)}",
            self.sections(self.aws.url, **settings),
            self.folder / state,
            environ,
        )
        self.controllers.append(controller)
        return controller

    def write_record(self, name: str) -> HandoffRecord:
        return parse(self.slurm.shows(name, "Comment")) or HandoffRecord()

    def replaced(self) -> int:
        return self.aws.count("BatchReplaceClusterNodes")

    def rebooted(self) -> int:
        return self.aws.count("BatchRebootClusterNodes")

    def until(self, condition: Callable[[], object], within_s: float, what: str) -> None:
        """Wait; fail with everything that is known."""
        end = time.monotonic() + limit_s(within_s)
        while not condition():
            self.hyperpod.go_on()
            if time.monotonic() > end:
                logs = [controller.log_text()[-2500:] for controller in self.controllers]
                trails = [node.log_text()[-1500:] for node in self.nodes]
                known = "\n".join([*logs, *trails, str(self.slurm.states()), str(self.aws.requests[-5:])])
                raise AssertionError(f"not within {limit_s(within_s):g} s: {what}\n{known}")
            time.sleep(0.1)

    def _became(self, host: str, instance: str) -> None:
        self.new_machines.append((host, instance))
