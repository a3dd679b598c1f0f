#!/bin/sh
# healthd's HealthCheckProgram for Slurm; see README.md beside this file.
#
# Asks healthd to look: what is due is checked, and the verdict is fresh when the next job comes. Never fails, because
# slurmd would only log it, and drains nothing: the daemon does that.
# Slurm also runs it once before slurmd registers, and a slow one keeps the node away for so long: it takes 12 s at most.
#
# Slurm runs this with SLURMD_NODENAME and nothing else. HEALTHD and HEALTHD_SOCKET: as in prolog.sh.

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/healthd/bin:/opt/slurm/bin
export PATH

timeout -k 1 12 "${HEALTHD:-healthd}" hook health-check-program
exit 0
