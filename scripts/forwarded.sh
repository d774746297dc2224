# shellcheck shell=bash
# Sourced: a command in a session of its own, so that a Ctrl-C of the terminal reaches it through this shell alone. From here
# on each SIGINT, SIGTERM and SIGUSR1 to this shell becomes one SIGUSR1 to the command, once it listens.
#
#   run_forwarded COMMAND...   runs it to its end; its exit code in `code`
#   signals                    how many were received so far
# Who sources this may define `listens` (whether process $job may be told) and `on_forward` (called before it is), and set
# `forwards=no` (signals are only counted).
declare -i signals=0 told=0 code=0
job='' telling=no forwards=yes

# Whether a process has a handler for SIGUSR1 (bit 9 of the mask of caught signals): before that the signal would kill.
catches_usr1() {
  local mask
  mask=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null)
  [ -n "$mask" ] && (((16#${mask: -4} & 0x200) != 0))
}
# The handlers of this shell, which the command has before it begins its session, do not count.
begun() { [ "$(sed 's/.*) //' "/proc/$job/stat" 2>/dev/null | cut -d ' ' -f 4)" = "$job" ]; }
listens() { begun && catches_usr1 "$job"; }

forward() {
  local -i tries
  if [ "$telling" != no ] || [ -z "$job" ] || [ "$forwards" != yes ]; then return; fi
  telling=yes # a signal during the loop below is seen by its condition
  while ((told < signals)); do
    # A command that has not installed its handler yet gets 10 s to do so.
    for ((tries = 0; tries < 100; ++tries)); do
      kill -0 "$job" 2>/dev/null || break 2
      listens && break
      sleep 0.1
    done
    ((told == 0)) || sleep 0.2 # two at once would arrive as one
    on_forward
    kill -USR1 "$job" 2>/dev/null
    told+=1
  done
  telling=no
}
on_forward() { :; }

run_forwarded() {
  local -i before
  setsid "$@" &
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
trap 'signals+=1; forward' INT TERM USR1
