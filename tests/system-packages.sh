#!/bin/sh
# Installs what the integration tests need and a fresh Debian or Ubuntu lacks.
#   sh tests/system-packages.sh [SET ...]
# Sets, of which all but image and arm64 are meant where none is named: slurm (with munge), fuse (and XFS), compiler (C), debian
# (debootstrap, for roots and namespaces of their own), prometheus, packages (what builds and lints them), browser (Chromium with fonts, for the
# status page); image (what builds the container image), arm64 (qemu, for programs of the other processor).
# Needs root and apt-get; without them it says what is missing, and the tests that need it are skipped and say so.
# No service is started by the installation.
set -eu
PATH=$PATH:/usr/sbin:/sbin

missing=
# COMMAND PACKAGE ...: the packages are missing where the command is.
need() {
    command=$1
    shift
    command -v "$command" >/dev/null || missing="$missing $*"
}

test $# -gt 0 || set -- slurm fuse compiler debian prometheus packages browser
for set in "$@"; do
    case $set in
    slurm)
        need slurmctld slurmctld
        need slurmd slurmd
        need scontrol slurm-client
        need munged munge
        ;;
    fuse)
        need fusermount3 fuse3
        need mkfs.xfs xfsprogs
        ;;
    compiler)
        need cc gcc
        # A compiler without the C library's headers compiles nothing.
        test -e /usr/include/stdio.h || missing="$missing libc6-dev"
        ;;
    debian)
        need debootstrap debootstrap
        # Of what debootstrap loads, this verifies the signature.
        test -e /usr/share/keyrings/debian-archive-keyring.gpg || missing="$missing debian-archive-keyring"
        need ip iproute2
        ;;
    prometheus)
        need promtool prometheus
        need amtool prometheus-alertmanager
        ;;
    packages)
        need rpmbuild rpm
        need rpmlint rpmlint
        need cpio cpio
        need shellcheck shellcheck
        # What reads man pages and completions.
        need groff groff-base
        need zsh zsh
        need fish fish
        need git git
        # make test stages a package with the distribution's own Python.
        /usr/bin/python3 -c 'import ensurepip' 2>/dev/null || missing="$missing python3-venv"
        ;;
    # The browser has several names; a page without fonts has no width worth testing.
    browser) command -v google-chrome >/dev/null || need chromium chromium fonts-dejavu-core ;;
    image)
        need buildah buildah
        need mmdebstrap mmdebstrap
        ;;
    arm64) test "$(uname -m)" = aarch64 || need qemu-aarch64-static qemu-user-static ;;
    *)
        echo "tests/system-packages.sh: '$set' is no set of packages" >&2
        exit 64
        ;;
    esac
done
test -n "$missing" || exit 0

skip() {
    echo "tests/system-packages.sh: $1: not installed:$missing" >&2
    echo "The tests that need them are skipped and listed at the end." >&2
    exit 0
}
command -v apt-get >/dev/null || skip "no apt-get here"
test "$(id -u)" -eq 0 || skip "not root"

# The distribution asks this file before it starts a service; exit code 101 forbids it (invoke-rc.d, policy-rc.d).
policy=/usr/sbin/policy-rc.d
if ! test -e "$policy"; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' INT TERM HUP
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi

echo "tests/system-packages.sh: installing$missing"
log=$(mktemp)
# shellcheck disable=SC2086  # a list of package names
if apt-get update -qq >"$log" 2>&1 &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >>"$log" 2>&1; then
    rm -f "$log"
else
    tail -n 20 "$log" >&2
    rm -f "$log"
    skip "apt-get failed (see above)"
fi
