#!/bin/sh
# Builds healthd's .rpm for the Amazon Linux (or another system with RPM) that this runs on, and prints its path.
# Usage: packaging/rpm/build.sh [FOLDER] (dist/ by itself). Needs rpm-build and PYTHON (python3.11) with pip, no root.
# REVISION names a rebuild of the same version (1); STAGED: a folder that packaging/stage.sh has filled already; RPM_LEVEL:
# how hard zstd tries, instead of what this rpm does by itself.
set -eu
out=${1:-$(dirname "$0")/../../dist}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/../.."

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' healthd/__init__.py)
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
trap 'exit 130' INT TERM HUP
mkdir -p "$top/SOURCES" "$top/healthd-$version"
cp -R LICENSE README.md CHANGELOG.md pyproject.toml checks remediation healthd packaging requirements "$top/healthd-$version/"
mkdir "$top/healthd-$version/docs"
cp -R docs/how-to "$top/healthd-$version/docs/how-to"
tar -C "$top" -czf "$top/SOURCES/healthd-$version.tar.gz" "healthd-$version"
# Built twice from one commit it is the same file: its times are the commit's, where there is one.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
rpmbuild -bb --quiet --nodeps \
    --define "_topdir $top" --define "_rpmdir $out" --define '_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' \
    --define "healthd_version $version" --define "python ${PYTHON:-python3.11}" \
    --define 'use_source_date_epoch_as_buildtime 1' --define 'clamp_mtime_to_source_date_epoch 1' --define '_buildhost healthd' \
    ${REVISION:+--define "revision $REVISION"} ${STAGED:+--define "staged $STAGED"} \
    ${RPM_LEVEL:+--define "_binary_payload w$RPM_LEVEL.zstdio"} \
    packaging/rpm/healthd.spec >&2
ls "$out/healthd-$version-${REVISION:-1}"*.rpm
