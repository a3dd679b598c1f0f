"""Nothing is shipped or shown that no test loads: every file of packaging/ and docs/, every fenced block of the pages.

Who loads what is a table; a file or a block that nobody has in it fails here. That the test named there does load it is
its own to show: it must name the file, or the folder that it takes whole.
"""

from __future__ import annotations

import configparser
import importlib
import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.live.slurm.slurm_conf import hooks_we_ship
from tests.support.limits import limit_s
from tests.support.pages import ROOT, Block, blocks

APPLIED = "tests/live/kubernetes/test_chart_applied.py"
CHART = ("tests/packaging/test_chart.py", "render(")
TEXTS = (".md", ".py", ".png", ".svg")  # pages, which have tests of their own; programs, which tests import; pictures
# Files by glob (the first that fits), the test that loads or runs them, and the words by which it does.
LOADED_BY: Mapping[str, tuple[str, str]] = {
    "docs/mkdocs.yml": ("tests/daemon/test_site.py", "docs/site.py"),
    "docs/site.css": ("tests/daemon/test_site.py", "site.css"),
    "docs/site.js": ("tests/daemon/test_site.py", "site.js"),
    "docs/peers.toml": ("tests/unit/house/test_peers.py", "peers.toml"),
    "docs/reference/config.schema.json": ("tests/unit/config/test_config_schema.py", "config.schema.json"),
    "docs/reference/notification.schema.json": ("tests/unit/notify/test_message.py", "notification.schema.json"),
    "docs/reference/policy.schema.json": ("tests/unit/remediation/test_policy_schema.py", "policy.schema.json"),
    "docs/reference/status.schema.json": ("tests/daemon/test_status_page.py", "status.schema.json"),
    "docs/reference/verdict.schema.json": ("tests/unit/observe/test_report.py", "verdict.schema.json"),
    "packaging/ansible/*": ("tests/installing/test_ansible.py", '"packaging/ansible"'),
    "packaging/bin/healthd": ("tests/unit/house/test_house.py", "test_the_launcher_is_a_script"),
    "packaging/container/Dockerfile": ("tests/packaging/test_image.py", "Dockerfile"),
    "packaging/container/aarch64.sh": ("tests/support/emulated.py", "packaging/container/aarch64.sh"),
    "packaging/container/build.sh": ("tests/packaging/image.py", "packaging/container/build.sh"),
    "packaging/deb/*": ("tests/installing/conftest.py", "packaging/deb/build.sh"),
    "packaging/grafana/*.json": ("tests/live/prometheus/dashboards.py", "packaging/grafana/"),
    "packaging/helm/healthd/.helmignore": CHART,
    "packaging/helm/healthd/files/rules.yaml": ("tests/packaging/test_chart.py", "packaging/prometheus/rules.yaml"),
    "packaging/helm/healthd/*": CHART,
    "packaging/iam/*.json": ("tests/unit/remediation/provisioners/test_aws_calls.py", '"packaging" / "iam"'),
    "packaging/imagebuilder/healthd.yaml": ("tests/live/aws/test_documents.py", "imagebuilder/healthd.yaml"),
    "packaging/kubernetes/krew.yaml": ("tests/unit/remediation/kubernetes/test_kubectl_plugin.py", "krew.yaml"),
    "packaging/kubernetes/kubectl-healthd": (
        "tests/unit/remediation/kubernetes/test_kubectl_plugin.py",
        "kubectl-healthd",
    ),
    "packaging/kubernetes/agent-rbac.yaml": ("tests/live/kubernetes/agent_rig.py", "agent-rbac.yaml"),
    "packaging/kubernetes/examples/training-job.yaml": (
        "tests/live/kubernetes/test_pod_failure_policy.py",
        "training-job.yaml",
    ),
    "packaging/kubernetes/examples/training-*.yaml": (
        "tests/live/kubernetes/test_job_owners.py",
        "packaging/kubernetes/examples",
    ),
    "packaging/kubernetes/examples/*.yaml": (
        "tests/live/kubernetes/test_chart_applied.py",
        "preflight-pod.yaml",
    ),
    "packaging/kubernetes/nodehealths.yaml": ("tests/live/kubernetes/agent_rig.py", "nodehealths.yaml"),
    "packaging/kubernetes/policies/*.yaml": ("tests/live/kubernetes/agent_rig.py", '"policies").glob("*.yaml")'),
    "packaging/kubernetes/static.yaml": (APPLIED, "static.yaml"),
    "packaging/kubernetes/uninstall.yaml": (
        "tests/live/kubernetes/test_uninstall_kubernetes.py",
        "uninstall.yaml",
    ),
    "packaging/lifecycle/hyperpod-on_create.sh": ("tests/installing/test_lifecycle.py", "hyperpod-on_create.sh"),
    "packaging/lifecycle/on-node.sh": ("tests/installing/test_lifecycle.py", "on-node.sh"),
    "packaging/lifecycle/parallelcluster.yaml": ("tests/installing/test_lifecycle.py", "parallelcluster.yaml"),
    "packaging/lock.sh": ("tests/unit/house/test_house.py", "`make lock` was run"),
    "packaging/prometheus/adot-collector.yaml": (
        "tests/live/prometheus/test_prometheus_rules.py",
        "adot-collector.yaml",
    ),
    "packaging/prometheus/alertmanager.yaml": (
        "tests/live/prometheus/test_alertmanager.py",
        "packaging/prometheus/alertmanager.yaml",
    ),
    "packaging/prometheus/cloudwatch-agent.json": ("tests/live/prometheus/test_cloudwatch.py", "cloudwatch-agent.json"),
    "packaging/prometheus/cloudwatch-scrape.yaml": (
        "tests/live/prometheus/test_cloudwatch.py",
        "cloudwatch-scrape.yaml",
    ),
    "packaging/prometheus/otlp-collector.yaml": (
        "tests/live/prometheus/test_prometheus_rules.py",
        "otlp-collector.yaml",
    ),
    "packaging/prometheus/*.yaml": ("tests/live/prometheus/test_prometheus_rules.py", "packaging/prometheus"),
    "packaging/python/*": ("tests/installing/test_own_python.py", "packaging/python"),
    "packaging/rpm/build.sh": ("tests/installing/test_rpm.py", "packaging/rpm/build.sh"),
    "packaging/rpm/healthd-nccl.spec": ("tests/installing/test_nccl_package.py", "packaging/{kind}/build.sh"),
    "packaging/rpm/healthd.spec": ("tests/installing/test_rpm.py", "packaging/rpm/healthd.spec"),
    "packaging/slurm/*.sh": ("tests/live/slurm/test_hooks.py", '"packaging" / "slurm"'),
    "packaging/ssm/healthd-install.yaml": ("tests/live/aws/test_documents.py", "ssm/healthd-install.yaml"),
    "packaging/ssm/healthd-show.yaml": ("tests/live/aws/test_documents.py", "ssm/healthd-show.yaml"),
    "packaging/stage-nccl.sh": ("tests/installing/conftest.py", "stage-nccl.sh"),
    "packaging/staging.sh": ("packaging/stage.sh", "packaging/staging.sh"),  # no package is staged without it
    "packaging/stage.sh": ("tests/installing/conftest.py", "packaging/stage.sh"),
    "packaging/systemd/*": ("tests/installing/test_units.py", "packaging/systemd"),
    "packaging/terraform/*": ("tests/live/aws/test_terraform.py", '"packaging/terraform"'),
    "packaging/verify-release.sh": ("tests/installing/test_release.py", "packaging/verify-release.sh"),
    "packaging/venv.sh": ("Makefile", "sh packaging/venv.sh dev"),  # no test runs without it
}
# Blocks by language: the test that loads them all. Blocks of the shell and ini are judged below.
BLOCKS: Mapping[str, tuple[str, str]] = {
    "hcl": ("tests/live/aws/test_terraform.py", 'block.language == "hcl"'),
    "mermaid": ("tests/unit/house/test_docs.py", "mermaid"),
    "toml": ("tests/unit/house/test_examples.py", 'block.language == "toml"'),
    "yaml": ("tests/packaging/test_chart.py", 'each.language == "yaml"'),
    "python": ("tests/daemon/test_write_a_check.py", "```python"),
    "text": ("tests/unit/house/test_examples.py", "SHELL"),  # what is printed; command lines of ours in it are parsed
    "": ("tests/unit/house/test_examples.py", "SHELL"),
}
# Commands that a page may tell people to run beside `healthd` (parsed by test_examples.py) and `make` (targets below).
OF_OTHERS = (
    frozenset({"amazon-cloudwatch-agent-ctl", "apt-get", "aws", "cat", "clush", "cp", "curl", "dnf", "docker", "echo"})
    | {"grep", "helm", "install"}
    | {"journalctl", "kill", "kubectl", "ln", "ls", "mkdir", "pip", "promtool", "python3", "rm", "scontrol", "sed"}
    | {"read", "sbatch", "sinfo", "skopeo", "sleep", "sort", "srun", "ssh", "systemctl", "terraform", "test", "touch"}
)
_KEYWORDS = frozenset({"while", "until", "do", "done", "sudo", "exec"})  # of the shell, or before a command
_SEPARATORS = frozenset({"|", "||", "&&", "&", ";", "(", ")", "$("})
_ASSIGNED = re.compile(r"[A-Za-z_]+=.*", re.DOTALL)


