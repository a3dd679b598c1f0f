#!/bin/sh
# Installs healthd on a node while a platform sets it up: SageMaker HyperPod (lifecycle script), AWS ParallelCluster
# (custom bootstrap action), EC2 user data. The documents for Systems Manager and EC2 Image Builder have it inside.
#
# Usage: on-node.sh [--required] [--image] [--nccl PACKAGE] PACKAGE [CONFIG]
#   PACKAGE   the .deb or .rpm that fits this node: a path, or an address that begins with s3:// or https://
#   CONFIG    a config.toml, in the same way; without it `healthd init` writes one, or none where a node has one already
#   --required  fail, where healthd could not be set up (HEALTHD_REQUIRED=1 does the same)
#   --image     for a machine image: stop the daemon and delete its state, and write no configuration of this machine
#   --nccl      healthd-nccl of the same version, for the active tests: both packages are installed together
# HEALTHD_SHA256 and HEALTHD_NCCL_SHA256 are the checksums of the packages, both or none; another package is not installed.
#
# Head, controller and login nodes are passed over. Run as root; running it again is an upgrade.
#
# Never fails: both platforms take a script that fails for a node that failed, and replace it, again and again. Errors go
# to syslog (healthd-setup) and to stderr. --required makes it fail.
# HEALTHD_ROOT is a folder to work in instead of /, for the test of this script.
set -u
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
root=${HEALTHD_ROOT:-}

say() {
    echo "healthd-setup: $1" >&2
    logger -t healthd-setup -- "$1" 2>/dev/null || true
}

give_up() {
    say "$1; healthd was not set up on this node"
    test "${HEALTHD_REQUIRED:-0}" = 1 && exit 1
    exit 0
}

# Whether jobs run here. ParallelCluster says in cfnconfig what a node is; on HyperPod the node's group is found by its
# address in resource_config.json, and provisioning_parameters.json names the groups that run no jobs.
runs_jobs() {
    if test -r "$root/etc/parallelcluster/cfnconfig"; then
        grep -Eq '^cfn_node_type="?ComputeFleet' "$root/etc/parallelcluster/cfnconfig"
    elif test -r "$root/opt/ml/config/resource_config.json"; then
        HEALTHD_ADDRESSES=${HEALTHD_ADDRESSES:-$(hostname -I)} python3 - "$root/opt/ml/config" "$(dirname "$0")" <<'PYTHON'
import json, os, sys
from pathlib import Path

config, scripts = map(Path, sys.argv[1:])
groups = json.loads((config / "resource_config.json").read_text())["InstanceGroups"]
ours = os.environ["HEALTHD_ADDRESSES"].split()
mine = [g["Name"] for g in groups for i in g.get("Instances") or [] if i.get("CustomerIpAddress") in ours]
named = {}
for folder in (scripts, config):
    if (folder / "provisioning_parameters.json").exists():
        named = json.loads((folder / "provisioning_parameters.json").read_text())
        break
sys.exit(3 if mine and mine[0] in (named.get("controller_group"), named.get("login_group")) else 0)
PYTHON
        # Only a clear no is one: where python3 is missing or a file is not what it was, healthd is installed.
        test $? -ne 3
    fi
}

