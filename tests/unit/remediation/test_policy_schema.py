"""docs/reference/policy.schema.json: editors are told what the reader of policies takes."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
from msgspec.structs import fields

from healthd.config.json_schema import policy_schema_text
from healthd.config.schema.rule import PolicyRule, Rung
from healthd.core.errors import ConfigError
from healthd.core.model import Mode
from healthd.remediation.policy_files import SHIPPED, rules_in

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/reference/policy.schema.json").read_text(encoding="utf-8")
SCHEMA: dict[str, Any] = json.loads(TEXT)
RULE: dict[str, Any] = SCHEMA["properties"]["rule"]["items"]
GOOD = '[[rule]]\nname = "a"\ncodes = ["gpu.lost"]\nreason = "why"\nsource = "who"\n'


def taken_by_schema(text: str) -> bool:
    return not list(jsonschema.Draft4Validator(SCHEMA).iter_errors(tomllib.loads(text)))


def taken_by_reader(text: str) -> bool:
    try:
        rules_in(text, "policy.toml")
    except ConfigError:
        return False
    return True


def test_the_shipped_file_is_a_schema_and_what_the_code_says() -> None:
    """Valid draft 4, as the code makes it now, with patterns that every engine reads."""
    jsonschema.Draft4Validator.check_schema(SCHEMA)
    assert policy_schema_text() == TEXT
    assert [word for word in ('"$defs"', '"null"', r"\\Z") if word in TEXT] == []


def test_the_keys_and_words_are_those_of_a_rule() -> None:
    """The same keys, each described, the same ones needed, and the words that may stand there."""
    needed = {each.name for each in fields(PolicyRule) if each.required}
    assert set(RULE["properties"]) == {each.name for each in fields(PolicyRule)}
    assert set(RULE["required"]) == needed == {"name", "codes", "reason", "source"}
    assert all(len(key["description"]) > 20 for key in RULE["properties"].values())
    assert set(RULE["properties"]["ladder"]["items"]["enum"]) == set(get_args(Rung))
    assert set(RULE["properties"]["mode"]["enum"]) == set(Mode)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_policies_are_taken(name: str) -> None:
    """What we ship is good for the schema and for healthd."""
    text = (ROOT / "remediation/policies" / f"{name}.toml").read_text(encoding="utf-8")
    assert taken_by_schema(text)
    assert taken_by_reader(text)


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("name", "nam"),
        GOOD.replace('"a"', '"A b"'),
        GOOD.replace('["gpu.lost"]', "[]"),
        GOOD.replace('"why"', '" "'),
        GOOD + 'ladder = ["repair"]\n',
        GOOD + 'mode = "off"\n',
        'titel = "x"\n' + GOOD,
        "rule = 3\n",
    ],
)
def test_what_one_refuses_the_other_refuses(text: str) -> None:
    """A mistake that shows in one key is marked by an editor before healthd is asked."""
    assert taken_by_schema(GOOD)
    assert taken_by_reader(GOOD)
    assert not taken_by_schema(text)
    assert not taken_by_reader(text)
