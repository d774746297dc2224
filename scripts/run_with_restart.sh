#!/usr/bin/env bash
# scripts/run_with_restart.sh [OPTIONS] -n RANKS CONFIG [MORE.json ...] [--set key=value ...]
# scripts/run_with_restart.sh [OPTIONS] COMMAND [ARGUMENT ...]
#
# Runs `scripts/run.sh -n RANKS CONFIG ...`, or COMMAND, and starts it again where it ends by what passes: saved and asking
# to be started again (75), a hang (124), a killed or crashed rank (128 + n and whatever else a launcher makes of it), an
# internal error (70). A run resumes by itself, so the same command goes on at the newest checkpoint. It ends
#   where the command ends with 0 (done), 2 (config), 4 (diverged), 74 (data, file system), 126 or 127 (no such command);
#   with 3 (machine, lock) in the first life; after a restart the lock of a life just killed, or a device it held, may
#     take a while to be free;
#   after three lives in a row without progress: no newer checkpoint, and no step in metrics.jsonl beyond those before;
#   where it was itself asked to stop: SIGINT, SIGTERM and SIGUSR1 become one SIGUSR1 to the command (a second one likewise),
#     and what that ends with is what this ends with.
# Its own code is the last code of the command. What a life leaves running on this host is killed before the next begins.
#
#   --directory DIR   run.directory, where it does not stand in a config or --set of the command line
#   --cycles N        lives without progress that end it (3)
#   --delay SECONDS   before a restart (2); doubled with each life without progress, up to a minute
#   --end-on CODES    more codes that end it, joined by commas (under Slurm 75, for a requeue)
#   --no-forward      the command gets its signals by itself (Slurm signals the ranks of a step): only remember them
set -u

say() { echo "run_with_restart: $*" >&2; }
usage() {
  say "$1"
  sed -n '2,3s/^# /  usage: /p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

directory='' cycles=3 delay=2 forwards=yes end_on=,0,2,4,74,126,127,
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
if [ "$1" = -n ]; then set -- "$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/run.sh" "$@"; fi

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

meaning_of() {
  case $1 in
  0) echo 'done' ;;
  2) echo "config or command line" ;;
  3) echo "this machine, or another run in the directory" ;;
  4) echo diverged ;;
  70) echo "internal error" ;;
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

declare -i signals=0 forwarded=0 lives=0 idle=0 code=0
job='' life='' forwarding=no

# Before it has a handler for SIGUSR1 (bit 9 of the mask of caught signals) the signal would kill the command; the handlers
# of this shell, which the process has before it begins a session of its own, do not count.
catches_usr1() {
  local mask
  [ "$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 4)" = "$1" ] || return 1
  mask=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null)
  [ -n "$mask" ] && (((16#${mask: -4} & 0x200) != 0))
}
forward() {
  local -i tries
  [ "$forwarding" = no ] && [ -n "$job" ] && [ "$forwards" = yes ] || return
  forwarding=yes # a signal during the loop below is seen by its condition
  while ((forwarded < signals)); do
    for ((tries = 0; tries < 100; ++tries)); do
      kill -0 "$job" 2>/dev/null || break 2
      catches_usr1 "$job" && break
      sleep 0.1
    done
    say "asked to stop: SIGUSR1 to the command (a second signal ends it at once)"
    ((forwarded == 0)) || sleep 0.2 # two at once would arrive as one
    kill -USR1 "$job" 2>/dev/null
    forwarded+=1
  done
  forwarding=no
}
trap 'signals+=1; forward' INT TERM USR1

one_life() {
  local -i before
  job=''
  life=$$.$lives.$begin
  # Its own session: a Ctrl-C of the terminal reaches it through this script alone, once.
  TRIREME_LIFE=$life setsid "$@" &
  job=$!
  forward
  while :; do
    before=$signals
    wait "$job"
    code=$?
    # Interrupted by a trap, `wait` says 128 + n although the command lives on.
    ((signals != before)) || break
  done
  job=''
}

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
  one_life "$@"
  seconds=$(($(date +%s) - begin))
  steps=$(steps_so_far)
  what="life $lives ended after $seconds s at step $steps with $code ($(meaning_of $code))"
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
