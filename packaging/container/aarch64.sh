#!/bin/sh
# Runs a command while the kernel here calls qemu for programs of arm64: packaging/container/aarch64.sh COMMAND [WORD ...]
# Where such a handler is registered, as docker and the package qemu-user-static do it, or on arm64 itself, it only runs
# the command. Else it needs root and qemu-aarch64-static, and takes its own handler back at the end (binfmt_misc).
set -eu
test $# -gt 0 || { sed -n '2p' "$0" >&2; exit 64; }
handlers=/proc/sys/fs/binfmt_misc
if test "$(uname -m)" = aarch64 || grep -qs enabled "$handlers/qemu-aarch64"; then exec "$@"; fi

qemu=$(command -v qemu-aarch64-static) || {
    echo "packaging/container/aarch64.sh: no qemu-aarch64-static here: apt-get install qemu-user-static" >&2
    exit 69
}
test "$(id -u)" -eq 0 || {
    echo "packaging/container/aarch64.sh: needs root, to have the kernel call qemu for programs of arm64" >&2
    exit 77
}
# e_ident of a 64-bit little-endian ELF, any ABI; e_type EXEC or DYN; e_machine 183 (EM_AARCH64 in elf.h).
magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
# F: the kernel opens the interpreter now, so that a chroot need not hold it (admin-guide/binfmt-misc.rst).
rule=":healthd-aarch64-$$:M::$magic:$mask:$qemu:F"
# shellcheck disable=SC2016  # the variables are the inner shell's
exec unshare --mount sh -c 'set -eu
handlers=$1 name=$2 rule=$3
shift 3
mount -t binfmt_misc binfmt_misc "$handlers"
printf "%s" "$rule" >"$handlers/register"
trap '\''echo -1 >"$handlers/$name"'\'' EXIT
trap "exit 130" INT TERM HUP
"$@"' sh "$handlers" "healthd-aarch64-$$" "$rule" "$@"
