"""The verdict as programs and people read it: the published schema, and the text."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from healthd import __version__
from healthd.checklib.runbooks import next_step
from healthd.core.check import SOON, judged, not_applicable, ok, unknown
from healthd.core.model import NODE, ClearsBy, Component, Outcome, Reading, Remedy, Result, Severity, Status, Verdict
from healthd.observe.report import EXIT_CODE, SCHEMA, CheckView, Report, as_brief, as_data, as_json, as_text
from tests.support.judgement import GPU, at, diagnosis, fault, finding

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "verdict.schema.json"
TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": int,
    "null": type(None),
    "boolean": (),  # see has_type
}
SILENT = {"$schema", "$id", "$defs", "title", "description"}


def violations(value: Any, schema: dict[str, Any], root: dict[str, Any], where: str = "$") -> Iterator[str]:
    """Where a value breaks a schema, by the keywords that ours uses; any other is a KeyError, never ignored."""
    for keyword, asked in schema.items():
        if keyword == "$ref":
            yield from violations(value, root["$defs"][asked.removeprefix("#/$defs/")], root, where)
        elif keyword == "properties" and isinstance(value, dict):
            for name in value.keys() & asked.keys():
                yield from violations(value[name], asked[name], root, f"{where}.{name}")
        elif keyword == "items" and isinstance(value, list):
            for index, item in enumerate(value):
                yield from violations(item, asked, root, f"{where}[{index}]")
        elif keyword not in SILENT and not RULES[keyword](value, asked):
            yield f"{where}: {value!r} breaks {keyword} {asked!r}"


def has_type(value: Any, asked: str | list[str]) -> bool:
    names = [asked] if isinstance(asked, str) else asked
    if isinstance(value, bool):  # which is a number to Python, and not to JSON
        return "boolean" in names
    return any(isinstance(value, TYPES[name]) for name in names)


RULES: dict[str, Any] = {
    "type": has_type,
    "const": lambda value, asked: value == asked,
    "enum": lambda value, asked: value in asked,
    "required": lambda value, asked: not isinstance(value, dict) or value.keys() >= set(asked),
    "minLength": lambda value, asked: not isinstance(value, str) or len(value) >= asked,
    "minItems": lambda value, asked: not isinstance(value, list) or len(value) >= asked,
    "minimum": lambda value, asked: not isinstance(value, int | float) or value >= asked,
    "pattern": lambda value, asked: not isinstance(value, str) or bool(re.search(asked, value)),
    "properties": lambda value, asked: True,  # a value that is no object: `type` says so
    "items": lambda value, asked: True,
}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    return document


def view(check: str, result: Result, *faults: Any, optional: bool = False) -> CheckView:
    outcome = Outcome(check=check, result=result, at=at(0), duration_s=0.0123456, optional=optional)
    return CheckView(outcome=outcome, age_s=2.00049, faults=faults)


def a_report(**changes: Any) -> Report:
    """A node with one of everything."""
    sick = fault("gpu.xid.79", message="XID 79: fell off the bus", evidence={"line": "NVRM: Xid", "count": 9}, count=9)
    news = fault("gpu.xid.43", severity=Severity.INFO, remedy=Remedy.NONE, clears_by=ClearsBy.NOTHING)
    warm = fault("gpu.hot", severity=Severity.WARNING, message="87 C", last=at(5))
    plain = Report(
        node="ip-10-0-0-1",
        boot_id="b007b007-0000-4000-8000-000000000001",
        instance_type="p5.48xlarge",
        generated_at=at(7.25),
        source="daemon",
        verdict=Verdict.CRITICAL,
        checks=(
            view("kernel.xid", judged([finding()]), news, sick),
            view("gpu.temperature", judged((), undecided=["gpu:GPU-1: UNKNOWN (999)"]), warm),
            view("gpu.count", unknown("NVML did not answer")),
            view("efa.devices", unknown("no libfabric"), optional=True),
            view("lustre.mount", not_applicable("no Lustre here")),
            view("host.filesystems", ok()),
        ),
        diagnoses=(diagnosis(code="gpu.xid.79", reasons=("XID 79: fell off the bus",)),),
    )
    return replace(plain, **changes)


# ---------------------------------------------------------------------------------------------------------------------
# for programs


@pytest.mark.parametrize(
    "report",
    [
        a_report(),
        a_report(instance_type=None, boot_id="unknown", source="local", verdict=Verdict.OK, checks=(), diagnoses=()),
        *(a_report(verdict=verdict) for verdict in Verdict),
    ],
)
def test_the_json_is_the_published_schema(report: Report, schema: dict[str, Any]) -> None:
    """Whatever the report holds, what is printed is valid against the document that we publish."""
    assert list(violations(json.loads(as_json(report)), schema, schema)) == []


def test_what_a_person_acknowledged_is_shown_and_still_counts(schema: dict[str, Any]) -> None:
    """The finding says until when, in the JSON and in the text; a fault that nobody has seen says nothing of it."""
    seen = replace(fault(), acknowledged=True, acknowledged_until=at(60))
    report = a_report(checks=(view("gpu.look", judged([finding()]), seen, fault("other.sick")),), diagnoses=())
    data = json.loads(as_json(report))
    assert list(violations(data, schema, schema)) == []
    told = "acknowledged until 2026-01-01 00:01 UTC"
    assert [each.get("acknowledged") for each in data["checks"][0]["findings"]] == [told, None]
    lines = as_text(report).splitlines()
    assert [line.strip() for line in lines if "acknowledged" in line] == [told]
    assert (
        next(line for line in lines[lines.index(f"    {told}") :: -1] if line.startswith("  X")).split()[1]
        == "gpu.sick"
    )
    assert data["verdict"] == "critical"


def test_the_fields_are_those_of_the_issue() -> None:
    """Field for field, in order; a diagnosis also has its severity. Fields may be added here, never renamed or lost."""
    data = as_data(a_report())
    assert list(data) == [
        "schema", "node", "boot_id", "instance_type", "generated_at", "source", "verdict", "checks", "diagnoses",
    ]  # fmt: skip
    assert list(data["checks"][0]) == ["name", "outcome", "reason", "age_s", "duration_ms", "findings"]
    assert list(data["checks"][0]["findings"][0]) == ["code", "severity", "component", "message", "evidence", "time"]
    assert list(data["diagnoses"][0]) == ["code", "component", "severity", "remedy", "reasons", "since"]


@pytest.mark.parametrize("words", [Verdict, Status, Severity, Remedy])
def test_the_schema_knows_every_word(words: Any, schema: dict[str, Any]) -> None:
    """A new verdict, outcome, severity or remedy is a new word of the published schema."""
    places = {
        Verdict: schema["properties"]["verdict"],
        Status: schema["$defs"]["check"]["properties"]["outcome"],
        Severity: schema["$defs"]["severity"],
        Remedy: schema["$defs"]["remedy"],
    }
    assert places[words]["enum"] == [str(word) for word in words]
    assert schema["properties"]["schema"]["const"] == schema["$id"] == SCHEMA


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["schema"], "healthd.verdict/v2"),
        (["node"], ""),
        (["boot_id"], None),
        (["instance_type"], 8),
        (["generated_at"], "2026-01-01 00:00:00"),
        (["source"], "cache"),
        (["verdict"], "CRITICAL"),
        (["checks"], {}),
        (["checks", 0, "outcome"], "fail"),
        (["checks", 0, "age_s"], -1),
        (["checks", 0, "age_s"], True),
        (["checks", 0, "findings", 0, "code"], "XID 79"),
        (["checks", 0, "findings", 0, "evidence", "count"], 0),
        (["checks", 0, "findings", 0, "time"], "2026-01-01T00:00:00"),
        (["diagnoses", 0, "remedy"], "reboot"),
        (["diagnoses", 0, "reasons"], []),
    ],
)
def test_the_schema_refuses_what_is_not_so(path: list[Any], value: Any, schema: dict[str, Any]) -> None:
    """The guard above can fail: each of these is caught, and so is each field when it is missing."""
    *parents, last = path
    for missing in (False, True):
        data = copy.deepcopy(as_data(a_report()))
        place: Any = data
        for step in parents:
            place = place[step]
        if missing:
            del place[last]
        else:
            place[last] = value
        assert list(violations(data, schema, schema)) != []


def test_findings_are_those_that_are_open() -> None:
    """A fault stays listed while it is open, with its count and its first time, and makes the outcome ``findings`` even
    where the last look was clean or could not tell."""
    data = as_data(
        a_report(checks=(view("kernel.xid", ok(), fault(count=3)), view("gpu.count", unknown("?"), fault())))
    )
    assert [each["outcome"] for each in data["checks"]] == ["findings", "findings"]
    assert [each["reason"] for each in data["checks"]] == ["", "?"]
    assert data["checks"][0]["findings"][0]["evidence"] == {"count": 3, "first": "2026-01-01T00:00:00+00:00"}


def test_numbers_are_rounded_to_a_thousandth() -> None:
    """Ages in seconds, durations in milliseconds: as precise as they are meant."""
    first = as_data(a_report())["checks"][0]
    assert (first["age_s"], first["duration_ms"]) == (2.0, 12.346)


def test_evidence_of_any_kind_can_be_printed() -> None:
    """What JSON has no form for is printed as text: a report never fails for its evidence."""
    odd = fault(evidence={"at": at(0), "set": frozenset({1}), "path": Path("/dev/kmsg")})
    evidence = json.loads(as_json(a_report(checks=(view("a.b", ok(), odd),))))["checks"][0]["findings"][0]["evidence"]
    assert evidence["path"] == "/dev/kmsg"
    assert evidence["at"].startswith("2026-01-01")


def test_exit_codes_are_those_of_the_issue() -> None:
    """0 usable, 1 critical, 2 unknown; every verdict has one."""
    assert {str(verdict): code for verdict, code in EXIT_CODE.items()} == {
        "ok": 0, "warning": 0, "critical": 1, "unknown": 2,
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# for people


_HEAD = "ip-10-0-0-1  CRITICAL  not usable, 2 problems, 2 checks unknown"


def test_the_text_says_the_worst_first_and_what_is_well_as_a_count() -> None:
    """The node, each cause once with what to do about it, what could not be told, news, and the rest."""
    assert as_text(a_report(notices=("SIMULATED: no hardware",)), mode="observe").splitlines() == [
        f"{_HEAD:<74}p5.48xlarge · observe · healthd {__version__}",
        "! SIMULATED: no hardware",
        "  X gpu.xid.79        GPU 0000:10:1c   since 7 s",
        "    XID 79: fell off the bus",
        "    explains gpu.sick",
        f"    do: {next_step('gpu.xid.79')}; `healthd explain gpu.xid.79`",
        "  ! gpu.hot           GPU 0000:10:1c   since 7 s",
        "    87 C",
        "    do: `healthd explain gpu.hot`",
        "  ? gpu.temperature",
        "    gpu:GPU-1: UNKNOWN (999)",
        "    do: a part did not answer; see what the check reads: `healthd explain gpu.temperature`",
        "  ? gpu.count",
        "    NVML did not answer",
        "    do: `healthd doctor` names what is missing, and how to fix it",
        "  ? efa.devices                        optional",
        "    no libfabric",
        "  i gpu.xid.43        GPU 0000:10:1c   since 7 s",
        "    gpu.xid.43 on gpu:GPU-0",
        "  ok 1 check · 1 not applicable",
    ]


def test_without_a_daemon_the_text_says_so() -> None:
    """In the place of the mode, which is the daemon's."""
    assert "no daemon · healthd" in as_text(a_report(source="local"), mode="repair").splitlines()[0]


