"""Makes the reference pages from the code, so that they cannot say anything else.

    python docs/generate.py            write the pages, and the table of figures in bench/README.md
    python docs/generate.py --check    write nothing; exit 1 and name the pages that are out of date

tests/unit/test_docs.py compares every page with what the code says now. Nothing here adds a fact of its own: what is
missing on a page is missing in a docstring, a table or a finding code.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from healthd.agent import looking_agent  # noqa: E402 - runs from a checkout in which nothing is installed
from healthd.api.grammar import _grammar  # noqa: E402
from healthd.api.wire import EXIT_CONFIG, EXIT_FAILED, EXIT_USAGE  # noqa: E402
from healthd.check import Check, NoSettings, discover  # noqa: E402
from healthd.config import schema  # noqa: E402
from healthd.config.load import load  # noqa: E402
from healthd.config.report import FieldDoc, documented_fields  # noqa: E402
from healthd.model import ReadingKind, Verdict  # noqa: E402
from healthd.report import EXIT_CODE  # noqa: E402
from healthd.sim.machine import SimulatedMachine  # noqa: E402
from healthd.tables import UNKNOWN_XID, xid_cases, xid_table  # noqa: E402

NOTE = "<!-- Made by docs/generate.py from {source}. Change that, and run the generator again. -->\n"

CHECKS = """# Checks

Every check that this version has. Beside its own settings each one takes `enabled`, `interval_s`, `timeout_s` and
`optional` (see [config.md](config.md)); each code is listed with what it means in [findings.md](findings.md).
"""

FINDINGS = """# Findings

*Severity* says whether a job may start now: a node with a critical finding is not fit for one. *Calls for* is the
remedy: `reset_gpu`, `reboot_node` and `replace_node` need the node to themselves, so they take it out (mode
`quarantine` or `repair`); the others never do. *Ends by* is the evidence that closes the fault; for a fault from the
kernel log, age never does. `healthd explain CODE` prints the same on a node.
"""

XIDS = """## XIDs

Family `gpu.xid.*`: the number is the last part of the code. *Pauses NVML*: NVML calls may hang after it, so healthd
stops asking for a while. A number that is not in this table is {row.severity}, calls for {row.remedy} and ends by
{row.clears_by}: {row.reason}
"""

CASES = """## XIDs whose text decides

`fatal`: the line says Fatal. `to:N`: XID 154 names recovery action N as the new one.
"""

CONFIG = """# Configuration

TOML. `/etc/healthd/config.toml`, then `/etc/healthd/conf.d/*.toml` in the order of their names, then environment
variables; a later source wins key by key. `--config FILE` replaces the files, not the variables. A variable is
`HEALTHD_` and the key in capitals, with `_` for everything else: `HEALTHD_REMEDIATION_MODE` is `[remediation] mode`,
`HEALTHD_CHECKS_GPU_COUNT_EXPECTED` is `[checks."gpu.count"] expected`. `HEALTHD_SOCKET` is `[daemon] socket`, and the
one that clients know too.

The daemon reads all of it once, at its start. Unknown keys and wrong values stop it with exit code 78, all of them
named. `healthd config show` prints every value and where it comes from; `healthd config validate` marks mistakes on
the file itself.
"""

EVERY_CHECK = """## [checks."NAME"]

Every check has these; its own are in the sections below. The quotes are needed: the name has a dot.
"""

CLI = """# Command line

`healthd VERB ...`: {about}

stdout is the result, stderr is talk. `healthd --version` prints the version; `-h` after any verb prints its help.
Options are not abbreviated.
"""

METRICS = """# Metrics

`GET /metrics` on `[daemon] http` (default `127.0.0.1:9809`), in Prometheus text format, made when it is scraped.
`/healthz` is 200 while the daemon goes round and 503 with the reason when it does not; a sick node is no sick daemon.
`/verdict` is the JSON of [verdict.md](verdict.md). Nothing on this port can act.
"""

READINGS = """## Readings

