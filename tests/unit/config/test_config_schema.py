"""The JSON Schema of a configuration: it takes what healthd takes, and refuses what a look at one key can refuse."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import fields

from healthd.config.json_schema import DRAFT, config_schema, config_schema_text
from healthd.config.load import load
from healthd.config.report import shown
from healthd.config.schema import config as schema
from healthd.core.check import discover
from healthd.core.errors import ConfigError
from healthd.sim.machine import SimulatedMachine
from tests.unit.house.test_examples import TOML

ROOT = Path(__file__).parents[3]
CHECKS = {name: check.settings for name, check in discover().items()}
SHIPPED = ROOT / "docs/reference/config.schema.json"


@pytest.fixture(scope="module")
def validator() -> Any:
    return jsonschema.Draft4Validator(json.loads(SHIPPED.read_text(encoding="utf-8")))


def examples() -> Iterator[Any]:
    """Every configuration that the pages and the packaging show."""
    yield from (pytest.param(block.text, id=str(block)) for block in TOML)
    static = (ROOT / "packaging/kubernetes/static.yaml").read_text(encoding="utf-8").split("  config.toml: |\n")
    for number, text in enumerate(static[1:]):
        lines = text.split("\n---")[0].split("\n")
        body = [line.removeprefix("    ") for line in lines if line.startswith("    ") or not line]
        yield pytest.param("\n".join(body), id=f"static.yaml:{number}")


def wrong(validator: Any, text: str) -> list[str]:
    return [each.message for each in validator.iter_errors(tomllib.loads(text))]


def loader_takes(text: str, folder: Path) -> bool:
    path = folder / "c.toml"
    path.write_text(text)
    try:
        load(path, checks=CHECKS, environ={})
    except ConfigError:
        return False
    return True


def test_it_is_a_schema_of_the_draft_that_editors_read(validator: Any) -> None:
    """Valid draft 4, without a word of a later one, and every reference leads somewhere."""
    jsonschema.Draft4Validator.check_schema(validator.schema)
    text = config_schema_text(CHECKS)
    assert validator.schema["$schema"] == DRAFT
    assert [word for word in ('"$defs"', '"const"', '"null"', r"\\Z", r"\\0") if word in text] == []
    for name in validator.schema["definitions"]:
        assert f'"#/definitions/{name}"' in text, f"nobody refers to {name}"


def test_the_shipped_file_is_what_the_code_says(validator: Any) -> None:
    """The verb prints what the reference holds."""
    assert SHIPPED.read_text(encoding="utf-8") == config_schema_text(CHECKS)


@pytest.mark.parametrize("text", list(examples()))
def test_every_shipped_configuration_is_valid(validator: Any, text: str) -> None:
    """Each TOML block of the pages and each configuration in packaging passes."""
    assert wrong(validator, text) == []


def test_a_configuration_with_every_key_is_valid(validator: Any, tmp_path: Path) -> None:
    """What `config show` prints of the defaults and of the simulated machine: all sections, all checks."""
    machine = SimulatedMachine(tmp_path / "machine")
    for path in (None, machine.config):
        values = load(path, checks=CHECKS, environ={}, default_path=tmp_path / "none.toml")
        assert wrong(validator, shown(values)) == []


def test_every_key_is_described(validator: Any) -> None:
    """An editor shows the docstring of each key, and its default."""
    sections = [item.name for item in fields(schema.Config)]
    assert sorted(validator.schema["properties"]) == sorted([*sections, "match"])
    for name, part in validator.schema["definitions"].items():
        for key, value in part["properties"].items():
            assert "$ref" in value or value["description"], f"{name}.{key}"
    mode = validator.schema["definitions"]["remediation"]["properties"]["mode"]
    assert (mode["default"], mode["enum"]) == ("observe", ["approve", "observe", "quarantine", "repair"])


@pytest.mark.parametrize(
    "text",
    [
        '[remediation]\nmode = "repiar"',
        "[remediation]\nmodes = 1",
        '[remediation]\nmax_attempts = "2"',
        "[remediation]\nmax_attempts = 11",
        "[remediation]\nsettle_s = 0",
        "[remediation]\nmax_attempts = 1.5",
        '[daemon]\nsocket = "run/healthd.sock"',
        '[budget]\nmax_out = "101%"',
        "[budget]\nmax_out = 0",
        '[checks."gpu.cuont"]\nenabled = true',
        '[checks."gpu.count"]\nexpect = 8',
        '[checks."gpu.count"]\nenabled = "yes"',
        '[[match]]\nhost = ["n1"]\n[match.node]\nname = "x"',
        '[[budget.scope]]\nname = "a"',
        '[[policy.rule]]\nname = "a"\ncodes = ["gpu.xid.79"]\nreason = "x"\nsource = "y"\nladder = ["hope"]',
        "remediation = 1",
        '[provisioner.hyperpod]\nhow = "magic"',
    ],
)
def test_what_the_loader_refuses_it_refuses(validator: Any, text: str, tmp_path: Path) -> None:
    """A wrong key, type, limit or word is marked in the editor already."""
    assert not loader_takes(text, tmp_path)
    assert wrong(validator, text) != []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[remediation]\nsettle_s = 86400",
        "[budget]\nmax_out = 3",
        '[checks."gpu.count"]\nexpected = 8\ninterval_s = 5\noptional = true',
        '[[match]]\ninstance_type = ["p5.*"]\n[match.checks."gpu.count"]\nexpected = 8',
        '[[match]]\nhost = ["n[1-9]"]\n[match.remediation]\nmode = "repair"',
        '[[policy.rule]]\nname = "a"\ncodes = ["gpu.xid.79"]\nreason = "x"\nsource = "y"\nladder = []',
        '[evidence]\ncommands = [["nvidia-smi", "-q"]]',
    ],
)
def test_what_the_loader_takes_it_takes(validator: Any, text: str, tmp_path: Path) -> None:
    """No false mark in an editor."""
    assert loader_takes(text, tmp_path)
    assert wrong(validator, text) == []


def test_the_schema_is_the_same_each_time() -> None:
    """Two makings are equal, so that a diff of the shipped file means a change of the code."""
    assert config_schema(CHECKS) == config_schema(CHECKS)
