"""A request that its node withdraws, at any interleaving with the controller that carries it out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from healthd.core.errors import BackendBusy
from healthd.core.model import Mode, Remedy, Step
from healthd.remediation.decide.remediation import Phase
from healthd.remediation.provisioners.delegated import DelegatedProvisioner
from healthd.remediation.records.handoff import RequestAnswer
from healthd.sim.cluster import FakeOrchestrator
from tests.support.controller_rig import NODE, AskedWorld
from tests.support.engine_wire import kill
from tests.support.sampling import examples

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
LAST = 1200
"""No story passes more boundaries than these."""


class Story(Struct, frozen=True, kw_only=True):
    """``withdraws_at``: the boundary of the controller's at which its node needs it no more. ``lag``: so many later the
    node's update is applied, whatever was written meanwhile. ``pause_s``: how long each boundary takes."""

    remedy: Remedy
    withdraws_at: int
    every: int
    lag: int
    pause_s: float
    killed_at: int
    allowed_at: int
    busy: int


STORIES = st.builds(
    Story,
    remedy=st.sampled_from([Remedy.REBOOT_NODE, Remedy.REPLACE_NODE]),
    withdraws_at=st.integers(min_value=0, max_value=45),
    every=st.integers(min_value=1, max_value=9),
    lag=st.integers(min_value=0, max_value=14),
    pause_s=st.sampled_from([0.0, 0.5, 2.0]),
    killed_at=st.integers(min_value=0, max_value=60),
    allowed_at=st.sampled_from([0, 0, 10, 40]),
    busy=st.sampled_from([0, 0, 1, 3]),
)


class Withdrawn(AskedWorld):
    """Where the node's update comes after the controller's last look, the record says so once more after the act."""

    def _acts(self, step: Step) -> None:
        assert self.store.remediations()[-1].phase is Phase.INTENDED


class Asker:
    """The node of a world. What it writes is applied ``lag`` boundaries after it has read."""

    def __init__(self, world: AskedWorld, story: Story) -> None:
        self.world, self.story = world, story
        self.acts, self._busy = 0, story.busy
        world.provisioner._reboots = world.provisioner._replaces = self._acts
        self.door = FakeOrchestrator(world.cluster, NODE)
        self.provisioner = DelegatedProvisioner(
            inner=world.provisioner,
            instance_id="i-1",
            read=self.door.read_record,
            write=self._writes,
            clock=world.clock.now,
            monotonic_s=world.clock,
        )
        self.taken_back = False
        self._now, self._update = 0, ("", -1)
        for number in range(LAST):
            world.wire.at[number] = self._at(number)

    def _acts(self) -> None:
        """The platform is asked; for the first few times it has no time."""
        self._busy -= 1
        if self._busy >= 0:
            raise BackendBusy("throttled")
        assert not self.taken_back, "an act after its node was told that nobody began"
        self.acts += 1

    def _writes(self, text: str) -> None:
        self._update = (text, self._now + self.story.lag)

    def _at(self, number: int) -> Callable[[], None]:
        def passes() -> None:
            self.passes(number)

        return passes

    def passes(self, number: int) -> None:
        """What happens at a boundary of the controller's."""
        self._now, story = number, self.story
        self.world.clock.advance(story.pause_s)
        if number == story.allowed_at:
            self.world.rules = replace(self.world.rules, mode=Mode.REPAIR)
        if number >= story.withdraws_at and (number - story.withdraws_at) % story.every == 0:
            self.looks()
        text, due = self._update
        if text and number >= due:
            self._update = ("", -1)
            self.door.write_record(text)
        if number == story.killed_at:
            kill()

    def looks(self) -> None:
        """One turn of the node; while an update of its own is under way it waits for that."""
        if not self.taken_back and not self._update[0]:
            self.taken_back = self.provisioner.take_back(carried_out=False)
            assert not (self.taken_back and self.acts), "withdrawn, acted on, and not known to be"


def lived(folder: str, story: Story) -> Asker:
    world = Withdrawn(Path(folder), story.remedy)
    world.rules = replace(world.rules, mode=Mode.OBSERVE if story.allowed_at else Mode.REPAIR)
    asker = Asker(world, story)
    for number in range(40):
        world.run(1)
        asker._now = max(asker._now, len(world.wire.passed))
        if number > 20:  # the controller has nothing more to do, and passes no boundary
            asker.looks()
            asker.passes(LAST + number)
    return asker


@settings(max_examples=examples(500), deadline=None)
@given(story=STORIES)
def test_a_withdrawn_request_is_not_acted_on_or_is_known_to_be(story: Story) -> None:
    """Wherever the node withdraws and the controller dies: no act before or after the node is told that nobody began,
    and else the record says what became of it."""
    with TemporaryDirectory(dir=MEMORY) as folder:
        asker = lived(folder, story)
        assert asker.taken_back or asker.world.record.answer in (RequestAnswer.TAKEN, RequestAnswer.REFUSED)
        asker.world.close()
