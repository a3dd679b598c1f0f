"""What the tests of both kinds of package start from."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.installing.page import run

SYSTEM_PYTHON = Path("/usr/bin/python3")


@pytest.fixture(scope="session")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a package for this machine's distribution alone is made of: a venv of its Python, which takes seconds."""
    if not SYSTEM_PYTHON.exists():
        pytest.skip(f"no {SYSTEM_PYTHON} here, which a package of healthd can link to")
    version = run(SYSTEM_PYTHON, "-c", "import sys; print(sys.version_info >= (3, 11))")
    have = subprocess.run([SYSTEM_PYTHON, "-c", "import ensurepip"], check=False, capture_output=True).returncode == 0
    if version != "True" or not have:
        pytest.skip(f"{SYSTEM_PYTHON} is older than 3.11, or has no ensurepip: apt-get install python3-venv")
    folder = tmp_path_factory.mktemp("staged")
    run("sh", "packaging/stage.sh", folder, PYTHON=str(SYSTEM_PYTHON))
    return folder


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the packages are made of, with their own CPython, for this machine's processor. Of `make test-packages`."""
    return _staged(tmp_path_factory.mktemp("own"), "")


@pytest.fixture(scope="session")
def own_arm64(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for arm64, cross-compiled where this machine is of another processor."""
    return _staged(tmp_path_factory.mktemp("own-arm64"), "arm64")


@pytest.fixture(scope="session")
def nccl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the package healthd-nccl is made of, for this machine's processor."""
    return _staged(tmp_path_factory.mktemp("nccl"), "", "stage-nccl.sh")


@pytest.fixture(scope="session")
def nccl_arm64(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for arm64."""
    return _staged(tmp_path_factory.mktemp("nccl-arm64"), "arm64", "stage-nccl.sh")


def _staged(folder: Path, architecture: str, script: str = "stage.sh") -> Path:
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("CPython is compiled in a root of its own: needs root and debootstrap")
    run("sh", f"packaging/{script}", folder, PYTHON="", ARCH=architecture)
    return folder


@pytest.fixture(scope="session")
def debs(staged: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The package for this machine's distribution alone, and a rebuild of it."""
    return _built_twice(staged, tmp_path_factory.mktemp("deb"))


@pytest.fixture(scope="session")
def own_debs(own: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The package with its own CPython, and a rebuild of it."""
    return _built_twice(own, tmp_path_factory.mktemp("own-deb"))


def _built_twice(staged: Path, folder: Path) -> tuple[Path, Path]:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb here: apt-get install dpkg")
    first, second = (
        Path(run("sh", "packaging/deb/build.sh", folder, STAGED=str(staged), DEB_COMPRESSION="none", REVISION=revision))
        for revision in ("1", "2")
    )
    return first, second
