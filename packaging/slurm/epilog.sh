#!/bin/sh
# healthd's Epilog for Slurm; see README.md beside this file.
#
# Tells healthd that a job has ended, which ends the faults that were the job's own. Never fails: what healthd finds is
# acted on by the daemon, and an Epilog that fails drains the node with the reason "Epilog error".
#
# Slurm runs this with neither PATH nor HOME. HEALTHD and HEALTHD_SOCKET: as in prolog.sh.

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/healthd/bin:/opt/slurm/bin
export PATH

timeout -k 1 12 "${HEALTHD:-healthd}" hook epilog
exit 0
