"""`python -m tests.fuzz`: the long form. Slices of CPU time go round over the targets until there are enough inputs."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from tests.fuzz.distil import distilled
from tests.fuzz.growth import growths
from tests.fuzz.run import fuzzed, smaller
from tests.fuzz.target import CORPUS
from tests.fuzz.targets import TARGETS

FOUND = Path("build/fuzz")
"""Where an input that fails is written."""
_SLICE_S = 5.0


def main(argv: Sequence[str]) -> int:
    """Fuzz, or distil the corpus; 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all of them")
    parser.add_argument("--inputs", type=int, default=10_000_000, help="how many, all targets together (10 million)")
    parser.add_argument("--workers", type=int, default=2, help="processes (2)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="another one each time")
    parser.add_argument("--distil", action="store_true", help="write inputs that reach new lines into the corpus")
    options = parser.parse_args(argv)
    names = tuple(options.targets or TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    if options.distil:
        for name in names:
            print(f"{name}: {distilled(TARGETS[name], options.seed)} inputs in {CORPUS / name}", flush=True)
        return 0
    return _fuzz(names, options)


def _fuzz(names: Sequence[str], options: argparse.Namespace) -> int:
    print(f"seed {options.seed}, {len(names)} targets, {options.inputs} inputs", flush=True)
    inputs, took_s, slowest_s = Counter[str](), defaultdict[str, float](float), defaultdict[str, float](float)
    failures: dict[tuple[str, str], bytes] = {}
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        for number, names_now in enumerate(_rounds(names, inputs, options.inputs)):
            jobs = [pool.submit(fuzzed, name, options.seed + number, _SLICE_S) for name in names_now]
            for job in as_completed(jobs):
                done = job.result()
                inputs[done.target] += done.inputs
                took_s[done.target] += done.took_s
                slowest_s[done.target] = max(slowest_s[done.target], done.slowest_s)
                failures.update({(done.target, wrong): data for wrong, data in done.failures.items()})
            print(f"{sum(inputs.values())} inputs, {len(failures)} failures", file=sys.stderr, flush=True)
    for name in names:
        rate = inputs[name] / max(took_s[name], 1e-9)
        print(f"{name:<20} {inputs[name]:>9} inputs {rate:>8.0f} /s, the slowest {1000 * slowest_s[name]:.1f} ms")
    _tell(failures)
    steep = [str(each) for name in names for each in growths(TARGETS[name]) if not each.is_linear]
    print(*(f"NOT LINEAR {each}" for each in steep), sep="\n", end="\n" if steep else "")
    print(f"{sum(inputs.values())} inputs, {len(failures)} failures, {len(steep)} steeper than linear")
    return 1 if failures or steep else 0


def _rounds(names: Sequence[str], inputs: Counter[str], wanted: int) -> Iterator[Sequence[str]]:
    while sum(inputs.values()) < wanted:
        yield names


def _tell(failures: dict[tuple[str, str], bytes]) -> None:
    for number, ((name, wrong), data) in enumerate(sorted(failures.items())):
        small = smaller(TARGETS[name], data)
        path = FOUND / name / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(small)
        print(f"FAILED {name}: {wrong}: {path}: {small[:200]!r}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
