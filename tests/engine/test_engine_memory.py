"""What a node's handoff record remembers of it, and what that decides: whole stories on the engine's rig."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.errors import BackendBusy, BackendError, BackendRefused
from healthd.core.model import Action, Component, Mode, Refusal, Remedy, Severity, Verdict
from healthd.notify.news import topics
from healthd.remediation.decide.commands import Command, Verb
from healthd.remediation.records.handoff import HandoffRecord, PastAct, PastRepair, RepairResult, Versions, parse
from tests.support.engine_rig import IN, NODE, STORIES, WORN_OUT, XID_79, XID_95, Trouble, World


def history_of(world: World) -> tuple[PastRepair, ...]:
    record = parse(world.cluster.nodes[NODE].record)
    return record.history if record is not None else ()


def told(world: World) -> list[str]:
    return [f"{each.act} {each.code} {each.outcome}".strip() for each in history_of(world)]


@pytest.mark.parametrize(
    ("story", "left"),
    [
        ("quarantine", "return gpu.xid.95"),
        ("repair", "reboot gpu.xid.79 helped"),
        ("reset", "reset gpu.xid.95 helped"),
        ("replace", "replace gpu.remap.failure helped"),
    ],
)
def test_each_repair_is_an_entry_that_says_whether_it_helped(tmp_path: Path, story: str, left: str) -> None:
    """The record says so under the node's name; of a replacement it is the successor's empty disk that goes on."""
    assert told(STORIES[story](tmp_path / "n1").run_to_end()) == [left]


def test_a_reset_that_was_never_made_is_no_entry(tmp_path: Path) -> None:
    """What held the GPUs had not ended when an operator reset them: nothing helped, and nothing was tried."""
    world = World(tmp_path / "n1", mode=Mode.REPAIR, can_reset=True)
    world.resetter.held_by = "4711 nvidia-device-p"
    world.at(10, lambda: world.log_line(XID_95))
    while not world.resetter.stopped:
        world.step()
    assert told(world) == ["reset gpu.xid.95"]
    world.reset_gpu()
    assert world.run_to_end().ending().in_service
    assert (world.resetter.requests, told(world)) == (0, ["return gpu.xid.95"])


def test_each_attempt_that_did_not_help_is_an_entry(tmp_path: Path) -> None:
    """Two reboots in vain, and nothing after them: the node was given up."""
    world = World(tmp_path / "n1", mode=Mode.REPAIR)
    stuck = Trouble(code="efa.missing", remedy=Remedy.REBOOT_NODE, clears_by=None)
    world.reboot_heals = False
    world.at(10, lambda: world.levels.add(stuck)).run(400)
    assert told(world) == ["reboot efa.missing failed"] * 2


@pytest.mark.parametrize(("returns", "comes_back"), [(3, True), (4, False)])
def test_an_empty_disk_lets_no_node_in_sooner_that_comes_and_goes(
    tmp_path: Path, returns: int, comes_back: bool
) -> None:
    """The daemon that finds the drain reads in the record how often the node came back, and pages as the one before."""
    world = World(tmp_path / "n1", mode=Mode.QUARANTINE)
    link = Trouble(code="efa.missing", remedy=Remedy.REBOOT_NODE, clears_by=None)
    entries = (
        PastRepair(act=PastAct.RETURN, at=world.clock.now() - timedelta(hours=hour), code=link.code)
        for hour in range(returns, 0, -1)
    )
    world.orchestrator.write_record(HandoffRecord(history=tuple(entries)).text)
    world.at(10, lambda: world.levels.add(link)).at(100, lambda: world.levels.discard(link)).run(25)
    world.lose_store()
    world.run(150)
    assert any("our drain was found" in line for line in world.audit("step"))
    assert world.orchestrator.view().in_service is comes_back
    decision = world.engine.decision
    assert comes_back or (decision.action, decision.refusal) == (Action.PAGE, Refusal.LEMON)
    world.close()


class BusyPlatform(World):
    """Its platform has no time for the first three askings."""

    answer: BackendError = BackendBusy("the cluster is being updated")
    unwilling = 3
    askings = 0

    def _asked_to_reboot(self) -> None:
        self.askings += 1
        if self.askings <= self.unwilling:
            assert told(self) == ["reboot gpu.xid.79"], "it is written down before it is begun"
            raise self.answer
        super()._asked_to_reboot()


def test_a_platform_that_is_busy_has_repaired_nothing(tmp_path: Path) -> None:
    """Asked four times, and begun once."""
    world = BusyPlatform(tmp_path / "n1", mode=Mode.REPAIR)
    world.at(10, lambda: world.log_line(XID_79)).run_to_end()
    assert (world.askings, told(world)) == (4, ["reboot gpu.xid.79 helped"])
    assert [remediation.acts for remediation in world.store.remediations()] == [(Remedy.REBOOT_NODE,)]


def test_what_was_refused_is_no_repair(tmp_path: Path) -> None:
    """The platform says no, twice: the node is given up, and nothing was done to it."""
    world = BusyPlatform(tmp_path / "n1", mode=Mode.REPAIR)
    world.answer = BackendRefused("not while it is paused")
    world.at(10, lambda: world.log_line(XID_79)).run(60)
    assert (world.askings, told(world)) == (2, [])
    remediation = world.store.open_remediation()
    assert remediation is not None
    assert (str(remediation.end), remediation.acts) == ("failed", ())


# -- what the record decides ------------------------------------------------------------------------------------------


class BadImage(World):
    """Every machine of this name shows a fault that only another machine ends, some minutes after it was let in."""

    def another_machine(self) -> None:
        self.folder = self.folder.parent / f"m{self.machine}"
        super().another_machine()
        gpu = Component(kind="gpu", id=f"GPU-{self.machine:04x}")
        self.at(self.clock() + 900, lambda: self.log_line(replace(WORN_OUT, component=gpu)))


def test_a_bad_image_gives_one_machine_away_and_then_asks_a_person(tmp_path: Path) -> None:
    """Another machine, another disk, another GPU: by name and code it has come back, and that was the last remedy."""
    world = BadImage(tmp_path / "n1", mode=Mode.REPAIR, can_replace=True)
    world.at(10, lambda: world.log_line(WORN_OUT)).run(2_000)
    assert world.provisioner.replacements == 1
    assert world.engine.decision.action is Action.PAGE
    assert "came back after replace_node: an operator is needed" in world.engine.decision.reason


class Diskless(World):
    """Its state does not outlive a boot, and its fault is back ten minutes after each."""

    def power_cycle(self) -> None:
        self.folder = self.folder.parent / f"boot-{self.boot}"
        self.folder.mkdir()
        super().power_cycle()
        self.at(self.clock() + 600, lambda: self.log_line(XID_79))


@pytest.mark.parametrize(("can_replace", "acts"), [(False, (1, 0)), (True, (1, 1))])
def test_a_node_without_a_disk_climbs_its_ladder_once(tmp_path: Path, can_replace: bool, acts: tuple[int, int]) -> None:
    """As one with a disk does: a reboot, where it can be another machine, and then a person."""
    world = Diskless(tmp_path / "n1", mode=Mode.REPAIR, can_replace=can_replace)
    world.at(10, lambda: world.log_line(XID_79)).run(1_000)
    if can_replace:
        world.log_line(XID_79)
    world.run(1_000)
    assert (world.provisioner.requests, world.provisioner.replacements) == acts
    assert world.engine.decision.action is Action.PAGE


def test_a_fault_that_went_by_itself_was_not_repaired(tmp_path: Path) -> None:
    """It is over by the time the job ends, twice. The third time it stays, and is rebooted for the first time."""
    world = World(tmp_path / "n1", mode=Mode.REPAIR, can_replace=True)
    missing = Trouble(code="efa.missing", remedy=Remedy.REBOOT_NODE, clears_by=None)
    for second in (10, 4_000):
        world.at(second, world.start_job, lambda: world.levels.add(missing))
        world.at(second + 130, lambda: world.levels.discard(missing)).at(second + 400, world.end_jobs)
    world.at(8_000, lambda: world.levels.add(missing)).run(1_700)
    assert (world.provisioner.requests, world.provisioner.replacements) == (1, 0)
    assert told(world) == ["return efa.missing"] * 2 + ["reboot efa.missing helped"]


def with_a_busy_day(tmp_path: Path) -> World:
    """Four other machines were given away today, none within the hour."""
    world = World(tmp_path / "n1", mode=Mode.REPAIR, can_replace=True)
    at = world.clock.now() - timedelta(hours=2)
    for name in ("n2", "n3", "n4", "n5"):
        past = PastRepair(act=PastAct.REPLACE, at=at, code="gpu.remap.failure", outcome=RepairResult.HELPED)
        world.cluster.nodes[name].record = HandoffRecord(history=(past,)).text
    return world.at(10, lambda: world.log_line(WORN_OUT)).run(20)


def test_past_the_bound_of_a_day_a_replacement_waits_and_pages(tmp_path: Path) -> None:
    """It is drained, keeps its place, and a person hears of it; a day later it goes on by itself."""
    world = with_a_busy_day(tmp_path)
    assert "waits: 4 machines were replaced or requested within a day, 4 may be" in world.message[-1]
    assert world.engine.decision.action is Action.PAGE
    assert world.provisioner.replacements == 0
    world.clock.advance(23 * 3600)
    world.run_to_end()
    assert world.provisioner.replacements == 1


def test_a_person_s_order_passes_the_bound_of_a_day(tmp_path: Path) -> None:
    """The same remediation goes on, with its drain and its place; the node is back after it was out for its fault."""
    world = with_a_busy_day(tmp_path)
    text = world.hold_text
    outcome = world.execute(Command(verb=Verb.REPAIR, who="uid 0", why="seen it", remedy=Remedy.REPLACE_NODE))
    assert outcome.done, outcome.message
    world.run(5)
    assert (world.provisioner.replacements, world.hold_text) == (1, text)
    world.run_to_end()
    assert told(world) == ["replace operator.repair helped", "return gpu.remap.failure"]


# -- the store is lost, and the kernel's ring has rolled over ----------------------------------------------------------


def drained_under_a_job(tmp_path: Path, trouble: Trouble) -> World:
    """Drained for a fault of the log, and waiting for the job to end."""
    world = World(tmp_path / "n1", mode=Mode.REPAIR, can_reset=True)
    return world.at(3, world.start_job).at(10, lambda: world.log_line(trouble)).run(40)


@pytest.mark.parametrize("trouble", [XID_95, XID_79])
def test_a_fault_that_is_not_seen_any_more_is_not_over(tmp_path: Path, trouble: Trouble) -> None:
    """Only a reset or a reboot ends it, none is known of, and no journal tells: out, and a person hears why."""
    world = drained_under_a_job(tmp_path, trouble)
    world.lose_store()
    world.end_jobs()
    world.run(200)
    assert world.hold_text.startswith(f"healthd: {trouble.code}")
    assert world.message[-1].startswith(
        f"stays out, an operator is needed: {trouble.code} on gpu:GPU-5e1f is over only"
    )
    assert "journalctl is not installed" in world.message[-1]
    assert (world.engine.decision.action, world.ending().releases) == (Action.PAGE, 0)
    world.execute(IN)
    assert world.run_to_end().ending().in_service


@pytest.mark.parametrize("trouble", [XID_95, XID_79])
def test_the_journal_opens_the_fault_again_and_it_is_repaired(tmp_path: Path, trouble: Trouble) -> None:
    """As if the store had not been lost, once the job has ended."""
    world = drained_under_a_job(tmp_path, trouble)
    world.journal = [(world.clock.now() - timedelta(minutes=3), trouble)]
    world.lose_store()
    world.end_jobs()
    world.run_to_end()
    assert (world.resetter.requests, world.provisioner.requests) == ((1, 0) if trouble is XID_95 else (0, 1))
    assert world.ending().in_service


@pytest.mark.parametrize("trouble", [XID_95, XID_79])
def test_a_boot_since_the_drain_proves_that_it_is_over(tmp_path: Path, trouble: Trouble) -> None:
    """Whoever rebooted it: by the machine's own boot time and the stamp of the drain, or by another boot since."""
    world = drained_under_a_job(tmp_path, trouble)
    world.lose_store()
    world.run(5)
    assert world.message[-1].startswith("stays out, an operator is needed")
    world.power_cycle()
    assert world.run_to_end().ending().in_service
    world = drained_under_a_job(tmp_path / "before", trouble)
    world.power_cycle()
    world.lose_store()
    assert world.run_to_end().ending().in_service


