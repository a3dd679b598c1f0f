"""docs/reference/policy.schema.json: editors are told what the reader of policies takes."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args

import pytest

from healthd.config.rule_schema import PolicyRule, Rung
from healthd.model import Mode
from healthd.remediation.policy_files import SHIPPED, rules_in

ROOT = Path(__file__).parents[2]
SCHEMA: dict[str, Any] = json.loads((ROOT / "docs/reference/policy.schema.json").read_text(encoding="utf-8"))
RULE: dict[str, Any] = SCHEMA["properties"]["rule"]["items"]


def test_the_keys_are_those_of_a_rule() -> None:
    """The same keys, the same ones needed, and no others allowed."""
    needed = {each.name for each in fields(PolicyRule) if each.default is MISSING}
    assert set(RULE["properties"]) == {each.name for each in fields(PolicyRule)}
    assert set(RULE["required"]) == needed == {"name", "codes", "reason", "source"}
    assert (RULE["additionalProperties"], SCHEMA["additionalProperties"]) == (False, False)


def test_every_key_is_described_and_every_word_is_known() -> None:
    """An editor can show what each key does, and offers the words that may stand there."""
    assert all(len(key["description"]) > 20 for key in RULE["properties"].values())
    assert set(RULE["properties"]["ladder"]["items"]["enum"]) == set(get_args(Rung))
    assert set(RULE["properties"]["mode"]["enum"]) == set(Mode)


def test_patterns_are_for_every_engine() -> None:
    """What only Python's expressions have is not in it."""
    patterns = re.findall(r'"pattern": "([^"]*)"', json.dumps(SCHEMA))
    assert patterns
    assert not any(r"\\Z" in pattern for pattern in patterns)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_policies_have_its_form(name: str) -> None:
    """What we ship is read by healthd, and has no key that the schema does not know."""
    text = (ROOT / "remediation/policies" / f"{name}.toml").read_text(encoding="utf-8")
    tree = tomllib.loads(text)
    assert rules_in(text, name)
    assert set(tree) <= set(SCHEMA["properties"])
    for rule in tree["rule"]:
        assert set(RULE["required"]) <= set(rule) <= set(RULE["properties"])
        assert re.search(RULE["properties"]["name"]["pattern"], rule["name"])
