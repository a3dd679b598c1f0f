"""What the tests of both kinds of package start from."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.installing.page import run

SYSTEM_PYTHON = Path("/usr/bin/python3")


@pytest.fixture(scope="session")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What both packages are made of, made once, with the Python of this machine's distribution."""
    if not SYSTEM_PYTHON.exists():
        pytest.skip(f"no {SYSTEM_PYTHON} here, which a package of healthd runs on")
    version = run(SYSTEM_PYTHON, "-c", "import sys; print(sys.version_info >= (3, 11))")
    have = subprocess.run([SYSTEM_PYTHON, "-c", "import ensurepip"], check=False, capture_output=True).returncode == 0
    if version != "True" or not have:
        pytest.skip(f"{SYSTEM_PYTHON} is older than 3.11, or has no ensurepip: apt-get install python3-venv")
    folder = tmp_path_factory.mktemp("staged")
    run("sh", "packaging/stage.sh", folder)
    return folder


@pytest.fixture(scope="session")
def debs(staged: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The package, and a rebuild of it."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb here: this is no Debian")
    folder = tmp_path_factory.mktemp("deb")
    built = [
        Path(run("sh", "packaging/deb/build.sh", folder, STAGED=str(staged), DEB_COMPRESSION="none", REVISION=revision))
        for revision in ("1", "2")
    ]
    return built[0], built[1]