def test_only_another_machine_ends_a_worn_out_gpu(tmp_path: Path) -> None:
    """A boot does not."""
    world = drained_under_a_job(tmp_path, replace(WORN_OUT, code="gpu.xid.54"))
    world.lose_store()
    world.run(5)
    world.power_cycle()
    world.run(60)
    assert world.message[-1].startswith("stays out, an operator is needed: gpu.xid.54 on gpu:GPU-5e1f is over only")


def test_a_level_is_seen_again_and_needs_no_proof(tmp_path: Path) -> None:
    """What a check sees at every look is over when it is not there."""
    world = drained_under_a_job(tmp_path, Trouble(code="efa.missing", remedy=Remedy.REBOOT_NODE, clears_by=None))
    world.lose_store()
    assert world.run_to_end().ending().in_service


# -- brakes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "remedy"), [(Mode.QUARANTINE, Remedy.REBOOT_NODE), (Mode.REPAIR, Remedy.ASK_HUMAN)])
def test_a_node_that_comes_and_goes_is_let_in_four_times_a_day(tmp_path: Path, mode: Mode, remedy: Remedy) -> None:
    """Bad for 70 s of every ten minutes. Each return takes twice as long; then it stays out, and a person hears why,
    also after the store was lost. Healthy for a day, it is let in."""
    world = World(tmp_path / "n1", mode=mode)
    loose = Trouble(code="gpu.pcie.degraded", remedy=remedy, clears_by=None)
    for second in range(10, 10 * 3_600, 600):
        world.at(second, lambda: world.levels.add(loose)).at(second + 70, lambda: world.levels.discard(loose))
    world.at(900, world.lose_store).run(4 * 720)
    assert (world.ending().releases, told(world)) == (4, ["return gpu.pcie.degraded"] * 4)
    assert world.engine.decision.action is Action.PAGE
    if remedy is not Remedy.ASK_HUMAN:
        assert world.engine.decision.reason.startswith("an operator is needed: gpu.pcie.degraded came and went 4 times")
    world.run(7 * 720)
    assert world.ending().releases == 4
    world.clock.advance(86_400)
    assert world.run_to_end().ending().in_service


