"""Shell scripts of the packages and platforms: linted, and the installer of a node run with a folder for a root."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from email import message_from_string, policy
from pathlib import Path

import pytest
import yaml

from healthd import __version__
from tests.support.limits import limit_s
from tests.support.pages import blocks
from tests.support.running import ROOT

pytestmark = pytest.mark.process

LIFECYCLE = ROOT / "packaging/lifecycle"
SCRIPTS = sorted(
    path
    for folder in (ROOT / "packaging", ROOT / "tests")
    for path in folder.rglob("*")
    if path.is_file() and path.read_bytes()[:9] in (b"#!/bin/sh", b"#!/bin/ba")
)
# Each program that the installer calls, standing in: it writes down its arguments, and fails where a test says so.
PROGRAM = """#!/bin/sh
echo "${0##*/} $*" >>"$CALLS"
case " $FAILING " in *" ${0##*/} "*) exit 1 ;; esac
case "${0##*/} $1" in
"healthd init") echo >"$HEALTHD_ROOT/etc/healthd/config.toml" ;;
"healthd --version") echo "healthd 0.2.0" ;;
"aws s3") echo "$4" >"$5" ;;
"curl -fsSL") echo "$6" >"$5" ;;
esac
exit 0
"""
SUMS = {"HEALTHD_SHA256": "healthd", "HEALTHD_NCCL_SHA256": "healthd-nccl"}
STANDING_IN = ("apt-get", "dpkg", "dnf", "aws", "curl", "healthd", "systemctl", "logger")
# A server that stops in the middle of a file, a clock that runs faster, and a disk that is full after four bytes.
STALLED = "#!/bin/sh\nexec sleep 1000\n"
SOON = """#!/bin/sh
shift 3
exec {timeout} 1 "$@"
"""
FULL = """#!/bin/sh
for last; do :; done
printf half >"$last"
exit 1
"""


def test_shellcheck_finds_nothing() -> None:
    """Every shell script that is shipped, or that the tests are set up by, passes shellcheck."""
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck here: apt-get install shellcheck")
    assert {"stage.sh", "postinst", "on-node.sh", "prolog.sh", "system-packages.sh"} <= {path.name for path in SCRIPTS}
    argv = ["shellcheck", "--external-sources", *map(str, SCRIPTS)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=limit_s(60), cwd=ROOT)
    assert done.returncode == 0, done.stdout


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Node:
    """A folder that stands for a node's root, and what was called on it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.calls, self.bin = folder / "root", folder / "calls", folder / "bin"
        self.bin.mkdir(parents=True)
        (self.root / "etc/healthd").mkdir(parents=True)
        self.scripts = folder / "scripts"
        self.scripts.mkdir()
        # Its PATH is its own, for cloud-init gives it none; here the programs that stand in come first.
        text = (LIFECYCLE / "on-node.sh").read_text()
        assert "PATH=/usr/local/sbin" in text
        (self.scripts / "on-node.sh").write_text(text.replace("\nPATH=", f"\nPATH={self.bin}:", 1))
        for name in STANDING_IN:
            (self.bin / name).write_text(PROGRAM)
            (self.bin / name).chmod(0o755)

    def file(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def run(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        given = {"HEALTHD_ROOT": str(self.root), "CALLS": str(self.calls), "HEALTHD_ADDRESSES": "10.0.0.7", **environ}
        argv = ["sh", str(self.scripts / "on-node.sh"), *words]
        return subprocess.run(
            argv, check=False, capture_output=True, text=True, timeout=limit_s(60), env=given, cwd=self.root
        )

    def called(self, name: str) -> list[str]:
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line.partition(" ")[2] for line in lines if line.startswith(f"{name} ")]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def compute(node: Node) -> None:
    node.file("etc/parallelcluster/cfnconfig", 'stack_name=x\ncfn_node_type="ComputeFleet"\n')


def head(node: Node) -> None:
    node.file("etc/parallelcluster/cfnconfig", "cfn_node_type=HeadNode\n")


def hyperpod(group: str) -> Callable[[Node], None]:
    def lay(node: Node) -> None:
        mine = {"Name": group, "Instances": [{"InstanceName": "i", "CustomerIpAddress": "10.0.0.7"}]}
        other = {"Name": "rest", "Instances": [{"CustomerIpAddress": "10.0.0.8"}]}
        empty = {"Name": "spare", "Instances": None}
        node.file("opt/ml/config/resource_config.json", json.dumps({"InstanceGroups": [empty, other, mine]}))
        named = {"controller_group": "head", "login_group": "login", "worker_groups": []}
        (node.scripts / "provisioning_parameters.json").write_text(json.dumps(named))

    return lay


def torn(node: Node) -> None:
    node.file("opt/ml/config/resource_config.json", '{"InstanceGr')


def plain(node: Node) -> None:
    """A machine of no platform."""


@pytest.mark.parametrize(
    ("lay", "installs"),
    [
        (compute, True),
        (head, False),
        (hyperpod("workers"), True),
        (hyperpod("head"), False),
        (hyperpod("login"), False),
        (torn, True),
        (plain, True),
    ],
)
def test_healthd_goes_where_jobs_run(node: Node, lay: Callable[[Node], None], *, installs: bool) -> None:
    """Compute nodes and workers get it, head and login nodes do not; what cannot be told is no clear no."""
    lay(node)
    node.file("healthd.deb", "")
    done = node.run("healthd.deb")
    assert done.returncode == 0, done.stderr
    assert bool(node.called("apt-get")) is installs
    assert bool(node.called("systemctl")) is installs
    assert ("healthd 0.2.0 runs on this node" in done.stderr) is installs
    assert ("no jobs run on this node" in done.stderr) is not installs


def test_package_and_configuration_come_from_s3(node: Node) -> None:
    """Both are fetched, the package is installed by a path, the configuration is checked before anything starts."""
    done = node.run("s3://b/healthd-0.2.0-1.x86_64.rpm", "s3://b/healthd.toml")
    assert done.returncode == 0, done.stderr
    assert [call.split()[3] for call in node.called("aws")] == [
        "s3://b/healthd-0.2.0-1.x86_64.rpm",
        "s3://b/healthd.toml",
    ]
    (install,) = node.called("dnf")
    assert install.startswith("install -y /")
    assert (node.root / "etc/healthd/config.toml").read_text() == "s3://b/healthd.toml\n"
    tried, *then = node.called("healthd")
    assert re.fullmatch(r"config validate --config /\S+/healthd\.toml", tried)
    assert then == ["config validate", "--version"]
    assert node.called("systemctl") == ["enable healthd.service", "restart healthd.service"]


def test_the_rpm_needs_no_repository(node: Node) -> None:
    """dnf reads the metadata of each one first, and ends where the node has no way out. Nothing of it is needed."""
    (node.bin / "dnf").write_text(
        PROGRAM.replace("exit 0", 'case " $* " in *" --disablerepo="*) exit 0 ;; esac\nexit 1')
    )
    done = node.run("--required", "s3://b/healthd.rpm")
    assert done.returncode == 0, done.stderr
    assert len(node.called("dnf")) == 2


def test_a_roll_out_is_taken_back_by_the_version_before(node: Node) -> None:
    """apt-get installs no older version unless it is asked to, also after an update of its lists. dnf does."""
    (node.bin / "apt-get").write_text(PROGRAM.replace("exit 0", 'case " $* " in *" update "*) exit 0 ;; esac\nexit 1'))
    assert node.run("--required", "s3://b/healthd.deb").returncode == 1
    first, update, second = node.called("apt-get")
    assert (first, "--allow-downgrades" in first.split()) == (second, True)
    assert update.endswith(" update")


def test_an_installation_that_ended_in_the_middle_is_gone_on_with(node: Node) -> None:
    """As by a reboot, or the time-out of the platform: apt-get does nothing until dpkg has gone on."""
    text = PROGRAM.replace("exit 0", 'test -e "$HEALTHD_ROOT/dpkg" || exit 100')
    (node.bin / "apt-get").write_text(text)
    (node.bin / "dpkg").write_text(PROGRAM.replace("exit 0", '>"$HEALTHD_ROOT/dpkg"'))
    done = node.run("--required", "s3://b/healthd.deb")
    assert (done.returncode, node.called("dpkg")) == (0, ["--configure -a"]), done.stderr


def test_an_image_has_no_state_of_the_machine_that_made_it(node: Node) -> None:
    """Where its base has healthd, that ran there, and runs again after the upgrade. Elsewhere the state stays."""
    node.file("var/lib/healthd/healthd.db", "")
    assert node.run("--required", "s3://b/healthd.deb").returncode == 0
    assert (node.root / "var/lib/healthd/healthd.db").exists()
    node.calls.unlink()
    assert node.run("--required", "--image", "s3://b/healthd.deb").returncode == 0
    assert node.called("systemctl") == ["enable healthd.service", "stop healthd.service"]
    assert not (node.root / "var/lib/healthd").exists()


def test_a_presigned_address_is_read(node: Node) -> None:
    """The signature behind the name of a package is no part of its name."""
    compute(node)
    done = node.run("--required", "https://b.s3.amazonaws.com/x/healthd.deb?X-Amz-Date=1&X-Amz-Signature=a/b")
    assert done.returncode == 0, done.stderr
    assert any(call.endswith("/healthd.deb") for call in node.called("apt-get"))


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"FAILING": "curl"}, "https://b/healthd.deb cannot be read"),
        ({"FAILING": "apt-get"}, "https://b/healthd.deb was not installed, nor was healthd-nccl.deb"),
        ({"FAILING": "healthd"}, "https://b/healthd.toml is not valid"),
        ({"HEALTHD_SHA256": "0" * 64}, "https://b/healthd.deb is not the package of this checksum"),
        (
            {"HEALTHD_SHA256": sha256("https://b/healthd.deb?Signature=secret\n")},
            "HEALTHD_NCCL_SHA256 or NcclSha256 is empty; give the SHA-256 of https://b/healthd-nccl.deb, as",
        ),
    ],
)
def test_no_signature_is_in_syslog(node: Node, environ: dict[str, str], message: str) -> None:
    """Anyone on the node may read that, and a presigned address lets anyone read the bucket until it expires."""
    names = ("healthd-nccl.deb", "healthd.deb", "healthd.toml")
    nccl, *rest = (f"https://b/{name}?Signature=secret" for name in names)
    done = node.run("--required", "--nccl", nccl, *rest, **environ)
    logged = "\n".join(node.called("logger"))
    assert done.returncode == 1
    assert message in logged
    assert "secret" not in logged + done.stderr


