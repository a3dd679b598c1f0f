#!/bin/sh
# Builds an .rpm for Amazon Linux 2023, and whatever else has RPM, systemd and glibc 2.31 or newer; prints its path.
# Usage: packaging/rpm/build.sh [FOLDER] (dist/ by itself). Needs rpmbuild. PACKAGE: healthd, or healthd-nccl, which needs
# exactly that healthd. ARCH, PYTHON and LOCK: as in packaging/stage.sh (of healthd-nccl: ARCH, as in
# packaging/stage-nccl.sh), with what that needs; with PYTHON the package is for this distribution. REVISION names a
# rebuild of the same version (1); STAGED: a folder that the script has filled already, for ARCH; RPM_LEVEL: how hard
# zstd tries, instead of what this rpm does by itself.
set -eu
out=${1:-$(dirname "$0")/../../dist}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/../.."

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' healthd/__init__.py)
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
trap 'exit 130' INT TERM HUP
package=${PACKAGE:-healthd} python=
if test -z "${STAGED:-}"; then
    STAGED=$top/staged
    sh "packaging/stage${package#healthd}.sh" "$STAGED"
fi
case $package in
healthd)
    # A venv needs the package of the very Python that it links to: python3.11.
    interpreter=$(readlink -f "$STAGED/opt/healthd/bin/python")
    case $interpreter in "$(readlink -f "$STAGED")"/*) ;; *) python=$(basename "$interpreter") ;; esac
    ;;
# zstd's 19 takes eighteen times as long as its 9 for libnccl, and saves a sixth.
healthd-nccl) RPM_LEVEL=${RPM_LEVEL:-9} ;;
esac
case ${ARCH:-$(uname -m)} in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; *) machine=$(uname -m) ;; esac
# Built twice from one commit it is the same file: its times are the commit's, where there is one.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
# Nothing of the distribution's is done to files that are not its own: no debug package of wheels, no change of #! lines,
# no bytecode beside ours.
rpmbuild -bb --quiet --nodeps --target "$machine-linux" \
    --define 'debug_package %{nil}' --define '__os_install_post %{nil}' --define '_build_id_links none' \
    --define "_topdir $top" --define "_rpmdir $out" --define '_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' \
    --define "healthd_version $version" --define "staged $STAGED" ${python:+--define "python $python"} \
    --define 'use_source_date_epoch_as_buildtime 1' --define 'clamp_mtime_to_source_date_epoch 1' --define '_buildhost healthd' \
    ${REVISION:+--define "revision $REVISION"} ${RPM_LEVEL:+--define "_binary_payload w$RPM_LEVEL.zstdio"} \
    "packaging/rpm/$package.spec" >&2
ls "$out/$package-$version-${REVISION:-1}"*".$machine.rpm"