def test_what_an_operator_lets_in_uses_up_no_return(tmp_path: Path) -> None:
    """Bad for 70 s of every ten minutes, and released by command the first time: four returns of its own follow, and no
    fifth. Then an operator lets it in once more, and it stays out for the next time at once."""
    world = World(tmp_path / "n1", mode=Mode.QUARANTINE)
    loose = Trouble(code="gpu.pcie.degraded", remedy=Remedy.REBOOT_NODE, clears_by=None)
    for second in range(10, 20 * 3_600, 600):
        world.at(second, lambda: world.levels.add(loose)).at(second + 70, lambda: world.levels.discard(loose))
    world.at(85, lambda: world.execute(IN)).run(4 * 720)
    assert (world.ending().releases, told(world)) == (5, ["return gpu.pcie.degraded"] * 4)
    world.run(720)
    assert world.ending().releases == 5
    world.at(5 * 3_600 + 150, lambda: world.execute(IN)).run(720)
    assert (world.ending().releases, world.orchestrator.view().in_service) == (6, False)
    assert world.engine.decision.action is Action.PAGE


def storm(world: World, others: int) -> None:
    """Other nodes were out for the same today, and came back after a reset. The store of this one's driver is new."""
    past = PastRepair(act=PastAct.RESET, at=world.clock.now() - timedelta(hours=5), code="gpu.xid.79")
    for number in range(2, 2 + others):
        world.cluster.nodes[f"n{number}"].record = HandoffRecord(history=(past,), driver="580.95").text
    world.versions = Versions(driver="580.95", kernel="6.14", image="ami-1")