def test_an_address_that_healthd_does_not_fetch_is_named_without_its_signature(node: Node) -> None:
    """One with http:// is taken for a path, and named without what stands behind its name all the same."""
    done = node.run("http://b/healthd.deb?Signature=secret")
    assert "http://b/healthd.deb cannot be read" in done.stderr
    assert "secret" not in done.stderr + "\n".join(node.called("logger"))


def test_a_configuration_of_the_node_is_not_replaced(node: Node) -> None:
    """Run again, as an upgrade, it leaves the file alone; on a node without one `healthd init` writes it."""
    node.file("healthd.deb", "")
    node.run("healthd.deb")
    assert "init" in node.called("healthd")
    node.calls.unlink()
    node.file("etc/healthd/config.toml", "mine")
    node.run("healthd.deb")
    assert "init" not in node.called("healthd")
    assert (node.root / "etc/healthd/config.toml").read_text() == "mine"


def test_a_wrong_configuration_takes_the_place_of_none(node: Node) -> None:
    """What healthd refuses is told and left where it was fetched; the node keeps what it had."""
    node.file("etc/healthd/config.toml", "mine")
    done = node.run("s3://b/healthd.deb", "s3://b/healthd.toml", FAILING="healthd")
    assert "s3://b/healthd.toml is not valid" in done.stderr
    assert (node.root / "etc/healthd/config.toml").read_text() == "mine"
    assert node.called("systemctl") == []


