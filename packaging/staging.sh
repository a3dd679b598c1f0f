# shellcheck shell=sh disable=SC2154  # python, native, site and platform are the callers'
# What the scripts share that stage a package, packaging/stage.sh and packaging/stage-nccl.sh, which source it first. From
# here they run in the root of the checkout. $dest is the folder that they fill, their argument; $work is gone when they end.
test $# -eq 1 || { sed -n '3p' "$0" >&2; exit 64; }
mkdir -p "$1"
dest=$(cd "$1" && pwd)
cd "$(dirname "$0")/.." || exit 1
opt=$dest/opt/healthd
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
export PIP_DISABLE_PIP_VERSION_CHECK=1

# $pip, in a venv of $python.
make_tools() {
    "$python" -m venv "$work/tools" || {
        echo "$0: $python cannot make virtual environments; install python3-venv (Debian, Ubuntu)" >&2
        exit 1
    }
    pip=$work/tools/bin/pip
}

# Wheels for the packages' CPython, on the processor that ARCH names, whatever this machine has.
for_own_python() {
    case ${ARCH:-$(uname -m)} in arm64 | aarch64) machine=aarch64 ;; *) machine=x86_64 ;; esac
    "$python" -c 'import sys; print("--implementation=cp --python-version=%d.%d" % sys.version_info[:2])'
    for glibc in $(seq 31 -1 17); do echo "--platform=manylinux_2_${glibc}_$machine"; done
    echo "--platform=manylinux2014_$machine"
}

# Installs into the folder $site, for which $platform says, what the arguments name. No program stays of it.
install_wheels() {
    # shellcheck disable=SC2086  # options
    "$pip" install --quiet --no-compile --target "$site" $platform "$@"
    rm -rf "${site:?}/bin"
}

# RECORD names no file that is not there: what was left out, programs, and the folder that our own wheel lay in.
correct_records() {
    "$work/tools/bin/python" packaging/correct_records.py "$site"
}

# Bytecode that is never compared with its source: a package manager's files do not change, each start saves the
# comparison, and only the package manager writes below /opt/healthd. Bytecode depends a little on what its process has
# loaded and compiled before: one process, of a Python that nothing has run from, makes the same of it each time.
compile_modules() {
    compiler=$work/tools/bin/python
    if test -n "$native"; then
        cp -a "$native" "$work/python"
        find "$work/python" -name __pycache__ -prune -exec rm -rf {} +
        compiler=$work/python/bin/python3
    fi
    "$compiler" -B -m compileall -q -s "$dest" --invalidation-mode unchecked-hash "$opt/lib"
    if grep -rlF -e "$dest" -e "$work" "$opt" >&2; then
        echo "$0: the files above still name $dest or $work, which are not there once installed" >&2
        exit 1
    fi
}

# dpkg-deb and rpmbuild lower the times that are after the commit's. When something was compiled must not tell either.
settle() {
    chmod -R u=rwX,go=rX "$dest"
    SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
    find "$dest" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}
