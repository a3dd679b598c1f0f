"""docs/peers.toml: every fault class of the other projects has codes that exist, or a reason."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from healthd.core.check import discover

ROOT = Path(__file__).parents[3]
PEERS: Mapping[str, Any] = tomllib.loads((ROOT / "docs/peers.toml").read_text(encoding="utf-8"))
CLASSES = PEERS["class"]
# How many classes each group has: a class that is taken out must be taken out here as well, by someone who says why.
GROUPS = {"GPU": 27, "Network": 11, "Storage": 9, "Host": 21, "Cloud": 3, "Besides detection": 8}
CODES = {code.code for check in discover().values() for code in check.codes}


def test_no_class_gets_lost() -> None:
    """Every class of every group is there, once."""
    assert Counter(each["group"] for each in CLASSES) == GROUPS
    words = [each["words"] for each in CLASSES]
    assert len(set(words)) == len(words)


@pytest.mark.parametrize("fault_class", CLASSES, ids=lambda each: each["words"][:50])
def test_a_class_has_codes_or_a_reason(fault_class: Mapping[str, Any]) -> None:
    """A class without a code says why in a sentence; each code is one that a check declares, and is named once."""
    assert set(fault_class) <= {"group", "words", "who", "codes", "note"}
    codes = fault_class.get("codes", [])
    assert set(codes) <= CODES
    assert len(set(codes)) == len(codes)
    assert codes or len(fault_class["note"].split()) > 5
    assert fault_class.get("note", ".").endswith(".")


def test_peers_are_named_by_their_short_names() -> None:
    """Whoever sees a class is in the list of projects, and no project is listed that sees none."""
    assert {peer for each in CLASSES for peer in each["who"]} == set(PEERS["peers"])
    assert all(each["who"] for each in CLASSES)


@pytest.mark.parametrize("act", PEERS["act"], ids=lambda each: each["system"])
def test_what_a_system_does_has_its_source(act: Mapping[str, str]) -> None:
    """Each answer is given, "unknown" included, and the page that says so is named: of the project, or of ours."""
    assert set(act) == {"system", "keeps_jobs_off", "repairs", "returns", "bound", "source"}
    assert all(act.values())
    source = act["source"]
    assert source.startswith("https://docs.") or (ROOT / "docs/reference" / source).resolve().is_file()


def test_the_systems_that_act_are_there() -> None:
    """A row that is taken out must be taken out here as well."""
    systems = [each["system"].split()[0] for each in PEERS["act"]]
    assert Counter(systems) == {
        "healthd": 1,
        "NVSentinel": 1,
        "NVIDIA": 2,
        "HyperPod": 2,
        "EKS": 1,
        "CoreWeave": 1,
        "Crusoe": 1,
    }
