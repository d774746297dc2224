#!/usr/bin/env bash
# scripts/run_with_restart.sh [OPTIONS] -n RANKS CONFIG [MORE.json ...] [--set key=value ...]
# scripts/run_with_restart.sh [OPTIONS] COMMAND [ARGUMENT ...]
#
# Runs `scripts/run.sh -n RANKS CONFIG ...`, or COMMAND, and starts it again where it ends by what passes: saved and asking
# to be started again (75), a device or a network that failed after the first step (71), a hang (124), a killed or crashed
# rank (128 + n and whatever else a launcher makes of it), an internal error (70). A run resumes by itself, so the same command goes on at the newest checkpoint. It ends
#   where the command ends with 0 (done), 2 (config), 4 (diverged), 74 (data, file system), 126 or 127 (no such command);
#   with 3 (machine, lock) in the first life; after a restart the lock of a life just killed, or a device it held, may
#     take a while to be free;
#   after three lives in a row without progress: no newer checkpoint, and no step in metrics.jsonl beyond those before;
#   where it was itself asked to stop: SIGINT, SIGTERM and SIGUSR1 become one SIGUSR1 to the command (a second one likewise),
#     and what that ends with is what this ends with.
# Its own code is the last code of the command (see --recorded). What a life leaves running on this host is killed before
# the next begins.
#
#   --directory DIR   run.directory, where it does not stand in a config or --set of the command line
#   --cycles N        lives without progress that end it (3)
#   --delay SECONDS   before a restart (2); doubled with each life without progress, up to a minute
#   --end-on CODES    more codes that end it, joined by commas (under Slurm 75, for a requeue)
#   --recorded        a life that ends with 0 and wrote nothing to metrics.jsonl counts as 1: srun may fail to launch and say 0
#   --no-forward      the command gets its signals by itself (Slurm signals the ranks of a step): only remember them
set -u
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
. "$here/forwarded.sh"

say() { echo "run_with_restart: $*" >&2; }
usage() {
  say "$1"
  sed -n '2,3s/^# /  usage: /p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

directory='' cycles=3 delay=2 recorded='' end_on=,0,2,4,74,126,127,
while [ $# -gt 0 ]; do
  case $1 in
  --directory | --cycles | --delay | --end-on)
    [ $# -ge 2 ] || usage "$1 needs a value"
    case $1 in
    --directory) directory=$2 ;;
    --cycles) cycles=$2 ;;
    --delay) delay=$2 ;;
    --end-on) end_on+=$2, ;;
    esac
    shift 2
    ;;
  --recorded) recorded=yes && shift ;;
  --no-forward) forwards=no && shift ;;
  --) shift && break ;;
  -n) break ;;
  -*) usage "unknown option $1" ;;
  *) break ;;
  esac
done
[[ $cycles =~ ^[1-9][0-9]{0,5}$ ]] || usage "--cycles: $cycles is not a count"
[[ $delay =~ ^[0-9]+(\.[0-9]+)?$ ]] || usage "--delay: $delay is not a number of seconds"
[[ $end_on =~ ^[0-9,]+$ ]] || usage "--end-on: codes joined by commas"
[ $# -gt 0 ] || usage "no command"
if [ "$1" = -n ]; then set -- "$here/run.sh" "$@"; fi

# The last config that names a run.directory; a --set after it wins.
directory_in_config() {
  local text in_run='"run"[[:space:]]*:[[:space:]]*\{[^{}]*"directory"[[:space:]]*:[[:space:]]*"([^"]+)"'
  text=$(sed 's|//[^"]*$||' "$1" 2>/dev/null | tr '\n' ' ')
  if [[ $text =~ $in_run ]]; then echo "${BASH_REMATCH[1]}"; fi
}
find_directory() {
  local argument before='' named='' set_to=''
  for argument in "$@"; do
    [ "$before" != --set ] || argument=--set=$argument
    case $argument in
    --set=run.directory=*) set_to=${argument#--set=run.directory=} && set_to=${set_to#\"} && set_to=${set_to%\"} ;;
    *.json) [ -f "$argument" ] && named=$(directory_in_config "$argument") && directory=${named:-$directory} ;;
    esac
    before=$argument
  done
  directory=${set_to:-$directory}
}
[ -n "$directory" ] || find_directory "$@"
[ -n "$directory" ] || usage "no run.directory stands in the command line (progress is read there). Name it with --directory."

