"""A drain of ours that no remediation is open for: it is found, said, paged for, and undone by an operator's release
alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from healthd.core.model import Action, Mode, Refusal
from healthd.remediation.ports import Hold, NodeView
from tests.engine.test_telling_overdue import Told
from tests.support.engine_rig import IN, NODE, XID_95, World, repair_story

TEXT = "healthd: gpu.xid.95 gpu:GPU-5e1f [c1]"


def drained_late(folder: Path) -> World:
    """Drained, undrained by an operator, the fault over; and then a drain of ours is applied, long after its time."""
    world = World(folder, mode=Mode.QUARANTINE)
    world.at(10, lambda: world.log_line(XID_95)).at(60, lambda: world.cluster.update(NODE, "resume"))
    world.at(90, world.reset_gpu).at(600, lambda: world.cluster.update(NODE, "drain", TEXT, user="healthd"))
    return world


def with_its_store_lost(folder: Path) -> World:
    """Drained, then the disk is lost and somebody deletes the slot: the text names a remediation that nobody knows."""
    world = World(folder, mode=Mode.QUARANTINE)
    world.at(10, lambda: world.log_line(XID_95)).at(60, lambda: lose_all(world))
    return world


def down_without_its_drain(folder: Path) -> World:
    """The same, the machine was rebooted since, and a restart of the controller lost the drain: DOWN and its reason,
    which is ours, are left."""
    world = with_its_store_lost(folder)
    return world.at(90, world.power_cycle, lambda: world.cluster.restart(losing=[NODE]))


def lose_all(world: World) -> None:
    for path in world.folder.glob("healthd.db*"):
        path.unlink()
    world.cluster.slots.clear()
    world.restart_daemon()


@pytest.mark.parametrize("story", [drained_late, with_its_store_lost, down_without_its_drain])
def test_it_is_said_paged_for_and_undone_by_a_release(tmp_path: Path, story: Callable[[Path], World]) -> None:
    """Within half an hour its text is named, after four hours an operator is asked for, each day again. The release
    verifies the node first, as any other, and ends it."""
    world = story(tmp_path / "n1")
    told = Told(world).run(500)
    assert (world.engine.decision.action, world.engine.decision.refusal) == (Action.HOLD, Refusal.ORPHAN)
    assert f'by "{TEXT}", a drain of ours without a remediation; `healthd release` undoes it' in world.message[-1]
    assert told.states("node")[-1][1] == "wrong"
    told.until(2.5 * 86_400)
    assert [state for _, state in told.states("page ")] == ["wrong", "still", "still"]
    assert told.states("page ")[0][0] <= 600 + 14_400 + 600
    assert world.execute(IN).done
    told.run(30)
    assert world.orchestrator.view().in_service
    assert [told.states(key)[-1][1] for key in ("page ", "node")] == ["over", "over"]
    assert world.engine.decision.reason == "nothing calls for taking the node out"
    world.close()


@pytest.mark.parametrize("remark", ["", " : Not responding"])
def test_a_release_that_a_killed_slurmctld_forgot_is_made_again(tmp_path: Path, remark: str) -> None:
    """kill -9 just after a reboot and the release: it has the drain, the DOWN and the slot of before. Since 24.11 Slurm
    appends to our reason, with a stamp of its own that may be later than the boot. The node is verified once more."""
    world = repair_story(tmp_path)
    while not any("healthy again; settling" in text for text in world.audit("step")):
        world.step()
    node = world.cluster.nodes[NODE]
    assert node.hold is not None
    if remark:
        node.hold = Hold(text=f"{node.hold.text}{remark}", user="slurm", stamp=int(world.seconds()))
    world.cluster.save()
    while not any("slot cluster 0 given back" in text for text in world.audit("step")):
        world.step()
    world.cluster.kill()
    assert world.cluster.nodes[NODE].flags == {"DRAIN", "DOWN"}
    world.run(100)
    assert (world.cluster.nodes[NODE].flags, world.cluster.slots) == (set(), {})
    world.close()


def test_a_healthy_node_is_read_once_after_a_start_and_no_more(tmp_path: Path) -> None:
    """A drain of ours comes from a remediation or from a daemon before this one: nothing else is worth a request."""
    world = World(tmp_path / "n1", mode=Mode.QUARANTINE)
    reads, view = list[float](), world.orchestrator.view

    def counted(*, jobs: bool = False) -> NodeView:
        reads.append(world.clock())
        return view(jobs=jobs)

    world.orchestrator.view = counted  # type: ignore[method-assign]
    for _ in range(600):
        world.clock.advance(295.0)
        world.step()
    assert len(reads) == 1
    world.close()


def test_what_somebody_took_over_meanwhile_is_not_undone(tmp_path: Path) -> None:
    """The release reads text, user and stamp again before it undoes anything."""
    world = drained_late(tmp_path / "n1").run(500)
    assert world.execute(IN).done
    world.cluster.update(NODE, "drain", "mine now")
    world.run(30)
    assert world.hold_text == "mine now"
    assert (
        "held by admin" in world.message[-1] or world.engine.decision.reason == "nothing calls for taking the node out"
    )
    world.close()


def test_a_node_that_is_not_healthy_is_released_by_force_alone(tmp_path: Path) -> None:
    """As with a remediation of its own."""
    world = drained_late(tmp_path / "n1").run(500)
    world.blind = "nvidia-smi: not found"
    world.run(20)
    refused = world.execute(IN)
    assert (refused.done, refused.refusal) == (False, Refusal.NOT_WELL)
    assert world.hold_text == TEXT
    world.close()


def test_one_that_an_operator_undoes_is_over(tmp_path: Path) -> None:
    """It is looked at again, and what is gone is not paged for. A cluster that does not answer ends nothing."""
    world = drained_late(tmp_path / "n1")
    told = Told(world).run(500)
    world.cluster.hung = True
    told.until(world.clock() + 4_000)
    assert world.engine.decision.refusal is Refusal.ORPHAN
    world.cluster.hung = False
    world.cluster.update(NODE, "resume")
    told.until(world.clock() + 4_000)
    assert world.engine.decision.reason == "nothing calls for taking the node out"
    assert [state for _, state in told.states("node")[-2:]] == ["wrong", "over"]
    world.close()
