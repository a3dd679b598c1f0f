"""A job that cannot go on: signalled once, requeued once, by one node, whatever is killed and wherever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.model import Mode, Severity, gpu_component
from healthd.remediation.decide.on_job import OnJob
from tests.support.engine_replay import Replay, when
from tests.support.engine_rig import NODE, XID_79, XID_95, Trouble, World, opted_out
from tests.support.engine_wire import disk_is_full, kill, no_answer, refused
from tests.support.fake_jobs import FakeJobs

SIGNAL = OnJob(after_s=60, signal="USR1")
ONCE = ([("12", "USR1")], [("12", 0)])


def _world(folder: Path, on_job: OnJob = SIGNAL, *, mode: Mode = Mode.QUARANTINE) -> tuple[World, FakeJobs]:
    world = World(folder, mode=mode)
    jobs = world.jobs = FakeJobs(world.cluster, NODE, world.seconds)
    world.rules = replace(world.rules, policy=replace(world.rules.policy, on_job=on_job))
    world.restart_daemon()
    return world, jobs


def _jobs(world: World) -> FakeJobs:
    assert isinstance(world.jobs, FakeJobs)
    return world.jobs


def story(folder: Path, on_job: OnJob = SIGNAL, *, mode: Mode = Mode.REPAIR, fault: Trouble = XID_79) -> World:
    """XID 79 under a job of two nodes."""
    world, jobs = _world(folder, on_job, mode=mode)
    world.at(3, jobs.run)
    return world.at(10, lambda: world.log_line(fault))


def _said(world: World, words: str) -> list[str]:
    return [text for text in world.audit("step") if words in text]


def test_signal_then_grace_then_requeue_then_the_reboot(tmp_path: Path) -> None:
    """The job gets its signal once the node is drained, is requeued a minute later, starts elsewhere at once, and the
    node is repaired without having waited for it."""
    world = story(tmp_path).run_to_end()
    jobs = _jobs(world)
    assert (jobs.sent, jobs.requeued, jobs.started) == (*ONCE, ["12"])
    assert jobs.known["12"].state == "PENDING", "no node takes its next run for the last one"
    assert world.ending().ends == ("released",)
    intents = [text.partition("] ")[2] for text in world.audit("step") if "12 of alice on n[1-2]" in text]
    assert intents[0].startswith("intends to act on job 12 of alice on n[1-2], which cannot go on after gpu.xid.79")
    drained = next(n for n, text in enumerate(world.audit("step")) if "drained:" in text)
    assert drained < next(n for n, text in enumerate(world.audit("step")) if "intends to send USR1" in text)


def test_a_job_that_cannot_go_on_does_not_wait_for_the_slot_to_settle(tmp_path: Path) -> None:
    """Drained and requeued at once: its slot settles meanwhile, and the repair waits for that. With ``wait`` the node
    is drained once its slot has settled."""
    world = story(tmp_path, OnJob(after_s=0))
    while not _jobs(world).requeued:
        world.step()
    assert _said(world, "drains at once: a job that cannot go on waits for it")
    assert _said(world, "requeue sent")
    assert not _said(world, "holds slot cluster 0")
    assert world.run_to_end().ending().ends == ("released",)
    assert (_jobs(world).requeued, world.provisioner.requests) == ([("12", 0)], 1)
    other = story(tmp_path / "waits", OnJob(), mode=Mode.QUARANTINE)
    other.run(60)
    assert not [text for text in other.audit("step") if "at once" in text]


def test_a_slot_that_was_lost_is_read_back_before_a_drain_at_once(tmp_path: Path) -> None:
    """The node holds a slot for another fault, slurmctld loses that, and all nodes that may be out are out by now: the
    fault that ends the job finds no slot, and nothing is drained."""
    world, jobs = _world(tmp_path, OnJob(after_s=0), mode=Mode.QUARANTINE)
    world.at(3, jobs.run).at(10, lambda: world.log_line(replace(XID_95, code="gpu.lost")))
    while not world.cluster.slots:
        world.step()
    assert not world.cluster.nodes[NODE].flags
    world.cluster.slots.clear()
    others = [name for name in world.cluster.nodes if name != NODE]
    for index, name in enumerate(others):
        world.cluster.claim("cluster", index, name)
    world.log_line(XID_79)
    world.run(10)
    assert (world.cluster.nodes[NODE].flags, jobs.requeued) == (set(), [])
    world.cluster.slots.clear()
    world.run(60)
    assert (world.cluster.nodes[NODE].flags, jobs.requeued) == ({"DRAIN"}, [("12", 0)])


def test_acts_on_jobs_are_counted(tmp_path: Path) -> None:
    """What was sent, and a job that was left to itself; a cluster where no job ran counts nothing."""
    world = story(tmp_path, mode=Mode.QUARANTINE)
    world.run(60)
    assert world.engine.job_outcomes == {"signalled": 1, "requeued": 1}
    other = story(tmp_path / "own", mode=Mode.QUARANTINE)
    _jobs(other).handles = lambda job: _jobs(other).end("COMPLETED", job)
    other.run(60)
    assert other.engine.job_outcomes == {"signalled": 1, "left": 1}


def test_a_kill_at_every_boundary_signals_once_and_requeues_once(tmp_path: Path) -> None:
    """kill -9 wherever it comes. A signal that may have been sent is not sent again; the job is requeued once."""
    for number, world in Replay(story, tmp_path).at_every_boundary(lambda _: kill(), half=True):
        world.run_to_end()
        jobs = _jobs(world)
        assert len(jobs.sent) <= 1, (number, world.transcript())
        assert jobs.requeued == [("12", 0)], (number, world.transcript())
        assert world.ending().ends == ("released",), (number, world.transcript())


@pytest.mark.parametrize("trouble", [no_answer, disk_is_full])
def test_a_lost_answer_or_a_full_disk_at_every_boundary_acts_once(tmp_path: Path, trouble: Callable[[], None]) -> None:
    """What got no answer may have been applied."""
    for number, world in Replay(story, tmp_path).at_every_boundary(lambda _: trouble(), half=True):
        world.run_to_end()
        jobs = _jobs(world)
        assert len(jobs.sent) <= 1, (number, world.transcript())
        assert jobs.requeued == [("12", 0)], (number, world.transcript())


def test_a_controller_that_hangs_over_the_requeue_applies_it_once(tmp_path: Path) -> None:
    """It wakes up two minutes later and applies what it finds; nothing is sent a second time."""
    world = story(tmp_path, OnJob(after_s=30), mode=Mode.QUARANTINE)
    jobs = _jobs(world)
    when(world, "before requeue_job", lambda: setattr(world.cluster, "hung", True))
    while not world.cluster.hung:
        world.step()
    world.wire.at = {}
    world.run(24)
    assert jobs.requeued == []
    jobs.wake()
    world.run(100)
    assert jobs.requeued == [("12", 0)]
    assert _said(world, "requeued")


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED"])
def test_a_job_that_checkpoints_and_ends_by_itself_is_not_requeued(tmp_path: Path, state: str) -> None:
    """It heard the signal, wrote its checkpoint, and ended in order."""
    world = story(tmp_path, mode=Mode.QUARANTINE)
    jobs = _jobs(world)
    jobs.handles = lambda job: jobs.end(state, job)
    world.run(60)
    assert (jobs.sent, jobs.requeued) == ([("12", "USR1")], [])
    assert _said(world, f"({state}); not requeued")


def test_a_job_that_requeues_itself_on_the_signal_is_not_requeued_again(tmp_path: Path) -> None:
    """As scripts do that call scontrol requeue in their handler; its next run is left alone."""
    world = story(tmp_path, mode=Mode.QUARANTINE)
    jobs = _jobs(world)

    def requeues_itself(job: str) -> None:
        jobs._requeue(job)
        jobs.runs_again()

    jobs.handles = requeues_itself
    world.run(60)
    assert (jobs.sent, jobs.requeued) == ([("12", "USR1")], [("12", 0)])
    assert _said(world, "not requeued again")


def test_a_job_that_the_fault_ended_is_requeued_at_once(tmp_path: Path) -> None:
    """It failed before the node was drained: no signal, no grace."""
    world = story(tmp_path, mode=Mode.QUARANTINE)
    world.at(10, lambda: _jobs(world).end("FAILED"))
    world.run(30)
    assert (_jobs(world).sent, _jobs(world).requeued) == ([], [("12", 0)])


def test_a_job_that_forbids_requeue_is_left_and_said(tmp_path: Path) -> None:
    """No signal either: it might end by it, and would not run again."""
    world, jobs = _world(tmp_path)
    world.at(3, lambda: jobs.run(may_requeue=False)).at(10, lambda: world.log_line(XID_79))
    world.run(60)
    assert (jobs.sent, jobs.requeued, jobs.taken) == ([], [], {})
    assert (
        world.audit("step").count("[c1] job 12 of alice on n[1-2] is left alone: it forbids requeue (Requeue=0)") == 1
    )


def test_of_two_nodes_of_a_gang_one_acts(tmp_path: Path) -> None:
    """The other finds the job taken, and says so."""
    world = story(tmp_path, mode=Mode.QUARANTINE)
    jobs = _jobs(world)
    jobs.taken["12", 0] = "another"
    world.run(60)
    assert (jobs.sent, jobs.requeued) == ([], [])
    assert _said(world, "left to another of its nodes")


def test_two_daemons_on_one_job_act_once(tmp_path: Path) -> None:
    """Each has XID 79 of its own, and the same cluster."""
    one, jobs = _world(tmp_path / "one")
    other, others = _world(tmp_path / "other")
    others.known, others.taken, others.name = jobs.known, jobs.taken, "there"
    for world in (one, other):
        world.at(3, _jobs(world).run).at(10, lambda world=world: world.log_line(XID_79))  # type: ignore[misc]
    for _ in range(60):
        one.step()
        other.step()
    assert (jobs.sent + others.sent, jobs.requeued + others.requeued) == ONCE


@pytest.mark.parametrize("code", ["gpu.xid.13", "gpu.xid.46", "gpu.lost"])
def test_other_codes_leave_the_job_alone(tmp_path: Path, code: str) -> None:
    """Although the node is drained for them."""
    world = story(tmp_path, mode=Mode.QUARANTINE, fault=replace(XID_95, code=code))
    world.run(60)
    assert (_jobs(world).sent, _jobs(world).requeued) == ([], [])
    assert world.ending().drains == 1


def test_a_fault_of_a_gpu_that_the_job_does_not_have_leaves_it_alone(tmp_path: Path) -> None:
    """A job has two of the node's GPUs, and a third falls off the bus: the node is drained, the job goes on to its end.
    One of its own ends it."""
    lost = replace(XID_79, component=gpu_component(uuid="GPU-5e1f", index=3))
    world = story(tmp_path, mode=Mode.QUARANTINE, fault=lost)
    _jobs(world).has_gpus["12"] = frozenset({0, 1})
    world.run(60)
    assert (_jobs(world).sent, _jobs(world).requeued, world.ending().drains) == ([], [], 1)
    assert _said(world, "job 12 of alice on n[1-2] is left alone: GPU 3 is none of its GPUs here, which are 0, 1")
    own = story(tmp_path / "own", mode=Mode.QUARANTINE, fault=lost)
    _jobs(own).has_gpus["12"] = frozenset({2, 3})
    own.run(60)
    assert (_jobs(own).sent, _jobs(own).requeued) == ONCE


@pytest.mark.parametrize("at_s", [10, 300], ids=["at once", "later"])
def test_a_fault_of_its_own_gpu_beside_that_of_another_ends_it(tmp_path: Path, at_s: int) -> None:
    """Two GPUs fall off the bus, and the job has the second one."""
    world = story(
        tmp_path,
        mode=Mode.QUARANTINE,
        fault=replace(XID_79, component=gpu_component(uuid="GPU-5e1f", index=3)),
    )
    _jobs(world).has_gpus["12"] = frozenset({4, 5})
    world.at(at_s, lambda: world.log_line(replace(XID_79, component=gpu_component(uuid="GPU-0a2b", index=4))))
    world.run(80)
    assert (_jobs(world).sent, _jobs(world).requeued) == ONCE


def test_a_warning_leaves_the_job_alone(tmp_path: Path) -> None:
    """Although it takes the node out."""
    world = story(tmp_path, mode=Mode.QUARANTINE, fault=replace(XID_79, severity=Severity.WARNING))
    world.run(60)
    assert (_jobs(world).sent, _jobs(world).requeued, world.ending().drains) == ([], [], 1)


def test_wait_is_the_default(tmp_path: Path) -> None:
    """Without a word of the operator no job is touched, and none is read."""
    world = story(tmp_path, OnJob(), mode=Mode.QUARANTINE)
    world.run(60)
    assert (_jobs(world).sent, _jobs(world).requeued) == ([], [])
    assert "before jobs" not in world.wire.passed


def test_an_operator_who_opts_the_node_out_stops_it(tmp_path: Path) -> None:
    """Between the signal and the requeue: the grace goes on, and nothing is done."""
    world = story(tmp_path, mode=Mode.QUARANTINE)
    while not _jobs(world).sent:
        world.step()
    opted_out(world)
    world.run(60)
    assert _jobs(world).requeued == []


def test_an_operator_who_undoes_the_drain_keeps_the_job(tmp_path: Path) -> None:
    """The bad node would be a node of its next run."""
    world = story(tmp_path, mode=Mode.QUARANTINE)
    while not _jobs(world).sent:
        world.step()
    world.cluster.update(NODE, "resume")
    world.run(60)
    assert _jobs(world).requeued == []
    assert world.ending().ends == ("acknowledged",)


def test_a_cluster_without_such_jobs_says_so(tmp_path: Path) -> None:
    """Once, in the trail."""
    world = World(tmp_path, mode=Mode.QUARANTINE)
    world.rules = replace(world.rules, policy=replace(world.rules.policy, on_job=SIGNAL))
    world.at(10, lambda: world.log_line(XID_79)).run(40)
    assert [text for text in world.audit("step") if text.startswith("[c1] on_job has no effect here")][1:] == []


def test_a_requeue_that_is_refused_is_said_and_the_remediation_goes_on(tmp_path: Path) -> None:
    """The job is left alone from then on; the node waits for its end as ever."""
    world = story(tmp_path, OnJob(after_s=30))
    jobs = _jobs(world)
    when(world, "before requeue_job", refused)
    while not _said(world, "requeue refused"):
        world.step()
    world.wire.at = {}
    world.run(60)
    assert (jobs.requeued, world.provisioner.requests) == ([], 0)
    assert len([text for text in world.audit("step") if text.startswith("[c1] job") and "refused" in text]) == 1
    assert world.engine.job_outcomes == {"left": 1}
    jobs.end("COMPLETED")
    assert world.run_to_end().ending().ends == ("released",)


@pytest.mark.parametrize("boundary", ["after take_job", "before job", "before signal_job"])
@pytest.mark.parametrize("mode", [Mode.QUARANTINE, Mode.REPAIR])
def test_an_answer_that_is_lost_at_each_act_loses_no_restart(tmp_path: Path, boundary: str, mode: Mode) -> None:
    """The job is this node's since it was taken, whatever could not be read after that."""
    world, lost = story(tmp_path, mode=mode), list[str]()

    def once() -> None:
        if not lost:
            lost.append(boundary)
            no_answer()

    when(world, boundary, once)
    world.run_to_end() if mode is Mode.REPAIR else world.run(120)
    assert _jobs(world).requeued == [("12", 0)], world.transcript()


def test_of_two_nodes_that_got_no_answer_one_acts(tmp_path: Path) -> None:
    """The controller hung while both took the job, and has applied the first of the two by the time it answers."""
    one, jobs = _world(tmp_path / "one", mode=Mode.QUARANTINE)
    other, others = _world(tmp_path / "other", mode=Mode.QUARANTINE)
    others.known, others.taken, others.name = jobs.known, jobs.taken, "there"
    for world in (one, other):
        world.at(3, _jobs(world).run).at(10, lambda world=world: world.log_line(XID_79))  # type: ignore[misc]
        when(world, "before take_job", lambda world=world: setattr(world.cluster, "hung", True))  # type: ignore[misc]
    while not (one.cluster.hung and other.cluster.hung):
        for world in (one, other):
            if not world.cluster.hung:
                world.step()
    for world in (one, other):
        world.wire.at = {}
        _jobs(world).wake()
    for _ in range(60):
        one.step()
        other.step()
    assert (jobs.sent + others.sent, jobs.requeued + others.requeued) == ONCE