def test_a_slow_storm_holds_reboots_and_is_one_story(tmp_path: Path) -> None:
    """The eighth node within a day is drained and stays out; what it tells is the same on every node, under one key. An
    command passes."""
    world = World(tmp_path / "n1", mode=Mode.REPAIR)
    storm(world, 7)
    world.at(10, lambda: world.log_line(XID_79)).run(40)
    reason = (
        "reboot waits: gpu.xid.79 on 8 nodes within 24 h (n1, n2, n3, n4, n5, n6, n7, n8); all 8 have driver 580.95"
    )
    assert world.message[-1].startswith(reason)
    decision = world.engine.decision
    assert (decision.action, decision.refusal) == (Action.PAGE, Refusal.HELD_BACK)
    page = topics(
        verdict=Verdict.OK,
        diagnoses=(),
        acknowledged=(),
        decision=decision,
        remediation=world.store.open_remediation(),
        least=Severity.CRITICAL,
    )
    assert [topic.key for topic in page if topic.key.startswith("page ")] == ["page fleet gpu.xid.79"]
    assert (world.provisioner.requests, world.hold_text != "") == (0, True)
    assert " driver=580.95 kernel=6.14 image=ami-1" in world.cluster.nodes[NODE].record
    world.execute(Command(verb=Verb.RELEASE, who="uid 0", why="known", forced=True))
    assert world.run_to_end().ending().in_service


def test_seven_nodes_are_no_storm(tmp_path: Path) -> None:
    """It is rebooted as ever."""
    world = World(tmp_path / "n1", mode=Mode.REPAIR)
    storm(world, 6)
    world.at(10, lambda: world.log_line(XID_79)).run_to_end()
    assert world.provisioner.requests == 1
