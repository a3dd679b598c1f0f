"""An agent that reads the fleet in quiet times releases what a sleeping node left, where no controller runs."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from healthd.agent.agent import Agent, reading_agent
from healthd.config.load import load
from healthd.core.check import discover
from healthd.core.model import Mode
from healthd.remediation.decide.unwatched import SILENT_S
from healthd.remediation.engine.absent import DEAD_S, AbsentNodes, AbsentWatch
from healthd.remediation.records.handoff import HandoffRecord
from healthd.sim.cluster import FakeOrchestrator
from tests.support.engine_rig import XID_95, World

TEXT = "healthd: gpu.xid.79 gpu:GPU-8e2f [k3v9]"


def agent_of(world: World, name: str, tmp_path: Path, mode: Mode) -> Agent:
    """The agent of one node around the world's engine and store."""
    path = tmp_path / "config.toml"
    path.write_text(
        f'[node]\nname = "{name}"\n[remediation]\nmode = "{mode}"\n[sources]\nkmsg = "{tmp_path}/none"\n'
        f'sys_root = "{tmp_path}"\ndev_root = "{tmp_path}"\n'
    )
    settings = {each.name: each.settings for each in discover().values()}
    config = load(path, checks=settings, environ={}).config
    agent = reading_agent(config)
    agent.monitor, agent.store, agent.engine, agent.orchestrator = (
        world.monitor,
        world.store,
        world.engine,
        world.orchestrator,
    )
    absent = AbsentNodes(
        node=lambda each: FakeOrchestrator(world.cluster, each),
        rules=lambda: world.rules,
        timeouts=world.timeouts,
        monotonic_s=world.clock,
    )
    agent.absent = AbsentWatch(absent, world.orchestrator, name)
    return agent


def learns(world: World, agent: Agent, seconds: float) -> None:
    """That much later, having looked twice an hour meanwhile."""
    while seconds > 0:
        world.clock.advance(min(1800.0, seconds))
        now: datetime = world.clock.now()
        agent.learn_fleet(now)
        seconds -= 1800.0


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.QUARANTINE, Mode.REPAIR])
def test_what_a_sleeping_node_left_is_released_by_the_second_reading(mode: Mode, tmp_path: Path) -> None:
    """Said in the trail of the agent that did it; in observe mode the fleet is not even read."""
    world = World(tmp_path / "world", mode=mode)
    world.cluster.claim("cluster", 0, "n7")
    world.cluster.update("n7", "drain", TEXT, user="healthd")
    world.cluster.asleep.add("n7")
    agent = agent_of(world, "n1", tmp_path, mode)
    try:
        learns(world, agent, 60)
        assert world.cluster.slots == {("cluster", 0): "n7"}
        learns(world, agent, 500)
        trail = [text for text in world.audit("decision") if text.startswith("n7: Slurm powered it down")]
        assert len(trail) == len(world.cluster.slots) ^ 1 == (mode is not Mode.OBSERVE)
    finally:
        agent.close(keep_open=True)


def test_a_page_for_a_dead_node_is_not_over_because_another_agent_is_first(tmp_path: Path) -> None:
    """The first node in service changes twice: the page stands until the dead node is back."""
    world = World(tmp_path / "world", mode=Mode.REPAIR)
    world.cluster.claim("cluster", 0, "n7")
    world.cluster.update("n7", "down", "psu")
    world.cluster.nodes["n7"].flags.add("NOT_RESPONDING")
    world.cluster.update("n1", "drain", "psu")
    agent = agent_of(world, "n10", tmp_path, Mode.REPAIR)
    try:
        learns(world, agent, 60)
        for word in ("drain", "resume", "drain"):
            world.cluster.update("n1", word, "psu")
            learns(world, agent, DEAD_S)
            assert [each.node for each in agent.paged_absent] == ["n7"]
        assert sum("n7" in text for text in world.audit("decision")) == 1
        world.cluster.update("n7", "resume")
        learns(world, agent, 500)
        assert agent.paged_absent == ()
    finally:
        agent.close(keep_open=True)


