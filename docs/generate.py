"""Makes the reference pages from the code, so that they cannot differ from it.

    python docs/generate.py            write the pages, with the figures of the benchmarks
    python docs/generate.py --check    write nothing; exit 1 and name the pages that are out of date

tests/unit/house/test_docs.py compares every page with the code. Nothing here adds a fact of its own: a fact that a page
lacks is missing in a docstring, a table or a finding code.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import msgspec  # noqa: E402 - runs from a checkout in which nothing is installed

from docs import diagrams  # noqa: E402
from healthd import __version__  # noqa: E402
from healthd.agent.agent import reading_agent  # noqa: E402
from healthd.api.exit_codes import MEANINGS, ExitCode  # noqa: E402
from healthd.api.grammar import _grammar  # noqa: E402
from healthd.api.metrics import metric_of  # noqa: E402
from healthd.api.overview import SECTIONS  # noqa: E402
from healthd.api.usage import shown, spelled, usage  # noqa: E402
from healthd.checklib.xids import UNKNOWN_XID, SxidRow, XidRow, sxid_table, xid_cases, xid_table  # noqa: E402
from healthd.config.json_schema import FILE_NAME, config_schema_text, policy_schema_text  # noqa: E402
from healthd.config.load import load  # noqa: E402
from healthd.config.report import FieldDoc, documented_fields  # noqa: E402
from healthd.config.schema import config as schema  # noqa: E402
from healthd.config.schema.rule import PolicyRule  # noqa: E402
from healthd.config.values import sections_of  # noqa: E402
from healthd.core.check import Check, FindingCode, NoSettings, discover  # noqa: E402
from healthd.core.model import Reading, ReadingKind  # noqa: E402
from healthd.notify.message import Notification  # noqa: E402
from healthd.remediation.decide.rules import STEPS, Rule  # noqa: E402
from healthd.remediation.orchestrators.slurm.reasons import AUTOMATIC, REBOOTS  # noqa: E402
from healthd.remediation.policy_files import SHIPPED as SHIPPED_POLICIES  # noqa: E402
from healthd.remediation.policy_files import rules_named  # noqa: E402
from healthd.remediation.provisioners import aws_calls, aws_errors  # noqa: E402
from healthd.remediation.provisioners.iam import MANAGED_TAG, policies  # noqa: E402
from healthd.sim.machine import SimulatedMachine  # noqa: E402
from tests.faults.case import Case  # noqa: E402
from tests.faults.matrix import CASES as FAULTS_PLAYED  # noqa: E402
from tests.faults.matrix import NOT_ARRANGED  # noqa: E402
from tests.faults.proof import CERTAIN, unproven  # noqa: E402
from tests.support.mistakes import answered_commands, answered_configurations  # noqa: E402
from tests.support.pure_modules import source_of  # noqa: E402
from tests.support.recorded_gpus import recorded  # noqa: E402
from tests.support.scripts import load_script  # noqa: E402
from tests.support.slurm_versions import DIFFERENCES, TESTED, Difference, has  # noqa: E402

Row = TypeVar("Row")

NOTE = "<!-- Made by docs/generate.py from {source}. Change that, and run the generator again. -->\n"

CHECKS = """# Checks

Every check of this version, each with a page: what it finds, its limits and its settings. Beside its own settings each
one takes `enabled`, `interval_s`, `timeout_s` and `optional` ([configuration](config/checks.md)).
[findings.md](findings.md) leads to each code.
"""

SLURM = f"""# Versions of Slurm

`make test-slurm VERSION=…` runs the live tests on {", ".join(TESTED)}: Debian 12, 13 and testing, each with the
packages and the Python of its own distribution. healthd compares no versions: it tries, and reads Slurm's answer.
"""

REASONS = """healthd takes none of these texts for an operator's command, whichever user Slurm shows.

- Over a drain of healthd's own such a text is a remark. The remediation and its slot go on, the trail records the
  remark, and the release undoes the drain if it stands as healthd read it.
- Behind the reason of a drain of healthd's own (` : Not responding`) it is a remark too.
- In `repair` mode healthd repairs a node that Slurm drained so, if a fault there calls for a repair, unless
  `[orchestrator.slurm] adopt_automatic_drains = false`. Otherwise it leaves the node alone and pages with both facts.
  It always leaves a node alone that is DOWN.
- Any other text belongs to a user, also where it holds the id of a remediation.
"""

FINDINGS = """# Findings

*Severity* decides whether a job may start now: a node with a critical finding is not fit for one. *Calls for* is the
remedy: `reset_gpu`, `reboot_node` and `replace_node` need the node to themselves, so they take it out, as a
critical finding does, in any mode but `observe` and where the [policy](policy.md) has no other rule.
*Ends by* is the evidence that closes the fault; for a fault from the
kernel log, age never does. `healthd explain CODE` prints the [runbook](explain.md) of a code on a node.
[peers.md](peers.md) compares the codes with the fault classes of other projects; [faults.md](faults.md) lists the
states of a node behind them.

Each page lists the codes that begin with one word. XIDs have pages of their own, by number.
"""

FINDINGS_OF = """# Findings: {kind}

{count} codes that begin with `{kind}.`. [All findings](../findings.md) explains the columns.
"""

XIDS_INDEX = """## XIDs

Family `gpu.xid.*`: the number is the last part of the code. The text of some lines decides what they call for:
[those cases](findings/xid-cases.md).
"""

XIDS = """# XIDs {first} to {last}

Family `gpu.xid.*`: the number is the last part of the code. *Pauses NVML*: NVML calls may hang after it, so healthd
stops asking for a while. *Ends process*: the process that had the GPU cannot go on, and neither can its job: for these
alone [`on_job`](../../how-to/job-restart.md) holds. A number that is not in this table is {row.severity}, calls for
{row.remedy} and ends by {row.clears_by}: {row.reason}
"""

SXIDS_INDEX = """## SXids

Family `nvswitch.sxid.*`: the number is the last part of the code.
"""

SXIDS = """# SXids {first} to {last}

Family `nvswitch.sxid.*`, with the judgement of a line that has no severity word.
[All findings](../findings.md) explains the columns.
"""

CASES = """# XIDs whose text decides

`fatal`: the line says Fatal. `to:N`: XID 154 names recovery action N as the new one.
"""

CONFIG = """# Configuration

TOML. `/etc/healthd/config.toml`, then `/etc/healthd/conf.d/*.toml` in the order of their names, then environment
variables; a later source wins key by key. `--config FILE` replaces the files, not the variables. A variable is
`HEALTHD_` and the key in capitals, with `_` for everything else: `HEALTHD_REMEDIATION_MODE` is `[remediation] mode`,
`HEALTHD_CHECKS_GPU_COUNT_EXPECTED` is `[checks."gpu.count"] expected`. `HEALTHD_SOCKET` is `[daemon] socket`, and
clients read it too.

