#!/usr/bin/env bash
# Builds the kernels for every instruction set, runs them on fixed inputs and compares the bits.
# AArch64 code runs under qemu, where a cross compiler and qemu-user are installed (Debian:
# g++-aarch64-linux-gnu qemu-user); otherwise it is left out, with a message.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
csrc=$root/src/samebits/engines/cpu/csrc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
exact="-std=c++20 -O2 -ffp-contract=off -fno-math-errno -fno-trapping-math -fno-fast-math -I$csrc"
areas="probe pointwise gemm attention reduce norm"

hashes() { # name, runner, compiler, isa, flags...
  local name=$1 runner=$2 compiler=$3 isa=$4
  shift 4
  local sources=("$root/tests/native/isa_hash.cpp")
  for area in $areas; do sources+=("$csrc/kernels/$area.cpp"); done
  local objects=()
  for source in "${sources[@]}"; do
    local object=$work/$name-$(basename "$source" .cpp).o
    $compiler $exact "$@" -DSB_ISA="$isa" -DSB_ISA_"$isa"=1 -c "$source" -o "$object"
    objects+=("$object")
  done
  $compiler "${objects[@]}" -static -o "$work/$name"
  $runner "$work/$name" > "$work/$name.txt"
  if [ -z "${reference:-}" ]; then
    reference=$name
    echo "$name: $(wc -l < "$work/$name.txt") hashes (reference)"
  elif cmp -s "$work/$reference.txt" "$work/$name.txt"; then
    echo "$name: the same bits"
  else
    echo "$name: other bits than $reference:"
    diff "$work/$reference.txt" "$work/$name.txt" | grep '^>' | head -20
    failed=1
  fi
}

failed=0
cxx=${CXX:-g++}
cross=aarch64-linux-gnu-g++
case $(uname -m) in
  x86_64)
    hashes scalar "" "$cxx" scalar
    if grep -q ' fma .*avx2\|avx2.* fma' /proc/cpuinfo; then hashes avx2 "" "$cxx" avx2 -mavx2 -mfma -mf16c; fi
    if grep -q avx512vl /proc/cpuinfo; then
      hashes avx512 "" "$cxx" avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c
    fi
    if command -v "$cross" > /dev/null && command -v qemu-aarch64 > /dev/null; then
      hashes aarch64-neon qemu-aarch64 "$cross" neon
      hashes aarch64-scalar qemu-aarch64 "$cross" scalar
    else
      echo "NEON not checked: install a cross compiler and qemu-user (Debian: g++-aarch64-linux-gnu qemu-user)"
    fi
    ;;
  aarch64 | arm64)
    hashes scalar "" "$cxx" scalar
    hashes neon "" "$cxx" neon
    ;;
esac
exit "$failed"