def test_news_alone_leaves_a_check_well() -> None:
    """A check with nothing but news counts among those that are well: no check disappears from the text."""
    news = fault("gpu.xid.43", severity=Severity.INFO)
    report = a_report(checks=(view("kernel.xid", ok(), news),), diagnoses=(), verdict=Verdict.OK)
    lines = as_text(report).splitlines()
    assert lines[0].startswith("ip-10-0-0-1  OK        usable  ")
    assert lines[-1] == "  ok 1 check"
    assert "do:" not in "".join(lines)


def test_one_reason_is_one_line() -> None:
    """A source that is not asked blinds a dozen checks and is said once; ``-v`` has the name of each."""
    views = tuple(view(name, unknown("nvml probe: paused for 300 s")) for name in ("gpu.ecc", "gpu.count"))
    report = a_report(checks=views, diagnoses=(), verdict=Verdict.UNKNOWN)
    assert as_text(report).splitlines()[1:3] == ["  ? gpu.ecc   and 1 more check", "    nvml probe: paused for 300 s"]
    assert "    gpu.count" in as_text(report, verbose=True).splitlines()


@pytest.mark.parametrize(
    ("result", "step"),
    [
        (unknown("NVML: libnvidia-ml.so.1 is not there"), "`healthd doctor` names what is missing, and how to fix it"),
        (unknown("not run: the GPUs are in use: GPU 0 by process 701", "run it again when the node is idle"),
         "run it again when the node is idle"),
        (unknown("no result younger than twice its interval", SOON), "run `healthd check` again in a minute"),
        (judged([], undecided=["GPU 3 did not answer"]),
         "a part did not answer; see what the check reads: `healthd explain nccl.nvlink`"),
    ],
    ids=["missing", "in use", "too early", "a part"],
)  # fmt: skip
def test_an_unknown_says_what_to_do_about_its_reason(result: Result, step: str) -> None:
    """`healthd doctor` finds what is missing, and no job that runs."""
    report = a_report(checks=(view("nccl.nvlink", result),), diagnoses=(), verdict=Verdict.UNKNOWN)
    assert as_text(report).splitlines()[3] == f"    do: {step}"


