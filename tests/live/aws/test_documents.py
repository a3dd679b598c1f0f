"""The documents for Systems Manager and EC2 Image Builder: their form, and their steps run for real by a small reader.

The reader does what AWS documents of its own runners: it checks parameters, puts them in by their text, and runs the
commands of each step as one script, until one fails. Sources: AWS Systems Manager User Guide, "Data elements and
parameters" and "Command document plugin reference"; EC2 Image Builder User Guide, "Use the AWSTOE component document
framework" (both 2026). A node is a folder, as in tests/installing/test_lifecycle.py. Nothing of it has run on AWS.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from tests.installing.test_lifecycle import Node, compute, head
from tests.live.aws.aws_endpoint import REGION
from tests.support.limits import limit_s
from tests.support.running import ROOT

pytestmark = pytest.mark.process

INSTALL, SHOW, IMAGE = (
    ROOT / "packaging" / name
    for name in ("ssm/healthd-install.yaml", "ssm/healthd-show.yaml", "imagebuilder/healthd.yaml")
)
PACKAGE = "https://packages.example.com/healthd_0.1.0-1~debian12_amd64.deb"
CONTENT = "a package"
SHA256 = hashlib.sha256(f"{CONTENT}\n".encode()).hexdigest()
CURL = f"""#!/bin/sh
echo "${{0##*/}} $*" >>"$CALLS"
while test "$1" != -o; do shift; done
echo "{CONTENT}" >"$2"
"""


class RefusedParameterError(Exception):
    """A parameter that AWS would not let through, or one that is missing."""


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


def filled_in(document: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
    """The parameters of a document, with defaults, as far as its own rules let them through."""
    declared = document["parameters"]
    if isinstance(declared, list):  # Image Builder's
        declared = {name: rule for each in declared for name, rule in each.items()}
    found = {name: given.get(name, rule.get("default")) for name, rule in declared.items()}
    for name, rule in declared.items():
        value = found[name]
        is_good = value is not None and value in rule.get("allowedValues", [value])
        if not is_good or not re.search(rule.get("allowedPattern", ""), value):
            raise RefusedParameterError(name)
    assert set(given) <= set(found)
    return found


def with_parameters(text: str, parameters: Mapping[str, str]) -> str:
    return re.sub(r"\{\{ *([A-Za-z0-9_-]+) *\}\}", lambda word: parameters[word[1]], text)


def steps(document: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Name, shell and script of each step, in the order in which they run."""
    parameters = filled_in(document, given)
    if "mainSteps" in document:
        for step in document["mainSteps"]:
            assert step["action"] == "aws:runShellScript"
            yield step["name"], "sh", with_parameters("\n".join(step["inputs"]["runCommand"]), parameters)
    for phase in document.get("phases", ()):
        for step in phase["steps"]:
            assert step["action"] == "ExecuteBash"
            yield (
                f"{phase['name']} {step['name']}",
                "bash",
                with_parameters("\n".join(step["inputs"]["commands"]), parameters),
            )


def run(node: Node, path: Path, **given: str) -> list[tuple[str, int, str]]:
    """Run the steps on a node, until one fails: its name, its exit code and what it printed."""
    (node.bin / "curl").write_text(CURL)
    (node.bin / "curl").chmod(0o755)
    environ = {"HEALTHD_ROOT": str(node.root), "CALLS": str(node.calls), "PATH": f"{node.bin}:/usr/bin:/bin"}
    failing, given_here = given.pop("FAILING", ""), given
    done = []
    for name, shell, script in steps(read(path), given_here):
        # on-node.sh has a PATH of its own; the programs that stand in come first in it.
        text = script.replace("\nPATH=", f"\nPATH={node.bin}:", 1)
        ended = subprocess.run(
            [shell, "-c", text],
            check=False,
            capture_output=True,
            text=True,
            timeout=limit_s(60),
            env={**environ, "FAILING": failing},
            cwd=node.root,
        )
        done.append((name, ended.returncode, ended.stdout + ended.stderr))
        if ended.returncode:
            break
    return done


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


EXAMPLES = [
    (INSTALL, {"Package": PACKAGE, "Sha256": SHA256, "Config": "s3://site/healthd.toml"}),
    (SHOW, {}),
    (IMAGE, {"Package": PACKAGE, "Sha256": SHA256}),
]


