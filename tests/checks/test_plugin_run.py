"""plugin.run: node-problem-detector's contract, with real plug-ins in shell. No plug-in that fails is a finding."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from healthd.checks.plugin_run import Plugin, PluginRunSettings, explain, plugin_run
from healthd.core.errors import SourceMissing
from healthd.core.model import Remedy, Result, Severity, Status
from healthd.core.node import CommandResult
from healthd.sources.command import run_command
from healthd.testing import FakeNode
from tests.support.limits import limit_s, longer_and_longer

ARGV = ("/opt/site/quota.sh", "--strict")


def run(code: int = 0, stdout: str = "", **plugin: Any) -> Result:
    answer = CommandResult(argv=ARGV, code=code, stdout=stdout, stderr="noise", duration_s=0.1)
    node = FakeNode(commands={ARGV: answer})
    return plugin_run(node, PluginRunSettings(plugins=(Plugin(name="quota", command=ARGV, **plugin),)))


def test_none_configured() -> None:
    """Without plug-ins there is nothing to run."""
    assert plugin_run(FakeNode(), PluginRunSettings()).status is Status.NOT_APPLICABLE


def test_exit_0_is_well() -> None:
    """Exit 0 is well, whatever it says."""
    assert run(0, "PROBLEM!").status is Status.OK


def test_exit_1_is_a_problem() -> None:
    """Exit 1 is a problem; the first line that is not empty, cut to length, is its message."""
    (finding,) = run(1, f"\n  disk is {'x' * 100}\nsecond line").findings
    assert (finding.code, finding.severity, finding.remedy) == ("plugin.quota", Severity.WARNING, Remedy.ASK_HUMAN)
    assert finding.message == f"disk is {'x' * 72}"
    assert finding.evidence == {"plugin": "quota", "command": list(ARGV), "exit": 1}


def test_a_silent_problem_has_words() -> None:
    """A problem without a line is still a problem, by name."""
    assert "quota" in run(1).findings[0].message


@pytest.mark.parametrize("code", [2, 3, 126, 127, 255, -9, -15])
def test_any_other_exit_is_unknown(code: int) -> None:
    """Any other exit status, death by a signal included, is unknown and no finding."""
    result = run(code, "help")
    assert (result.status, result.findings) == (Status.UNKNOWN, ())


def test_what_a_plug_in_says_is_bounded() -> None:
    """A line has 80 characters, evidence 4096 of JSON: more is cut, whatever else the plug-in prints."""
    evil = {"status": 1, "message": "m" * 9000, "component": "gpu:1"}
    (finding,) = run(0, json.dumps({**evil, "evidence": {"big": "B" * 3_000_000}}), json=True).findings
    assert len(finding.message) == 80
    assert set(finding.evidence) == {"plugin", "command", "exit", "given_cut"}
    assert len(finding.evidence["given_cut"]) == 4096
    (small,) = run(0, json.dumps({**evil, "evidence": {"x": "B" * 4000}}), json=True).findings
    assert small.evidence["given"] == {"x": "B" * 4000}


def test_critical_is_the_sites_choice() -> None:
    """A plug-in that the site calls critical keeps jobs off, and still calls for a person and no repair."""
    (finding,) = run(1, critical=True).findings
    assert (finding.severity, finding.remedy) == (Severity.CRITICAL, Remedy.ASK_HUMAN)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('{"status": "ok"}', Status.OK),
        ('{"status": 0}', Status.OK),
        ('{"status": "problem", "message": "full", "component": "mount:/scratch", "evidence": {"used": 0.99}}', None),
        ('{"status": "unknown"}', Status.UNKNOWN),
        ('{"status": false, "message": "the disk is broken"}', Status.UNKNOWN),
        ('{"status": true}', Status.UNKNOWN),
        ('{"message": "no status"}', Status.UNKNOWN),
        ("full", Status.UNKNOWN),
        ("", Status.UNKNOWN),
    ],
)
def test_json(text: str, status: Status | None) -> None:
    """With JSON the object's status counts and the exit status does not; anything else than an object is unknown."""
    for code in (0, 1, 7):
        result = run(code, text, json=True)
        assert result.status is (status or Status.FINDINGS)
        if status is None:
            assert str(result.findings[0].component) == "mount:/scratch"
            assert result.findings[0].evidence["given"] == {"used": 0.99}


