"""The evidence goes to the site's bucket before a machine is given away, and holds no replacement back."""

from __future__ import annotations

from pathlib import Path

import pytest

from healthd.core.errors import BackendDenied, StoreError
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.records.handoff import parse
from tests.support.engine_replay import WELL, Replay
from tests.support.engine_rig import NODE, World, repair_story, replace_story
from tests.support.engine_wire import kill


class Bucket:
    """A bucket that keeps what was uploaded, and whether the machine was still there."""

    def __init__(self, world: World, refuses: Exception | None = None) -> None:
        self.world, self.refuses, self.uploaded = world, refuses, list[tuple[str, int]]()
        world.bucket = self

    def __call__(self, remediation: Remediation) -> str:
        if self.refuses is not None:
            raise self.refuses
        self.uploaded.append((remediation.id, self.world.provisioner.replacements))
        return f"s3://site/{NODE}/{remediation.id}.tar.gz"


def lived(world: World) -> set[str]:
    """Run to the end; returns what the trails of both machines say of steps."""
    said: set[str] = set()
    for _ in range(300):
        world.run(1)
        said |= set(world.audit("step"))
    return said


def test_it_is_uploaded_before_the_replacement_is_asked_for(tmp_path: Path) -> None:
    """Once; its address is in the handoff record, where the next machine and the ledger find it, and in the trail."""
    world = replace_story(tmp_path / "w")
    bucket = Bucket(world)
    said = lived(world)
    assert world.ending().in_service
    assert world.provisioner.replacements == 1
    ((remediation_id, given_away),) = bucket.uploaded
    assert given_away == 0
    address = f"s3://site/{NODE}/{remediation_id}.tar.gz"
    record = parse(world.cluster.nodes[NODE].record)
    assert record is not None
    assert record.evidence == address
    assert any(f"uploaded to {address}" in text for text in said)


@pytest.mark.parametrize(
    "error", [BackendDenied("s3:PutObject: AccessDenied: no"), StoreError("bundles/c1: not packed: disk is full")]
)
def test_a_bucket_that_refuses_holds_nothing_back(error: Exception, tmp_path: Path) -> None:
    """It is said once, with the reason, and the record names no address, nor that of an earlier machine."""
    world = replace_story(tmp_path / "w")
    world.cluster.nodes[NODE].record = "healthd bundle=s3://site/old.tar.gz replaced=1764000000"
    Bucket(world, error)
    said = lived(world)
    assert world.ending().in_service
    assert world.provisioner.replacements == 1
    (why,) = [text for text in said if "not uploaded" in text]
    assert str(error) in why
    assert "bundle=" not in world.cluster.nodes[NODE].record


def test_a_repair_that_leaves_the_disk_uploads_nothing(tmp_path: Path) -> None:
    """A reboot keeps the bundle where it is."""
    world = repair_story(tmp_path / "w")
    bucket = Bucket(world)
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.requests == 1
    assert bucket.uploaded == []


def test_a_reboot_that_did_not_help_is_followed_by_the_upload(tmp_path: Path) -> None:
    """The ladder goes up to a replacement within one remediation: the bundle is saved again, and uploaded."""
    world = repair_story(tmp_path / "w", can_replace=True)
    world.never_boots = True
    bucket = Bucket(world)
    world.run(600)
    assert (world.provisioner.requests, world.provisioner.replacements) == (2, 1)
    assert [given_away for _, given_away in bucket.uploaded] == [0]


def with_bucket(folder: Path) -> World:
    world = replace_story(folder)
    Bucket(world)
    return world


def test_a_daemon_killed_around_the_upload_makes_it_again(tmp_path: Path) -> None:
    """To the same key, also where it was made; one machine is given away."""
    replay = Replay(with_bucket, tmp_path)
    numbers = replay.numbers("before upload", "after upload")
    assert len(numbers) == 2
    for number in sorted(numbers):
        world = replay.play()
        world.wire.at[number] = kill
        assert world.run_to_end().ending().in_service
        assert (world.kills, world.provisioner.replacements) == (1, 1)
        assert isinstance(world.bucket, Bucket)
        assert len({remediation_id for remediation_id, _ in world.bucket.uploaded}) == 1
        assert all(given_away == 0 for _, given_away in world.bucket.uploaded)
        assert len(world.bucket.uploaded) == 1 + (replay.passed[number] == "after upload")
        world.close()
