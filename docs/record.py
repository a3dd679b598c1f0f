"""Writes the recording in the README again: the output of `healthd demo`, shortened.

    python docs/record.py            run the demo, which takes a quarter of a minute, and write
    python docs/record.py --check    write nothing; exit 1 if the README shows something else

Left out are the results of single checks and what was waited for, because their number and order are the machine's.
Temporary paths, times and ids differ from run to run and are not compared. tests/daemon/test_demo.py compares.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN, END = "<!-- recording: begin -->\n", "<!-- recording: end -->\n"
_LEFT_OUT = re.compile(
    r"  \S+  (check |daemon    judged \d+ kernel lines|step      \[\w+\] (out until|healthy again; settling:))"
)
_SHORTER = (
    (re.compile(r"/\S+/healthd-demo-\w+"), "…"),
    (re.compile(r"(\b[0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), r"\1-…"),
    (re.compile(r"(without nvidia-smi: not installed;).*"), r"\1 …"),
)
_OF_THIS_RUN = (
    (re.compile(r"\d\d:\d\d:\d\d(\.\d+)?"), "TIME"),
    (re.compile(r"\b[0-9a-f]{8}\b"), "ID"),
    (re.compile(r"ok \d+ checks.*"), "ok checks"),  # what else there is to check is the machine's
    (re.compile(r"[\d.]+ s in all"), "S in all"),
    (re.compile(r"; without nvidia-smi.*"), ""),  # where there is one, it is collected
)


def shortened(output: str) -> str:
    """The excerpt of a run for the README."""
    return "\n".join(_lines(output)) + "\n"


def _lines(output: str) -> Iterator[str]:
    cut = False
    for line in output.rstrip().splitlines():
        if _LEFT_OUT.match(line):
            if not cut:
                yield "  …"
            cut = True
            continue
        cut = False
        for pattern, short in _SHORTER:
            line = pattern.sub(short, line)  # noqa: PLW2901 - one line, made shorter step by step
        yield line


def comparable(recording: str) -> list[str]:
    """A recording without what is different in every run."""
    lines = [line for line in recording.splitlines() if line.strip() not in ("", "…")]
    for pattern, same in _OF_THIS_RUN:
        lines = [pattern.sub(same, line) for line in lines]
    return lines


def recorded() -> str:
    """The present recording in the README."""
    _, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    inside, _, _ = rest.partition(END)
    return inside.strip().removeprefix("```text\n").removesuffix("```")


def main(arguments: Sequence[str]) -> int:
    """Run the demo; write, or compare."""
    done = subprocess.run(
        [sys.executable, "-m", "healthd", "demo"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    made = shortened(done.stdout)
    same = comparable(made) == comparable(recorded())
    if "--check" in arguments:
        sys.stdout.write("as in the README\n" if same else f"the README shows something else than:\n{made}")
        return 0 if same else 1
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{BEGIN}\n```text\n{made}```\n\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