Every number that a check read, labelled with its `component`. A reading is there only where its check found the
hardware. Counters are as the hardware has them: they start anew with a driver load, a GPU reset or a boot, as each
does.
"""

BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"
# Which figure an aim is about, where its name alone does not say.
AIMED_AT = {("check_cold", "aim_mb"): "check_peak_mb"}
_ABOUT_THE_RUN = ("benchmark", "machine", "python")


def pages() -> Mapping[Path, str]:
    """Every generated file with the text that it must have."""
    reference = ROOT / "docs/reference"
    made: Mapping[Path, Callable[[], str]] = {
        reference / "checks.md": checks_page,
        reference / "findings.md": findings_page,
        reference / "config.md": config_page,
        reference / "cli.md": cli_page,
        reference / "metrics.md": metrics_page,
        ROOT / "bench/README.md": bench_page,
    }
    return {path: make() for path, make in made.items()}


# ---------------------------------------------------------------------------------------------------------------------
# checks and findings


def checks_page() -> str:
    """Every check: what it is for, how often it runs, what it can find, its limits and its settings."""
    found = discover().values()
    overview = [(anchored(check.name), often(check), check.title) for check in found]
    head = [NOTE.format(source="checks/*.py"), CHECKS, table(("check", "runs", "what it asserts"), overview)]
    return "\n".join([*head, *(check_section(check) for check in found)])


def check_section(check: Check) -> str:
    """One check. Its docstring is the text."""
    body = check.doc.partition("\n")[2]
    parts = [f"## {check.name}\n", f"{check.title}.\n", unindented(body), f"Runs {often(check)}.\n"]
    rows = [(f"`{code.code}`", code.severity, code.remedy, code.meaning) for code in check.codes]
    parts.append(table(("code", "severity", "calls for", "meaning"), rows))
    limits = [(f"`{x.reading}`", x.words, f"`{x.code.code}`", x.source) for x in check.limits]
    if limits:
        parts += ["Limits, judged over time:\n", table(("reading", "at most", "else", "source"), limits)]
    own = documented_fields(check.settings) if check.settings is not NoSettings else ()
    if own:
        parts += [f'Settings, in `[checks."{check.name}"]`:\n', fields_table(own)]
    return "\n".join(parts)


def often(check: Check) -> str:
    """When a check runs, in words."""
    if check.on == "kernel":
        return "on each batch of kernel records, as it arrives"
    return f"every {check.interval_s:g} s, deadline {check.timeout_s:g} s"


def findings_page() -> str:
    """Every code that a check declares, then every XID, then the cases in which a line's text decides."""
    codes = [(code, check.name) for check in discover().values() for code in check.codes]
    rows = [
        (f"`{c.code}`", c.severity, c.remedy, c.clears_by or "not seen any more", c.meaning, anchored(name))
        for c, name in codes
    ]
    parts = [
        NOTE.format(source="checks/*.py, checks/data/xid.csv and checks/data/xid_cases.csv"),
        FINDINGS,
        table(("code", "severity", "calls for", "ends by", "meaning", "found by"), rows),
        XIDS.format(row=UNKNOWN_XID),
        xids_table(),
        CASES,
        cases_table(),
    ]
    return "\n".join(parts)


def xids_table() -> str:
    """The rows of xid.csv."""
    rows = [
        (
            str(row.xid),
            f"{row.meaning} (`{row.mnemonic}`)" if row.mnemonic else row.meaning,
            row.severity,
            row.remedy,
            row.clears_by,
            "yes" if row.pauses_nvml else "",
            row.reason,
            row.source,
        )
        for row in xid_table().values()
    ]
    return table(("XID", "meaning", "severity", "calls for", "ends by", "pauses NVML", "why", "source"), rows)


def cases_table() -> str:
    """The rows of xid_cases.csv."""
    rows = [
        (str(row.xid), f"`{row.case}`", row.meaning, row.severity, row.remedy, row.clears_by, row.reason, row.source)
        for row in xid_cases().values()
    ]
    return table(("XID", "case", "meaning", "severity", "calls for", "ends by", "why", "source"), rows)


# ---------------------------------------------------------------------------------------------------------------------
# configuration


def config_page() -> str:
    """Every key with its type, its default and the docstring under it."""
    parts = [NOTE.format(source="healthd/config/schema.py and the settings classes of checks/*.py"), CONFIG]
    for name, section in sections(schema.Config).items():
        parts += list(config_sections((name,), section))
    parts += [EVERY_CHECK, fields_table(documented_fields(schema.CheckSection))]
    for check in discover().values():
        if check.settings is not NoSettings:
            parts += [f'## [checks."{check.name}"]\n', fields_table(documented_fields(check.settings))]
    return "\n".join(parts)


def config_sections(path: tuple[str, ...], cls: type) -> Iterator[str]:
    """A section and the sections below it."""
    below = sections(cls)
    yield f"## [{'.'.join(path)}]\n"
    yield f"{(cls.__doc__ or '').strip()}\n"
    yield fields_table(row for row in documented_fields(cls) if row.name not in below)
    for name, inner in below.items():
        yield from config_sections((*path, name), inner)