The daemon reads all of it at its start, and again at `systemctl reload healthd` (SIGHUP). Unknown keys and wrong values
stop a start with exit code 78, which names all of them; at a reload they change nothing, and the log names them. An
error that only the machine shows (a missing platform, a folder that takes no file) is exit code 70, and systemd tries
again. `healthd config show` prints every value and its origin; `healthd config validate` marks errors on the file
itself, and with `--here` tries it out as a start would. Editors check and complete it by its JSON Schema: see
[a first configuration](../how-to/first-configuration.md).
"""

CONFIG_OF = """# [{name}]

[Configuration](../config.md) says where the file is and how its values are read.
"""

EVERY_CHECK = """# [checks."NAME"]

Every check has these keys. The quotes are needed: the name has a dot.
"""

OWN_SETTINGS = """## Settings of one check

The page of a check describes its own keys.
"""

CLI = """# Command line

`healthd VERB ...`: {about}

stdout is the result, stderr is talk. `healthd --version` prints the version; `-h` after any verb prints its help.
Options are not abbreviated. The verbs are grouped as in `healthd help`. The packages bring `man healthd`,
`man healthd.toml`, and completions for bash, zsh and fish.

On a terminal `check`, `status`, `plan`, `history`, `doctor` and `fleet` are in colour: red for critical, yellow for a
warning, magenta for unknown, cyan for news, green for ok. Each state has its word or sign as well. `NO_COLOR=1` turns
colours off, `FORCE_COLOR=1` turns them on in a pipe, such as `less -R`.
"""

METRICS = """# Metrics

`GET /metrics` on `[daemon] http` (default `127.0.0.1:9809`), in Prometheus text format, made at the scrape.
`/healthz` is 200 while the daemon makes progress and 503 with the reason when it does not; a sick node is no sick
daemon. `/verdict` is the JSON of [verdict.md](verdict.md), `/` the status page, `/status` its JSON
([status.md](status.md)): both are for this machine only, whatever the address. `/history` has faults and remediations
for other machines, `/readings` the samples of the last forty minutes by which the nodes of a job are compared. This
port is read-only.

A scrape reads the daemon's memory, neither the machine nor the cluster; between scrapes nothing is computed.
`[metrics] textfile` writes the same page for node_exporter's textfile collector.
[prometheus.md](../how-to/prometheus.md) describes how to collect it,
[rules.yaml](../../packaging/prometheus/rules.yaml) has the rules, and
[fleet.json](../../packaging/grafana/fleet.json) and [node.json](../../packaging/grafana/node.json) are the dashboards.

**How many series.** Labels are names of checks, codes, components of this node and values of fixed lists, never texts.
No metric has more than 1,000 series on one page; `healthd_metrics_dropped_series` counts the omitted ones. A
simulated p5.48xlarge with 8 GPUs, 32 EFA devices and Lustre has fewer than 3,000.
Counters of the daemon's own start again with it. Counters that a check, an action, a reason or a step labels are there
from the start, at 0; a code of a family, such as an XID, is there from its first fault on.
"""

CONTROLLER_METRICS = """## healthd controller

