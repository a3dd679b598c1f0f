#!/bin/sh
# healthd's Epilog for Slurm; see README.md beside this file.
#
# Tells healthd that a job has ended, which ends the faults that were the job's own. Exits 1, which tells slurmctld that
# this node is to blame for the job's end, only when healthd itself said so: it drained the node with its own reason,
# and Slurm asks its Epilogs (25.11 and newer, enable_expedited_requeue). Everything else (healthd missing, broken,
# hung, out of time) exits 0: an Epilog that fails for any other cause drains the node with the reason "Epilog error".
#
# Slurm runs this with neither PATH nor HOME. HEALTHD and HEALTHD_SOCKET: as in prolog.sh.

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/healthd/bin:/opt/slurm/bin
export PATH

# healthd keeps to 10 s by itself; timeout is for a Python that does not even start.
ask() {
    said=$(timeout -k 1 12 "${HEALTHD:-healthd}" hook epilog 2>&3)
    code=$?
}
# 137: something killed it, as the OOM killer may. An Epilog judges its job once, however often it is asked.
{ ask; test "$code" -ne 137 || ask; } 3>&2

newline='
'
case "$code:$newline$said" in
"1:"*"${newline}blame healthd: "*)
    printf '%s\n' "$said"
    exit 1
    ;;
"0:"*) exit 0 ;;
*)
    words="epilog of job ${SLURM_JOB_ID:-?} ended with $code without a verdict; it reports no fault to Slurm"
    echo "healthd: $words" >&2
    timeout 2 logger -t healthd -p daemon.err -- "$words" 2>/dev/null
    exit 0
    ;;
esac