def sections(cls: type) -> Mapping[str, type]:
    """The fields of a settings class that are settings classes themselves."""
    hints = get_type_hints(cls)
    return {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}


def fields_table(rows: Iterable[FieldDoc]) -> str:
    """Keys of one table."""
    cells = [(f"`{row.name}`", row.type, f"`{row.default}`" if row.default else "left out", row.doc) for row in rows]
    return table(("key", "type", "default", "what it does"), cells)


# ---------------------------------------------------------------------------------------------------------------------
# command line


def cli_page() -> str:
    """Every verb with its arguments, from the parser that the program itself uses."""
    grammar = _grammar()
    verbs = next(action for action in grammar._actions if isinstance(action, argparse._SubParsersAction))
    about = {action.dest: action.help or "" for action in verbs._choices_actions}
    overview = [(f"[{name}](#healthd-{name})", text) for name, text in about.items()]
    parts = [
        NOTE.format(source="healthd/api/grammar.py"),
        CLI.format(about=grammar.description),
        table(("verb", "what it does"), overview),
        exit_codes(),
    ]
    return "\n".join([*parts, *(verb_section(name, about[name], verbs.choices[name]) for name in about)])


def exit_codes() -> str:
    """The exit codes, with the numbers that the program itself uses."""
    rows = [
        (
            EXIT_CODE[Verdict.OK],
            "`check`: usable, which is ok or warning. Elsewhere: it worked. `hook`: the job passes",
        ),
        (
            EXIT_CODE[Verdict.CRITICAL],
            "`check`: critical. `hook prolog`: not fit, and our drain stands. `demo`: it failed",
        ),
        (EXIT_CODE[Verdict.UNKNOWN], "`check`: unknown. `status`: no daemon answers"),
        (EXIT_USAGE, "the command line is wrong (sysexits.h EX_USAGE), a misspelt `hook` included"),
        (EXIT_FAILED, "it could not be done, such as a state directory that cannot be used (EX_SOFTWARE)"),
        (EXIT_CONFIG, "the configuration is wrong (EX_CONFIG)"),
    ]
    return "## Exit codes\n\n" + table(("code", "meaning"), rows)


def verb_section(name: str, about: str, parser: argparse.ArgumentParser) -> str:
    """One verb: usage in one line, then its arguments."""
    actions = [action for action in parser._actions if action.dest != "help"]
    usage = " ".join(["healthd", name, *(shape(action) for action in actions)])
    rows = [(f"`{spelled(action)}`", action.help or "", values(action)) for action in actions]
    body = table(("argument", "meaning", "values"), rows) if rows else "No arguments.\n"
    return f"## healthd {name}\n\n{about[:1].upper()}{about[1:]}.\n\n```text\n{usage}\n```\n\n{body}"


def spelled(action: argparse.Action) -> str:
    """``--config FILE``, or the name of a positional argument."""
    name = action.option_strings[0] if action.option_strings else str(action.metavar or action.dest)
    takes = bool(action.option_strings) and action.nargs != 0
    return f"{name} {action.metavar or 'WORD'}" if takes else name


def shape(action: argparse.Action) -> str:
    """How an argument stands in the usage line."""
    word = spelled(action)
    if action.option_strings:
        return f"[{word}]"
    if action.choices:
        return "|".join(str(choice) for choice in action.choices)
    return f"[{word} ...]" if action.nargs == "*" else word


def values(action: argparse.Action) -> str:
    """The words that an argument takes, if they are a choice."""
    words = ", ".join(f"`{choice}`" for choice in action.choices or ())
    return f"{words} (default `{action.default}`)" if words and action.default else words


# ---------------------------------------------------------------------------------------------------------------------
# metrics


def metrics_page() -> str:
    """The families that healthd/api/metrics.py declares, and the readings of a simulated node with everything on it."""
    source = "healthd/api/metrics.py and one run of every check on the simulated p5.48xlarge"
    parts = [
        NOTE.format(source=source),
        METRICS,
        table(("metric", "type", "labels", "meaning"), declared_families()),
        READINGS,
        table(("metric", "type", "read by"), readings()),
    ]
    return "\n".join(parts)


