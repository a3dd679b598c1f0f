"""The Terraform module: Terraform itself with the recorded schema of the AWS provider, and moto's IAM for the policies.

Not tested: what the provider's own code and AWS say to it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest
from msgspec import Struct

from tests.live.aws.aws_endpoint import REGION
from tests.live.aws.moto_server import dummy_env
from tests.live.aws.terraform_provider import provider_serving
from tests.support.limits import limit_s
from tests.support.pages import blocks
from tests.support.running import ROOT

pytestmark = pytest.mark.process

MODULE = ROOT / "packaging/terraform"
PLATFORMS = ("autoscaling", "ec2", "hyperpod", "parallelcluster", "pcs")
# What one run for a platform asks for: each policy that the module can make for it.
RUN = """
run "{platform}" {{
  command = plan
  variables {{
    platform            = "{platform}"
    hyperpod_cluster_id = "abc123def456"
    node_roles          = ["node"]
    controller_roles    = ["head"]
    controller_features = ["topology", "ultraservers"]
    evidence            = {{ bucket = "site-evidence", prefix = "train-a" }}
    events              = {{ bus = "healthd" }}
  }}
}}
"""
FILLED_IN = {
    "PARTITION": "aws-us-gov",
    "REGION": "us-gov-west-1",
    "ACCOUNT": "123456789012",
    "CLUSTER_ID": "abc123def456",
    "BUS": "healthd",
    "BUCKET": "site-evidence",
    "PREFIX": "train-a",
}


class Terraform(Struct, frozen=True):
    """Terraform, with the module in a folder of its own beside packaging/iam."""

    program: str
    folder: Path
    environ: Mapping[str, str]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *words],
            check=False,
            capture_output=True,
            text=True,
            timeout=limit_s(120),
            cwd=self.folder,
            env=self.environ,
        )

    def must(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, f"terraform {words}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout


@pytest.fixture
def terraform(tmp_path: Path) -> Iterator[Terraform]:
    """Initialised without any download: the provider is attached."""
    program = shutil.which("terraform") or shutil.which("tofu")
    if program is None:
        pytest.skip("no terraform or tofu here, 1.7 or newer")
    folder = tmp_path / "packaging/terraform"
    shutil.copytree(MODULE, folder)
    shutil.copytree(ROOT / "packaging/iam", folder.parent / "iam")
    with provider_serving(tmp_path) as attached:
        own = {"TF_CLI_CONFIG_FILE": os.devnull, "CHECKPOINT_DISABLE": "1", "HOME": str(tmp_path), "TF_CLI_ARGS": ""}
        made = Terraform(program, folder, {**dummy_env(), **own, **attached})
        made.must("init", "-backend=false", "-no-color")
        yield made


def test_the_module_is_formatted_valid_and_does_what_its_tests_say(terraform: Terraform) -> None:
    """`terraform fmt`, `validate` and `test`, which also holds that wrong variables are refused."""
    terraform.must("fmt", "-check", "-recursive", "-diff", "-no-color")
    terraform.must("validate", "-no-color")
    printed = terraform.must("test", "-no-color")
    runs = (terraform.folder / "tests/module.tftest.hcl").read_text().count('\nrun "')
    assert f"Success! {runs} passed, 0 failed." in printed


@pytest.mark.parametrize(
    ("word", "wrong", "refused"),
    [
        ("restrict_public_buckets", "restrict_public_bucket", "Unsupported argument"),
        ("sse_algorithm = ", "sse_algorithm_x = ", "Unsupported argument"),
        ("  policy_arn = aws", "  policy = aws", 'The argument "policy_arn" is required'),
        ("aws_iam_role.node[0].name", "aws_iam_role.node[0].named", "Unsupported attribute"),
        ("      days = var", "      days = [1] # var", "Incorrect attribute value type"),
    ],
)
def test_a_mistake_in_the_module_is_seen(terraform: Terraform, word: str, wrong: str, refused: str) -> None:
    """The recorded schema refuses what the provider's would: names, types, what is required."""
    text = (terraform.folder / "main.tf").read_text()
    assert word in text
    (terraform.folder / "main.tf").write_text(text.replace(word, wrong))
    done = terraform.run("validate", "-no-color")
    assert done.returncode != 0
    assert refused in done.stderr


def test_every_policy_is_that_of_packaging_iam(terraform: Terraform, moto: tuple[str, int]) -> None:
    """Each file of packaging/iam is reached, is as it is there but for its open words, and is one that IAM reads."""
    own = (terraform.folder / "tests/module.tftest.hcl").read_text()
    mocks = own[own.index("mock_provider") : own.index("\nrun ")]
    (terraform.folder / "tests/module.tftest.hcl").write_text(
        mocks + "".join(RUN.format(platform=p) for p in PLATFORMS)
    )
    made: dict[str, Any] = {}
    for line in terraform.must("test", "-json", "-verbose").splitlines():
        event = json.loads(line)
        if event["type"] == "test_plan":
            made |= event["test_plan"]["output_changes"]["policies"]["after"]
    expected = {path.stem: filled_in(path.read_text()) for path in (ROOT / "packaging/iam").glob("*.json")}
    assert {name: json.loads(text) for name, text in made.items()} == expected
    iam = boto3.client("iam", region_name=REGION, endpoint_url="http://{}:{}".format(*moto), **KEYS)
    for name, text in made.items():
        assert iam.create_policy(PolicyName=name, PolicyDocument=text)["Policy"]["AttachmentCount"] == 0


KEYS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}


def filled_in(text: str) -> Any:
    return json.loads(re.sub("|".join(FILLED_IN), lambda word: FILLED_IN[word[0]], text))


def test_what_the_page_shows_is_valid(terraform: Terraform) -> None:
    """Each block of the pages that calls the module, with the module in this checkout as its source."""
    shown = [block.text for block in blocks() if block.language == "hcl"]
    assert shown
    folder = terraform.folder.parent / "site"
    folder.mkdir()
    (folder / "main.tf").write_text(re.sub(r'source = ".*"', f'source = "{terraform.folder}"', "\n".join(shown)))
    site = Terraform(terraform.program, folder, terraform.environ)
    site.must("init", "-backend=false", "-no-color")
    site.must("validate", "-no-color")