@pytest.mark.parametrize(("path", "given"), EXAMPLES, ids=lambda each: getattr(each, "stem", ""))
def test_shellcheck_finds_nothing_in_a_step(path: Path, given: Mapping[str, str]) -> None:
    """With its parameters filled in, as the shell that it is for."""
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck here: apt-get install shellcheck")
    for name, shell, script in steps(read(path), given):
        argv = ["shellcheck", f"--shell={shell}", "-"]
        done = subprocess.run(argv, check=False, input=script, capture_output=True, text=True, timeout=limit_s(60))
        assert done.returncode == 0, f"{path.name}, {name}: {done.stdout}"


@pytest.mark.parametrize("path", [INSTALL, SHOW], ids=lambda each: each.stem)
def test_systems_manager_takes_the_document(path: Path, moto: tuple[str, int]) -> None:
    """Schema 2.2, registered at moto with its parameters; each step has what the plug-in reads and nothing else."""
    document = read(path)
    assert set(document) == {"schemaVersion", "description", "parameters", "mainSteps"}
    for step in document["mainSteps"]:
        assert set(step) == {"action", "name", "precondition", "inputs"}
        assert set(step["inputs"]) == {"timeoutSeconds", "runCommand"}
        assert step["precondition"] == {"StringEquals": ["platformType", "Linux"]}
    for rule in document["parameters"].values():
        assert set(rule) <= {"type", "description", "default", "allowedPattern", "allowedValues"}
        assert rule["type"] == "String"
        assert len(rule["description"]) < 200
    assert len(path.read_bytes()) < 64 * 1024, "the quota of a document"
    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    ssm = boto3.client("ssm", region_name=REGION, endpoint_url="http://{}:{}".format(*moto), **keys)
    made = ssm.create_document(Content=path.read_text(), Name=path.stem, DocumentType="Command", DocumentFormat="YAML")
    described = made["DocumentDescription"]
    assert described["SchemaVersion"] == "2.2"
    assert {each["Name"] for each in described["Parameters"]} == set(document["parameters"])


def test_image_builder_takes_the_component() -> None:
    """Its phases, actions and parameters are those of the schema, and it is small enough to be given as data."""
    document = read(IMAGE)
    assert set(document) == {"name", "description", "schemaVersion", "parameters", "phases"}
    assert document["schemaVersion"] == 1.0
    assert [phase["name"] for phase in document["phases"]] == ["build", "validate", "test"]
    for phase in document["phases"]:
        for step in phase["steps"]:
            assert set(step) == {"name", "action", "timeoutSeconds", "inputs"}
            assert set(step["inputs"]) == {"commands"}
    for each in document["parameters"]:
        ((name, rule),) = each.items()
        assert re.fullmatch(r"[A-Za-z0-9_-]{3,128}", name)
        assert set(rule) <= {"type", "description", "default"}
        assert rule["type"] == "string"
    assert len(IMAGE.read_text()) <= 16_000, "CreateComponent takes no more as data"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Package", "https://h/healthd.deb'; reboot; '"),
        ("Package", "healthd.deb"),
        ("Package", "http://h/healthd.deb"),
        ("Package", "https://h/healthd.zip"),
        ("Sha256", ""),
        ("Sha256", "$(reboot)"),
        ("Config", "s3://b/$(reboot)"),
        ("Config", "`reboot`"),
        ("Nccl", "s3://b/healthd-nccl.deb'; reboot; '"),
        ("NcclSha256", "$(reboot)"),
    ],
)
def test_a_parameter_that_could_run_something_is_refused(name: str, value: str) -> None:
    """Systems Manager puts parameters into the script as text: their patterns leave no character of the shell."""
    with pytest.raises(RefusedParameterError, match=name):
        filled_in(read(INSTALL), {"Package": PACKAGE, "Sha256": SHA256, name: value})
    with pytest.raises(RefusedParameterError, match="Verb"):
        filled_in(read(SHOW), {"Verb": "release"})


def test_a_node_gets_the_package_of_the_checksum(node: Node) -> None:
    """Fetched, compared, installed, its configuration tried out and put in place, started."""
    compute(node)
    ((_, code, printed),) = run(node, INSTALL, Package=PACKAGE, Sha256=SHA256, Config="s3://site/healthd.toml")
    assert code == 0, printed
    assert f"-o {node.called('curl')[0].split()[-2]} {PACKAGE}" in node.called("curl")[0]
    (install,) = node.called("apt-get")
    assert install.endswith("/healthd_0.1.0-1~debian12_amd64.deb")
    assert (node.root / "etc/healthd/config.toml").read_text() == "s3://site/healthd.toml\n"
    assert node.called("systemctl") == ["enable healthd.service", "restart healthd.service"]


