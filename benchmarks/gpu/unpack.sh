#!/usr/bin/env bash
# Set up a machine without a network from carried archives: engine trees and repeak's own packages become two kinds
# of interpreter. ARCHIVES holds engine-VERSION.tar.xz, small.tar.xz (what engines need), prod.tar.xz (what repeak needs).
#   bash benchmarks/gpu/unpack.sh ARCHIVES PLACE
set -euo pipefail
archives=$1 place=$2
base=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
mkdir -p "$place"
for archive in "$archives"/*.tar.xz; do
  name=$(basename "$archive" .tar.xz)
  [ -e "$place/$name/.done" ] && continue
  mkdir -p "$place/$name"
  { tar -xJf "$archive" -C "$place/$name" && touch "$place/$name/.done"; } &
done
wait
interpreter() {  # NAME PATHS...: an interpreter that sees these trees before the machine's own packages
  local venv=$place/$1; shift
  python3 -m venv --without-pip "$venv"
  printf '%s\n' "$@" "$base" > "$(echo "$venv"/lib/python3.*/site-packages)/trees.pth"
}
for tree in "$place"/engine-*; do
  [ -d "$tree/vllm" ] && interpreter "py-${tree##*/engine-}" "$tree" "$place/small"
done
interpreter py-repeak "$PWD" "$place/prod"
python3 benchmarks/gpu/checkpoints.py "$place/models"
ls "$place"
