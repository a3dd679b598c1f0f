"""A daemon that starts without a rule of the site that its last run had."""

from __future__ import annotations

from pathlib import Path

import pytest

from healthd.agent.agent import Agent, acting_agent
from healthd.config.load import load
from healthd.core.check import discover
from healthd.core.model import ClearsBy
from healthd.sim.machine import SimulatedMachine
from tests.support.judgement import finding, looked


def started(config: Path) -> Agent:
    checks = {name: check.settings for name, check in discover().items()}
    read = load(config, checks=checks, environ={}).config
    return acting_agent(read, source="daemon", environ={}, changed=lambda: None)


@pytest.mark.process
def test_the_faults_of_a_rule_end_with_it(tmp_path: Path) -> None:
    """The node is not out until a reboot for a line that no rule is about any more."""
    config = SimulatedMachine(tmp_path / "machine").config
    before = config.read_text(encoding="utf-8")
    rule = '[[checks."kernel.rules".rules]]\nname = "wrong"\npattern = "eth0: hello"\nseverity = "critical"\n'
    config.write_text(f"{before}\n{rule}", encoding="utf-8")
    with_rule = started(config)
    with_rule.monitor.absorb(looked(finding("site.wrong", clears_by=ClearsBy.REBOOT), check="kernel.rules"))
    with_rule.close()
    again = started(config)
    assert [code for _, code in again.monitor.history.faults] == ["site.wrong"]
    again.close()
    config.write_text(before, encoding="utf-8")
    without = started(config)
    assert dict(without.monitor.history.faults) == {}
    without.close()