def test_half_a_configuration_takes_the_place_of_none(node: Node) -> None:
    """A full disk cuts the new file short, and the node keeps what it had: half of one could be valid, and observe."""
    node.file("etc/healthd/config.toml", "mine")
    (node.bin / "install").write_text(FULL)
    (node.bin / "install").chmod(0o755)
    done = node.run("s3://b/healthd.deb", "s3://b/healthd.toml")
    assert "etc/healthd/config.toml cannot be written" in done.stderr
    assert [path.name for path in (node.root / "etc/healthd").iterdir()] == ["config.toml"]
    assert (node.root / "etc/healthd/config.toml").read_text() == "mine"


@pytest.mark.parametrize(("scheme", "program"), [("s3", "aws"), ("https", "curl")])
def test_a_server_that_stops_in_the_middle_holds_no_node(node: Node, scheme: str, program: str) -> None:
    """A set-up that waits for ever is a node that failed, and is replaced: the script gives up after ten minutes."""
    (node.bin / program).write_text(STALLED)
    (node.bin / "timeout").write_text(SOON.format(timeout=shutil.which("timeout")))
    (node.bin / "timeout").chmod(0o755)
    done = node.run(f"{scheme}://b/healthd.deb")
    assert done.returncode == 0
    assert f"{scheme}://b/healthd.deb cannot be read within 10 minutes" in done.stderr
    assert node.called("apt-get") == []


