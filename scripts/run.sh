#!/usr/bin/env bash
# scripts/run.sh -n RANKS CONFIG [MORE.json ...] [--set key=value ...]
#
# Starts `train` on RANKS ranks of this host under mpirun. Ctrl-C, SIGTERM and SIGUSR1 make it finish the step, save and
# exit with 75; a second one ends it at once. mpirun itself would give the ranks one second after Ctrl-C, so it runs in a
# session of its own and gets one SIGUSR1 for each signal received here, which it forwards.
#
# TRIREME_TRAIN: the binary, where it is not build/cpu-release/train. TRIREME_MPIRUN: the mpirun, where not on the PATH.
set -u

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

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
train=${TRIREME_TRAIN:-$root/build/cpu-release/train}
mpirun=${TRIREME_MPIRUN:-mpirun}
[ -x "$train" ] || refuse "$train is missing. Build it (cmake --preset cpu-release && cmake --build --preset cpu-release) or set TRIREME_TRAIN."
train=$(cd "$(dirname "$train")" && pwd)/$(basename "$train")
command -v "$mpirun" >/dev/null || refuse "$mpirun is missing. Run scripts/setup.sh."

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

# Whether a process has a handler for SIGUSR1 (bit 9 of the mask of caught signals): before that the signal would kill.
catches_usr1() {
  local mask
  mask=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null)
  [ -n "$mask" ] && (((16#${mask: -4} & 0x200) != 0))
}
ready() {
  local child
  local -i found=0
  catches_usr1 "$job" || return 1
  # shellcheck disable=SC2013  # words: process numbers
  for child in $(cat "/proc/$job/task/"*/children 2>/dev/null); do
    tr '\0' '\n' <"/proc/$child/cmdline" 2>/dev/null | grep -qxF -e "$train" || continue
    catches_usr1 "$child" || return 1
    found+=1
  done
  ((found > 0))
}

declare -i signals=0 forwarded=0
forwarding=no
forward() {
  local -i tries
  if [ "$forwarding" != no ] || [ -z "$job" ]; then return; fi  # a signal during the loop below is seen by its condition
  forwarding=yes
  while ((forwarded < signals)); do
    # A rank that has not installed its handler yet gets 10 s to do so; ranks on other hosts cannot be seen from here.
    for ((tries = 0; tries < 100; ++tries)); do
      kill -0 "$job" 2>/dev/null || break 2
      ready && break
      sleep 0.1
    done
    ((forwarded == 0)) || sleep 0.2  # two at once would arrive as one
    kill -USR1 "$job" 2>/dev/null
    forwarded+=1
  done
  forwarding=no
}

job=
trap 'signals+=1; forward' INT TERM USR1  # from here on a signal waits until there is somebody to tell
setsid "$mpirun" "${options[@]}" "$train" "$@" &
job=$!
forward
while :; do
  before=$signals
  wait "$job"
  code=$?
  # Interrupted by a trap, `wait` says 128 + n although the job lives on.
  ((signals != before)) || exit "$code"
done