def test_one_plug_in_hides_no_other() -> None:
    """A missing one is unknown, and the problem beside it is found."""
    problem = CommandResult(argv=("b",), code=1, stdout="bad", stderr="", duration_s=0.1)
    node = FakeNode(commands={("a",): SourceMissing("a: not found"), ("b",): problem})
    result = plugin_run(
        node, PluginRunSettings(plugins=(Plugin(name="a", command=("a",)), Plugin(name="b", command=("b",))))
    )
    assert [finding.code for finding in result.findings] == ["plugin.b"]
    assert [gap.split(":")[0] for gap in result.undecided] == ["plug-in a"]


@pytest.mark.parametrize(
    ("name", "command", "words"),
    [
        ("Disk", ARGV, "lower-case"),
        ("a.b", ARGV, "lower-case"),
        ("", ARGV, "lower-case"),
        ("a", (), "command is empty"),
    ],
)
def test_a_plug_in_that_could_not_run_is_refused(name: str, command: tuple[str, ...], words: str) -> None:
    """A name that makes no code, and a command that runs nothing, are mistakes of the configuration."""
    with pytest.raises(ValueError, match=words):
        Plugin(name=name, command=command)


def test_two_of_one_name_are_refused() -> None:
    """Two plug-ins of one name would be one finding."""
    with pytest.raises(ValueError, match="two plug-ins have the name 'a'"):
        PluginRunSettings(plugins=(Plugin(name="a", command=ARGV), Plugin(name="a", command=ARGV)))


def test_explain() -> None:
    """A plug-in's code is explained by its name; other codes are others' business."""
    (form,) = explain("plugin.quota")
    assert (form.code, "'quota'" in form.meaning) == ("plugin.quota", True)
    assert explain("gpu.xid.79") == explain("plugin.*") == explain("site.plugin.quota") == ()


# ---------------------------------------------------------------------------------------------------------------------
# real scripts


class RealNode(FakeNode, kw_only=True):
    """A node whose commands are run."""

    def command(self, *argv: str, timeout_s: float = 5.0) -> CommandResult:
        return run_command(argv, timeout_s=timeout_s)


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], tuple[str, ...]]:
    def write(text: str) -> tuple[str, ...]:
        path = tmp_path / "plugin.sh"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return (str(path),)

    return write


@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("echo fine", Status.OK, ""),
        ("echo bad; exit 1", Status.FINDINGS, "bad"),
        ("echo odd; exit 2", Status.UNKNOWN, "odd"),
        ("kill -9 $$", Status.UNKNOWN, ""),
        ("exit 127", Status.UNKNOWN, ""),
    ],
)
def test_a_real_script(script: Callable[[str], tuple[str, ...]], text: str, status: Status, words: str) -> None:
    """The contract as a script keeps it."""
    result = plugin_run(RealNode(), PluginRunSettings(plugins=(Plugin(name="site", command=script(text)),)))
    assert result.status is status
    assert words in "".join([result.reason, *(finding.message for finding in result.findings)])


@pytest.mark.process
def test_a_script_that_hangs_is_killed_with_its_children(
    script: Callable[[str], tuple[str, ...]], tmp_path: Path
) -> None:
    """At its deadline it is unknown, and what it had started is gone."""
    pids = tmp_path / "pids"
    hang = script(f"sleep 60 & echo $! > {pids}.new; mv {pids}.new {pids}; wait")
    for timeout_s in longer_and_longer(0.5):
        began, plugin = time.monotonic(), Plugin(name="site", command=hang, timeout_s=timeout_s)
        result = plugin_run(RealNode(), PluginRunSettings(plugins=(plugin,)))
        assert time.monotonic() - began < timeout_s + limit_s(3.0)
        assert (result.status, result.findings) == (Status.UNKNOWN, ())
        assert f"no end within {timeout_s:g} s" in result.reason
        if pids.exists():
            break
    assert not _lives(int(pids.read_text()))


def _lives(pid: int) -> bool:
    """Whether a process is there and no zombie; it is given a moment to go."""
    for _ in range(50):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return False
        except (ProcessLookupError, FileNotFoundError):
            return False
        time.sleep(0.02)
    return True
