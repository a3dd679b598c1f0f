"""``healthd controller``: nodes without a right at AWS are rebooted and replaced, once each, and only for a reason."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import pytest

from healthd.core.model import Remedy
from healthd.remediation.records.handoff import HandoffRecord, RequestAnswer
from tests.live.aws.aws_endpoint import REGION
from tests.live.aws.aws_forks import AwsForks, aws_forks
from tests.live.aws.moto_server import moto_serving
from tests.live.prometheus.prometheus_server import promtool
from tests.live.slurm.controller_lab import ControllerLab, RunningController
from tests.live.slurm.slurm_lab import SlurmLab
from tests.support.receiver import receiving
from tests.support.running import OFF_THE_BUS, RunningNode

pytestmark = [pytest.mark.slurm, pytest.mark.process]

PCI = "0000:05:00"
A, B = "ip-10-1-2-1", "ip-10-1-2-2"


@pytest.fixture(scope="module")
def cluster(slurm_lab_factory: Callable[..., SlurmLab]) -> SlurmLab:
    """Two nodes, with names as HyperPod gives them; one that is silent is given up after seconds."""
    return slurm_lab_factory(names=(A, B), conf={"SlurmdTimeout": "6"})


@pytest.fixture(scope="module")
def forks() -> Iterator[AwsForks]:
    """The process that forks the controllers' calls to AWS, with boto3 loaded."""
    with aws_forks() as started:
        yield started


@pytest.fixture
def lab(cluster: SlurmLab, forks: AwsForks, tmp_path: Path) -> Iterator[ControllerLab]:
    """That cluster, clean, with an account of its own for each test."""
    cluster.reset()
    with ControllerLab(tmp_path, cluster, forks) as made:
        yield made


def breaks(node: RunningNode) -> None:
    """A GPU falls off the bus."""
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))


def new_machine(lab: ControllerLab, node: RunningNode, *, more: str = "") -> RunningNode:
    """The old machine is gone, and the one that HyperPod has started takes its name, with an empty disk."""
    lab.until(lambda: [host for host, _ in lab.new_machines if host == node.name], 40, "another instance")
    node.kill()
    lab.slurm.reboot(node.name)
    return lab.node(node.name, lab.instance(node.name), more=more)


def is_back(lab: ControllerLab, name: str) -> None:
    lab.until(lambda: lab.slurm.state(name) == "IDLE", 40, f"{name} is back in service")
    lab.until(lambda: "healthd-" not in lab.slurm.scontrol("-o", "show", "reservation").stdout, 20, "its place is free")


def test_a_node_without_rights_is_replaced_by_the_controller(lab: ControllerLab) -> None:
    """Fault, drain, request, one call by the controller, another instance, verified, released. The node never called
    AWS, its sentences say who acts, and the controller's status and the record tell what became of it."""
    controller = lab.controller().start()
    old = lab.instance(A)
    node = lab.node(A, old)
    breaks(node)
    lab.until(lambda: lab.replaced() == 1, 40, "the controller asks for another machine")
    lab.until(
        lambda: "asked of healthd controller; the controller has taken the request" in node.log_text(),
        20,
        "who acts is said",
    )
    successor = new_machine(lab, node)
    lab.until(lambda: f"this machine follows {old}" in successor.log_text(), 20, "it goes on where the old one stopped")
    is_back(lab, A)
    assert lab.replaced() == 1
    assert lab.rebooted() == 0
    assert lab.nowhere.requests == [], "a node called AWS"
    lab.until(lambda: lab.write_record(A).became == lab.instance(A), 20, "the mark tells what became of it")
    record = lab.write_record(A)
    assert (record.machine, record.remedy, record.answer) == (old, Remedy.REPLACE_NODE, RequestAnswer.TAKEN)
    assert f"replaced: {old} became {lab.instance(A)}" in controller.audit()
    assert controller.command("--status").returncode == 0
    lab.until(lambda: 'healthd_controller_decisions_total{state="done"} 1.0' in controller.page(), 20, "it is counted")
    page = controller.page()
    for line in (
        "healthd_controller_leads 1.0",
        'healthd_controller_step_duration_seconds_count{step="replace"} 1.0',
        'healthd_controller_requests_total{request="sagemaker:BatchReplaceClusterNodes",result="ok",to="aws"} 1.0',
        'healthd_budget_nodes{scope="cluster"} 2.0',
    ):
        assert line in page
    assert 'result="ok",to="slurm"' in page
    assert promtool("check", "metrics", text=page).returncode == 0
    assert controller.stop() == 0


