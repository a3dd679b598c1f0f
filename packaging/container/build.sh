#!/bin/sh
# Builds healthd's image by the Dockerfile beside it for amd64 and arm64, and prints its path: one OCI layout in a tar.
# Usage: packaging/container/build.sh [FOLDER] (dist/ by itself). Needs root, buildah, mmdebstrap, and qemu-user-static for
# the other processor's. ARCH: amd64 or arm64 alone.
#
# Its base is Debian 13 with the security updates of today, of the archive's signed packages (mmdebstrap); no registry is
# asked. Built again from the same packages it is the same file to the byte, and its times are the commit's.
# pip asks what it asks on this machine: PIP_INDEX_URL and the like are in the build as secrets, and in no layer.
set -eu
out=${1:-$(dirname "$0")/../../dist}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/../.."
SUITE=trixie

die() {
    echo "packaging/container/build.sh: $*" >&2
    exit 1
}
for program in buildah mmdebstrap; do
    command -v "$program" >/dev/null || die "needs $program (apt-get install $program)"
done
test "$(id -u)" -eq 0 || die "needs root, to make Debian's files and to run the Dockerfile's steps by chroot"
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' healthd/__init__.py)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
log=$work/log
# Prints what went wrong, where it did.
quietly() {
    "$@" >>"$log" 2>&1 || {
        tail -n 40 "$log" >&2
        die "$1 failed (see above)"
    }
}
# vfs: what needs no file system that can be stacked.
printf '[storage]\ndriver = "vfs"\ngraphroot = "%s"\nrunroot = "%s"\n' "$work/store" "$work/run" >"$work/storage.conf"
export CONTAINERS_STORAGE_CONF="$work/storage.conf" BUILDAH_ISOLATION=chroot

authorities=${PIP_CERT:-${SSL_CERT_FILE:-}}
{
    echo "[global]"
    for key in index-url extra-index-url trusted-host default-timeout; do
        value=$(printenv "PIP_$(echo "$key" | tr a-z- A-Z_)" || :)
        test -z "$value" || echo "$key = $value"
    done
    test -z "$authorities" || echo "cert = /run/ca.crt"
} >"$work/pip.conf"

native=$(dpkg --print-architecture)
architectures=${ARCH:-amd64 arm64}
# Runs a command for this processor: under qemu where it is another than the machine's.
for_processor() {
    processor=$1
    shift
    test "$processor" = "$native" || set -- sh packaging/container/aarch64.sh "$@"
    quietly "$@"
}
# shellcheck disable=SC2086  # names
for architecture in $(printf '%s\n' "$native" $architectures | sort -u); do
    for_processor "$architecture" mmdebstrap --arch="$architecture" --variant=minbase --skip=check/qemu "$SUITE" "$work/base.tar"
    container=$(buildah from --arch "$architecture" scratch)
    quietly buildah add "$container" "$work/base.tar" /
    quietly buildah commit --identity-label=false --timestamp "$SOURCE_DATE_EPOCH" --rm "$container" "base:$architecture"
    rm "$work/base.tar"
done
quietly buildah manifest create "healthd:$version"
for architecture in $architectures; do
    # buildah 1.28 does not know BUILDPLATFORM, and TARGETARCH from --platform alone.
    for_processor "$architecture" buildah build --platform "linux/$architecture" --timestamp "$SOURCE_DATE_EPOCH" --pull-never \
        --identity-label=false --label "org.opencontainers.image.version=$version" \
        --build-arg "BUILDPLATFORM=linux/$native" --build-arg "BUILD_BASE=localhost/base:$native" \
        --build-arg "BASE=localhost/base:$architecture" \
        --build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH" \
        --secret "id=pip.conf,src=$work/pip.conf" ${authorities:+--secret "id=ca.crt,src=$authorities"} \
        --file packaging/container/Dockerfile --tag "healthd:$architecture" .
    quietly buildah manifest add "healthd:$version" "localhost/healthd:$architecture"
done
quietly buildah manifest push --all "healthd:$version" "oci:$work/layout:$version"
image=$out/healthd-image-$version.oci.tar
tar --directory "$work/layout" --create --file "$image" --sort=name --mtime="@$SOURCE_DATE_EPOCH" \
    --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --format=ustar oci-layout index.json blobs
echo "$image"
