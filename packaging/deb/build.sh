#!/bin/sh
# Builds a .deb for every Debian and Ubuntu with glibc 2.31 or newer, and prints its path.
# Usage: packaging/deb/build.sh [FOLDER] (dist/ by itself). Needs dpkg-deb. PACKAGE: healthd, or healthd-nccl, which
# needs exactly that healthd. ARCH, PYTHON and LOCK: as in packaging/stage.sh (of healthd-nccl: ARCH, as in
# packaging/stage-nccl.sh), with what that needs; with PYTHON the package is for the distribution that this runs on, and
# its name says so. REVISION names a rebuild of the same version (1). STAGED: a folder that the script has filled
# already, for ARCH. DEB_COMPRESSION: none is quicker and makes it large (xz); DEB_LEVEL:
# how hard it tries.
set -eu
out=${1:-$(dirname "$0")/../../dist}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/../.."

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
trap 'exit 130' INT TERM HUP
chmod 755 "$tree"
package=${PACKAGE:-healthd}
if test -n "${STAGED:-}"; then cp -a "$STAGED/." "$tree"; else sh "packaging/stage${package#healthd}.sh" "$tree"; fi

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' healthd/__init__.py)
full=$version-${REVISION:-1}
architecture=${ARCH:-$(dpkg --print-architecture)}
install -d "$tree/DEBIAN"
case $package in
healthd)
    depends="libc6 (>= 2.31), init-system-helpers"
    # A venv needs the package of the very Python that it links to, without its patch level: python3.11.
    interpreter=$(readlink -f "$tree/opt/healthd/bin/python")
    case $interpreter in
    "$(readlink -f "$tree")"/*) ;;
    *)
        depends="$(basename "$interpreter"), $depends"
        # shellcheck source=/dev/null
        full=$full~$(. /etc/os-release && echo "$ID$VERSION_ID")
        ;;
    esac
    install -d "$tree/etc/healthd"
    for script in postinst prerm postrm; do
        install -m 755 "packaging/deb/$script" "$tree/DEBIAN/$script"
    done
    ;;
# xz's 6 takes four times as long as its 0 for libnccl, which is minutes.
healthd-nccl) depends="healthd (= $full), libgcc-s1, libstdc++6, zlib1g" DEB_LEVEL=${DEB_LEVEL:-0} ;;
esac
mv "$tree/usr/share/doc/$package/LICENSE" "$tree/usr/share/doc/$package/copyright"

# By the sizes of the files, as dpkg-gencontrol counts: the blocks that they take differ from disk to disk.
installed_kib() {
    find "$tree" -path "$tree/DEBIAN" -prune -o -printf '%y %s\n' |
        awk '{ kib += $1 == "f" ? int(($2 + 1023) / 1024) : 1 } END { print kib }'
}
cat - "packaging/deb/$package.control" >"$tree/DEBIAN/control" <<CONTROL
Package: $package
Version: $full
Architecture: $architecture
Section: admin
Priority: optional
Maintainer: the authors of healthd <healthd@localhost>
Installed-Size: $(installed_kib)
Depends: $depends
CONTROL
(cd "$tree" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)

built=$out/${package}_${full}_$architecture.deb
# Built twice from one commit it is the same file: its times are the commit's, where there is one.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
dpkg-deb --root-owner-group "-Z${DEB_COMPRESSION:-xz}" ${DEB_LEVEL:+"-z$DEB_LEVEL"} --build "$tree" "$built" >/dev/null
echo "$built"