def test_the_evidence_outlives_the_machine(lab: ControllerLab) -> None:
    """The node uploads its bundle before it asks for another machine. The address is in the new machine's status, in
    the fleet's view and in the ledger, and the support case names it."""
    with moto_serving() as (host, port):
        url, key = f"http://{host}:{port}", {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
        store = boto3.client("s3", region_name=REGION, endpoint_url=url, **key)
        store.create_bucket(Bucket="site-evidence")
        more = f'[evidence]\ncommands = []\nupload_to = "s3://site-evidence/train-a"\nendpoint_url = "{url}"\n'
        controller = lab.controller()
        controller.configure(lab.sections(lab.aws.url) + "[ledger]\ninterval_s = 10\n")
        controller.start()
        node = lab.node(A, lab.instance(A), more=more)
        breaks(node)
        lab.until(lambda: "uploaded to " in node.log_text(), 60, "the bundle is uploaded")
        ((address, found),) = [
            (f"s3://site-evidence/{each['Key']}", each["Size"])
            for each in store.list_objects_v2(Bucket="site-evidence")["Contents"]
        ]
        lab.until(lambda: address in controller.verb("case", A).stdout, 60, "the ledger has it")
        successor = new_machine(lab, node, more=more)
    assert address.startswith(f"s3://site-evidence/train-a/{A}/")
    assert found > 0
    lab.until(lambda: f"evidence {address}" in successor.healthd("status", "--socket", str(successor.socket)).stdout,
              60, "its status names it")  # fmt: skip
    is_back(lab, A)
    assert f"uploaded to {address}" in node.log_text()
    assert lab.write_record(A).evidence == address
    assert address in controller.verb("fleet", A).stdout
    assert address in controller.verb("case", A).stdout
    assert (controller.state_dir / "incidents.json").exists()
    assert lab.nowhere.requests == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_around_the_act_it_does_not_act_twice(lab: ControllerLab, when: str) -> None:
    """kill -9 when AWS has the request, before or after it is applied; the next controller only looks for the
    evidence."""
    controller = lab.controller().start()
    node = lab.node(A, lab.instance(A))
    killed: list[str] = []

    def kill(moment: str, operation: str) -> None:
        process = controller.process
        if (moment, operation) == (when, "BatchReplaceClusterNodes") and not killed and process is not None:
            killed.append(moment)
            os.kill(process.pid, signal.SIGKILL)

    lab.aws.met = kill
    breaks(node)
    lab.until(lambda: killed, 40, "the controller is killed in the act")
    controller.kill()
    controller.start()
    successor = new_machine(lab, node)
    is_back(lab, A)
    assert lab.replaced() == 1
    lab.until(lambda: "released" in successor.log_text(), 10, "it says so")


def test_the_second_takes_over_when_the_first_is_killed(lab: ControllerLab) -> None:
    """Of two with one folder one leads; the other says that it waits, and acts once the first is gone."""
    first = lab.controller().start()
    lab.until(lambda: "this controller acts from now on" in first.log_text(), 20, "the first leads")
    second = lab.controller().start()
    lab.until(lambda: "another controller leads" in second.log_text(), 20, "the second waits")
    assert f"process {first.process.pid if first.process else 0}" in second.log_text(), "it says who leads"
    node = lab.node(A, lab.instance(A))
    breaks(node)
    lab.until(lambda: lab.replaced() == 1, 40, "one of them acts")
    first.kill()
    lab.until(lambda: '"took_over": true' in second.log_text(), 20, "the second leads")
    new_machine(lab, node)
    is_back(lab, A)
    assert lab.replaced() == 1
    other = lab.node(B, lab.instance(B))
    breaks(other)
    lab.until(lambda: lab.replaced() == 2, 40, "the second acts for the other node")
    assert lab.aws.requests_for("BatchReplaceClusterNodes")[1]["NodeIds"] == [lab.write_record(B).machine]


def test_a_controller_that_may_only_look_says_so_on_the_node(lab: ControllerLab) -> None:
    """In observe mode nothing is asked of AWS; the node says whom it waits for, and acts go on once the mode is
    raised, by SIGHUP and in the same process."""
    controller = lab.controller(mode="observe").start()
    node = lab.node(A, lab.instance(A))
    breaks(node)
    words = "held up: healthd controller waits: the controller is in observe mode"
    lab.until(lambda: words in node.log_text(), 40, "the node says so")
    assert lab.write_record(A).answer is RequestAnswer.WAITS
    assert lab.aws.requests == []
    controller.configure(lab.sections(lab.aws.url))
    process = controller.process
    assert process is not None
    process.send_signal(signal.SIGHUP)
    lab.until(lambda: lab.replaced() == 1, 40, "in repair mode it acts")
    assert process.poll() is None


def test_a_node_that_does_not_come_back_from_its_reboot_is_replaced(lab: ControllerLab) -> None:
    """Its daemon cannot speak for it: the record, our place and our drain do. Rebooted once, replaced once, back."""
    lab.controller(policy="nvidia", reboot_s=15).start()
    node = lab.node(A, lab.instance(A), policy="nvidia", reboot_s=15)
    breaks(node)
    lab.until(lambda: lab.rebooted() == 1, 40, "the controller reboots it")
    node.kill()
    lab.slurm.slurmd_stop(A)
    assert lab.replaced() == 0
    lab.until(lambda: lab.replaced() == 1, 90, "the controller replaces what did not come back")
    down = {"DOWN", "NOT_RESPONDING"}
    lab.until(lambda: down <= set(lab.slurm.state(A).split("+")), 20, "slurmctld has given it up, too")
    lab.until(lambda: lab.new_machines, 40, "another instance")
    lab.slurm.slurmd_boots(A)
    successor = lab.node(A, lab.instance(A))
    is_back(lab, A)
    assert "this machine follows" in successor.log_text()
    assert (lab.rebooted(), lab.replaced()) == (1, 1)


def test_the_one_that_leads_tells_people_and_nobody_else(lab: ControllerLab) -> None:
    """A node that does not come back from its reboot, and for which nothing more is to be done, cannot tell it: the
    leader does, once. It is killed; the other tells nothing that was told, and tells the end of it. What a receiver
    does not take is in the log and in the metrics, and the one that waits says that it waits."""
    with receiving() as receiver:
        notify = f'[notify]\nwebhook_url = "{receiver.url}"\n'
        first, second = lab.controller(), lab.controller()
        for each in (first, second):
            each.configure(lab.sections(lab.aws.url) + notify)
        receiver.answers = [(503, {"Retry-After": "1"})] * 1000
        first.start()
        lab.until(lambda: "this controller acts from now on" in first.log_text(), 20, "the first leads")
        second.start()
        lab.until(lambda: "another controller leads" in second.log_text(), 20, "the second waits")
        lab.until(second.serves, 20, "it serves its metrics")
        assert "healthd_controller_leads 0.0" in second.page()
        assert "healthd_controller_last_success_seconds 0.0" in second.page()
        falls_silent(lab, A)
        lab.until(lambda: receiver.refused, 60, "the receiver is asked, and does not take it")
        lab.until(lambda: "webhook: not delivered" in first.log_text(), 10, "the log says so")
        lab.until(
            lambda: 'healthd_notifications_undelivered{channel="webhook"} 1.0' in first.page(), 10, "it is counted"
        )
        assert list(first.undelivered()) == ["webhook"]
        lab.until(
            lambda: "! notify: deliveries to webhook fail since" in first.command("--status").stdout, 10, "status"
        )
        assert "healthd_controller_operator_needed 1.0" in first.page()
        assert 'healthd_controller_nodes{state="silent"} 1.0' in first.page()
        receiver.answers = []
        lab.until(lambda: receiver.taken, 60, "the receiver takes it")
        (told,) = receiver.taken
        sender = told["sender"]
        assert (told["schema"], sender["mode"]) == ("healthd.notification/v2", "repair")
        assert sender["nodes_that_need_an_operator"] == 1
        assert [(each["key"], each["state"]) for each in told["news"]] == [(f"page {A}", "wrong")]
        delivered = 'healthd_notifications_undelivered{channel="webhook"} 0.0'
        lab.until(lambda: delivered in first.page(), 20, "the first knows that it was taken")
        lab.until(lambda: not first.undelivered(), 20, "it is written down: a kill before tells it twice")
        first.kill()
        lab.until(lambda: '"took_over": true' in second.log_text(), 20, "the second leads")
        time.sleep(20)  # longer than it takes to tell something
        assert len(receiver.taken) == 1, "what was told is told again"
        lab.slurm.update(A, "comment=")
        lab.slurm.slurmd_start(A)
        lab.until(lambda: len(receiver.taken) == 2, 60, "the end is told")
        assert [(each["key"], each["state"]) for each in receiver.taken[1]["news"]] == [(f"page {A}", "over")]
        assert second.stop() == 0


def falls_silent(lab: ControllerLab, name: str) -> None:
    """Our place and our drain, a record that says that its reboot should be over long ago, with nothing behind it, and
    no slurmd."""
    since = datetime.now(UTC) - timedelta(seconds=700)
    record = HandoffRecord(
        remediation_id="f0f0f0f0", machine=lab.instance(name), remedy=Remedy.REBOOT_NODE, asked=since, attempt=1
    )
    slot = ("reservationname=healthd-cluster-0", f"nodes={name}", "starttime=now", "duration=UNLIMITED", "users=root")
    lab.slurm.scontrol("create", "reservation", *slot, "flags=MAINT,IGNORE_JOBS,STATIC_ALLOC")
    lab.slurm.update(name, "state=drain", "reason=healthd: gpu.xid.79 gpu:0 [f0f0f0f0]")
    lab.slurm.update(name, f"comment={record.text}")
    lab.slurm.slurmd_stop(name)


def forge(lab: ControllerLab, name: str, remediation: str = "f0f0f0f0") -> None:
    """A request as a node would leave it, written by somebody else."""
    asked = f"asks=replace_node attempt=1 asked={int(time.time())}"
    lab.slurm.update(name, f"comment=healthd case={remediation} machine={lab.instance(name)} {asked}")


def test_a_forged_request_is_refused(lab: ControllerLab) -> None:
    """Without our place in the budget, or with somebody else's drain, a comment is no permission. What is refused is
    said in the comment, in the status and in the log; nothing is asked of AWS, and no state is touched."""
    controller: RunningController = lab.controller().start()
    forge(lab, A)
    lab.until(lambda: lab.write_record(A).answer is RequestAnswer.REFUSED, 20, "refused")
    assert "no budget slot is held for this node" in lab.write_record(A).message
    slot = ("reservationname=healthd-cluster-0", f"nodes={B}", "starttime=now", "duration=UNLIMITED", "users=root")
    lab.slurm.scontrol("create", "reservation", *slot, "flags=MAINT,IGNORE_JOBS,STATIC_ALLOC")
    lab.slurm.update(B, "state=drain", "reason=admin: psu")
    forge(lab, B)
    lab.until(lambda: lab.write_record(B).answer is RequestAnswer.REFUSED, 20, "refused")
    assert "it is held by root with 'admin: psu'" in lab.write_record(B).message
    assert lab.aws.requests == []
    assert (lab.slurm.state(A), lab.slurm.state(B).split("+")[1]) == ("IDLE", "DRAIN")
    assert "refused: it is held by root" in controller.audit()
    beside = controller.command("--once")
    assert (beside.returncode, "another controller leads" in beside.stderr) == (70, True)
    assert controller.stop() == 0
    assert controller.command("--once").returncode == 0
