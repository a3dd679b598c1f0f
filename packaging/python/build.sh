#!/bin/sh
# Builds the CPython that the .deb and the .rpm bring along, once for each recipe, and prints the folder that holds it.
# Usage: packaging/python/build.sh [amd64|arm64] (this machine's by itself). Needs root, debootstrap, unshare and a mirror
# of Debian: debootstrap's own, or $HEALTHD_DEBIAN_MIRROR. JOBS: how many processes compile (all cores).
#
# It is compiled in a root of Debian 11, whose glibc (2.31) is older than that of every distribution that the packages
# are for, from the signed sources of sources.txt (compile.sh). The other processor's is cross-compiled, with the help of
# this one's. The folder is kept in $XDG_CACHE_HOME/healthd/python (~/.cache/healthd/python), by version and recipe.
set -eu
PATH=$PATH:/usr/sbin:/sbin
cd "$(dirname "$0")"
SUITE=bullseye KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
TOOLS=bzip2,dpkg-dev,gcc,libc6-dev,make,patch,perl,tcl,xz-utils

die() {
    echo "packaging/python/build.sh: $*" >&2
    exit 1
}
case $(uname -m) in
x86_64) native=amd64 ;;
aarch64) native=arm64 ;;
*) die "no recipe for $(uname -m): amd64 and arm64" ;;
esac
wanted=${1:-$native}
case $wanted in amd64 | arm64) ;; *) die "no recipe for $wanted: amd64 and arm64" ;; esac

cache=${XDG_CACHE_HOME:-$HOME/.cache}/healthd/python
version=$(sed -n 's/^python3[.0-9]* \([.0-9]*\)-.*/\1/p' sources.txt)
recipe=$(cat sources.txt build.sh compile.sh | sha256sum | cut -c1-12)
# The place of the one for an architecture.
place() {
    echo "$cache/$version-$recipe-$1"
}
if test -d "$(place "$wanted")"; then
    place "$wanted"
    exit 0
fi

test "$(id -u)" -eq 0 || die "CPython is not built yet, and to build it needs root: debootstrap and chroot"
command -v debootstrap >/dev/null || die "needs debootstrap (apt-get install debootstrap)"
test -e "$KEYRING" || die "needs the package debian-archive-keyring"
mkdir -p "$cache"
work=$(mktemp -d "$cache/.build.XXXXXX")
# Everything below it is mounted in a namespace that has ended by then.
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
root=$work/root log=$work/log
echo "packaging/python/build.sh: building CPython $version for $wanted, once (ten minutes a processor on one core)" >&2

# Prints what went wrong, where it did.
quietly() {
    "$@" >>"$log" 2>&1 || {
        tail -n 40 "$log" >&2
        die "$1 failed (see above)"
    }
}
script=/usr/share/debootstrap/scripts/$SUITE
test -e "$script" || script=/usr/share/debootstrap/scripts/sid
quietly debootstrap --variant=minbase "--keyring=$KEYRING" "--include=$TOOLS" "$SUITE" "$root" \
    "${HEALTHD_DEBIAN_MIRROR:-}" "$script"
# Keys that are younger than this root; names as this machine resolves them.
cp "$KEYRING" "$root/usr/share/keyrings/healthd.gpg"
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
mirror=$(sed -n 's/^deb \([^ ]*\) .*/\1/p;q' "$root/etc/apt/sources.list")
sed '/^#/d' sources.txt | cut -d' ' -f3 | sort -u | while read -r suite; do
    echo "deb-src [signed-by=/usr/share/keyrings/healthd.gpg] $mirror $suite main"
    echo "deb-src [signed-by=/usr/share/keyrings/healthd.gpg] ${mirror%/debian}/debian-security $suite-security main"
done >>"$root/etc/apt/sources.list"
mkdir "$root/healthd-build"
cp sources.txt compile.sh "$root/healthd-build/"

# Runs in the namespace: what is mounted here is gone with it.
# shellcheck disable=SC2016  # the variables are the inner shell's
inside='set -eu
mount --make-rprivate /
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
exec chroot "$1" sh /healthd-build/compile.sh "$2" "$3"'
for architecture in "$native" "$wanted"; do
    kept=$(place "$architecture")
    if ! test -d "$kept"; then
        quietly env JOBS="${JOBS:-$(nproc)}" unshare --mount sh -c "$inside" sh "$root" "$architecture" "$native"
        # Another build may have made it meanwhile.
        test -d "$kept" || mv -T "$root/healthd-build/$architecture" "$kept"
    fi
    test -d "$root/healthd-build/native" || cp -a "$kept" "$root/healthd-build/native"
done
place "$wanted"