def test_a_measurement_of_many_devices_is_one_line() -> None:
    """From the lowest to the highest, with the limit and its source; one that is the same everywhere has one value."""
    figures = tuple(
        Reading(component=gpu, name="copy_gbps", value=12.0 + n, limit=10.0, limit_source="the table")
        for n, gpu in enumerate((GPU[0], GPU[1]))
    )
    plain = (Reading(component=NODE, name="nccl_gbps", value=380.0),)
    checks = (replace(view("gdrcopy.copy", ok()), figures=(*figures, *plain)),)
    assert [line for line in as_text(a_report(checks=checks)).splitlines() if "measured" in line] == [
        "  measured  GPU 0000:10:1c, GPU 0000:20:1c copy_gbps 12 to 13 (limit 10, the table)",
        "  measured  node nccl_gbps 380",
    ]


def test_the_brief_line_is_the_same_on_equal_nodes() -> None:
    """Codes with the number of devices, and the unknown checks that count: no host, device, boot, time or source."""
    line = "CRITICAL  critical gpu.xid.79; warning gpu.hot; unknown gpu.count; unknown gpu.temperature\n"
    report = a_report()
    assert as_brief(report) == line
    assert as_brief(replace(report, node="other", boot_id="b", source="local", generated_at=at(99))) == line
    twice = replace(report.diagnoses[0], component=Component(kind="gpu", id="GPU-7"))
    two = replace(report, diagnoses=(*report.diagnoses, twice))
    assert as_brief(two).startswith("CRITICAL  critical gpu.xid.79 x2; ")
    assert as_brief(a_report(checks=(), diagnoses=(), verdict=Verdict.OK)) == "OK\n"


