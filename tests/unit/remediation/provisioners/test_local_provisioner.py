"""The local provisioner: a configured command, run for real."""

from __future__ import annotations

from pathlib import Path

import pytest

from healthd.core.errors import BackendRefused, BackendUnknown
from healthd.core.model import Remedy
from healthd.remediation.provisioners.local import LocalProvisioner

pytestmark = pytest.mark.process


def test_it_can_do_what_its_command_can() -> None:
    """With a command: a reboot, and never a replacement. Without one: nothing."""
    can = {remedy for remedy in Remedy if not LocalProvisioner(reboot_command=("true",)).reason_against(remedy)}
    assert can == {Remedy.REBOOT_NODE}
    assert all(LocalProvisioner().reason_against(remedy) for remedy in Remedy)


def test_the_command_is_run_as_it_is(tmp_path: Path) -> None:
    """Its arguments are passed without a shell, and a status of 0 is taken for asked."""
    LocalProvisioner(reboot_command=("touch", f"{tmp_path}/a b; c")).reboot()
    assert [path.name for path in tmp_path.iterdir()] == ["a b; c"]


def test_a_command_that_fails_is_a_refusal_with_its_words() -> None:
    """The exit status and what it said are in the message."""
    with pytest.raises(BackendRefused, match=r"no reboot: sh -c .*: exit status 4: not allowed"):
        LocalProvisioner(reboot_command=("sh", "-c", "echo not allowed >&2; exit 4")).reboot()


def test_a_command_that_is_not_there_or_not_configured_is_a_refusal() -> None:
    """Nothing was run, so nothing can have happened."""
    with pytest.raises(BackendRefused, match="no-such-reboot: not found"):
        LocalProvisioner(reboot_command=("no-such-reboot",)).reboot()
    with pytest.raises(BackendRefused, match="no reboot command is configured"):
        LocalProvisioner().reboot()


def test_a_command_that_does_not_end_is_unknown() -> None:
    """It may have started the reboot before it hung."""
    with pytest.raises(BackendUnknown, match="unknown whether the machine reboots"):
        LocalProvisioner(reboot_command=("sleep", "60"), timeout_s=0.2).reboot()