def test_a_page_for_a_dead_node_is_over_although_its_agent_has_a_remediation_of_its_own(tmp_path: Path) -> None:
    """The first node in service pages, and is taken out for days itself: it goes on reading the fleet for that page."""
    world = World(tmp_path / "world", mode=Mode.QUARANTINE)
    world.cluster.claim("cluster", 0, "n7")
    world.cluster.update("n7", "down", "psu")
    world.cluster.nodes["n7"].flags.add("NOT_RESPONDING")
    agent = agent_of(world, "n1", tmp_path, Mode.QUARANTINE)
    try:
        learns(world, agent, DEAD_S + 7200)
        assert [each.node for each in agent.paged_absent] == ["n7"]
        world.log_line(XID_95)
        world.run(10)
        assert world.store.open_remediation() is not None
        learns(world, agent, 3600)
        assert [each.node for each in agent.paged_absent] == ["n7"]
        world.cluster.update("n7", "resume")
        learns(world, agent, 3600)
        assert agent.paged_absent == ()
    finally:
        agent.close(keep_open=True)


def test_a_page_for_a_silent_slot_stands_although_its_agent_is_out_itself(tmp_path: Path) -> None:
    """Nothing is DOWN or asleep, and the agent that pages is no longer in service: the slot is read all the same."""
    world = World(tmp_path / "world", mode=Mode.REPAIR)
    world.cluster.claim("cluster", 0, "n7")
    agent = agent_of(world, "n1", tmp_path, Mode.REPAIR)
    try:
        learns(world, agent, 600 + 2 * max(SILENT_S, DEAD_S))
        assert [each.node for each in agent.paged_absent] == ["n7"]
        world.cluster.update("n1", "drain", "psu")
        learns(world, agent, 3600)
        assert [each.node for each in agent.paged_absent] == ["n7"]
        world.cluster.slots.clear()
        learns(world, agent, 3600)
        assert agent.paged_absent == ()
    finally:
        agent.close(keep_open=True)


@pytest.mark.parametrize(("name", "pages"), [("n1", 1), ("n10", 2), ("n2", 9)])
def test_a_node_whose_daemon_is_away_pages_by_the_first_agent_and_later_by_the_second(
    name: str, pages: int, tmp_path: Path
) -> None:
    """A drain of ours and a living slurmd, and no word of the daemon: n1 tells after SILENT_S, n10 DEAD_S later."""
    world = World(tmp_path / "world", mode=Mode.REPAIR)
    world.cluster.claim("cluster", 0, "n7")
    world.cluster.update("n7", "drain", TEXT, user="healthd")
    agent = agent_of(world, name, tmp_path, Mode.REPAIR)
    try:
        learns(world, agent, 600)
        for turn in range(1, 4):
            learns(world, agent, max(SILENT_S, DEAD_S))
            assert [each.node for each in agent.paged_absent] == ["n7"] * (turn >= pages)
        assert sum("its own healthd has said nothing" in text for text in world.audit("decision")) == (pages <= 3)
        FakeOrchestrator(world.cluster, "n7").write_record(HandoffRecord(watched=world.clock.now()).text)
        learns(world, agent, 600)
        assert agent.paged_absent == ()
    finally:
        agent.close(keep_open=True)


@pytest.mark.parametrize(("name", "pages"), [("n1", True), ("n2", False)])
def test_a_dead_node_with_a_slot_pages_once_for_the_fleet(name: str, pages: bool, tmp_path: Path) -> None:
    """By the first node in service, for as long as it is so."""
    world = World(tmp_path / "world", mode=Mode.REPAIR)
    world.cluster.claim("cluster", 0, "n7")
    world.cluster.update("n7", "down", "psu")
    world.cluster.nodes["n7"].flags.add("NOT_RESPONDING")
    agent = agent_of(world, name, tmp_path, Mode.REPAIR)
    try:
        learns(world, agent, 60)
        for _ in range(3):
            learns(world, agent, DEAD_S)
            assert [each.node for each in agent.paged_absent] == ["n7"] * pages
        assert sum("n7" in text for text in world.audit("decision")) == pages
        world.cluster.update("n7", "resume")
        learns(world, agent, 500)
        assert agent.paged_absent == ()
    finally:
        agent.close(keep_open=True)