def test_every_check_and_every_finding_is_in_the_long_text() -> None:
    """Whatever came of it, each check's name is there, and each component under its own name."""
    report = a_report()
    text = as_text(report, verbose=True)
    assert [each.outcome.check for each in report.checks if each.outcome.check not in text] == []
    assert "    gpu:GPU-0  XID 79: fell off the bus  [kernel.xid]" in text.splitlines()
    assert "  -- lustre.mount: no Lustre here" in text.splitlines()


def test_an_empty_report_is_still_a_text() -> None:
    """A node whose type is not known, with no check at all, is a report."""
    text = as_text(a_report(instance_type=None, checks=(), diagnoses=(), verdict=Verdict.UNKNOWN))
    (line,) = text.splitlines()
    assert line.startswith("ip-10-0-0-1  UNKNOWN   cannot tell  ")
    assert "unknown instance type" in line


def test_a_name_cannot_steer_the_terminal() -> None:
    """Escapes and line ends in a message, which may quote a mount point, are shown as question marks."""
    odd = fault("host.fs", Component(kind="mount", id="/a"), message="/a\x1b[2J\nOK  node")
    text = as_text(a_report(checks=(view("host.filesystems", ok(), odd),), diagnoses=()))
    assert "    /a?[2J?OK  node" in text.splitlines()


def test_one_gpu_is_named_as_the_fold_names_it() -> None:
    """Components are printed by their stable name."""
    assert as_data(a_report())["diagnoses"][0]["component"] == str(GPU[0])
