#!/bin/sh
# Build a pyzmq that has draft sockets, against a libzmq with drafts from Debian's source package.
#
#   draft_pyzmq.sh FOLDER [PYTHON]
#
# It makes FOLDER/venv, a virtual environment with that pyzmq, in a few minutes. It wants Debian or a relative of it,
# cmake, make and a C++ compiler; it needs no rights, and changes nothing outside FOLDER.
set -eu

folder=$1
python=${2:-python3}
mkdir -p "$folder/sources" "$folder/lists/partial" "$folder/cache/archives/partial" "$folder/build"
folder=$(cd "$folder" && pwd)

# The system's own places for packages, asked for sources.
for file in /etc/apt/sources.list.d/*.sources; do
  [ ! -e "$file" ] || sed 's/^Types:.*/Types: deb-src/' "$file" >"$folder/sources/${file##*/}"
done
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
  [ ! -e "$file" ] || sed -n 's/^deb /deb-src /p' "$file" >"$folder/sources/$(basename "$file" .list).list"
done
apt() {
  apt-get -qq -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$folder/sources" \
    -o Dir::State::Lists="$folder/lists" -o Dir::Cache="$folder/cache" "$@"
}
cd "$folder/build"
apt update
apt source --download-only zeromq3
tar -xf zeromq3_*.orig.tar.*
cmake -S libzmq-*/ -B made -DENABLE_DRAFTS=ON -DBUILD_TESTS=OFF -DBUILD_STATIC=OFF -DWITH_PERF_TOOL=OFF \
  -DWITH_DOCS=OFF -DENABLE_CPACK=OFF -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$folder/libzmq" >cmake.log ||
  { cat cmake.log; exit 1; }
make -C made -j "$(nproc)" install >make.log

"$python" -m venv --clear "$folder/venv"
ZMQ_DRAFT_API=1 ZMQ_PREFIX="$folder/libzmq" "$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  --no-binary pyzmq --no-cache-dir pyzmq
"$folder/venv/bin/python" -c 'import zmq; assert zmq.DRAFT_API and zmq.has("draft"); print(zmq.zmq_version())'
