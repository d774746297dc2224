#!/usr/bin/env bash
# scripts/run.sh -n RANKS CONFIG [MORE.json ...] [--set key=value ...]
#
# Starts `train` on RANKS ranks of this host under mpirun. Ctrl-C, SIGTERM and SIGUSR1 make it finish the step, save and
# exit with 75; a second one ends it at once. mpirun itself would give the ranks one second after Ctrl-C, so it runs in a
# session of its own and gets one SIGUSR1 for each signal received here, which it forwards.
#
# TRIREME_TRAIN: the binary, where it is neither build/cpu-release/train nor installed nor on the PATH. TRIREME_MPIRUN: the
# mpirun, where not on the PATH.
set -u
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac

usage() {
  echo "usage: scripts/run.sh -n RANKS CONFIG [MORE.json ...] [--set key.path=value ...]" >&2
  exit 2
}
refuse() {
  echo "scripts/run.sh: $*" >&2
  exit 3
}

if [ "${1-}" != "-n" ] || [ $# -lt 3 ]; then usage; fi
ranks=$2
shift 2
[[ $ranks =~ ^[1-9][0-9]{0,5}$ ]] || usage

here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
. "$here/find_train.sh"
mpirun=${TRIREME_MPIRUN:-mpirun}
train=$(find_train "$here") || exit 3
command -v "$mpirun" >/dev/null || refuse "$mpirun is missing. Install Open MPI (scripts/setup.sh does) or set TRIREME_MPIRUN."

# What mpirun counts as slots: cores, not their hardware threads, as far as this process may use them.
usable_cores() {
  local threads cores
  threads=$(nproc)
  cores=$(lscpu -p=CORE,SOCKET 2>/dev/null | grep -v '^#' | sort -u | wc -l)
  if [ "$cores" -ge 1 ] && [ "$cores" -lt "$threads" ]; then echo "$cores"; else echo "$threads"; fi
}

options=(-n "$ranks")
if "$mpirun" --version 2>/dev/null | grep -qi -e 'open mpi' -e openrte -e prrte; then
  # With its default, `mpirun -n 1` pins a whole rank to one core; the program places its own threads.
  options+=(--bind-to none)
  [ "$ranks" -le "$(usable_cores)" ] || options+=(--map-by :OVERSUBSCRIBE)
  [ "$(id -u)" != 0 ] || options+=(--allow-run-as-root)
fi

# By the kernel's routes Open MPI 5 finds no way from a host of some containers to itself, and each rank says so.
export OMPI_MCA_reachable="${OMPI_MCA_reachable-weighted}"

. "$here/forwarded.sh"
# mpirun and all ranks of this host, of which there is one at least; those of other hosts cannot be seen from here.
listens() {
  local child
  local -i found=0
  begun && catches_usr1 "$job" || return 1
  # shellcheck disable=SC2013  # words: process numbers
  for child in $(cat "/proc/$job/task/"*/children 2>/dev/null); do
    tr '\0' '\n' <"/proc/$child/cmdline" 2>/dev/null | grep -qxF -e "$train" || continue
    catches_usr1 "$child" || return 1
    found+=1
  done
  ((found > 0))
}
# Open MPI ends a job whose code is not 0 with boxes about that ("Primary job terminated normally, but ...", "mpirun detected
# that ..."). Beside the program's own last line they say nothing new, and make a run that was saved (75) look like a failure.
# They are kept back, as they may come before that line, and told where it never came. That a signal was forwarded, as here it
# always is, is left out, too. Everything else stays.
without_exit_boxes() {
  local line rule='' box='' kept='' told=no
  local about='^(Primary job +terminated normally, but |(mpirun|orterun|prterun|mpiexec) detected that one or more processes)'
  while IFS= read -r line || [ -n "$line" ]; do
    case $line in "train: exit "*) told=yes ;; esac
    if [ -n "$box" ]; then
      kept+=$line$'\n'
      if [[ $line =~ ^-{60,}$ ]]; then box=''; fi
    elif [ -n "$rule" ] && [[ $line =~ $about ]]; then
      kept+=$rule$'\n'$line$'\n' rule='' box=yes
    elif [[ ! $line =~ ^[a-z]+run:\ Forwarding\ signal\ [0-9]+\ to\ job$ ]]; then
      [ -z "$rule" ] || printf '%s\n' "$rule"
      rule=''
      if [[ $line =~ ^-{60,}$ ]]; then rule=$line; else printf '%s\n' "$line"; fi
    fi
  done
  [ -z "$rule" ] || printf '%s\n' "$rule"
  [ $told = yes ] || printf '%s' "$kept"
}
exec 3>&2
exec 2> >(trap '' INT TERM USR1 && without_exit_boxes >&3 2>/dev/null 3>&-)
filter=$!
run_forwarded "$mpirun" "${options[@]}" "$train" "$@" 3>&-
exec 2>&3
# Its end, once nobody holds the pipe: what mpirun may have left behind is not waited for.
for ((tries = 0; tries < 40; ++tries)); do
  kill -0 $filter 2>/dev/null || break
  sleep 0.05
done
exit $code
