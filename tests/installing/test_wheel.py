"""The wheel, installed by pip into a venv of its own, as docs/how-to/install.md says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from healthd import __version__
from tests.installing.machine import PATH
from tests.installing.page import run, shown
from tests.support.limits import limit_s
from tests.support.running import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.process]


def test_the_wheel_works_in_a_venv_of_its_own(tmp_path: Path) -> None:
    """`pip install` of the wheel, as the page says, and nothing else of this checkout: it runs and finds its checks."""
    source = tmp_path / "source"
    for name in ("healthd", "checks", "remediation", "packaging/bin"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, source)
    (wheel,) = tmp_path.glob("*.whl")
    venv = tmp_path / "venv"
    (tmp_path / "bin").mkdir()
    # pip's name for --no-compile is the other way round in the environment: 0 compiles nothing.
    messages = [
        run("sh", "-c", here(line, tmp_path, wheel), PATH=f"{tmp_path}/bin:{PATH}", PIP_NO_COMPILE="0")
        for line in shown("pip")
    ]
    assert messages[-1] == f"healthd {__version__}"
    environ = {"PATH": PATH, "HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    commands: dict[tuple[str, ...], tuple[int, ...]] = {
        ("checks",): (0,),
        ("config", "validate", "--config", str(tmp_path / "config.toml")): (0,),
        ("check", "--no-daemon", "--json"): (0, 1, 2),
    }
    (tmp_path / "config.toml").write_text('[orchestrator]\nkind = "local"\n')
    for words, codes in commands.items():
        argv = [str(venv / "bin/healthd"), *words]
        done = subprocess.run(
            argv, check=False, capture_output=True, text=True, timeout=limit_s(60), cwd="/", env=environ
        )
        assert done.returncode in codes, f"{words}: {done.returncode}: {done.stderr[-1000:]}"
        assert "Traceback" not in done.stderr


def here(line: str, folder: Path, wheel: Path) -> str:
    """A command of the page, for this folder instead of /opt and /usr/bin, and for the Python that runs this."""
    line = line.replace("/opt/healthd", f"{folder}/venv").replace("/usr/bin", f"{folder}/bin")
    return re.sub(r"\S+\.whl", str(wheel), line).replace("python3 ", f"{sys.executable} ")