`GET /metrics` on `[controller] http` (default `127.0.0.1:9810`), and `/healthz`. Beside these it has, under the same
names as a daemon: `healthd_start_time_seconds`, `healthd_store_failing`, `healthd_notifications_total`,
`healthd_notifications_undelivered`, `healthd_metrics_dropped_series`, and its part of the budget: on Slurm how
many nodes are out (the limit is in the nodes' own configuration), on Kubernetes all of it, without the limit in mode
observe. No label names a node: `healthd controller --status` lists the nodes. All but `healthd_controller_info` start
again with the process.

`state` is `waits` (requested, not begun), `repair` (its platform got the request), `done`, `refused`, `silent` (it did
not come back from its reboot), `left_alone` or `other` (a drain, or an inconsistent record). `to` is `slurm`,
`kubernetes` or `aws`; `request` is a client of Slurm, a verb and a kind, or an operation of
[aws-calls.md](aws-calls.md); `result` is `ok`, `busy`, `denied`, `refused`, `unknown`, and of Kubernetes also
`missing`, `conflict`, `disrupting` (a PodDisruptionBudget) and `ending`.
"""

READINGS = """## Readings

Every number that a check read, labelled with its `component`. A reading is there only where its check found the
hardware. Units are base units: seconds, bytes, hertz, watts, degrees Celsius. Counters are those of the hardware:
they start again with a driver load, a GPU reset or a boot, as each does.
"""

POLICY = """# Policy

A policy is a list of rules for faults, in order; the first match decides. A site's own rules are
`[[policy.rule]]` of its [configuration](config/policy.md), in front of a shipped policy. A policy's own file, for
`--policy FILE` of `healthd policy` and `healthd replay`, has a `title` and `[[rule]]` with the same keys. healthd
refuses unknown keys; `name`, `codes`, `reason` and `source` are required. [policy.schema.json](policy.schema.json) is
the same for editors, which find it by `#:schema ./policy.schema.json` in a file's first line.
[Write a policy](../how-to/write-a-policy.md) is the guide.

## A rule
"""

RUNGS = """## Rungs of a ladder

From small to large. A ladder goes up; `ask_human` stands alone. After the last rung healthd pages in any case.
"""

SHIPPED = """## Shipped policies

`[policy] use` names one. After its last rule come the finding's own remedy, then the larger ones.
"""

PEERS = """# What others detect

Every fault class that another project detects, with healthd's codes for it, or why there is none. As of
2026-11, from those projects' code and documentation. Codes are explained in [findings.md](findings.md).
"""

ON_GPUS = """# On real GPUs

`tests/gpu` measured this on machines with one GPU each: `tests/gpu/README.md` says how to run it, and
what it shows. The answers of these GPUs are kept, and `make test` runs every GPU check on them. No 8-GPU node, no
NVSwitch and no GB200 is among them.
"""

AT_REST = """## A daemon at rest

With its workers, for a minute after half a minute, by the measure of [bench_idle](../../bench/README.md): PSS, the CPU
time of a core, and how often its threads wake up in a second. On the machines of the benchmark NVML is simulated, and
the driver's own library, some 18 MB in the worker that asks it, is not there.
"""

CALLS_COST = """## Calls of NVML

Milliseconds of each question of the checks, the median of 20 rounds in the NVML worker, less those of no question.
"""

KERNEL_TIMES = """## A program beside the checks

Microseconds from the start of a kernel that does nothing to its end, over and over for five seconds: with nothing
beside it, and while every check of the daemon runs again and again without a pause. The daemon runs most of them once a
minute.
"""

FAULTS = """# The fault matrix

{cases} states of a node that the {checks} checks distinguish, and healthd's diagnosis of each. `tests/faults` brings
about each of them on a whole healthy node (a p5.48xlarge, unless the state names another), through the daemon's own
code: all checks run, not only the one under test. Their findings must be exactly those listed here, folded into one
diagnosis; *beside it* lists its symptoms. `make test TESTS=tests/faults` plays the matrix and prints it.

*Made by* names the stand-in for the fault. GPUs have their index as name.

*Unproven on hardware*: no broken hardware has been seen. On [an H100 and an H200](on-gpus.md) the checks find a healthy
GPU fine, and the XIDs of wrong programs. Nothing has run on an NVSwitch, an EFA device, a Nitro disk or a Lustre
client. A state from documentation or source code only has the proof that it needs. Such a state is a warning that
takes no node out, unless a published source is certain of it; the end of the page lists those. healthd ships in mode
`observe`, in which nothing takes a node out. A published line of the kernel log from the field is its own proof.
"""

FAULTS_OF = """# Faults: {name}

States that the check [{name}](../checks/{name}.md) distinguishes{part}. [The fault matrix](../faults.md) explains the
columns.
"""

CERTAINTIES = """## Unproven, and acted on

Codes that keep jobs off or take a node out without proof on hardware here, and the source that is certain of each.
XIDs, SXids and other kernel lines have theirs in their tables: [findings.md](findings.md) and `healthd explain CODE`.
"""

NOWHERE = """## Declared, and arranged nowhere

"""

AWS_CALLS = """# Calls to AWS

Every call to AWS that healthd can make; it refuses any other before sending it. None of them shrinks a group of
nodes. *node*: by the daemon on the node itself. *controller*: by healthd's controller for all nodes, so that nodes
need no rights at all; on HyperPod a node needs none either, with `how = "scontrol"`.
"""

AWS_ERRORS = """## Errors

The meaning of each error for the call that was made. After each of these nothing was applied. Other codes count by
their HTTP status: 429 is throttled, 401 and 403 are denied, and any other from 400 to 499 is a refusal. After all
other errors it may have been applied, so it is not sent a second time, and its effect is looked for. A question is
asked up to three times.
"""

IAM = """## Policies

`packaging/iam` has the minimum for each platform and way, made from this table. Fill in `PARTITION` (`aws`),
`REGION`, `ACCOUNT`, `CLUSTER_ID`, `BUS`, `BUCKET` and `PREFIX`, and tag the instances and Auto Scaling groups that
healthd may act on with `{tag}` = `true`. IAM cannot limit a node of HyperPod, or of an Auto Scaling group, to itself: a
role that may replace one may replace all of them, so prefer the controller there. The policies were not tried on AWS;
`--dry-run` asks EC2.

No policy has a right to a key of KMS. Where a key of your own encrypts the evidence's bucket, give the node's role
`kms:GenerateDataKey` on it. Where one encrypts the volumes of an instance that `stop_and_start` moves, give the
controller's role `kms:CreateGrant` on it: EC2's dry run does not see that right, and without it the instance stops and
does not start again.
"""

SIZE = """# Size and cost

The cost of healthd on a node. Figures are those of [the benchmarks](../../bench/figures.md), on {machine}, without a
GPU.

| what | how much |
| --- | --- |
| daemon and workers, memory | {pss} MB (PSS), of which the daemon {daemon} MB |
| daemon and workers, CPU, idle at default intervals | {cpu} % of one core |
| `healthd check` with a daemon | {check} ms, {peak} MB; `python -c pass` takes {bare} ms |
| limit of memory, systemd | 16 GiB for a node, active tests included; 2 GiB for the controller |
| limit of memory, the chart | 256 MiB for an agent, 512 MiB for the controller |
| disk | the state directory `/var/lib/healthd`; the audit trail keeps its newest 100,000 lines |

## Ports

| port | where | what |
| --- | --- | --- |
| `/run/healthd/healthd.sock`, `healthd.sock.op` | each node | command line and hooks; unix sockets |
| 9809 on 127.0.0.1 | each node | metrics, health, verdict, page, and what the fleet reads; read only; `[daemon] http` |
| 9810 on 127.0.0.1 | the controller | metrics, the fleet's page; read only; `[controller] http` |

Outgoing: slurmctld by `scontrol`, or the Kubernetes API server; AWS only with a `[provisioner]` that acts from the
node, `[evidence] upload_to` or `[notify] eventbridge_bus`; IMDS; the receivers of `[notify]`; the names and ports of
`host.reach`.

## Rights

The daemon runs as root: /dev/kmsg, `scontrol update` and a GPU reset need that. On AWS a node needs the permissions in
[calls to AWS](aws-calls.md), and none for repairs with `act_from = "controller"`. On Kubernetes the chart's roles and
policies bind an agent to its own Node: [security](../../SECURITY.md).

## What a package is

`make deb` and `make rpm` build it: a CPython of its own, healthd, its Python packages, and only those models of AWS
services that healthd calls. Each `.deb`, for amd64 and for arm64, has 15 MB, and 65 MB installed, of which CPython
38 MB. `dpkg -s healthd` shows the installed size in kB.
"""

FIGURES = """# Figures

The last run of each benchmark; [bench](README.md) says what each measures. The figures come from a shared machine
without a GPU, by one run each. They show whether an aim is met there, and compare two versions on one machine; they do
not predict yours.
"""

ACTS = """## What is done about it

As each system's documentation says, read in 2026-11. Unknown: it says nothing about it.
"""
ACTS_ON = ("keeps_jobs_off", "repairs", "returns", "bound")

ASKING = ("`ask_human`", "no repair: the node stays out until the fault is over, or until you run `healthd release`")
WITH_INSTALLER = ("packaging/imagebuilder/healthd.yaml", "packaging/ssm/healthd-install.yaml")
ON_NODE, ON_NODE_END = "<<'ON_NODE_SH'\n", "ON_NODE_SH\n"
PEERS_BEGIN, PEERS_END = "<!-- peers: begin -->\n", "<!-- peers: end -->\n"
BESIDES = "Besides detection"
# Those of docs/peers.toml that run on the nodes of a GPU cluster and may replace healthd.
MISTAKES = """# Mistakes, and what healthd answers

Forty mistyped commands and forty wrong configurations, each with the answer of this version. A command line that is
wrong ends with 64, a wrong configuration with 78, and all its mistakes are named at once.
"""

COMPARED = ("gpud", "NVS", "gcm", "NMA", "HMA", "NPD", "NHC")
MOST_WORDS = 2_500  # of the table of one page; tests/unit/house/test_docs.py allows a page 3,000 with its text
AIMS = ("aim_", "least_")
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
        reference / FILE_NAME: lambda: config_schema_text({name: c.settings for name, c in discover().items()}),
        reference / "cli.md": cli_page,
        reference / "mistakes.md": mistakes_page,
        reference / "metrics.md": metrics_page,
        reference / "peers.md": peers_page,
        reference / "policy.md": policy_page,
        reference / "policy.schema.json": policy_schema_text,
        reference / "notification.schema.json": notification_schema_text,
        reference / "aws-calls.md": aws_calls_page,
        reference / "slurm-versions.md": slurm_page,
        reference / "size.md": size_page,
        reference / "faults.md": faults_page,
        reference / "on-gpus.md": gpus_page,
        ROOT / "docs/explanation/the-house.md": house_page,
        ROOT / "bench/figures.md": bench_page,
        ROOT / "README.md": readme_page,
        ROOT / "packaging/helm/healthd/values.schema.json": chart_schema_text,
        **{path: partial(with_installer, path) for path in map(ROOT.joinpath, WITH_INSTALLER)},
        **{ROOT / f"docs/pictures/drawn-{name}.svg": partial(_alone, draw) for name, draw in diagrams.PICTURES.items()},
    }
    below = {**check_pages(), **findings_pages(), **config_pages(), **cli_pages(), **faults_pages()}
    return {path: make() for path, make in made.items()} | {reference / name: text for name, text in below.items()}


# ---------------------------------------------------------------------------------------------------------------------
# the packages


def _alone(draw: Callable[[], diagrams.Picture]) -> str:
    return draw().svg(alone=True)


HOUSE = """# The house

One concept is one module, and one family of concepts is one package. A package imports only packages below it: the
layer contracts in `pyproject.toml` keep that so, and `make contracts` checks them. An arrow reads "imports".
"""


def notification_schema_text() -> str:
    """The schema of the document that a webhook and a command get."""
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Notification)}
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def chart_schema_text() -> str:
    """The schema of the chart's values, which has the settings of every check."""
    text: str = load_script("kubernetes_render", ROOT / "packaging/kubernetes/render.py").values_schema()
    return text


def house_page() -> str:
    """The packages as their layers, and the rule of each, which is the docstring of its ``__init__``."""
    parts = [NOTE.format(source="pyproject.toml and each __init__.py"), HOUSE]
    for container in ("healthd", "healthd.remediation"):
        layers = diagrams.layers_of(container)
        parts += [f"## {container}\n", drawn(layers)]
        parts += [table(("package", "rule"), [(f"`{name}`", rule_of(f"{container}.{name}")) for name in flat(layers)])]
    return "\n".join(parts)


def drawn(layers: Sequence[Sequence[str]]) -> str:
    """A Mermaid flowchart: one box for each layer."""
    boxes = [f'    L{number}["{" · ".join(layer)}"]' for number, layer in enumerate(layers)]
    arrows = [f"    L{number} --> L{number + 1}" for number in range(len(layers) - 1)]
    return "\n".join(["```mermaid", "flowchart TD", *boxes, *arrows, "```", ""])


def flat(layers: Sequence[Sequence[str]]) -> list[str]:
    """The packages of all layers, from the top."""
    return [name for layer in layers for name in layer]


def rule_of(module: str) -> str:
    """The first paragraph of its docstring."""
    doc = ast.get_docstring(ast.parse(init_of(module).read_text(encoding="utf-8"))) or ""
    return " ".join(doc.partition("\n\n")[0].split())


def init_of(module: str) -> Path:
    """Where the docstring of a package or of a module stands."""
    path = ROOT / source_of(module)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


# ---------------------------------------------------------------------------------------------------------------------
# checks and findings


def checks_page() -> str:
    """Every check: what it is for and how often it runs."""
    overview = [(anchored(check.name), often(check), check.title) for check in discover().values()]
    note = NOTE.format(source="checks/*.py")
    return "\n".join([note, CHECKS, table(("check", "runs", "what it asserts"), overview)])


def check_pages() -> Mapping[str, str]:
    """The page of each check."""
    return {f"checks/{check.name}.md": check_page(check) for check in discover().values()}


def check_page(check: Check) -> str:
    """One check: what it can find, its limits and its settings. Its docstring is the text."""
    note = NOTE.format(source="checks/*.py")
    body = check.doc.partition("\n")[2]
    parts = [note, f"# {check.name}\n", f"{check.title}.\n", unindented(body), f"Runs {often(check)}.\n"]
    rows = [(f"`{code.code}`", code.severity, code.remedy, code.meaning) for code in check.codes]
    parts += ["## What it finds\n", table(("code", "severity", "calls for", "meaning"), rows)]
    limits = [(f"`{x.reading}`", x.text, f"`{x.code.code}`", x.source) for x in check.limits]
    if limits:
        parts += ["## Limits, judged over time\n", table(("reading", "at most", "else", "source"), limits)]
    own = documented_fields(check.settings) if check.settings is not NoSettings else ()
    if own:
        parts += [f'## Settings\n\nIn `[checks."{check.name}"]`:\n', fields_table(own)]
    parts.append(f"[The states that tests bring about](../faults/{check.name}.md) for this check.\n")
    return "\n".join(parts)


def often(check: Check) -> str:
    """When a check runs, in words."""
    match check.on:
        case "kernel":
            return "on each batch of kernel records, as it arrives"
        case "active":
            return f"only when asked for, on an idle node (`healthd check --active`), deadline {check.timeout_s:g} s"
        case "interval":
            return f"every {check.interval_s:g} s, deadline {check.timeout_s:g} s"


FOUND = "checks/*.py, checks/data/xid.csv, xid_cases.csv and sxid.csv"


def findings_page() -> str:
    """Where every code and every XID is."""
    rows = [
        (f"[{kind}](findings/{kind}.md)", ", ".join(f"`{code.code}`" for code, _ in codes))
        for kind, codes in codes_by_kind().items()
    ]
    numbers = [
        (f"[{part[0].xid} to {part[-1].xid}](findings/{name}.md)", ", ".join(str(row.xid) for row in part))
        for name, part in xid_parts().items()
    ]
    parts = [NOTE.format(source=FOUND), FINDINGS, table(("page", "codes"), rows)]
    parts += [XIDS_INDEX, table(("page", "XIDs"), numbers)]
    sxids = [
        (f"[{part[0].sxid} to {part[-1].sxid}](findings/{name}.md)", len(part)) for name, part in sxid_parts().items()
    ]
    parts += [SXIDS_INDEX, table(("page", "SXids"), sxids)]
    return "\n".join(parts)


def findings_pages() -> Mapping[str, str]:
    """The codes by their first word, the XIDs by number, and the cases in which a line's text decides."""
    note = NOTE.format(source=FOUND)
    head = ("code", "severity", "calls for", "ends by", "meaning", "found by")
    made = {}
    for kind, codes in codes_by_kind().items():
        rows = [
            (f"`{c.code}`", c.severity, c.remedy, c.clears_by or "not seen any more", c.meaning, anchored(check, "../"))
            for c, check in codes
        ]
        made[kind] = "\n".join([note, FINDINGS_OF.format(kind=kind, count=len(rows)), table(head, rows)])
    for name, part in xid_parts().items():
        text = XIDS.format(first=part[0].xid, last=part[-1].xid, row=UNKNOWN_XID)
        made[name] = "\n".join([note, text, xids_table(part)])
    for sxids, rows_of in sxid_parts().items():
        text = SXIDS.format(first=rows_of[0].sxid, last=rows_of[-1].sxid)
        made[sxids] = f"{note}\n{text}\n{sxids_table(rows_of)}"
    made["xid-cases"] = f"{note}\n{CASES}\n{cases_table()}"
    return {f"findings/{name}.md": text for name, text in made.items()}


def codes_by_kind() -> Mapping[str, Sequence[tuple[FindingCode, str]]]:
    """Every code that a check declares, with that check, by the first word of the code."""
    kinds = defaultdict[str, list[tuple[FindingCode, str]]](list)
    for check in discover().values():
        for code in check.codes:
            kinds[code.code.partition(".")[0]].append((code, check.name))
    return dict(sorted(kinds.items()))


def xid_parts() -> Mapping[str, Sequence[XidRow]]:
    """The rows of xid.csv, by the name of the page that has them."""
    parts = parted(sorted(xid_table().values(), key=lambda row: row.xid), lambda row: xids_table([row]))
    return {f"xids-{number}": part for number, part in enumerate(parts, 1)}


def sxid_parts() -> Mapping[str, Sequence[SxidRow]]:
    """The rows of sxid.csv, by the name of the page that has them."""
    parts = parted(list(sxid_table().values()), lambda row: sxids_table([row]))
    return {f"sxids-{number}": part for number, part in enumerate(parts, 1)}


def sxids_table(found: Iterable[SxidRow]) -> str:
    """Some rows of sxid.csv, each with the judgement of a line that has no severity word."""
    rows = [(str(row.sxid), row.drivers, row.meaning, row.severity, row.remedy, row.reason) for row in found]
    return table(("SXid", "drivers", "meaning", "severity", "calls for", "why"), rows)


def xids_table(found: Iterable[XidRow]) -> str:
    """Some rows of xid.csv."""
    rows = [
        (
            str(row.xid),
            f"{row.meaning} (`{row.mnemonic}`)" if row.mnemonic else row.meaning,
            row.severity,
            row.remedy,
            row.clears_by,
            "yes" if row.pauses_nvml else "",
            _ends_process(row),
            row.reason,
            row.source,
        )
        for row in found
    ]
    names = ("XID", "meaning", "severity", "calls for", "ends by", "pauses NVML", "ends process", "why", "source")
    return table(names, rows)


def _ends_process(row: XidRow) -> str:
    contained = f", unless {row.contained_by} is open on the same GPU" if row.contained_by else ""
    return f"yes{contained}" if row.ends_process else ""


def cases_table() -> str:
    """The rows of xid_cases.csv."""
    rows = [
        (str(row.xid), f"`{row.case}`", row.meaning, row.severity, row.remedy, row.clears_by, row.reason, row.source)
        for row in xid_cases().values()
    ]
    return table(("XID", "case", "meaning", "severity", "calls for", "ends by", "why", "source"), rows)


# ---------------------------------------------------------------------------------------------------------------------
# configuration


CONFIGURED = "healthd/config/schema/config.py and the settings classes of checks/*.py"


def config_page() -> str:
    """How the files are read, and where each section is."""
    rows = [(f"[`[{name}]`](config/{name}.md)", about(section)) for name, section in config_parts().items()]
    rows.append(('[`[checks."NAME"]`](config/checks.md)', "Keys that every check has, and where its own are."))
    return "\n".join([NOTE.format(source=CONFIGURED), CONFIG, table(("section", "what it is about"), rows)])


def config_parts() -> Mapping[str, type]:
    """The sections that have a page, by name."""
    return {**sections_of(schema.Config), "match": schema.MatchSection}


def about(section: type) -> str:
    """The first sentence of its docstring."""
    return re.split(r"(?<=\.)\s", " ".join((section.__doc__ or "").split()), maxsplit=1)[0]


def config_pages() -> Mapping[str, str]:
    """Every key with its type, its default and the docstring under it: a page for each section."""
    note = NOTE.format(source=CONFIGURED)
    made = {}
    for name, section in config_parts().items():
        shown = "[match]" if name == "match" else name
        body = [text.removeprefix(f"## [{shown}]\n") for text in config_sections((shown,), section)]
        made[f"config/{name}.md"] = "\n".join([note, CONFIG_OF.format(name=shown), *(text for text in body if text)])
    own = [
        (anchored(check.name, "../"), ", ".join(f"`{field.name}`" for field in documented_fields(check.settings)))
        for check in discover().values()
        if check.settings is not NoSettings
    ]
    every = fields_table(documented_fields(schema.CheckSection))
    made["config/checks.md"] = "\n".join([note, EVERY_CHECK, every, OWN_SETTINGS, table(("check", "keys"), own)])
    return made


def config_sections(path: tuple[str, ...], cls: type) -> Iterator[str]:
    """A section and the sections below it."""
    below = sections_of(cls)
    yield f"## [{'.'.join(path)}]\n"
    yield unindented(cls.__doc__ or "")
    yield fields_table(row for row in documented_fields(cls) if row.name not in below)
    for name, inner in below.items():
        yield from config_sections((*path, name), inner)


def fields_table(rows: Iterable[FieldDoc]) -> str:
    """Keys of one table."""
    cells = [(f"`{row.name}`", row.type, f"`{row.default}`" if row.default else "left out", row.doc) for row in rows]
    return table(("key", "type", "default", "what it does"), cells)


# ---------------------------------------------------------------------------------------------------------------------
# command line


def cli_page() -> str:
    """The exit codes, and where every verb is."""
    _, about = verbs()
    parts = [NOTE.format(source="healthd/api/grammar.py"), CLI.format(about=_grammar().description)]
    for group, names in verb_groups().items():
        rows = [(f"[{name}](cli/{group}.md#healthd-{name})", about[name]) for name in names]
        parts += [f"## {titled(group)}\n", table(("verb", "what it does"), rows)]
    return "\n".join([*parts, exit_codes()])


def cli_pages() -> Mapping[str, str]:
    """Every verb with its arguments, from the program's own parser: a page for each group of the help."""
    parsers, about = verbs()
    note = NOTE.format(source="healthd/api/grammar.py")
    made = {}
    for group, names in verb_groups().items():
        head = f"# Command line: {titled(group)}\n\n[Command line](../cli.md) has the exit codes and the other verbs.\n"
        made[f"cli/{group}.md"] = "\n".join([note, head, *(verb_section(x, about[x], parsers[x]) for x in names)])
    return made


def verbs() -> tuple[Mapping[str, argparse.ArgumentParser], Mapping[str, str]]:
    """The parser of each verb, and its help."""
    found = next(action for action in _grammar()._actions if isinstance(action, argparse._SubParsersAction))
    return found.choices, {action.dest: action.help or "" for action in found._choices_actions}


def verb_groups() -> Mapping[str, Sequence[str]]:
    """The verbs by group, as `healthd help` has them; the name of a group is that of its page."""
    return {title.lower().replace(" ", "-"): names for title, (names, *_) in SECTIONS.items()}


def titled(group: str) -> str:
    """The title of a group by the name of its page."""
    return group.replace("-", " ").capitalize()


def exit_codes() -> str:
    """The exit codes, with the numbers that the program itself uses."""
    rows = [(code.value, MEANINGS[code]) for code in ExitCode]
    return "## Exit codes\n\n" + table(("code", "meaning"), rows)


def verb_section(name: str, about: str, parser: argparse.ArgumentParser) -> str:
    """One verb: usage in one line, then its arguments."""
    rows = [(f"`{spelled(action)}`", action.help or "", values(action)) for action in shown(parser)]
    body = table(("argument", "meaning", "values"), rows) if rows else "No arguments.\n"
    return f"## healthd {name}\n\n{about[:1].upper()}{about[1:]}.\n\n```text\n{usage(name, parser)}\n```\n\n{body}"


def values(action: argparse.Action) -> str:
    """The words that an argument takes, if they are a choice."""
    words = ", ".join(f"`{choice}`" for choice in action.choices or ())
    return f"{words} (default `{action.default}`)" if words and action.default else words


def mistakes_page() -> str:
    """Each mistake of the table, with its answer."""
    parts = [
        NOTE.format(source="tests/support/mistakes.py and healthd's answers"),
        MISTAKES,
        "## On the command line\n",
    ]
    for line, reply in answered_commands():
        parts.append(f"```text\n$ {line}\n{reply.err.rstrip()}\n```\n")
    parts.append("## In a configuration\n")
    for text, problems in answered_configurations():
        answer = "\n".join(problems)
        parts.append(f"```text\n{text}\n\n{answer}\n```\n")
    return "\n".join(parts)


# ---------------------------------------------------------------------------------------------------------------------
# metrics


def metrics_page() -> str:
    """The families that healthd/api declares, and the readings of a simulated node with everything on it."""
    source = "healthd/api/*metrics.py, metric_families.py and one run of every check on the simulated p5.48xlarge"
    head = ("metric", "type", "labels", "meaning")
    parts = [
        NOTE.format(source=source),
        METRICS,
        table(head, sorted(declared_families("metrics") + declared_families("metric_families"))),
        CONTROLLER_METRICS,
        table(head, declared_families("controller_metrics")),
        READINGS,
        table(("metric", "type", "read by"), readings()),
    ]
    return "\n".join(parts)


def declared_families(module: str) -> list[tuple[str, str, str, str]]:
    """Name, type, labels and help of every family that is written out in a module of healthd/api."""
    tree = ast.parse((ROOT / f"healthd/api/{module}.py").read_text(encoding="utf-8"))
    found = []
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            continue
        texts = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        kind = call.func.id.removesuffix("MetricFamily").lower()
        if kind == call.func.id.lower() or len(texts) != 2:
            continue
        labels: list[str] = next((ast.literal_eval(word.value) for word in call.keywords if word.arg == "labels"), [])
        name = f"{texts[0]}_total" if kind == "counter" else texts[0]  # a summary has a _sum and a _count
        found.append((f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels), texts[1]))
    return sorted(found)


