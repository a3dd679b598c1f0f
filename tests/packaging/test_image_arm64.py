"""The image for arm64 (P6e-GB200, P6e-GB300) as a release builds it, and its programs, by qemu where this machine is of
another processor.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from healthd import __version__
from tests.packaging.image import ROOT, Image, built_image, files_of
from tests.support.emulated import aarch64_programs

EM_AARCH64 = 183  # e_machine in elf.h
# The glibc of each is at least as old as that of the distributions that have this Python.
PLATFORMS = ("manylinux2014_aarch64", "manylinux_2_17_aarch64", "manylinux_2_28_aarch64")
FOR_ARM64 = ("--no-deps", "--only-binary=:all:", *(f"--platform={each}" for each in PLATFORMS))
NO_INDEX = ("Retrying (", "Could not fetch URL", "Could not install packages due to an OSError")


def pip(*words: str) -> str:
    """This machine's pip; the test is skipped where it reaches no index. What it said."""
    argv = [sys.executable, "-m", "pip", *words, "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=600)
    output = done.stdout + done.stderr
    if any(each in output for each in NO_INDEX):
        pytest.skip(f"no package index to be had here: {output[-300:]}")
    assert done.returncode == 0, output[-2000:]
    return output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lock", "python", "compiled"),
    [("kubernetes", "3.11", 2), ("kubernetes", "3.12", 2), ("kubernetes", "3.13", 2), ("build", "3.13", 0)],
)
def test_every_locked_version_has_a_wheel_for_arm64(lock: str, python: str, compiled: int, tmp_path: Path) -> None:
    """What the image and the packages install is there for aarch64 by the hashes of the lock, with nothing to compile.
    ``compiled``: how many of them are machine code."""
    requirements = ROOT / "requirements" / f"{lock}.txt"
    pip(
        "download",
        *FOR_ARM64,
        f"--python-version={python}",
        f"--dest={tmp_path}",
        "--require-hashes",
        f"-r{requirements}",
    )
    found = [each.name for each in tmp_path.glob("*.whl") if not each.stem.endswith("-none-any")]
    assert [name for name in found if "aarch64" not in name] == []
    assert len(found) == compiled, found


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image for arm64, whose programs run meanwhile."""
    with aarch64_programs(), built_image(tmp_path_factory.mktemp("image-arm64"), "arm64") as image:
        yield image


@pytest.mark.slow
@pytest.mark.root
def test_the_image_for_arm64_runs_healthd(image: Image) -> None:
    """Built from Debian's arm64 and the locks alone, it says its version and gives a verdict on the node it is on."""
    assert image.run("uname", "-m").stdout.strip() == "aarch64"
    done = image.run(*image.config["Entrypoint"], "--version")
    assert (done.returncode, done.stdout.strip()) == (0, f"healthd {__version__}"), done.stdout + done.stderr
    modules = "lightkube, boto3, msgspec, yaml, pynvml, healthd.remediation.engine.engine"
    done = image.run("/opt/healthd/bin/python", "-c", f"import {modules}")
    assert done.returncode == 0, done.stderr[-1000:]
    done = image.run("healthd", "check", "--no-daemon", "--json", user="0:0")
    assert done.returncode in (0, 1, 2), done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["schema"] == "healthd.verdict/v1"
    unknown = {each["name"]: each["reason"] for each in report["checks"] if each["outcome"] == "unknown"}
    assert not [name for name, reason in unknown.items() if "Error" in reason], unknown


@pytest.mark.slow
@pytest.mark.root
def test_all_machine_code_in_the_image_for_arm64_is_of_arm64(image: Image) -> None:
    """healthd is a wheel for any processor, and each library that its dependencies bring is of this one."""
    libraries = list(files_of(image.root / "opt" / "healthd", "*.so", "*.so.*"))
    machines = {path.name: int.from_bytes(path.read_bytes()[18:20], "little") for path in libraries}
    assert machines
    assert set(machines.values()) == {EM_AARCH64}, machines