# The farthest step on record; 0 before the first.
steps_so_far() {
  local -i saved=0 reached=0
  local name
  for name in "$directory"/checkpoints/step-*/manifest.json; do
    name=${name%/manifest.json} && name=${name##*/step-}
    if [[ $name =~ ^[0-9]+$ ]] && ((10#$name > saved)); then saved=10#$name; fi
  done
  name=$(tail -n 1000 "$directory/metrics.jsonl" 2>/dev/null |
    sed -n 's/^{"kind":[[:space:]]*"step",[[:space:]]*"step":[[:space:]]*\([0-9]\{1,18\}\),.*/\1/p' | tail -n 1)
  reached=10#${name:-0}
  echo $((saved > reached ? saved : reached))
}

metrics_state() { stat -c %s:%y "$directory/metrics.jsonl" 2>/dev/null; }

meaning_of() {
  case $1 in
  0) echo 'done' ;;
  2) echo "config or command line" ;;
  3) echo "this machine, or another run in the directory" ;;
  4) echo diverged ;;
  70) echo "internal error" ;;
  71) echo "a device or the network failed" ;;
  74) echo "data or file system" ;;
  75) echo "saved, asks to be started again" ;;
  124) echo "a hang" ;;
  126 | 127) echo "no such command" ;;
  *) if (($1 > 128 && $1 < 193)); then echo "signal $(kill -l $(($1 - 128)))"; else echo "no code of train"; fi ;;
  esac
}

# Processes of this host that were started in this life: they carry its mark in their environment.
left_running() { grep -lzxF "TRIREME_LIFE=$life" /proc/[0-9]*/environ 2>/dev/null | grep -o '[0-9]*'; }
clear_leftovers() {
  local pids
  local -i tries
  for ((tries = 0; tries < 20; ++tries)); do
    pids=$(left_running)
    [ -n "$pids" ] || return 0
    sleep 0.1
  done
  say "still running after that life, killed now: process ${pids//$'\n'/, }"
  # shellcheck disable=SC2086
  kill -KILL $pids 2>/dev/null
}

on_forward() { say "asked to stop: SIGUSR1 to the command (a second signal ends it at once)"; }
# Open MPI would wait for a host that is cut off long after its ranks gave up: this way mpirun misses it after 25 s. Open MPI 5
# starts ranks by PRRTE, whose settings are named apart.
for setting in time=10 intvl=5 probes=3; do
  for system in OMPI PRTE; do
    name=${system}_MCA_oob_tcp_keepalive_${setting%=*}
    export "$name=${!name-${setting#*=}}"
  done
done

declare -i lives=0 idle=0
life=''

pause() { # SECONDS; a signal ends it
  sleep "$1" &
  wait $!
  kill $! 2>/dev/null
}

declare -i steps farthest
farthest=$(steps_so_far)
while :; do
  lives+=1
  begin=$(date +%s)
  ((signals == 0)) || break
  life=$$.$lives.$begin
  metrics_before=$(metrics_state)
  run_forwarded env "TRIREME_LIFE=$life" "$@"
  seconds=$(($(date +%s) - begin))
  steps=$(steps_so_far)
  meaning=$(meaning_of $code)
  if [ -n "$recorded" ] && ((code == 0)) && [ "$(metrics_state)" = "$metrics_before" ]; then
    code=1 meaning="in place of 0: it recorded nothing, so it was not launched"
  fi
  what="life $lives ended after $seconds s at step $steps with $code ($meaning)"
  if [[ $end_on == *,$code,* ]] || ((signals > 0)) || ((code == 3 && lives == 1)); then
    say "$what: ends"
    exit $code
  fi
  clear_leftovers
  if ((steps > farthest)); then idle=0; else idle+=1; fi
  farthest=$((steps > farthest ? steps : farthest))
  if ((idle >= cycles)); then
    say "$what, and $idle lives in a row brought no step: ends. The messages above say why."
    exit $code
  fi
  wait_seconds=$(awk -v d="$delay" -v n=$((idle > 1 ? idle - 1 : 0)) 'BEGIN { s = d * 2 ^ n; print s < 60 ? s : (d > 60 ? d : 60) }')
  no_progress=''
  ((idle == 0)) || no_progress=", $idle of $cycles without progress"
  say "$what: again in $wait_seconds s$no_progress"
  pause "$wait_seconds"
  if ((signals > 0)); then
    say "asked to stop while nothing ran: ends"
    exit 75
  fi
done
say "asked to stop before it began: ends"
exit 75