def files() -> Iterator[str]:
    """Every file of packaging/ and docs/ that is not of TEXTS, as a path below the root."""
    for folder in ("packaging", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix not in TEXTS and "__pycache__" not in path.parts:
                yield path.relative_to(ROOT).as_posix()


def loader(name: str) -> str:
    """The glob of the table that a file falls under, or ""."""
    return next((glob for glob in LOADED_BY if fnmatchcase(name, glob)), "")


FILES = tuple(files())
ALL = tuple(blocks())
SHELL = [block for block in ALL if block.language == "sh"]
INI = [block for block in ALL if block.language == "ini"]


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_loaded_by_a_test(name: str) -> None:
    """Each file stands in the table, and the test that is named there speaks of it."""
    glob = loader(name)
    assert glob, f"{name}: write a test that loads or runs it, and its row in LOADED_BY"
    test, words = LOADED_BY[glob]
    assert (ROOT / test).is_file(), f"{name}: no such test: {test}"
    assert words in (ROOT / test).read_text(encoding="utf-8"), f"{name}: {test} does not say {words!r}"


def test_every_row_is_about_a_file() -> None:
    """A row whose files are gone is taken out of the table."""
    assert set(LOADED_BY) - {loader(name) for name in FILES} == set()


@pytest.mark.parametrize("block", ALL, ids=str)
def test_every_block_is_loaded_by_a_test(block: Block) -> None:
    """Each fenced block is in a language whose blocks a test takes, all of them."""
    if block.language in ("sh", "ini", "json"):
        return  # below
    assert block.language in BLOCKS, f"{block}: write a test that loads {block.language} blocks, and its row in BLOCKS"
    test, words = BLOCKS[block.language]
    assert words in (ROOT / test).read_text(encoding="utf-8"), f"{block}: {test} does not say {words!r}"


def test_json_blocks_are_json() -> None:
    """What is shown as JSON can be read as JSON."""
    for block in ALL:
        assert block.language != "json" or json.loads(block.text), str(block)


# ---------------------------------------------------------------------------------------------------------------------
# blocks of the shell


@pytest.mark.process
@pytest.mark.parametrize("block", SHELL, ids=str)
def test_a_shell_takes_every_block(block: Block) -> None:
    """A block of shell has no mistake that a shell can see; one with a title is run by a test that names the title."""
    done = subprocess.run(
        ["sh", "-n"], check=False, input=block.text, capture_output=True, text=True, timeout=limit_s(30)
    )
    assert done.returncode == 0, f"{block}: {done.stderr}"
    if block.title:
        tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
        assert f'"{block.title}"' in tests, f"{block}: no test runs the block {block.title!r}"


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_commands_of_a_block_are_there(block: Block) -> None:
    """Each command is ours, whose line is parsed elsewhere, a target of the Makefile, or one that is known to exist."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for words in commands(block.text):
        name = words[0].rpartition("/")[2]
        if name == "make":
            wanted = {word for word in words[1:] if re.fullmatch(r"[a-z-]+", word)}
            assert wanted <= targets, f"{block}: make has no {wanted - targets}"
        elif words[0].startswith("/usr/lib/healthd/"):
            assert (ROOT / "packaging" / words[0].removeprefix("/usr/lib/healthd/")).is_file(), f"{block}: {words[0]}"
        else:
            assert name == "healthd" or name in OF_OTHERS, f"{block}: {words[0]!r} is not known here"
        for word in words:
            if word.startswith(("packaging/", "docs/")):
                assert list(ROOT.glob(word)), f"{block}: no such file: {word}"


def commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a piece of shell, without what is assigned in front of them."""
    lexer = shlex.shlex(text.replace("\\\n", " ").replace("$(", " ; ").replace("\n", "\n ; "), posix=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    found: list[str] = []
    for token in [*_apart(lexer), ";"]:
        if token in _SEPARATORS:
            if found:
                yield found
            found = []
        elif found or not (_ASSIGNED.fullmatch(token) or token in _KEYWORDS):
            found.append(token)


def _apart(words: Iterator[str]) -> Iterator[str]:
    for word in words:
        tail = re.search(r"[;)]+$", word)
        if tail and tail.start():
            yield word[: tail.start()]
            yield ";"
        else:
            yield ";" if tail else word


# ---------------------------------------------------------------------------------------------------------------------
# blocks of ini


@pytest.mark.parametrize("block", INI, ids=str)
def test_ini_blocks_are_units_or_what_slurm_was_given(block: Block) -> None:
    """A block with sections can be read as a unit; lines for slurm.conf are those that a real Slurm has run with."""
    if "[" in block.text:
        unit = configparser.ConfigParser(interpolation=None, strict=False)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read_string(block.text)
        assert set(unit.sections()) <= {"Unit", "Service", "Slice", "Install"}
    else:
        shown = dict(line.split("=", 1) for line in block.text.split())
        assert shown == {key: value for key, value in hooks_we_ship().items() if key in shown}


def test_the_walk_sees_what_is_there() -> None:
    """Files and blocks are found at all: a folder that moved would make everything above pass."""
    assert {"docs/peers.toml", "packaging/slurm/prolog.sh", "packaging/kubernetes/static.yaml"} <= set(FILES)
    assert {"toml", "yaml", "sh", "ini", "python", "text"} <= {block.language for block in ALL}
    assert [words[0] for words in commands("A=$(date) b c | sudo d # e\nf; g")] == ["date", "b", "d", "f", "g"]
    assert [words[0] for words in commands("a |\n while B= read -r c; do\n  d\n done")] == ["a", "read", "d"]
    assert Path(ROOT / "tests/unit/house/test_shipped.py") == Path(__file__)


def test_each_name_that_a_module_exports_is_there() -> None:
    """``from healthd.testing import *``, in a site's tests of its own checks, fails at the first name that is not."""
    for path in sorted((ROOT / "healthd").rglob("*.py")):
        if re.search(r"(?m)^__all__ = ", path.read_text()):
            module = importlib.import_module(
                ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            )
            assert [name for name in module.__all__ if not hasattr(module, name)] == [], path
