"""The image for arm64 (P6e-GB200, P6e-GB300): built and run here step by step, its programs by qemu where need be."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from healthd import __version__
from tests.debian_root import debian_root
from tests.emulated import aarch64_programs
from tests.packaging.dockerfile import ROOT, Image, built_image, files_of

DOCKERFILE = ROOT / "packaging" / "container" / "Dockerfile"
SUITE = "trixie"
EM_AARCH64 = 183  # e_machine in elf.h
# The glibc of each is at least as old as that of the distributions that have this Python.
PLATFORMS = ("manylinux2014_aarch64", "manylinux_2_17_aarch64", "manylinux_2_28_aarch64")
NO_INDEX = ("Retrying (", "Could not fetch URL", "Could not install packages due to an OSError")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lock", "python", "compiled"),
    [("kubernetes", "3.11", 3), ("kubernetes", "3.12", 3), ("kubernetes", "3.13", 3), ("build", "3.13", 0)],
)
def test_every_locked_version_has_a_wheel_for_arm64(lock: str, python: str, compiled: int, tmp_path: Path) -> None:
    """What the image and the packages install is there for aarch64 by the hashes of the lock, with nothing to compile.
    ``compiled``: how many of them are machine code."""
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    argv += ["--disable-pip-version-check", f"--python-version={python}", f"--dest={tmp_path}"]
    argv += [*(f"--platform={each}" for each in PLATFORMS), "-r", str(ROOT / "requirements" / f"{lock}.txt")]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=600)
    said = done.stdout + done.stderr
    if any(words in said for words in NO_INDEX):
        pytest.skip(f"no package index to be had here: {said[-300:]}")
    assert done.returncode == 0, said[-2000:]
    found = [each.name for each in tmp_path.glob("*.whl") if not each.stem.endswith("-none-any")]
    assert [name for name in found if "aarch64" not in name] == []
    assert len(found) == compiled, found


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Every stage on Debian's arm64, built as a container engine would."""
    with aarch64_programs():
        debian = debian_root(SUITE, architecture="arm64")
        text = DOCKERFILE.read_text(encoding="utf-8")
        with built_image(text, debian, tmp_path_factory.mktemp("image-arm64")) as image:
            yield image


@pytest.mark.slow
@pytest.mark.root
def test_the_image_for_arm64_runs_healthd(image: Image) -> None:
    """Built from Debian's arm64 and the locks alone, it says its version and gives a verdict on the node it is on."""
    assert image.run("uname", "-m").stdout.strip() == "aarch64"
    done = image.run(*image.stage.entrypoint, "--version")
    assert (done.returncode, done.stdout.strip()) == (0, f"healthd {__version__}"), done.stdout + done.stderr
    for module in ("lightkube", "boto3", "psutil", "msgspec", "yaml", "pynvml", "healthd.remediation.engine"):
        done = image.run("/opt/healthd/bin/python", "-c", f"import {module}")
        assert done.returncode == 0, f"{module}: {done.stderr[-1000:]}"
    done = image.run("healthd", "check", "--no-daemon", "--json", user="0:0")
    assert done.returncode in (0, 1, 2), done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["schema"] == "healthd.verdict/v1"
    unknown = {each["name"]: each["reason"] for each in report["checks"] if each["outcome"] == "unknown"}
    assert not [name for name, reason in unknown.items() if "Error" in reason], unknown


@pytest.mark.slow
@pytest.mark.root
def test_all_machine_code_in_the_image_for_arm64_is_of_arm64(image: Image) -> None:
    """healthd is built as a wheel for any processor, and each library that its dependencies bring is of this one."""
    (built,) = (stage for stage in image.build.stages if (stage.root / "opt" / "wheel").exists())
    (wheel,) = (built.root / "opt" / "wheel").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    libraries = list(files_of(image.stage.root / "opt" / "healthd", "*.so", "*.so.*"))
    machines = {path.name: int.from_bytes(path.read_bytes()[18:20], "little") for path in libraries}
    assert machines
    assert set(machines.values()) == {EM_AARCH64}, machines
