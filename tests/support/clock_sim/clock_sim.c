/*
 * A wall clock that a test sets, for one process and its children: preloaded, it adds to every reading of it what the
 * file named by CLOCK_SIM holds, eight bytes, whole seconds. What is monotonic stays as it is. Nothing of the machine's
 * own clock is touched.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *set_by;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("CLOCK_SIM");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *found = MAP_FAILED;

    if (file >= 0) {
        found = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        close(file);
    }
    set_by = found == MAP_FAILED ? NULL : found;
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
    int code = (int)syscall(SYS_clock_gettime, clock, at);

    if (code == 0 && set_by && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        at->tv_sec += *set_by;
    return code;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    struct timespec now;

    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at)
{
    struct timespec now;

    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}