_RUNS_ON_A_BUSY_MACHINE = 30


def readings() -> list[tuple[str, str, str]]:
    """Every reading that the checks make on the simulated node, as its metric."""
    with tempfile.TemporaryDirectory(prefix="healthd-docs-") as folder:
        machine = SimulatedMachine(Path(folder) / "node")
        machine.kernel_says("NVRM: GPU at PCI:0000:53:00: GPU-51a1a7ed-0000-4000-8000-000000000000")
        settings = {name: check.settings for name, check in discover().items()}
        agent = reading_agent(load(machine.config, checks=settings, environ={}).config)
        try:
            agent.checkup.report()
            for _ in range(_RUNS_ON_A_BUSY_MACHINE):
                outcomes = agent.monitor.outcomes()
                asked = [name for name, check in agent.checkup.checks.items() if check.on == "interval"]
                unread = [name for name in asked if name not in outcomes or not outcomes[name].result.is_whole]
                if not unread:
                    break
                time.sleep(1.0)  # a probe that was too slow is not asked again at once
                wait([agent.checkup.start(name) for name in unread])
            else:
                raise RuntimeError("the simulated node does not answer")
        finally:
            agent.close()
    found = {
        (f"`{metric_name(reading)}`", "counter" if reading.kind is ReadingKind.COUNTER else "gauge", anchored(check))
        for check, outcome in outcomes.items()
        for reading in outcome.result.readings
    }
    return sorted(found)