def test_another_package_is_not_installed(node: Node) -> None:
    """The command fails, and the node is as it was."""
    ((_, code, printed),) = run(node, INSTALL, Package=PACKAGE, Sha256="0" * 64)
    assert code == 1
    assert "is not the package of this checksum" in printed
    assert (node.called("apt-get"), node.called("systemctl")) == ([], [])


@pytest.mark.parametrize("path", [INSTALL, IMAGE], ids=lambda each: each.stem)
def test_the_package_of_the_active_tests_comes_with_its_checksum(node: Node, path: Path) -> None:
    """Both packages in one installation; without the second checksum, or with another, none."""
    given = {"Package": PACKAGE, "Sha256": SHA256, "Nccl": PACKAGE.replace("healthd_", "healthd-nccl_")}
    assert run(node, path, **given, NcclSha256=SHA256)[0][1] == 0
    (install,) = node.called("apt-get")
    assert [word.rpartition("/")[2].partition("_")[0] for word in install.split()[-2:]] == ["healthd", "healthd-nccl"]
    node.calls.unlink()
    for checksum, says in (("", "NcclSha256 is empty"), ("0" * 64, "is not the package of this checksum")):
        ((_, code, printed),) = run(node, path, **given, NcclSha256=checksum)
        assert (code, node.called("apt-get")) == (1, [])
        assert says in printed


def test_a_head_node_is_passed_over(node: Node) -> None:
    """A target that was chosen too widely: no jobs run there, so healthd is not installed."""
    head(node)
    ((_, code, printed),) = run(node, INSTALL, Package=PACKAGE, Sha256=SHA256)
    assert (code, node.called("apt-get")) == (0, [])
    assert "no jobs run on this node" in printed


def test_a_node_that_fails_makes_the_command_fail(node: Node) -> None:
    """Unlike on-node.sh as a lifecycle script: no platform replaces a node for a command that failed."""
    ((_, code, _),) = run(node, INSTALL, Package=PACKAGE, Sha256=SHA256, FAILING="apt-get")
    assert code == 1


@pytest.mark.parametrize(
    ("verb", "form", "called"),
    [("check", "text", "check"), ("plan", "json", "plan --json"), ("doctor", "text", "doctor")],
)
def test_a_verb_is_shown_with_its_exit_code(node: Node, verb: str, form: str, called: str) -> None:
    """What healthd prints, and its exit code: 1 makes the command fail on that node."""
    ((_, code, _),) = run(node, SHOW, Verb=verb, Format=form)
    assert (code, node.called("healthd")) == (0, [called])
    ((_, code, _),) = run(node, SHOW, Verb=verb, Format=form, FAILING="healthd")
    assert code == 1


def test_an_image_has_healthd_and_nothing_of_the_build_machine(node: Node) -> None:
    """Installed, enabled, not started; no configuration of the build machine and no state. Then it runs in the test."""
    passed = run(node, IMAGE, Package=PACKAGE, Sha256=SHA256)
    # The stand-in's systemctl says that the daemon is active, which must not be so at the validation.
    assert [(name, code) for name, code, _ in passed] == [("build Install", 0), ("validate ReadyToBoot", 1)]
    called = ["enable healthd.service", "stop healthd.service", "is-enabled healthd.service", QUIET]
    assert node.called("systemctl") == called
    assert "init" not in node.called("healthd")
    assert not (node.root / "etc/healthd/config.toml").exists()
    (node.bin / "systemctl").write_text('#!/bin/sh\necho "systemctl $*" >>"$CALLS"\ntest "$2" != --quiet\n')
    assert [(name, code) for name, code, _ in run(node, IMAGE, Package=PACKAGE, Sha256=SHA256)] == [
        ("build Install", 0),
        ("validate ReadyToBoot", 0),
        ("test Runs", 0),
    ]
    node.file("var/lib/healthd/healthd.db", "")  # of a base that has healthd
    assert run(node, IMAGE, Package=PACKAGE, Sha256=SHA256)[-1][:2] == ("test Runs", 0)
    assert not (node.root / "var/lib/healthd").exists()


QUIET = "is-active --quiet healthd.service"


def test_an_image_with_a_wrong_configuration_is_not_made(node: Node) -> None:
    """The build fails there, and says which file is wrong."""
    ((name, code, printed),) = run(
        node, IMAGE, Package=PACKAGE, Sha256=SHA256, Config="s3://b/x.toml", FAILING="healthd"
    )
    assert (name, code) == ("build Install", 1)
    assert "s3://b/x.toml is not valid" in printed