@pytest.mark.parametrize("failing", ["aws", "apt-get", "healthd", "systemctl"])
def test_its_trouble_is_told_and_fails_no_node(node: Node, failing: str) -> None:
    """A node whose set-up fails is replaced, again and again: so it does not, unless it was asked to."""
    words = ("s3://b/healthd.deb", "s3://b/healthd.toml")
    done = node.run(*words, FAILING=failing)
    assert done.returncode == 0
    assert "healthd was not set up on this node" in done.stderr
    assert any("healthd was not set up on this node" in call for call in node.called("logger"))
    for required in (
        node.run("--required", *words, FAILING=failing),
        node.run(*words, FAILING=failing, HEALTHD_REQUIRED="1"),
    ):
        assert (required.returncode, "healthd was not set up on this node" in required.stderr) == (1, True)


def test_required_is_no_package(node: Node) -> None:
    """The option stands before the package, as the Args of a custom action can have it, and changes nothing that goes
    well."""
    compute(node)
    node.file("healthd.deb", "")
    done = node.run("--required", "healthd.deb")
    assert done.returncode == 0, done.stderr
    (install,) = node.called("apt-get")
    assert install.endswith("/healthd.deb")
    assert node.run("--required").returncode == 1


def test_without_a_package_it_says_how_it_is_used(node: Node) -> None:
    """No argument: its own usage, and no node that fails."""
    done = node.run()
    assert done.returncode == 0
    assert "Usage: on-node.sh [--required] [--image] [--nccl PACKAGE] PACKAGE [CONFIG]" in done.stderr


def test_both_packages_are_installed_by_one_command(node: Node) -> None:
    """apt-get removes a healthd-nccl of another version when it is given healthd alone."""
    done = node.run("--required", "--nccl", "s3://b/healthd-nccl.deb", "s3://b/healthd.deb")
    assert done.returncode == 0, done.stderr
    (install,) = node.called("apt-get")
    assert [word.rpartition("/")[2] for word in install.split()[-2:]] == ["healthd.deb", "healthd-nccl.deb"]


@pytest.mark.parametrize("words", [("--nccl",), ("--nccl", ""), ("--nccl", "s3://b/healthd-nccl.deb")])
def test_the_tests_package_alone_is_no_package(node: Node, words: tuple[str, ...]) -> None:
    """healthd is not named: it says how it is used, and installs nothing."""
    done = node.run("--required", *words)
    assert done.returncode == 1
    assert "no package was named" in done.stderr
    assert node.called("apt-get") == []


def test_an_empty_name_leaves_the_tests_package_out(node: Node) -> None:
    """As a document hands over a parameter that was not given."""
    done = node.run("--nccl", "", "s3://b/healthd.deb", "")
    assert done.returncode == 0, done.stderr
    (install,) = node.called("apt-get")
    assert install.endswith("/healthd.deb")