def metric_name(reading: Reading) -> str:
    """Its name on the page."""
    return metric_of(reading.name)[0] + ("_total" if reading.kind is ReadingKind.COUNTER else "")


# ---------------------------------------------------------------------------------------------------------------------
# policy


def slurm_page() -> str:
    """Differences between versions of Slurm, and the reasons that Slurm writes by itself."""
    parts = [
        NOTE.format(source="tests/support/slurm_versions.py and remediation/orchestrators/slurm/reasons.py"),
        SLURM,
    ]
    rows = [(row.name, _versions(row), row.what, row.before or "-", row.source) for row in DIFFERENCES]
    parts += ["## What differs", "", table(("behaviour", "in", "what it does", "elsewhere", "seen"), rows), ""]
    texts = [(f"`{row.printed}`", row.when) for row in AUTOMATIC]
    parts += ["## Reasons that Slurm writes by itself", "", REASONS, table(("text", "when"), texts), ""]
    words = ", ".join(f"`{word}`" for word in REBOOTS)
    parts += [f"Slurm also appends {words}. A user requested that reboot: the node counts as theirs.", ""]
    return "\n".join(parts)


def _versions(row: Difference) -> str:
    """``24.11`` alone, or from it on."""
    return ", ".join(version for version in TESTED if has(version, row.name))


