"""`healthd check` as a cold process from a wheel, beside `python -c pass` of the same interpreter.

Against a daemon the aim is 1.4 times as long and 12 MB. Without a daemon it is 8 times as long for eleven checks of the
host, which is what as many of LBNL NHC take, and 200 ms for all checks. The commands take turns, so that a machine
whose speed drifts treats all alike; medians are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.measure import peak_mb, run, write_down

ROOT = Path(__file__).resolve().parent.parent
AIM_RATIO, AIM_MB = 1.4, 12.0
AIM_HOST_RATIO, AIM_ALL_MS = 8.0, 200.0
HOST = (
    "host.clock",
    "host.cpu",
    "host.expect",
    "host.filesystems",
    "host.kernel",
    "host.memory",
    "host.network",
    "host.processes",
    "host.reach",
    "host.services",
    "storage.xfs",
)


def main() -> int:
    """Build, install, measure, write down. Exit 1 where an aim is missed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("-n", type=int, default=150, help="pairs of runs")
    pairs = options.parse_args().n
    with tempfile.TemporaryDirectory(prefix="healthd-bench-") as folder:
        venv = install_wheel(Path(folder))
        with daemon(venv, Path(folder)) as path:
            figures = measure(venv, path, pairs)
        figures |= measure_alone(venv, Path(folder), max(10, pairs // 5))
    write_down("check_cold", figures)
    is_met = (
        figures["ratio"] <= AIM_RATIO
        and figures["check_peak_mb"] <= AIM_MB
        and figures["host_checks_ratio"] <= AIM_HOST_RATIO
        and figures["all_checks_median_ms"] <= AIM_ALL_MS
    )
    return 0 if is_met else 1


def install_wheel(folder: Path) -> Path:
    """A fresh environment with nothing but the wheel and what it needs."""
    wheels, venv = folder / "wheels", folder / "venv"
    pip = [str(venv / "bin/python"), "-I", "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    build = [sys.executable, "-m", "build", "--outdir", str(wheels), str(ROOT)]
    built = subprocess.run(build, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        raise SystemExit(built.stdout + built.stderr)
    subprocess.run([*pip, "install", str(next(wheels.glob("*.whl")))], check=True)
    return venv


@contextlib.contextmanager
def daemon(venv: Path, folder: Path) -> Iterator[str]:
    """A daemon on this machine, in observe mode, with its checks done once."""
    path, config = folder / "s", folder / "config.toml"
    config.write_text(
        f'[orchestrator]\nkind = "local"\n[daemon]\nsocket = "{path}"\nstate_dir = "{folder}/state"\nhttp = ""\n'
    )
    process = subprocess.Popen([venv / "bin/healthd", "run", "--config", config], stderr=subprocess.DEVNULL)
    try:
        while not path.exists():
            if process.poll() is not None:
                raise SystemExit(f"the daemon ended with {process.returncode} before it listened")
            time.sleep(0.05)
        run([str(venv / "bin/healthd"), "check", "--socket", str(path)])
        time.sleep(1.0)
        yield str(path)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def measure(venv: Path, path: str, pairs: int) -> dict[str, float]:
    """Take turns, and compare medians."""
    os.environ.pop("PYTHONPATH", None)
    python = str(venv / "bin/python")
    nothing, check = [python, "-c", "pass"], [str(venv / "bin/healthd"), "check", "--socket", path]
    run(nothing), run(check)  # warm the page cache
    bare, asked = [], []
    for _ in range(pairs):
        bare.append(run(nothing))
        asked.append(run(check))
    if unusable := {result.code for result in asked} - {0, 1, 2}:
        raise SystemExit(f"healthd check ended with {unusable}")
    return {
        "pairs": pairs,
        "python_pass_median_ms": round(statistics.median(r.seconds for r in bare) * 1000, 2),
        "check_median_ms": round(statistics.median(r.seconds for r in asked) * 1000, 2),
        "ratio": round(statistics.median(a.seconds / b.seconds for a, b in zip(asked, bare, strict=True)), 3),
        "aim_ratio": AIM_RATIO,
        "python_pass_peak_mb": round(peak_of_nothing(python), 1),
        "check_peak_mb": round(peak_of_check(venv, path), 1),
        "aim_mb": AIM_MB,
    }


def measure_alone(venv: Path, folder: Path, rounds: int) -> dict[str, float]:
    """Without a daemon: the host's checks, and all of them; bytecode is cached, as an installed package has it."""
    config = folder / "alone.toml"
    config.write_text(f'[orchestrator]\nkind = "local"\n[daemon]\nstate_dir = "{folder}/alone"\n')
    check = [str(venv / "bin/healthd"), "check", "--no-daemon", "--config", str(config)]
    commands = [[str(venv / "bin/python"), "-c", "pass"], [*check, *HOST], check]
    for command in commands:
        run(command)
    taken = [[run(command) for command in commands] for _ in range(rounds)]
    if unusable := {result.code for of_round in taken for result in of_round} - {0, 1, 2}:
        raise SystemExit(f"healthd check --no-daemon ended with {unusable}")
    return {
        "host_checks_median_ms": round(statistics.median(host.seconds for _, host, _ in taken) * 1000, 1),
        "host_checks_ratio": round(statistics.median(host.seconds / bare.seconds for bare, host, _ in taken), 2),
        "aim_host_checks_ratio": AIM_HOST_RATIO,
        "all_checks_median_ms": round(statistics.median(every.seconds for *_, every in taken) * 1000, 1),
        "all_checks_ratio": round(statistics.median(every.seconds / bare.seconds for bare, _, every in taken), 2),
        "aim_all_checks_median_ms": AIM_ALL_MS,
    }


def peak_of_nothing(python: str) -> float:
    """The peak of a bare interpreter, told by itself."""
    code = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    return int(subprocess.check_output([python, "-c", code])) / 1024


def peak_of_check(venv: Path, daemon_socket: str) -> float:
    """The peak of the client, read while it waits for the end of an answer that it already has in full."""
    between = f"{daemon_socket}.between"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(between)
        listener.listen()
        client = subprocess.Popen([venv / "bin/healthd", "check", "--socket", between], stdout=subprocess.DEVNULL)
        connection, _ = listener.accept()
        with connection, socket.socket(socket.AF_UNIX) as upstream:
            upstream.connect(daemon_socket)
            upstream.sendall(everything(connection))
            upstream.shutdown(socket.SHUT_WR)
            connection.sendall(everything(upstream))
            time.sleep(0.2)
            peak = peak_mb(client.pid)
        client.wait(timeout=10)
    return peak


def everything(connection: socket.socket) -> bytes:
    """All that comes until the other side has said all."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


if __name__ == "__main__":
    sys.exit(main())
