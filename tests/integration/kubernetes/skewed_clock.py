"""A wall clock that is wrong by as many seconds as a file says, for one process: a library that is loaded first.

Only CLOCK_REALTIME is moved, as an operator or NTP moves it; nothing else of the machine sees it.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long skew(void)
{
    static int file = -2;
    char text[32];
    ssize_t size;
    if (file == -2) {
        const char *path = getenv("SKEW_FILE");
        file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    }
    size = file < 0 ? 0 : pread(file, text, sizeof text - 1, 0);
    text[size > 0 ? size : 0] = 0;
    return atol(text);
}

int clock_gettime(clockid_t id, struct timespec *at)
{
    static int (*real)(clockid_t, struct timespec *);
    int failed;
    if (!real)
        real = dlsym(RTLD_NEXT, "clock_gettime");
    failed = real(id, at);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        at->tv_sec += skew();
    return failed;
}

time_t time(time_t *out)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    return out ? (*out = at.tv_sec) : at.tv_sec;
}

int gettimeofday(struct timeval *at, void *zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


def build(folder: Path) -> Path:
    """Compile the library into ``folder``; skips where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: see tests/system-packages.sh")
    source, library = folder / "skewed_clock.c", folder / "skewed_clock.so"
    source.write_text(_SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


class SkewedClock:
    """One process's clock. ``environ``: with which it is started."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.is_off_by(0)
        self.environ = {"LD_PRELOAD": str(library), "SKEW_FILE": str(file)}

    def is_off_by(self, seconds: int) -> None:
        """From now on; a fixed width, so that no reader meets half a number."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(b"%+012d" % seconds)