def policy_page() -> str:
    """The keys of a rule, the rungs of a ladder, and every rule of the shipped policies."""
    parts = [
        NOTE.format(source="healthd/config/schema/rule.py and remediation/policies/*.toml"),
        POLICY,
        fields_table(documented_fields(PolicyRule)),
        RUNGS,
        table(("rung", "steps"), [*((f"`{remedy}`", ", ".join(STEPS[remedy])) for remedy in STEPS), ASKING]),
        SHIPPED,
    ]
    for name in SHIPPED_POLICIES:
        text = (ROOT / "remediation/policies" / f"{name}.toml").read_text(encoding="utf-8")
        rows = [rule_row(rule) for rule in rules_named(name)]
        parts += [f"### {name}\n", f"{tomllib.loads(text)['title']}.\n"]
        parts.append(table(("rule", "codes", "beside", "ladder", "why", "source"), rows))
    return "\n".join(parts)


def rule_row(rule: Rule) -> tuple[str, ...]:
    """One shipped rule."""
    codes, beside = (", ".join(f"`{code}`" for code in globs) for globs in (rule.codes, rule.together_with))
    ladder = "its own" if rule.ladder is None else ", ".join(f"`{rung}`" for rung in rule.ladder)
    return rule.name, codes, beside, ladder, rule.reason, rule.source