@pytest.mark.parametrize("wrong", ["HEALTHD_SHA256", "HEALTHD_NCCL_SHA256"])
def test_no_package_of_another_checksum_is_installed(node: Node, wrong: str) -> None:
    """Neither of the two, whichever it is."""
    good = {name: sha256(f"s3://b/{package}.deb\n") for name, package in SUMS.items()}
    words = ("--required", "--nccl", "s3://b/healthd-nccl.deb", "s3://b/healthd.deb")
    assert node.run(*words, **good).returncode == 0
    node.calls.unlink()
    done = node.run(*words, **{**good, wrong: "0" * 64})
    assert (done.returncode, node.called("apt-get")) == (1, [])
    assert f"s3://b/{SUMS[wrong]}.deb is not the package of this checksum" in done.stderr


def test_the_snippet_for_hyperpod_runs_the_installer(node: Node) -> None:
    """Its lines in on_create.sh find on-node.sh beside that and hand over package and configuration."""
    shutil.copy2(LIFECYCLE / "hyperpod-on_create.sh", node.scripts)
    environ = {"HEALTHD_ROOT": str(node.root), "CALLS": str(node.calls), "HEALTHD_ADDRESSES": "10.0.0.7"}
    hyperpod("workers")(node)
    argv = ["bash", str(node.scripts / "hyperpod-on_create.sh")]
    done = subprocess.run(
        argv,
        check=False,
        capture_output=True,
        text=True,
        timeout=limit_s(60),
        env={**environ, "PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, done.stderr
    assert "healthd 0.2.0 runs on this node" in done.stderr
    assert node.called("apt-get")


def test_the_fragment_for_parallelcluster_names_the_installer() -> None:
    """The custom action of the fragment is this script, with arguments as it takes them."""
    fragment = yaml.safe_load((LIFECYCLE / "parallelcluster.yaml").read_text())
    (queue,) = fragment["Scheduling"]["SlurmQueues"]
    action = queue["CustomActions"]["OnNodeConfigured"]
    assert action["Script"].rpartition("/")[2] == "on-node.sh"
    package, config = action["Args"]
    assert package.endswith(f"/healthd-{__version__}-1.x86_64.rpm"), "as packaging/rpm/build.sh names it"
    assert config.endswith(".toml")


def test_the_user_data_for_pcs_is_an_archive_that_runs_the_installer(node: Node) -> None:
    """PCS merges user data with its own, and so takes a MIME multi-part archive alone.

    Source: AWS PCS User Guide, "Working with Amazon EC2 user data", 2026.
    """
    (text,) = (block.text for block in blocks() if block.title == "pcs-user-data")
    data = message_from_string(text, policy=policy.default)
    (part,) = data.iter_parts()
    assert (data.get_content_type(), part.get_content_type()) == ("multipart/mixed", "text/x-shellscript")
    aws = node.bin / "aws"
    fetch = f'case $4 in */on-node.sh) exec cp "{node.scripts}/on-node.sh" "$5" ;; esac\n'
    aws.write_text(PROGRAM.replace("exit 0", f"{fetch}exit 0"))
    script = part.get_content().replace("/root/", f"{node.root}/")
    environ = {"HEALTHD_ROOT": str(node.root), "CALLS": str(node.calls), "PATH": f"{node.bin}:{os.environ['PATH']}"}
    argv = ["sh", "-c", script]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=limit_s(60), env=environ)
    assert "healthd 0.2.0 runs on this node" in done.stderr, done.stderr
    assert node.called("dnf")[0].endswith(f"/healthd-{__version__}-1.x86_64.rpm")


def test_the_hooks_of_parallelcluster_are_copied_on_a_head_node_without_healthd(tmp_path: Path) -> None:
    """The installer passes over head nodes, so that the lines of the page take the scripts of a checkout."""
    (lines,) = (block.text for block in blocks() if block.title == "parallelcluster-hooks")
    shared = tmp_path / "scripts"
    for folder in ("prolog.d", "epilog.d"):
        (shared / folder).mkdir(parents=True)
    argv = ["sh", "-ec", lines.replace("/opt/slurm/etc/scripts", str(shared))]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=limit_s(30), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for name in ("prolog", "epilog"):
        copied = shared / f"{name}.d" / "50_healthd"
        assert copied.read_bytes() == (ROOT / f"packaging/slurm/{name}.sh").read_bytes()
        assert os.access(copied, os.X_OK)
