"""How often a node that is out is looked at: many may be out for days, and one API server hears all of them."""

from __future__ import annotations

from pathlib import Path

from healthd.core.model import Mode
from tests.support.engine_rig import OUT, XID_95, World, quarantine_story

POLL_S, CALM_S, REST_S = 5.0, 30.0, 30.0


def polled(world: World) -> float:
    """In how many seconds the engine turns again, in a daemon that would after five."""
    return world.engine.next_in_s(POLL_S)


def out(folder: Path, *, calm_s: float = CALM_S) -> World:
    """A node that is out, and whose fault nobody mends."""
    world = World(folder, mode=Mode.QUARANTINE, calm_s=calm_s)
    world.at(10, lambda: world.log_line(XID_95))
    return world.run(6)


def test_a_case_that_stands_still_is_looked_at_every_half_minute(tmp_path: Path) -> None:
    """After a minute in which nothing moved; until then, and where no calm is set, every five seconds."""
    world = out(tmp_path / "calm")
    assert (world.hold_text.startswith("healthd:"), polled(world)) == (True, POLL_S)
    assert polled(world.run(16)) == CALM_S
    assert polled(out(tmp_path / "busy", calm_s=0.0).run(16)) == POLL_S


def test_what_moves_it_ends_the_calm(tmp_path: Path) -> None:
    """A person's undoing is seen by the next look, and is the command that it ever was; so does the fault's end."""
    undone, repaired = out(tmp_path / "undone").run(16), out(tmp_path / "repaired").run(16)
    undone.cluster.update("n1", "resume")
    undone.step()
    assert undone.store.open_remediation() is None
    assert polled(undone) == POLL_S
    repaired.reset_gpu()
    repaired.step()
    assert polled(repaired) == POLL_S


def test_a_case_that_cannot_be_looked_at_is_not_asked_for_more_often(tmp_path: Path) -> None:
    """A cluster, or a kubelet, that does not answer for minutes is the last that needs more questions."""
    world = out(tmp_path)
    world.cluster.hung = True
    assert polled(world.run(16)) == CALM_S


def test_a_node_with_no_fault_rests(tmp_path: Path) -> None:
    """Its next fault, or a command, calls at once; from then on the engine turns as often as ever."""
    world = World(tmp_path, calm_s=CALM_S)
    assert polled(world.run(40)) == REST_S
    world.execute(OUT)
    assert polled(world.run(4)) == POLL_S


def test_a_fault_that_is_left_alone_is_no_rest(tmp_path: Path) -> None:
    """In mode observe, as an acknowledged one: what is decided about it may change with the time."""
    world = World(tmp_path, mode=Mode.OBSERVE, calm_s=CALM_S)
    world.log_line(XID_95)
    assert polled(world.run(16)) == POLL_S
    world.reset_gpu()
    assert polled(world.run(16)) == REST_S


def test_a_cluster_that_does_not_answer_is_no_rest(tmp_path: Path) -> None:
    """Whether a daemon before this one left a slot with it is not known yet."""
    world = World(tmp_path, calm_s=CALM_S)
    world.cluster.hung = True
    assert polled(world.run(2)) == POLL_S
    world.cluster.hung = False
    assert polled(world.run(2)) == REST_S


def test_the_story_ends_as_it_does_without(tmp_path: Path) -> None:
    """Out, repaired, verified, back: the calm changes when it is looked at, and nothing that is done."""
    plain, calm = quarantine_story(tmp_path / "plain"), quarantine_story(tmp_path / "calm", calm_s=CALM_S)
    assert calm.run_to_end().ending() == plain.run_to_end().ending()