# ---------------------------------------------------------------------------------------------------------------------
# peers


def peers_page() -> str:
    """docs/peers.toml as tables, one for each group."""
    data = tomllib.loads((ROOT / "docs/peers.toml").read_text(encoding="utf-8"))
    parts = [NOTE.format(source="docs/peers.toml"), PEERS, table(("short", "project"), data["peers"].items())]
    for group in dict.fromkeys(each["group"] for each in data["class"]):
        rows = [peer_row(each) for each in data["class"] if each["group"] == group]
        parts += [f"## {group}\n", table(("fault class", "seen by", "codes here", "what is left out, and why"), rows)]
    head = ("system", "keeps jobs off a faulty node", "repairs it", "returns it after", "bound", "")
    parts += [ACTS, table(head, map(act_row, data["act"]))]
    return "\n".join(parts)


def act_row(each: Mapping[str, str]) -> tuple[str, ...]:
    """The row of one system."""
    return each["system"], *(each[name] for name in ACTS_ON), f"[source]({each['source']})"


def peer_row(fault_class: Mapping[str, Any]) -> tuple[str, ...]:
    """One class."""
    codes = ", ".join(f"`{code}`" for code in fault_class.get("codes", ()))
    return fault_class["words"], ", ".join(fault_class["who"]), codes or "none", fault_class.get("note", "")


def readme_page() -> str:
    """README.md as it stands, with the table between the markers made from docs/peers.toml."""
    return between(ROOT / "README.md", PEERS_BEGIN, PEERS_END, compared())


def compared() -> str:
    """How many of the fault classes each of COMPARED detects, by group; and healthd by the codes that it has."""
    data = tomllib.loads((ROOT / "docs/peers.toml").read_text(encoding="utf-8"))
    classes = [each for each in data["class"] if each["group"] != BESIDES]
    groups = list(dict.fromkeys(each["group"] for each in classes))

    def row(name: str, seen: Callable[[Mapping[str, Any]], bool]) -> tuple[str, ...]:
        return name, *(str(sum(seen(each) for each in classes if each["group"] == group)) for group in groups)

    head = ("", *(f"{group} ({sum(each['group'] == group for each in classes)})" for group in groups))
    # What a plug-in of the site could do, healthd does not do.
    own = row(f"**healthd {__version__}**", lambda each: bool(set(each.get("codes", ())) - {"plugin.*"}))

    def row_of(who: str) -> tuple[str, ...]:
        return row(data["peers"][who], lambda each: who in each["who"])

    return table(head, [own, *(row_of(who) for who in COMPARED)])


