"""The files below .github: workflows run targets that exist, actions are pinned, forms can be filled in."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from healthd.__main__ import main
from tests.support.pages import ROOT

FOLDER = ROOT / ".github"
WORKFLOWS = sorted((FOLDER / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (FOLDER / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def loaded(path: Path) -> dict[Any, Any]:
    value = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(value, dict), path
    return value


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in loaded(path)["jobs"].values():
        yield from job["steps"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_what_is_here(path: Path) -> None:
    """Each `make` target is in the Makefile, each script of ours is there, and each job has an end."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    ours = 0
    for step in steps(path):
        words = shlex.split(step.get("run", ""), comments=True)
        if "make" in words:
            asked = {word for word in words[words.index("make") + 1 :] if re.fullmatch(r"[a-z-]+", word)}
            assert asked, step
            assert asked <= targets, f"make has no {asked - targets}"
            ours += 1
        assert [word for word in words if word.startswith("tests/") and not (ROOT / word).is_file()] == []
    assert ours, f"{path}: it runs nothing of this repository"
    assert [name for name, job in loaded(path)["jobs"].items() if not job.get("timeout-minutes")] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_trusts_no_tag_and_may_only_read(path: Path) -> None:
    """An action is named by its commit, with its version beside it; no job has more than the right to read."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if "uses:" in line:
            assert re.search(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line
    assert loaded(path)["permissions"] == {"contents": "read"}
    assert [name for name, job in loaded(path)["jobs"].items() if "permissions" in job] == []


def test_the_workflow_runs_all_that_ci_runs() -> None:
    """Each target of .ci/run is one of the workflow, so that a stranger's green is ours."""
    asked = set(re.findall(r"[a-z]+", " ".join(re.findall(r"^make (.*)$", CI, re.MULTILINE))))
    here = " ".join(str(step.get("run", "")) for path in WORKFLOWS for step in steps(path))
    assert asked - set(re.findall(r"[a-z]+", here)) == set()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_a_form_can_be_filled_in(path: Path) -> None:
    """Name, description and fields as GitHub's schema of issue forms wants them: unique ids, a label for each field."""
    form = loaded(path)
    assert set(form) == {"name", "description", "labels", "body"}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"input", "textarea"}
    identities = [field["id"] for field in fields]
    assert len(set(identities)) == len(identities)
    assert all(field["attributes"]["label"] for field in fields)
    assert any(field.get("validations", {}).get("required") for field in fields)
    assert all(field["attributes"]["value"] for field in form["body"] if field["type"] == "markdown")


def test_a_form_asks_for_commands_that_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Each `healthd …` of a form is a verb with options that healthd knows, and each page that it names exists."""
    text = "".join(path.read_text(encoding="utf-8") for path in FORMS)
    commands = set(re.findall(r"`(healthd [^`]+)`", text))
    assert {"healthd --version", "healthd history --json"} <= commands
    for command in commands - {"healthd --version"}:
        verb, *options = command.split()[1:]
        with pytest.raises(SystemExit) as ended:
            raise SystemExit(main([verb, "--help"]))
        assert ended.value.code == 0, command
        described = capsys.readouterr().out
        assert [option for option in options if option not in described] == []
    assert [page for page in re.findall(r"docs/[\w/-]+\.md", text) if not (ROOT / page).is_file()] == []