# Sets $found to where the file of address $1 is now, and $shown to the address up to a "?": behind it a presigned one has
# its signature, which is no part of a name, and which syslog must not have.
find_file() {
    shown=${1%%\?*}
    found=$work/${shown##*/}
    # A server that stops in the middle of a file would hold the node's set-up for ever: curl has no bound of its own.
    case $1 in
    s3://*) timeout -k 10 600 aws s3 cp --only-show-errors "$1" "$found" >&2 ;;
    https://*) timeout -k 10 600 curl -fsSL --retry 3 -o "$found" "$1" >&2 ;;
    *)
        # A path without a slash would be the name of a package for apt and dnf.
        case $1 in /*) found=$1 ;; *) found=$PWD/$1 ;; esac
        test -r "$found"
        ;;
    esac || give_up "$shown cannot be read within 10 minutes; look at the path, the network, and the role's right to s3:GetObject"
}

# find_file, and give up where the package has not the checksum $2, if there is one.
find_package() {
    find_file "$1"
    test -z "$2" || echo "$2  $found" | sha256sum -c - >&2 || give_up "$shown is not the package of this checksum"
}

install_packages() {
    case $1 in
    *.deb)
        # Another installation may be under way while a node starts: wait for its lock. And a roll-out that is taken back
        # installs the version before, which dnf does unasked.
        set -- -o DPkg::Lock::Timeout=300 install -y --no-install-recommends --allow-downgrades "$@"
        export DEBIAN_FRONTEND=noninteractive
        apt-get "$@" || {
            # Where a set-up ended in the middle, such as by a reboot, apt-get does nothing before this.
            dpkg --configure -a </dev/null
            apt-get -o DPkg::Lock::Timeout=300 update && apt-get "$@"
        }
        ;;
    # The second time without the repositories, which a node without a way out cannot read, and of which nothing is needed.
    *.rpm) dnf install -y "$@" || dnf install -y --disablerepo='*' "$@" ;;
    *)
        say "$1: neither a .deb nor an .rpm"
        return 1
        ;;
    esac >&2
}

image=
nccl=
while :; do
    case ${1:-} in
    --required) HEALTHD_REQUIRED=1 ;;
    --image) image=1 ;;
    --nccl)
        nccl=${2:-}
        shift
        ;;
    *) break ;;
    esac
    test $# -eq 0 || shift
done
test -n "${1:-}" || { sed -n '5,11p' "$0" >&2; give_up "no package was named"; }
runs_jobs || { say "no jobs run on this node: healthd is not installed here"; exit 0; }
work=$(mktemp -d) || give_up "no room for a temporary folder"
trap 'rm -rf "$work"' EXIT

find_package "$1" "${HEALTHD_SHA256:-}"
package=$found
named=$shown
if test -n "$nccl"; then
    test -z "${HEALTHD_SHA256:-}" || test -n "${HEALTHD_NCCL_SHA256:-}" ||
        give_up "HEALTHD_NCCL_SHA256 or NcclSha256 is empty; give the SHA-256 of ${nccl%%\?*}, as in SHA256SUMS"
    find_package "$nccl" "${HEALTHD_NCCL_SHA256:-}"
    nccl=$found
fi

config=
if test -n "${2:-}"; then
    find_file "$2"
    config=$found
fi

install_packages "$package" ${nccl:+"$nccl"} || give_up "$named was not installed${nccl:+, nor was ${nccl##*/}}"
if test -n "$config"; then
    # Before it takes the place of one that works.
    healthd config validate --config "$config" >&2 || give_up "$shown is not valid, and $root/etc/healthd is as it was"
    # At once: half a file, of a disk that is full or of a set-up that was killed, would be another configuration.
    new=$root/etc/healthd/.config.toml.new
    { install -D -m 644 "$config" "$new" && mv -f "$new" "$root/etc/healthd/config.toml"; } ||
        { rm -f "$new"; give_up "$root/etc/healthd/config.toml cannot be written"; }
elif test -z "$image" && ! test -e "$root/etc/healthd/config.toml"; then
    healthd init >&2 || say "healthd init wrote no configuration; healthd runs with its defaults, and only observes"
fi
healthd config validate >&2 || give_up "$root/etc/healthd/config.toml is not valid"
systemctl enable healthd.service >&2 || give_up "healthd.service cannot be enabled"
if test -n "$image"; then
    # Where the base of this image has healthd as well, it ran on this machine: others must not begin with its faults.
    systemctl stop healthd.service >&2 || give_up "healthd.service cannot be stopped"
    rm -rf "$root/var/lib/healthd" || give_up "$root/var/lib/healthd cannot be removed"
    say "$(healthd --version) is in this image, and starts with each machine"
    exit 0
fi
systemctl restart healthd.service >&2 || give_up "healthd.service does not start; see journalctl -u healthd"
say "$(healthd --version) runs on this node"