def with_installer(path: Path) -> str:
    """A document of AWS as it stands, with packaging/lifecycle/on-node.sh between the lines of its here-document."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(ON_NODE)
    margin = before.rpartition("\n")[2].partition("cat")[0]
    script = (ROOT / "packaging/lifecycle/on-node.sh").read_text(encoding="utf-8")
    end = f"{margin}{ON_NODE_END}"
    return f"{before}{begin}{indent(script, margin)}{end}{rest.rpartition(end)[2]}"


# ---------------------------------------------------------------------------------------------------------------------
# real GPUs


def gpus_page() -> str:
    """The measurements on real GPUs, a column for each model."""
    found = list(recorded().values())
    machines = table(("GPU", "driver", "date"), ((each.model, each.driver, each.date) for each in found))
    calls = sorted({call for each in found for call in each.costs_ms})
    calls.sort(key=lambda call: -found[0].costs_ms.get(call, 0))
    costs = [(f"`{call}`", *(_figure(each.costs_ms.get(call), 3) for each in found)) for call in calls]
    asked = ("pss_mb", "daemon_pss_mb", "cpu_percent", "wakeups_a_second")
    rest = [(each.model, *(each.at_rest[figure] for figure in asked)) for each in found if each.at_rest]
    head = ("GPU", "beside it", "median", "99 of 100", "999 of 1,000")
    times = [
        (each.model, beside, *(_figure(took[share], 1) for share in ("p50", "p99", "p99.9")))
        for each in found
        for beside, took in each.kernel_us.items()
    ]
    return "\n".join(
        [
            NOTE.format(source="tests/support/recorded_gpus"),
            *(ON_GPUS, machines, KERNEL_TIMES, table(head, times)),
            *(AT_REST, table(("GPU", "memory, MB", "of it the daemon", "CPU, %", "wake-ups"), rest)),
            *(CALLS_COST, table(("call or field", *(each.model for each in found)), costs)),
        ]
    )


def _figure(value: float | None, places: int) -> str:
    return "" if value is None else f"{value:.{places}f}"


# ---------------------------------------------------------------------------------------------------------------------
# faults


def faults_page() -> str:
    """How many states each check distinguishes, and what is unproven of them."""
    by_check = faults_by_check()
    open_to_proof = {name: sum(bool(unproven(case)) for case in cases) for name, cases in by_check.items()}
    overview = [(f"[{name}](faults/{name}.md)", len(by_check[name]), open_to_proof[name]) for name in by_check]
    parts = [
        NOTE.format(source="tests/faults/matrix.py"),
        FAULTS.format(cases=len(FAULTS_PLAYED), checks=len(by_check)),
        table(("check", "states", "unproven on hardware"), overview),
    ]
    parts += [CERTAINTIES, table(("code", "source"), ((f"`{code}`", source) for code, source in CERTAIN.items()))]
    if NOT_ARRANGED:
        parts += [NOWHERE, table(("code", "why"), ((f"`{code}`", why) for code, why in NOT_ARRANGED.items()))]
    return "\n".join(parts)


def faults_pages() -> Mapping[str, str]:
    """The cases of tests/faults, a page for each check; a check with many has several."""
    note = NOTE.format(source="tests/faults/matrix.py")
    head = ("state", "made by", "diagnosis", "severity", "calls for", "beside it", "*unproven on hardware*")
    made = {}
    for name, cases in faults_by_check().items():
        parts = parted(cases, lambda case: table(head, [fault_row(case)]))
        names = [name, *(f"{name}-{number}" for number in range(2, len(parts) + 1))]
        links = [f"[{number}]({each}.md)" for number, each in enumerate(names, 1)]
        for number, (file, part) in enumerate(zip(names, parts, strict=True), 1):
            others = f", part {number} of {len(names)}: {', '.join(links)}" if len(names) > 1 else ""
            text = FAULTS_OF.format(name=name, part=others)
            made[f"faults/{file}.md"] = "\n".join([note, text, table(head, map(fault_row, part))])
    return made


def faults_by_check() -> Mapping[str, Sequence[Case]]:
    """The cases of each check, in the order of the checks."""
    by_check: dict[str, list[Case]] = {name: [] for name in discover()}
    for case in FAULTS_PLAYED:
        by_check[case.check].append(case)
    return by_check


def fault_row(case: Case) -> tuple[str, ...]:
    """One state. Where nothing is to be found, how its check is."""
    beside = ", ".join(f"`{finding}`" for finding in case.symptoms)
    needs = unproven(case)
    if not case.diagnosis:
        return case.state, case.made, f"none: {case.status.replace('_', ' ')}", "", "", beside, ""
    what, severity, remedy = case.diagnosis.split(" ")
    return case.state, case.made, f"`{what}`", severity, remedy, beside, f"needs {needs}" if needs else ""


# ---------------------------------------------------------------------------------------------------------------------
# calls to AWS


def aws_calls_page() -> str:
    """The table of calls, then the policies that are made from it."""
    head = ("IAM action", "why", "changes something", "platforms", "limited to")
    calls = aws_calls.calls().values()
    rows = [(f"`{c.action}`", c.why, acting(c), "; ".join(used_by(c)), c.scope.value) for c in calls]
    files = [f"* [{name}](../../packaging/iam/{name})" for name in sorted(policies())]
    note = NOTE.format(source="remediation/data/aws_calls.csv and aws_errors.csv")
    errors = table(("error code", "means"), list(aws_error_rows()))
    parts = [note, AWS_CALLS, table(head, rows), AWS_ERRORS, errors, IAM.format(tag=MANAGED_TAG), *files, ""]
    return "\n".join(parts)


def aws_error_rows() -> Iterator[tuple[str, str]]:
    """The codes of one meaning in one row."""
    by_meaning = defaultdict[str, list[str]](list)
    for error in aws_errors.errors().values():
        by_meaning[f"{error.trouble.replace('_', ' ')}: {error.why}"].append(f"`{error.code}`")
    return ((", ".join(codes), meaning) for meaning, codes in by_meaning.items())


def acting(call: aws_calls.AwsCall) -> str:
    """Whether it acts, and whether EC2 can be asked first."""
    return ("yes, with a dry run" if call.dry_run else "yes") if call.acts else "no"


def used_by(call: aws_calls.AwsCall) -> Iterator[str]:
    """``ec2 (node, controller)`` for each platform."""
    for platform in (*aws_calls.Platform, *aws_calls.Feature):
        if ways := [way for way in aws_calls.Caller if (platform, way) in call.uses]:
            yield f"{platform} ({', '.join(ways)})"


# ---------------------------------------------------------------------------------------------------------------------
# figures


def bench_page() -> str:
    """The last figures of each benchmark, from bench/results/*.json."""
    return f"{NOTE.format(source='bench/results/*.json')}\n{FIGURES}\n{figures(results())}"


def between(path: Path, begin: str, end: str, made: str) -> str:
    """A page as it stands, with this between the markers."""
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{made}\n{end}{after}"


def size_page() -> str:
    """The cost of healthd on a node, from the last records of two benchmarks."""
    records = {record["benchmark"]: record for record in results()}
    idle, cold = records["idle"], records["check_cold"]
    text = SIZE.format(
        machine=idle["machine"],
        pss=f"{idle['pss_mb']:g}",
        daemon=f"{idle['daemon_pss_mb']:g}",
        cpu=f"{idle['cpu_percent']:g}",
        check=f"{cold['check_median_ms']:g}",
        peak=f"{cold['check_peak_mb']:g}",
        bare=f"{cold['python_pass_median_ms']:g}",
    )
    return f"{NOTE.format(source='bench/results/*.json')}\n{text}"


def results() -> list[dict[str, Any]]:
    """The last records of the benchmarks, in the order of their names."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "bench/results").glob("*.json"))]


def figures(records: Sequence[Mapping[str, Any]]) -> str:
    """The figures with their aims, benchmark by benchmark. A missed aim is called missed."""
    if not records:
        return "No figures are written down: no benchmark has been run in this tree.\n"
    return "\n".join(
        f"## {record['benchmark']}\n\n{record['machine']}, Python {record['python']}.\n\n"
        + table(("figure", "value", "aim", ""), figure_rows(record))
        for record in records
    )


def figure_rows(record: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """One row per figure of a record. Raises ValueError for an aim that belongs to no figure."""
    name = str(record["benchmark"])
    aims = {aimed_at(name, key, record): (key, value) for key, value in record.items() if key.startswith(AIMS)}
    for key, value in record.items():
        if key in _ABOUT_THE_RUN or key.startswith(AIMS):
            continue
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        yield f"`{key}`", shown, *judged(value, *aims.get(key, ("", None)))


def aimed_at(benchmark: str, aim: str, record: Mapping[str, Any]) -> str:
    """The figure that an aim is about: the one of the same name, or what AIMED_AT says."""
    figure = AIMED_AT.get((benchmark, aim), aim.partition("_")[2])
    if figure not in record:
        problem = f"bench/results/{benchmark}.json: {aim} belongs to no figure"
        raise ValueError(f"{problem}; add it to AIMED_AT in docs/generate.py")
    return figure


def judged(value: Any, name: str, aim: Any) -> tuple[str, str]:
    """The aim in words, and whether it was met. ``aim_x`` is the most that x may be, ``least_x`` the least."""
    if aim is None:
        return "", ""
    least = name.startswith("least_")
    met = value >= aim if least else value <= aim
    return f"at {'least' if least else 'most'} {aim:g}", "met" if met else "**missed**"


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


def anchored(check: str, up: str = "") -> str:
    """A link to a check's page, from docs/reference or from a folder below it."""
    return f"[{check}]({up}checks/{check}.md)"


def parted(rows: Sequence[Row], shown: Callable[[Row], str]) -> Sequence[Sequence[Row]]:
    """The rows of a long table in parts, each of which fits a page of MOST_WORDS."""
    parts, words = list[list[Row]]([[]]), 0
    for row in rows:
        more = len(shown(row).splitlines()[-1].split())  # not those of its head
        if words + more > MOST_WORDS and parts[-1]:
            parts.append([])
            words = 0
        parts[-1].append(row)
        words += more
    return parts


def unindented(text: str) -> str:
    """The paragraphs of a docstring, as Markdown: its double backquotes are single ones here."""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return "\n\n".join(part.replace("``", "`") for part in paragraphs if part) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or name those that are out of date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is out of date")
    check = parser.parse_args(arguments).check
    made = pages()
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    gone = sorted(path for folder in {path.parent for path in made} for path in made_before(folder) if path not in made)
    for path in gone:
        if not check:
            path.unlink()
        sys.stdout.write(f"{'no longer made' if check else 'removed'}: {path.relative_to(ROOT)}\n")
    for path in stale:
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(made[path], encoding="utf-8")
        sys.stdout.write(f"{'out of date' if check else 'written'}: {path.relative_to(ROOT)}\n")
    return 1 if check and (stale or gone) else 0


def made_before(folder: Path) -> list[Path]:
    """The pages of a folder that this program made, by their first line."""
    return [path for path in folder.glob("*.md") if path.read_text(encoding="utf-8").startswith(NOTE[:35])]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
