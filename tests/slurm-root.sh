#!/bin/sh
# Runs the live Slurm tests on one version of Slurm, as its distribution ships it and with that distribution's Python.
#   sh tests/slurm-root.sh VERSION [PYTEST_ARGUMENT ...]
# VERSION is 22.05 (Debian 12), 24.11 (Debian 13), 26.05 (Debian testing), or "" for the one that is installed here.
# A version that is not installed here gets a root of its own, made once by debootstrap and kept in
# $HEALTHD_SLURM_ROOTS (default: ~/.cache/healthd/slurm-roots). Needs root, unshare and debootstrap. The mirror is
# debootstrap's own, or $HEALTHD_TEST_DEBIAN_MIRROR; pip is configured as it is here. Everything is mounted in a
# namespace of its own, which ends with the run.
# $HEALTHD_SLURM_TESTS replaces the paths below. $HEALTHD_SLURM_MODULE, such as bench.bench_job_restart, is run instead
# of the tests, with the arguments.
set -eu
PATH=$PATH:/usr/sbin:/sbin
cd "$(dirname "$0")/.."

roots=${HEALTHD_SLURM_ROOTS:-$HOME/.cache/healthd/slurm-roots}
TESTS=${HEALTHD_SLURM_TESTS:-tests/live tests/contract/test_orchestrators.py}
PACKAGES=slurmctld,slurmd,slurm-client,munge,python3,python3-venv,ca-certificates,procps,iproute2,gcc,libc6-dev,git
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

die() {
    echo "tests/slurm-root.sh: $*" >&2
    exit 2
}

suite_of() {
    case $1 in
    22.05) echo bookworm ;;
    24.11) echo trixie ;;
    26.05) echo forky ;;
    *) die "no distribution is known for Slurm '$1'; known: 22.05, 24.11, 26.05" ;;
    esac
}

# "slurm-wlm 22.05.8" -> 22.05
version_in() {
    sed -n 's/^[^0-9]*\([0-9]*\.[0-9]*\)\..*/\1/p'
}

make_root() {
    command -v debootstrap >/dev/null || die "needs debootstrap (apt-get install debootstrap)"
    test -e "$KEYRING" || die "needs the package debian-archive-keyring"
    mkdir -p "$roots"
    # An older debootstrap does not know the youngest suites; all of them are made alike.
    script=/usr/share/debootstrap/scripts/$suite
    test -e "$script" || script=/usr/share/debootstrap/scripts/sid
    unfinished=$roots/.$version.$$
    trap 'rm -rf "$unfinished"' EXIT
    echo "tests/slurm-root.sh: making a root of $suite for Slurm $version in $root (minutes)"
    if ! debootstrap --variant=minbase "--keyring=$KEYRING" "--include=$PACKAGES" "$suite" "$unfinished" \
        "${HEALTHD_TEST_DEBIAN_MIRROR:-}" "$script" >"$roots/$version.log" 2>&1; then
        tail -n 20 "$roots/$version.log" >&2
        die "no root of $suite could be made"
    fi
    mv -T "$unfinished" "$root"
    trap - EXIT
}

# Runs in the namespace: what is mounted here is gone with it.
inside() {
    root=$1 work=$1/checkout
    shift
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/tmp"
    mkdir -p "$work" "$root/etc/ssl/certs"
    mount -t tmpfs tmpfs "$work"
    tar -c --exclude=./.git --exclude=./.venv --exclude=./build --exclude=./dist . | tar -x --no-same-owner -C "$work"
    for file in /etc/hosts /etc/resolv.conf /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
        test ! -e "$file" || cp -L "$file" "$root$file"
    done
    if [ -d "${PIP_FIND_LINKS:-}" ]; then
        mkdir -p "$root$PIP_FIND_LINKS"
        mount --rbind "$PIP_FIND_LINKS" "$root$PIP_FIND_LINKS"
    else
        unset PIP_FIND_LINKS
    fi
    needs=$(cat requirements/build.txt requirements/dev.txt | sha256sum | cut -c1-16)
    project=$(sha256sum <pyproject.toml | cut -c1-16)
    # shellcheck disable=SC2016  # the variables are the inner shell's
    chroot "$root" /bin/sh -ec '
        export HOME=/root LC_ALL=C.UTF-8 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
        module=${HEALTHD_SLURM_MODULE:-}
        unset HEALTHD_SLURM_TESTS HEALTHD_SLURM_MODULE PYTHONPATH  # the last names a folder outside
        venv=/opt/healthd-venv needs=$1 project=$2 tests=$3
        shift 3
        cd /checkout
        pip="$venv/bin/python -m pip install --quiet"
        if ! test -e "$venv/$needs"; then
            rm -rf "$venv"
            python3 -m venv "$venv"
            $pip --require-hashes -r requirements/build.txt -r requirements/dev.txt
            touch "$venv/$needs"
        fi
        if ! test -e "$venv/$project"; then
            $pip --no-build-isolation --no-deps --config-settings editable_mode=compat --editable .
            touch "$venv/$project"
        fi
        ln -s "$venv" .venv
        echo "tests/slurm-root.sh: $(slurmctld -V), $(python3 -V)"
        test -z "$module" || exec "$venv/bin/python" -m "$module" "$@"
        exec "$venv/bin/python" -m pytest -p no:cacheprovider -m slurm "$@" $tests
    ' sh "$needs" "$project" "$TESTS" "$@"
}

if [ "${1:-}" = --inside ]; then
    shift
    inside "$@"
    exit
fi

unset HEALTHD_SLURM_ROOTS # healthd takes each HEALTHD_ variable for a setting of its own
version=${1:-}
test $# -eq 0 || shift
here=$(slurmctld -V 2>/dev/null | version_in || true)
if [ -z "$version" ] || [ "$version" = "$here" ]; then
    test -n "$here" || die "no Slurm is installed here; name a version: 22.05, 24.11 or 26.05"
    echo "tests/slurm-root.sh: $(slurmctld -V), of this machine"
    unset HEALTHD_SLURM_TESTS
    # shellcheck disable=SC2086  # a list of paths
    exec .venv/bin/python -m pytest -m slurm "$@" $TESTS
fi

suite=$(suite_of "$version")
root=$roots/$version
test "$(id -u)" -eq 0 || die "needs root, for chroot and mount namespaces"
test -d "$root" || make_root
has=$(chroot "$root" slurmctld -V | version_in)
test "$has" = "$version" || die "$suite has Slurm $has now, not $version: remove $root once $suite is known otherwise"
# One run at a time in a root: its Python environment may be made anew.
exec flock "$roots/.$version.lock" unshare --mount --pid --fork --kill-child sh tests/slurm-root.sh --inside "$root" "$@"
