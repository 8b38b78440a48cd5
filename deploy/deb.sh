#!/bin/sh
# Build a Debian package for this machine's architecture and system Python.
#
#   deb.sh PYTHON OUTDIR [REVISION [WHEEL]]
#
# PYTHON must have the modules build and pip; it need not be the system's. Without WHEEL, one is built. The package
# includes Titanic's Python dependencies, because Debian lacks some of them: in /usr/lib/titanic, which other programs do
# not import from. There postinst gives each version a folder of its own, so that processes of the old one find their
# files.
set -eu
python=$1 out=$2 revision=${3:-1} wheel=${4:-}
here=$(cd "$(dirname "$0")" && pwd)
system=/usr/bin/python3

command -v dpkg-deb >/dev/null || { echo "deb.sh: dpkg-deb not found; run this on Debian" >&2; exit 1; }
[ -x $system ] || { echo "deb.sh: $system not found; on Debian: apt-get install python3" >&2; exit 1; }
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
package=$root/usr/lib/titanic/package

minor=$($system -c 'import sys; print("%d.%d" % sys.version_info[:2])')
builder=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ "$builder" != "$minor" ]; then
    echo "deb.sh: built as pure Python: modules compiled for Python $builder do not work with the system's $minor" >&2
    export TITANIC_PURE=1
fi
if [ -z "$wheel" ]; then
    "$python" -m build --no-isolation --wheel --outdir "$work" "$here/.." >/dev/null
    for wheel in "$work"/titanic_queue-*.whl; do :; done
fi
version=$(basename "$wheel" | cut -d- -f2)
# Of a checkout, also the commit: packages of two commits are two versions.
if commit=$(git -C "$here" log -1 --date=format:%Y%m%d%H%M%S --format=%cd.%h 2>/dev/null); then
    version=$version+$commit
fi
next=$($system -c 'import sys; print("%d.%d" % (sys.version_info[0], sys.version_info[1] + 1))')
machine=$(uname -m)

"$python" -m pip --quiet --disable-pip-version-check install --target "$package" --no-compile \
    --only-binary=:all: --implementation cp --python-version "$minor" --platform "manylinux_2_28_$machine" \
    --platform "manylinux2014_$machine" --platform "manylinux_2_17_$machine" --platform "linux_$machine" "$wheel[postgres,tasks,web]"
rm -rf "$package/bin"
# As Debian has libraries: not executable, without symbols for debuggers.
find "$package" -name '*.so*' -type f | while read -r library; do
    ! readelf --sections "$library" | grep -q '\.symtab' || strip --strip-unneeded "$library"
done

units=$root/usr/lib/systemd/system
doc=$root/usr/share/doc/titanic-queue
share=$root/usr/share/titanic-queue
mkdir -p "$units" "$root/usr/bin" "$root/usr/lib/sysusers.d" "$root/usr/lib/tmpfiles.d" "$share" "$doc"
for unit in "$here"/systemd/titanic*; do
    sed 's|@BIN@|/usr/bin|; s|@LIB@|/usr/lib/titanic|' "$unit" >"$units/$(basename "$unit")"
done
cp "$here/systemd/sysusers.conf" "$root/usr/lib/sysusers.d/titanic.conf"
cp "$here/systemd/tmpfiles.conf" "$root/usr/lib/tmpfiles.d/titanic.conf"
cp "$here/titanic-backup" "$here/titanic-worker" "$root/usr/lib/titanic/"
cp "$here/debian/titanic" "$here/debian/titanic-data" "$root/usr/bin/"
sed 's|^#store = .*|store = "/var/lib/titanic/store"|; s|^#metrics = |metrics = |' "$here/titanic.toml" >"$share/titanic.toml"
# In the same folders as in the source, so that the links between documents hold.
(cd "$here/.." && find README.md SECURITY.md CHANGELOG.md LICENSE deploy titanic broker data \
    \( -name '*.md' -o -name LICENSE -o -path 'titanic/web/screenshots/*' -o -path 'deploy/*' \) \
    ! -path 'deploy/nodes/secrets*' -type f -exec cp --parents -t "$doc" {} +)
"$python" "$here/debian/copyright.py" "$here/../LICENSE" "$package" >"$doc/copyright"
gzip -9n <"$here/../CHANGELOG.md" >"$doc/changelog.gz"
contact=$(sed -n 's/^Project-URL: Security, mailto://p' "$package"/titanic_queue-*.dist-info/METADATA)
maintainer="Titanic <${contact:-root@localhost}>"
printf 'titanic-queue (%s) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- %s  %s\n' "$version-$revision" \
    "$maintainer" "$(date -R -u -d "@${SOURCE_DATE_EPOCH:-$(date +%s)}")" | gzip -9n >"$doc/changelog.Debian.gz"
mkdir -p "$root/usr/share/lintian/overrides"
cp "$here/debian/lintian-overrides" "$root/usr/share/lintian/overrides/titanic-queue"
TITANIC_PURE=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$package $system "$here/debian/manuals.py" "$root/usr/share"

# The newest functions of the C library that a module within calls.
glibc=$(find "$package" -name '*.so*' -exec objdump -T {} + 2>/dev/null | grep -o 'GLIBC_[0-9.]*' |
    sort -Vu | tail -n 1 | cut -d_ -f2)
mkdir "$root/DEBIAN"
architecture=$(dpkg --print-architecture)
sed "s|@VERSION@|$version-$revision|; s|@ARCHITECTURE@|$architecture|; s|@PYTHON@|$minor|; s|@NEXT@|$next|; s|@GLIBC@|${glibc:-2.17}|
     s|@MAINTAINER@|$maintainer|; s|@SIZE@|$(du -sk "$root" | cut -f1)|" "$here/debian/control" >"$root/DEBIAN/control"
cp "$here/debian/preinst" "$here/debian/postinst" "$here/debian/prerm" "$here/debian/postrm" "$root/DEBIAN/"
chmod -R u=rwX,go=rX "$root"
find "$package" -name '*.so*' -type f -exec chmod a-x {} +

file=$out/titanic-queue_$version-${revision}_$architecture.deb
dpkg-deb --root-owner-group --build "$root" "$file" >/dev/null
echo "$file: $(du -h "$file" | cut -f1)"
