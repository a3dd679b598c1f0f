"""Takes out of every RECORD below a site-packages the files that are not there: what a package leaves out.

    python packaging/correct_records.py SITE_PACKAGES

It runs when a package is staged (packaging/staging.sh), with the standard library alone.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path


def correct(site: Path) -> None:
    """Rewrite each RECORD that names a file which is not there."""
    for record in sorted(site.glob("*.dist-info/RECORD")):
        lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
        there = [line for line, (name, *_) in zip(lines, csv.reader(lines), strict=True) if (site / name).exists()]
        if there != lines:
            record.write_text("".join(there), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python packaging/correct_records.py SITE_PACKAGES")
    correct(Path(sys.argv[1]))
