#!/bin/sh
# Usage: isa_symbols.sh NM ISA "a.o;b.o;...". Fails when an object compiled for ISA exports a symbol that other objects
# may define too (weak: the linker keeps any one copy) any symbol at all outside namespace trireme::ISA, or code that
# runs at start, whatever the CPU.
set -eu
nm=$1 isa=$2
status=0
checked=0
IFS=';'
for object in $3; do
  # W, V, u: weak or unique. DW.ref.* is a pointer that is the same in every object.
  found=$("$nm" -C --defined-only --extern-only "$object" |
    awk -v own="trireme::$isa::" '{
      symbol = $0; sub(/^[0-9a-f]* *[A-Za-z] /, "", symbol)
      if (index(symbol, "DW.ref.") == 1 || index(symbol, "__odr_asan") == 1) next
      if (index(symbol, own) == 0 || index(symbol, "std::") != 0) print
    }')
  if [ -n "$found" ]; then
    echo "$object exports symbols outside trireme::$isa:"
    echo "$found"
    status=1
  fi
  if "$nm" -C --defined-only "$object" | grep 'GLOBAL__sub_I'; then
    echo "$object runs code for $isa at start, on every CPU"
    status=1
  fi
  checked=$((checked + 1))
done
[ "$checked" -gt 0 ] || { echo "no objects to check"; exit 1; }
exit $status
