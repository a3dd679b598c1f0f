"""Removes from an installed botocore the models of the services that healthd never calls: 16 of 42 MB of a package.

    python packaging/trim_botocore.py SITE_PACKAGES

Kept are the services of healthd's table of calls, in the one version that a client uses, and those that botocore itself
calls for credentials. It runs when a package is staged (packaging/stage.sh), with the standard library alone.
"""

from __future__ import annotations

import csv
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

# Web identities and assumed roles; IAM Identity Center with its tokens; `aws login` (botocore.credentials).
FOR_CREDENTIALS = frozenset({"sts", "sso", "sso-oidc", "signin"})
# Read by a person, never by a client.
_EXAMPLES = "examples-1.json"


def services(site: Path) -> frozenset[str]:
    """The services whose models a package needs, by the table of calls that is installed below ``site``."""
    table = site / "healthd" / "remediation" / "data" / "aws_calls.csv"
    with table.open(encoding="utf-8", newline="") as lines:
        called = frozenset(row["service"] for row in csv.DictReader(lines))
    if not called:
        raise SystemExit(f"packaging/trim_botocore.py: {table} names no service")
    return called | FOR_CREDENTIALS


def unused(data: Path, needed: frozenset[str]) -> Iterator[Path]:
    """Folders and files below botocore's ``data`` that no client of a needed service reads."""
    if missing := needed - {path.name for path in data.iterdir()}:
        raise SystemExit(f"packaging/trim_botocore.py: {data} has no model of {', '.join(sorted(missing))}")
    for service in sorted(path for path in data.iterdir() if path.is_dir()):
        if service.name not in needed:
            yield service
            continue
        *older, newest = sorted(path for path in service.iterdir() if path.is_dir())
        yield from older
        yield from newest.glob(_EXAMPLES)


def trim(site: Path) -> int:
    """Remove what is not used; how many bytes that were."""
    freed = 0
    for path in unused(site / "botocore" / "data", services(site)):
        files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
        freed += sum(each.stat().st_size for each in files)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return freed


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python packaging/trim_botocore.py SITE_PACKAGES")
    sys.stdout.write(f"botocore: {trim(Path(sys.argv[1])) / 1e6:.1f} MB of models removed\n")
