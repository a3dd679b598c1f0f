#!/bin/sh
# healthd's Prolog for Slurm; see README.md beside this file.
#
# Exits 1, which refuses the job, only when healthd itself said so: the node is critical and was drained with healthd's
# own reason. Everything else (healthd missing, broken, hung, out of time) lets the job pass: a Prolog that fails for
# any other cause drains node after node with the reason "Prolog error".
#
# Slurm runs this with neither PATH nor HOME. Set these here where yours differ:
#   HEALTHD          the healthd command                 (found in the PATH below)
#   HEALTHD_SOCKET   the daemon's socket, if it was moved (/run/healthd/healthd.sock)

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/healthd/bin:/opt/slurm/bin
export PATH

# healthd keeps to 10 s by itself; timeout is for a Python that does not even start.
ask() {
    said=$(timeout -k 1 12 "${HEALTHD:-healthd}" hook prolog 2>&3)
    code=$?
}
# 137: something killed it, as the OOM killer may. A Prolog drains its node once, however often it is asked.
{ ask; test "$code" -ne 137 || ask; } 3>&2

newline='
'
case "$code:$newline$said" in
"1:"*"${newline}print healthd: "*) ;;
"0:"*) exit 0 ;;
*)
    words="prolog of job ${SLURM_JOB_ID:-?} ended with $code without a refusal; the job passes"
    echo "healthd: $words" >&2
    timeout 2 logger -t healthd -p daemon.err -- "$words" 2>/dev/null
    exit 0
    ;;
esac

# Slurm 22.05 writes a Prolog's output to slurmd's log alone. The owner gets it in two other ways: srun and salloc print
# the notice; for a batch job the text is in `scontrol show job`, as AdminComment, also once requeued. A comment of
# others stays there, before it: where that cannot be read, or has no room left, nothing is written.
# The job waits for its refusal: all of this has 6 s, of which a client gets 2 at most, and 1 more to be killed in.
printf '%s\n' "$said"
words=${said#*"print "}
end=$(($(date +%s) + 6))
within() {
    left=$((end - $(date +%s)))
    test "$left" -gt 0 || return 1
    timeout -k 1 $((left < 2 ? left : 2)) "$@" 2>/dev/null
}
within scontrol notify "${SLURM_JOB_ID:-0}" "$words" >/dev/null
# squeue prints the comment alone: beside a text that a user chose, such as the job's name, another could pass for it.
# slurmctld has no append: the daemon may write its notice of the drain between our read and our write, so this reads it again.
for attempt in 1 2 3; do
    shown=$(within squeue -h -a -t all -j "${SLURM_JOB_ID:-0}" -O "admin_comment:|") || break
    there=${shown%|}
    test "$there" != "(null)" || there=
    text=$there${there:+; }$words
    case "$there" in
    *"$words"* | *"|"*) break ;; # it is there, or another job's is as well
    esac
    test ${#text} -le 1000 || break
    within scontrol update "jobid=${SLURM_JOB_ID:-0}" "admincomment=$text" >/dev/null
    test "$attempt" -eq 3 || sleep 0.1
done
exit 1
