"""Every verb answers programs: --json is in the grammar of each, and is one JSON object."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from healthd.api.grammar import _grammar, parse
from healthd.api.wire import Reply
from healthd.cli.case import answer as case
from healthd.cli.checks import answer as checks
from healthd.cli.config import answer as config
from healthd.cli.fleet import answer as fleet
from healthd.cli.new_check import answer as new_check
from healthd.cli.policy import answer as policy
from healthd.cli.uninstall import _done
from healthd.ledger.changes import NodeChanges, NodeMemory
from healthd.ledger.database import LEDGER, Ledger
from healthd.ledger.entries import EntryKind, LedgerEntry
from healthd.remediation.orchestrators.kubernetes.objects.node import KubeNode, node_of
from healthd.remediation.orchestrators.kubernetes.uninstall import KubeUninstall, UninstallResult

WITHOUT = {
    "run": "it runs until a signal ends it; its log is JSON by itself",
    "hook": "Slurm reads its output, whose form Slurm sets",
}


def test_every_verb_has_json() -> None:
    """All but those with a reason above, which is no list for a new verb."""
    verbs = _grammar().verbs()
    assert {name for name, each in verbs.items() if "--json" not in each._option_string_actions} == set(WITHOUT)


@pytest.mark.parametrize(
    ("line", "verb", "keys"),
    [
        ("config show", config, {"values"}),
        ("config validate", config, {"problems", "warnings"}),
        ("checks", checks, {"checks"}),
        ("policy show", policy, {"policy", "on_job", "rules"}),
        ("policy test gpu.xid.79", policy, {"policy", "instance_type", "verdicts"}),
    ],
)
def test_what_is_set_up_is_a_document_with_its_schema(
    line: str, verb: Callable[[Namespace], Reply], keys: set[str], tmp_path: Path
) -> None:
    """The verbs that read the configuration and the checks name the version of their documents, as all others do."""
    path = tmp_path / "config.toml"
    path.write_text("", encoding="utf-8")
    words = line.split()
    where = [] if words == ["checks"] else ["--config", str(path)]
    data = json.loads(verb(parse([*words, *where, "--json"])).out)
    name = {"config show": "config", "policy show": "policy"}.get(line, "_".join(words[:2]))
    assert (data.pop("schema"), data.keys()) == (f"healthd.{name}/v1", keys)


def test_a_support_case_has_its_entries_and_its_text(tmp_path: Path) -> None:
    """From a ledger on disk, as the controller writes it."""
    now = datetime.now(UTC)
    entry = LedgerEntry(
        kind=EntryKind.FAULT, node="n1", at=now - timedelta(hours=1), code="gpu.xid.79", component="gpu:3"
    )
    ledger = Ledger(tmp_path / LEDGER, now=now)
    ledger.write({"n1": NodeChanges(after=NodeMemory(), entries=(entry,))}, now, gap=timedelta(days=1))
    ledger.close()
    path = tmp_path / "config.toml"
    path.write_text(f'[controller]\nstate_dir = "{tmp_path}"\n[orchestrator]\nkind = "local"\n', encoding="utf-8")
    line = ["case", "n1", "--config", str(path)]
    data = json.loads(case(parse([*line, "--json"])).out)
    assert (data["schema"], data["node"]) == ("healthd.case/v1", "n1")
    assert [(each["code"], each["component"]) for each in data["entries"]] == [("gpu.xid.79", "gpu:3")]
    assert data["text"] == case(parse(line)).out


@pytest.mark.parametrize(("state_dir", "why"), [("/nonexistent", "no ledger here"), (f"/{'x' * 300}", "too long")])
@pytest.mark.parametrize("verb", [("fleet", "history"), ("fleet", "report"), ("case", "n1")])
def test_a_ledger_that_cannot_be_reached_is_named(
    tmp_path: Path, verb: tuple[str, ...], state_dir: str, why: str
) -> None:
    """Whatever keeps it away, such as a folder of root's: the path and the reason, and no traceback."""
    path = tmp_path / "config.toml"
    path.write_text(f'[controller]\nstate_dir = "{state_dir}"\n[orchestrator]\nkind = "local"\n[daemon]\nhttp = ""\n')
    options = parse([*verb, "--config", str(path)])
    reply = (case if verb[0] == "case" else fleet)(options)
    assert reply.code == 2
    assert f"{state_dir}/ledger.db: " in reply.err
    assert why in reply.err


@pytest.mark.parametrize("dry", [True, False])
def test_a_new_check_names_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dry: bool) -> None:
    """And writes them, unless it is a dry run."""
    (tmp_path / "checks").mkdir()
    (tmp_path / "tests/checks").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    data = json.loads(new_check(parse(["new-check", "site.clock", "--json", *["--dry-run"] * dry])).out)
    files = ["checks/site_clock.py", "tests/checks/test_site_clock.py"]
    assert data == {"schema": "healthd.new_check/v1", "dry_run": dry, "files": files}
    assert [Path(each).exists() for each in files] == [not dry, not dry]


class _Cluster:
    """Two nodes, one of which cannot be put back."""

    def annotated_nodes(self) -> list[KubeNode]:
        taint = {"key": "healthd.io/unhealthy", "effect": "NoSchedule"}
        return [node_of(_node("n1", [taint])), node_of(_node("n2", []))]

    def run(self) -> UninstallResult:
        return UninstallResult(released=("n1",), refused={"n2": "conflict"})


def _node(name: str, taints: list[dict[str, str]]) -> dict[str, Any]:
    metadata = {"name": name, "uid": "u", "resourceVersion": "1", "labels": {}, "annotations": {}}
    return {"metadata": metadata, "spec": {"taints": taints}, "status": {"conditions": []}}


def test_an_uninstall_names_the_nodes() -> None:
    """What would be put back, and then what was and what was not, with the exit code of the text."""
    work = cast(KubeUninstall, _Cluster())
    rehearsed = json.loads(_done(parse(["uninstall", "--dry-run", "--json"]), work).out)
    assert (rehearsed["dry_run"], rehearsed["written_to"]) == (True, ["n1", "n2"])
    assert list(rehearsed["would_be_put_back"]) == ["n1"]
    done = _done(parse(["uninstall", "--yes", "--json"]), work)
    assert (done.code, json.loads(done.out)) == (
        1,
        {"schema": "healthd.uninstall/v1", "dry_run": False, "put_back": ["n1"], "not_cleared": {"n2": "conflict"}},
    )
