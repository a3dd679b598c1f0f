#!/bin/sh
# Compiles a relocatable CPython from Debian's sources: packaging/python/build.sh runs it, as root, in a root of its own.
# Usage: compile.sh ARCHITECTURE NATIVE. It leaves bin/, lib/, ssl/ and doc/ in /healthd-build/ARCHITECTURE; of another
# architecture than NATIVE after the latter's, which lies in /healthd-build/native.
#
# Libraries and extension modules are in the one program: it needs glibc and nothing else, and finds its own lib/ by the
# place where it lies. Nothing of it depends on when, by whom, or on how many cores it was built.
set -eu
architecture=$1 native=$2
top=/healthd-build
deps=$top/deps-$architecture out=$top/$architecture
cd "$top"
export LC_ALL=C.UTF-8 TZ=UTC DEBIAN_FRONTEND=noninteractive
apt="apt-get -qq -o APT::Sandbox::User=root"

case $architecture in
amd64) triplet=x86_64-linux-gnu openssl=linux-x86_64 ;;
arm64) triplet=aarch64-linux-gnu openssl=linux-aarch64 ;;
esac
$apt update
if test "$architecture" != "$native"; then
    compiler=gcc-$(echo "$triplet" | tr _ -)
    $apt install -y --no-install-recommends "$compiler" "libc6-dev-$architecture-cross"
fi
CC=$triplet-gcc AR=$triplet-ar RANLIB=$triplet-ranlib
CFLAGS="-O2 -fPIC"
export CC AR RANLIB CFLAGS
make="make -j${JOBS:-1} AUTOCONF=: AUTOHEADER=: AUTOMAKE=: ACLOCAL=: MAKEINFO=:"

# Fetches a source package of sources.txt, which apt verifies, and unpacks it: unpacked NAME [OPTION OF DPKG-SOURCE].
unpacked() {
    name=$1
    shift
    version=$(sed -n "s/^$name \([^ ]*\) .*/\1/p" sources.txt)
    if ! $apt source --download-only "$name=$version"; then
        echo "Debian's mirror has no $name $version (packaging/python/sources.txt). It has:" >&2
        apt-cache showsrc "$name" | sed -n 's/^Version: /  /p' | sort -u >&2
        exit 1
    fi
    rm -rf "$name"
    dpkg-source --no-check "$@" -x "${name}_${version#*:}.dsc" "$name"
    cd "$name"
    SOURCE_DATE_EPOCH=$(dpkg-parsechangelog -STimestamp)
    export SOURCE_DATE_EPOCH
    cd ..
}

rm -rf "$deps" "$out"
mkdir -p "$deps/include" "$deps/lib" "$out/doc" "$out/ssl"

unpacked zlib
(cd zlib && ./configure --static --prefix="$deps" && $make install)

unpacked bzip2
(cd bzip2 && $make CC="$CC" AR="$AR" RANLIB="$RANLIB" CFLAGS="$CFLAGS -D_FILE_OFFSET_BITS=64" libbz2.a &&
    cp bzlib.h "$deps/include" && cp libbz2.a "$deps/lib")

unpacked xz-utils
(cd xz-utils && ./configure --host="$triplet" --prefix="$deps" --disable-shared --disable-nls --disable-doc --disable-scripts \
    --disable-xz --disable-xzdec --disable-lzmadec --disable-lzmainfo && $make -C src/liblzma install)

unpacked libffi
(cd libffi && ./configure --host="$triplet" --prefix="$deps" --disable-shared --disable-docs --disable-multi-os-directory &&
    $make install)

# One file of C, made with Tcl; only that is compiled for the other processor.
unpacked sqlite3
(cd sqlite3 && CC=gcc ./configure --disable-tcl --disable-readline && $make sqlite3.c &&
    "$CC" -O2 -fPIC -DSQLITE_THREADSAFE=1 -DSQLITE_OMIT_LOAD_EXTENSION -DHAVE_USLEEP=1 -DHAVE_FDATASYNC=1 -c sqlite3.c &&
    "$AR" rcs "$deps/lib/libsqlite3.a" sqlite3.o && cp sqlite3.h "$deps/include")

# Its folders are those of an installed package: where it looks for certificates is $out/ssl, below.
unpacked openssl
(cd openssl && perl Configure "$openssl" no-shared no-module no-dso no-engine no-legacy no-tests no-docs no-apps \
    --prefix=/opt/healthd --libdir=lib --openssldir=/opt/healthd/ssl && $make build_libs &&
    cp -R include/openssl "$deps/include/" && cp libssl.a libcrypto.a "$deps/lib")

# Debian's own changes of layout are its *.diff; its fixes, those of security among them, are its *.patch.
unpacked python3.13 --skip-patches
cd python3.13
sed -n '/^[^#].*\.patch$/p' debian/patches/series | while read -r patch; do
    patch -p1 -s <"debian/patches/$patch"
