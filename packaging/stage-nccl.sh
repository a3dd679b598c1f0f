#!/bin/sh
# Puts what the package healthd-nccl installs below a folder: nccl4py, CUDA's bindings and libnccl, for active tests.
# Usage: packaging/stage-nccl.sh FOLDER. The .deb and the .rpm are made of it (PACKAGE=healthd-nccl packaging/deb/build.sh).
#
# It lies beside the modules of the healthd package that has a CPython of its own, and holds none of that package's
# files. ARCH names another processor than this machine's: amd64 or arm64. Wheels only, in the versions and with the
# hashes of requirements/nccl.txt; where they come from is pip's own configuration.
set -eu
# shellcheck source=packaging/staging.sh
. "$(dirname "$0")/staging.sh"

test -z "${PYTHON:-}" || {
    echo "packaging/stage-nccl.sh: it is for the packages' own CPython alone; unset PYTHON" >&2
    exit 1
}
native=$(sh packaging/python/build.sh)
python=$native/bin/python3
make_tools

rm -rf "$opt"
site=$opt/lib/$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')/site-packages
install -d "$site"
platform=$(for_own_python)
install_wheels --require-hashes --only-binary :all: -r requirements/nccl.txt

# What only a compiler, a developer or NumPy's own tests read; licence texts stay.
find "$site" -type d -name tests -path '*/numpy/*' -prune -exec rm -rf {} +
find "$site" -type f ! -path '*.dist-info/*' \( -name '*.[achf]' -o -name '*.f90' -o -name '*.cuh' -o -name '*.hpp' \
    -o -name '*.p[xy][dxi]' -o -name '*.p[xy][dxi].in' -o -name 'libnccl_device.*' \) -delete
# An import in every start of this Python, the daemon's and each command's, which serves `cuda.__version__` alone.
rm "$site/_cuda_bindings_redirector.pth" "$site/_cuda_bindings_redirector.py"
find "$site" -type d -empty -delete
correct_records
compile_modules

install -d "$dest/usr/share/doc/healthd-nccl"
install -m 644 LICENSE "$dest/usr/share/doc/healthd-nccl/"
settle
