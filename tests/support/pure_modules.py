"""The modules that decide, read from the import contract on purity: one list for coverage and house tests."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTRACT = "Judgement is pure"
_NO_BRANCHES = "healthd.remediation.ports"  # Protocols and plain values


def source_of(module: str) -> Path:
    """Its file below the root, or its folder: ``remediation`` and ``checks`` stand beside ``healthd``."""
    parts = module.split(".")
    return Path(*(parts[1:] if parts[1] in ("checks", "remediation") else parts))


def pure_modules() -> list[str]:
    """As they are imported; a package stands for each of its modules."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = pyproject["tool"]["importlinter"]["contracts"]
    (named,) = (each["source_modules"] for each in contracts if each["name"].startswith(CONTRACT))
    found = []
    for module in named:
        inside = sorted((ROOT / source_of(module)).glob("*.py"))
        found += [f"{module}.{path.stem}" for path in inside if path.stem != "__init__"] or [module]
    return [module for module in found if module != _NO_BRANCHES]