def declared_families() -> list[tuple[str, str, str, str]]:
    """Name, type, labels and help of every family that is written out in metrics.py."""
    tree = ast.parse((ROOT / "healthd/api/metrics.py").read_text(encoding="utf-8"))
    found = []
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            continue
        texts = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        kind = call.func.id.removesuffix("MetricFamily").lower()
        if kind == call.func.id.lower() or len(texts) != 2:
            continue
        labels: list[str] = next((ast.literal_eval(word.value) for word in call.keywords if word.arg == "labels"), [])
        name = f"{texts[0]}_total" if kind == "counter" else texts[0]
        found.append((f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels), texts[1]))
    return sorted(found)


def readings() -> list[tuple[str, str, str]]:
    """Every reading that the checks make on the simulated node, as its metric."""
    with tempfile.TemporaryDirectory(prefix="healthd-docs-") as folder:
        machine = SimulatedMachine(Path(folder) / "node")
        machine.kernel_says("NVRM: GPU at PCI:0000:53:00: GPU-51a1a7ed-0000-4000-8000-000000000000")
        settings = {name: check.settings for name, check in discover().items()}
        agent = looking_agent(load(machine.config, checks=settings, environ={}).config)
        try:
            agent.checkup.report()
            outcomes = agent.monitor.outcomes()
        finally:
            agent.close()
    found = {
        (f"`healthd_{reading.name}`", "counter" if reading.kind is ReadingKind.COUNTER else "gauge", anchored(check))
        for check, outcome in outcomes.items()
        for reading in outcome.result.readings
    }
    return sorted(found)


# ---------------------------------------------------------------------------------------------------------------------
# figures


def bench_page() -> str:
    """bench/README.md as it stands, with the table between the markers made from bench/results/*.json."""
    text = (ROOT / "bench/README.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{figures(results())}\n{END}{after}"


def results() -> list[dict[str, Any]]:
    """What the benchmarks wrote down last, in the order of their names."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "bench/results").glob("*.json"))]


def figures(records: Sequence[Mapping[str, Any]]) -> str:
    """The figures with their aims. A missed aim is called missed."""
    if not records:
        return "No figures are written down: no benchmark has been run in this tree.\n"
    rows = [row for record in records for row in figure_rows(record)]
    return table(("benchmark", "figure", "value", "aim", "", "machine"), rows)


def figure_rows(record: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """One row per figure of a record. Raises ValueError for an aim that belongs to no figure."""
    name, where = str(record["benchmark"]), f"{record['machine']}, Python {record['python']}"
    aims = {aimed_at(name, key, record): value for key, value in record.items() if key.startswith("aim_")}
    for key, value in record.items():
        if key in _ABOUT_THE_RUN or key.startswith("aim_"):
            continue
        aim = aims.get(key)
        shown = "" if aim is None else f"at most {aim:g}"
        yield (
            name,
            f"`{key}`",
            f"{value:g}" if isinstance(value, int | float) else str(value),
            shown,
            judged(value, aim),
            where,
        )


def aimed_at(benchmark: str, aim: str, record: Mapping[str, Any]) -> str:
    """The figure that an aim is about: the one of the same name, or what AIMED_AT says."""
    figure = AIMED_AT.get((benchmark, aim), aim.removeprefix("aim_"))
    if figure not in record:
        problem = f"bench/results/{benchmark}.json: {aim} belongs to no figure"
        raise ValueError(f"{problem}; add it to AIMED_AT in docs/generate.py")
    return figure


def judged(value: Any, aim: Any) -> str:
    """Met, or missed."""
    return "" if aim is None else "met" if value <= aim else "**missed**"


# ---------------------------------------------------------------------------------------------------------------------
# markdown


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; what would end a cell is escaped."""
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def cell(value: object) -> str:
    """One line, without a bare ``|``, and without what would be taken for a tag."""
    parts = " ".join(str(value).split()).replace("|", "\\|").replace("``", "`").split("`")
    return "`".join(part if in_code % 2 else part.replace("<", "&lt;") for in_code, part in enumerate(parts))


def anchored(check: str) -> str:
    """A link to a check's section: GitHub's anchor of a heading has no dots."""
    return f"[{check}](checks.md#{check.replace('.', '')})"


def unindented(text: str) -> str:
    """The paragraphs of a docstring, as Markdown: its double backquotes are single ones here."""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return "\n\n".join(part.replace("``", "`") for part in paragraphs if part) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or say which are out of date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is out of date")
    check = parser.parse_args(arguments).check
    made = pages()
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if not check:
            path.write_text(made[path], encoding="utf-8")
        sys.stdout.write(f"{'out of date' if check else 'written'}: {path.relative_to(ROOT)}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