done
# Nothing that a user has installed below a home folder is loaded, as in a venv.
sed -i 's/^ENABLE_USER_SITE = None$/ENABLE_USER_SITE = False/' Lib/site.py
grep -q '^ENABLE_USER_SITE = False$' Lib/site.py
set -- "--build=$(gcc -dumpmachine)" "--host=$triplet"
test "$architecture" = "$native" || set -- "$@" "--with-build-python=$top/native/bin/python3.13"
# What configure would find out by running a program, and cannot for another processor: of glibc, Linux and GCC.
export ac_cv_file__dev_ptmx=yes ac_cv_file__dev_ptc=no ac_cv_buggy_getaddrinfo=no ac_cv_pthread=yes \
    ac_cv_pthread_system_supported=yes ac_cv_broken_sem_getvalue=no ac_cv_working_tzset=yes ac_cv_aligned_required=no \
    ac_cv_computed_gotos=yes
# No library that a module loads later may find OpenSSL's names here in the place of its own.
archives=$(cd "$deps/lib" && printf '%s:' ./*.a | sed 's|\./||g')
MODULE_BUILDTYPE=static \
    LIBFFI_CFLAGS="-I$deps/include" LIBFFI_LIBS="-L$deps/lib -lffi" \
    LIBSQLITE3_CFLAGS="-I$deps/include" LIBSQLITE3_LIBS="-L$deps/lib -lsqlite3 -lm" \
    ZLIB_CFLAGS="-I$deps/include" ZLIB_LIBS="-L$deps/lib -lz" \
    BZIP2_CFLAGS="-I$deps/include" BZIP2_LIBS="-L$deps/lib -lbz2" \
    LIBLZMA_CFLAGS="-I$deps/include" LIBLZMA_LIBS="-L$deps/lib -llzma" \
    OPT="-DNDEBUG -fwrapv -O3" LDFLAGS_NODIST="-Wl,--exclude-libs,$archives" CFLAGS="" \
    ./configure "$@" --prefix=/opt/healthd --with-openssl="$deps" \
    --without-static-libpython --without-ensurepip --disable-test-modules
for module in _BZ2 _CTYPES _HASHLIB _LZMA _SQLITE3 _SSL ZLIB; do
    grep -q "^MODULE_${module}_STATE=yes" Makefile || {
        echo "configure will not build $module (config.log)" >&2
        exit 1
    }
done
$make
$make altinstall DESTDIR="$top/installed-$architecture"
cd ..

# Of what is installed stays what a program is run with. ensurepip stays for packaging/stage.sh, which takes it out.
installed=$top/installed-$architecture/opt/healthd
mkdir "$out/bin" "$out/lib"
mv "$installed/bin/python3.13" "$out/bin/"
ln -s python3.13 "$out/bin/python3"
ln -s python3.13 "$out/bin/python"
"$triplet-strip" --strip-all "$out/bin/python3.13"
mv "$installed/lib/python3.13" "$out/lib/"
rm -rf "$top/installed-$architecture"
(
    cd "$out/lib/python3.13"
    rm -rf test idlelib tkinter turtledemo turtle.py pydoc_data __phello__ config-3.13* lib-dynload
    find . -name __pycache__ -prune -exec rm -rf {} +
    # Python takes this folder for a sign that it is at home; all modules that it is for are in the program.
    mkdir lib-dynload
    # The flags of this build, for those who compile modules; the folders in them are nowhere.
    sed -i "s|$top|/usr/src|g" _sysconfigdata_*.py
)
# The certificates of the distribution: a folder on Debian, Ubuntu and SUSE, a file on Amazon Linux and Red Hat.
ln -s /etc/ssl/certs "$out/ssl/certs"
ln -s /etc/pki/tls/cert.pem "$out/ssl/cert.pem"

sed '/^#/d' sources.txt | while read -r name version suite licence; do
    cp "$name/debian/copyright" "$out/doc/$name.copyright"
    printf '{"name": "%s", "version": "%s", "licence": "%s", "distro": "%s"}\n' "$name" "$version" "$licence" "$suite"
done | sed -e '1s/^/[/' -e '$!s/$/,/' -e '$s/$/]/' >"$out/doc/components.json"
chmod -R u=rwX,go=rX "$out"
if grep -rlF "$top" "$out" >&2; then
    echo "the files above name $top, which is nowhere" >&2
    exit 1
fi
if test "$architecture" = "$native"; then
    "$out/bin/python3.13" -IBc 'import bz2, ctypes, hashlib, lzma, sqlite3, ssl, zlib; ctypes.CDLL(None); print(ssl.OPENSSL_VERSION)'
fi
