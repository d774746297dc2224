#!/usr/bin/env bash
# scripts/bundle.sh [--train BINARY] [--output FILE.tar.xz] [--add PATH]...
#
# Packs `train` with every library that it needs, and with the launcher, into one folder that runs where neither a
# package manager nor Open MPI is: copy it, unpack it, start trireme/train (or trireme/mpirun -n 2 trireme/train; several
# hosts by srun). Libraries of CUDA stay out: they belong to the driver's machine. BINARY is the newest `train` of
# build/*; --add puts further files or folders into the bundle, programs with the libraries that they need.
#
# The bundle's own C library is used only where the machine's is too old.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

train='' output=trireme.tar.xz add=()
while (($#)); do
  case "$1" in
  --train) train=$2 && shift ;;
  --output) output=$2 && shift ;;
  --add) add+=("$2") && shift ;;
  *) sed -n '2,10s/^# \?//p' "${BASH_SOURCE[0]}" >&2 && exit 2 ;;
  esac
  shift
done
if [ -z "$train" ]; then
  train=$(ls -t "$root"/build/*/train 2>/dev/null | head -n 1) || true
  [ "$train" ] || { echo "bundle: no build/*/train; build it first, or name one with --train" >&2 && exit 3; }
fi
command -v xz >/dev/null || { echo "bundle: xz is not in PATH (scripts/setup.sh installs it)" >&2 && exit 3; }
mpirun=$(readlink -f "$(command -v mpirun)") || { echo "bundle: mpirun is not in PATH" >&2 && exit 3; }
plugins=$(ompi_info --path pkglibdir --parsable | cut -d: -f3)
help_texts=$(ompi_info --path pkgdatadir --parsable | cut -d: -f3)

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
to=$scratch/trireme
mkdir -p "$to"/{bin,lib/openmpi,libc,share,etc}
install -s "$train" "$to/bin/train"
install "$mpirun" "$to/bin/mpirun"
# Open MPI 4 starts ranks by orted; 5 by PRRTE's prterun and prted, which mpirun is a front of.
launchers=()
for launcher in orted prterun prted; do
  path=$(command -v "$launcher") || continue
  install "$(readlink -f "$path")" "$to/bin/$launcher"
  launchers+=("$launcher")
done
cp -r "$help_texts" "$to/share/openmpi"
for folder in prte pmix; do
  if [ -d "$(dirname "$help_texts")/$folder" ]; then cp -rL "$(dirname "$help_texts")/$folder" "$to/share/"; fi
done

is_libc() { case $1 in ld-linux* | libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | libutil.so* | libresolv.so* | libanl.so*) return 0 ;; *) return 1 ;; esac; }
is_cuda() { case $1 in libcuda* | libcublas* | libcudnn* | libnccl* | libnv*) return 0 ;; *) return 1 ;; esac; }
copy_libraries_of() {
  local path name
  ldd "$1" 2>/dev/null | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p; s/^[[:space:]]*\(\/[^ ]*\).*/\1/p' | while read -r path; do
    name=$(basename "$path")
    if is_cuda "$name"; then continue; fi
    if is_libc "$name"; then cp -nL "$path" "$to/libc/"; else cp -nL "$path" "$to/lib/"; fi
  done
}
is_program() { [ -f "$1" ] && [ -x "$1" ] && [ "$(head -c 4 "$1" | tail -c 3)" = ELF ]; }
programs=(train mpirun "${launchers[@]}") files=()
for path in ${add[@]+"${add[@]}"}; do
  if is_program "$path"; then
    install -s "$path" "$to/bin/$(basename "$path")"
    programs+=("$(basename "$path")")
    copy_libraries_of "$path"
  else
    files+=("$path")
  fi
done
for program in "$train" "$mpirun" "${launchers[@]/#/$to/bin/}"; do copy_libraries_of "$program"; done
# Open MPI starts the ranks and carries small messages; its plugins for special networks need libraries of their own.
for plugin in "$plugins"/mca_*.so; do
  [ -e "$plugin" ] || continue # Open MPI 5 has them inside
  case $(basename "$plugin") in
  *_ofi* | *_ucx* | *_psm* | *openib* | *_usnic* | *monitoring* | *_flux* | *scoll* | *spml* | *sshmem* | *memheap* | *romio*) continue ;;
  esac
  cp -L "$plugin" "$to/lib/openmpi/"
  copy_libraries_of "$plugin"
done
pmix=$(dirname "$(readlink -f "$(ldconfig -p | sed -n 's/.*libpmix\.so\.2 .*=> //p' | head -n 1)")")/pmix
if [ -d "$pmix" ]; then cp -rL "$pmix" "$to/lib/pmix"; fi

cat >"$to/environment" <<'WRAPPER'
# Sourced by train and mpirun, with $here.
export OPAL_PREFIX="$here" OPAL_BINDIR="$here/bin" OPAL_LIBDIR="$here/lib" OPAL_PKGLIBDIR="$here/lib/openmpi"
export OPAL_PKGDATADIR="$here/share/openmpi" OPAL_SYSCONFDIR="$here/etc"
export PMIX_INSTALL_PREFIX="$here" PMIX_PKGLIBDIR="$here/lib/pmix"
export OMPI_MCA_orte_launch_agent="$here/orted"
export PRTE_PREFIX="$here" PMIX_PREFIX="$here" OMPI_PRTERUN="$here/prterun" PRTE_MCA_prte_launch_agent="$here/prted"
command -v ssh >/dev/null || export OMPI_MCA_plm="${OMPI_MCA_plm-isolated}" # one host then
# The threads of a step wait for each other by looking for a short while; the program would set this by starting anew.
if [ -z "${OMP_WAIT_POLICY-}" ]; then export GOMP_SPINCOUNT="${GOMP_SPINCOUNT-1000}"; fi
run() {
  program=$1
  shift
  if [ -z "${TRIREME_LIBC-}" ]; then
    if LD_LIBRARY_PATH="$here/lib" "$here/bin/train" --version >/dev/null 2>&1; then TRIREME_LIBC=machine; else TRIREME_LIBC=bundle; fi
    export TRIREME_LIBC
  fi
  if [ "$TRIREME_LIBC" = machine ]; then
    export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH+:$LD_LIBRARY_PATH}"
    exec "$here/bin/$program" "$@"
  fi
  for loader in "$here"/libc/ld-linux*; do :; done
  exec "$loader" --argv0 "$program" --library-path "$here/libc:$here/lib${LD_LIBRARY_PATH+:$LD_LIBRARY_PATH}" "$here/bin/$program" "$@"
}
WRAPPER
for program in "${programs[@]}"; do
  cat >"$to/$program" <<WRAPPER
#!/bin/sh
case \$0 in */*) here=\${0%/*} ;; *) here=\$(command -v "\$0") && here=\${here%/*} ;; esac
here=\$(cd "\$here" && pwd)
. "\$here/environment"
run $program "\$@"
WRAPPER
  chmod +x "$to/$program"
done
cp -r "$root/configs" "$to/configs"
((${#files[@]} == 0)) || cp -r "${files[@]}" "$to/"
# Programs of one build are alike: a dictionary that reaches from one to the next halves them.
((${#add[@]})) && preset=1 dictionary=128MiB || preset=4 dictionary=4MiB
tar -C "$scratch" -c trireme | xz -T0 --lzma2=preset=$preset,dict=$dictionary >"$output"
echo "$output: $(du -m "$output" | cut -f 1) MB packed, $(du -sm "$to" | cut -f 1) MB unpacked" >&2
