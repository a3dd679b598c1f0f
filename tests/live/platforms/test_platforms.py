"""Every row of the table of platforms, the whole way, seen from outside.

A job runs; a GPU falls off the bus. The node is fenced by a reservation and nothing else starts on it; it is drained
where a drain is not a replacement; the job ends by itself; evidence is saved; the platform is asked once; another boot
or another machine is there; it is verified, released, in service, and a job runs on it. What is asserted comes from
slurmctld, from the endpoint, from the platform's own hand and from the audit trails, of the machine that went too.
"""

from __future__ import annotations

import itertools

import pytest

from healthd.remediation.decide.remediation import End
from tests.live.platforms.platform_lab import NodeMachine, Platform, PlatformLab
from tests.live.platforms.players import EC2, PLATFORMS
from tests.live.platforms.side_by_side import Results, Scenario
from tests.support.sampling import of_this_run

pytestmark = [pytest.mark.slurm, pytest.mark.process]

OUR_REASON = "healthd: gpu.xid.79 gpu:GPU-51a1a7ed-0000-4000-8000-000000000003 ["
REPLACE_FIRST = {"policy.use": "replace-first"}


def rebooted(lab: PlatformLab, platform: Platform) -> None:
    """The same instance with another boot id, and the platform's own hand did it once."""
    with lab.machine(platform) as node:
        instance = node.instance_id
        _out_with_a_job(node)
        node.wait(lambda: node.ends() == [End.RELEASED] and node.is_back(), 120.0, "back in service")
        assert node.asked() == [platform.reboot]
        assert node.player.did.count("reboot") == 1
        assert node.instance_id == instance
        _went_in_order(node, "intends to reboot", "rebooted: boot id ", "verified: healthy since ", " given back")
        assert node.takes_a_job()


def replaced(lab: PlatformLab, platform: Platform) -> None:
    """Another instance behind the name, whose daemon began with nothing, found the place of the one before and let
    itself in."""
    with lab.machine(platform, settings=REPLACE_FIRST) as node:
        instance = node.instance_id
        _out_with_a_job(node)
        node.wait(lambda: len(node.daemons) == 2 and node.ends() == [End.RELEASED], 120.0, "let in")
        node.wait(node.is_back, 20.0, "back in service")
        assert node.asked() == [platform.replace]
        assert node.player.did.count("terminate") == node.player.did.count("another machine") == 1
        assert node.instance_id != instance
        followed = f"this machine follows {instance} under the same name"
        _went_in_order(node, "intends to replace", "--- machine-1", followed, "verified", " given back")
        assert f"machine={instance} " in node.comment(), "the mark bounds the fleet's rate of replacements"
        assert node.takes_a_job()


def kept_out(lab: PlatformLab, platform: Platform) -> None:
    """A stopped instance cannot start itself, so a fault that calls for another machine leaves the node out, with the
    reason said, and nothing asked."""
    with lab.machine(platform, settings=REPLACE_FIRST) as node:
        node.fault()
        node.wait(lambda: "out until it is healthy" in node.log_text(), 60.0, "it stays out")
        assert node.asked() == []
        assert node.flags() >= {"DRAIN"}
        assert node.reason().startswith(OUR_REASON)
        assert len(node.fences()) == 1
        plan = node.daemon.healthd("plan", "--socket", str(node.daemon.socket)).stdout
        assert "loses the instance store" in plan, plan


def _out_with_a_job(node: NodeMachine) -> None:
    """From the fault to an idle node: what is the same on every row."""
    slurm, may_end = node.lab.slurm, node.folder / "the-job-may-end"
    job = slurm.run_job(node.name, f"while [ ! -e {may_end} ]; do sleep 0.2; done")
    node.fault()
    node.wait(node.fences, 30.0, "fenced")
    kept_off = slurm.submit(node.name, "true")
    if node.platform.drains:
        node.wait(lambda: "DRAIN" in node.flags(), 30.0, "drained")
        assert node.reason().startswith(OUR_REASON)
    node.wait(lambda: f"waiting for {job}" in node.log_text(), 30.0, "it waits for the job")
    assert node.asked() == []
    assert ("DRAIN" in node.flags()) == node.platform.drains
    assert [slurm.job(each)["JobState"] for each in (job, kept_off)] == ["RUNNING", "PENDING"]
    slurm.cancel(kept_off)
    may_end.touch()
    assert slurm.wait_job(job, "COMPLETED")["NodeList"] == node.name, "it ran to its own end"
    node.wait(lambda: "evidence collected in " in node.log_text(), 30.0, "evidence")
    assert list(node.daemons[0].state_dir.glob("bundles/*/*"))
    _fenced_first(node)


def _fenced_first(node: NodeMachine) -> None:
    """The reservation came before the drain, and nothing else of healthd's touched the node before it.

    A reservation whose answer came too late is asked for again: there may be several before the drain. Where a drain is
    how a replacement is asked for, that may have been asked for by now, and is no drain of this kind."""
    acts = [call for call in node.clients.calls() if call.startswith(("scontrol create", "scontrol update"))]
    states = [call for call in acts if " comment=" not in call and "reason=healthd: to be replaced" not in call]
    reserves = "scontrol create reservation reservationname=healthd-cluster-"
    after = list(itertools.dropwhile(lambda call: call.startswith(reserves), states))
    assert states[0].startswith(reserves), states
    assert [" state=drain " in call for call in after[:1]] == [True] * node.platform.drains, states


def _went_in_order(node: NodeMachine, *after: str) -> None:
    drained = ("drained: ",) if node.platform.drains else ()
    words = ("intends to take a slot", "holds slot ", *drained, "idle: no job", "evidence collected", *after)
    message, at = node.log_text(), 0
    for each in words:
        at = message.find(each, at)
        assert at >= 0, f"{each!r} is not there, or not in this order:\n{message}"


EVERY_SCENARIO = [
    *(Scenario(play=rebooted, platform=platform) for platform in PLATFORMS),
    *(Scenario(play=replaced, platform=platform) for platform in PLATFORMS if platform.replace),
    Scenario(play=kept_out, platform=EC2),
]
SCENARIOS = of_this_run().of({"stories": EVERY_SCENARIO}, kind=lambda each: each.play.__name__, least=6)["stories"]
"""`make test-exhaustive` plays all of them, `make test` six, each branch among them: others in each run. The same
repairs, without a daemon, are lives of test_kill_everywhere.py."""


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_from_the_fault_to_the_end(results: Results, scenario: Scenario) -> None:
    """Fault, fenced, drained where it may be, idle, collected, repaired once, verified, back; or kept out and said."""
    results(scenario)
