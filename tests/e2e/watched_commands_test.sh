#!/usr/bin/env bash
# Ranks of the commands that do not train end together as well: one that is stopped ends all with 124 and is named. One that
# dies ends all, in training and at the start too, where the launcher would leave them waiting, on a loaded machine.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
train base.json --set run.exit_at_step=2
[ "$code" = 0 ] || { cat log; exit 1; }

pid_of_rank() { # RANK
  local process
  for process in $(train_processes "$job"); do
    if tr '\0' '\n' <"/proc/$process/environ" 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$1"; then echo "$process"; fi
  done
}
appeared() { [ -n "$(pid_of_rank "$1")" ] || ended "$job"; }
# Both ranks computed for so many hundredths of a second: they are past their start.
worked() { # HUNDREDTHS
  local process
  ! ended "$job" || return 0
  for process in $(pid_of_rank 0) $(pid_of_rank 1); do
    [ "$(awk '{ print $14 + $15 }' "/proc/$process/stat" 2>/dev/null || echo 0)" -ge "$1" ] || return
  done
}
# Before the ranks have met: one never comes to MPI_Init, and the other waits there.
hold() { kill -STOP "$(pid_of_rank 1)" && sleep 2; }
# A dead process counts: when its parent takes note of it (Open MPI's daemon sleeps two seconds first) is no matter here.
ended() { [[ $(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) =~ ^(Z|X|$) ]]; }
# hit WHAT RANK SIGNAL WORK COMMAND...: WORK hundredths of a second, or "hold".
hit() {
  local rank=$2 signal=$3 work=$4 process processes
  local -i begin tries
  shift 4
  start log "$root/scripts/run.sh" -n 2 "$@"
  until_true appeared 0
  until_true appeared 1
  if [ "$work" = hold ]; then hold; else until_true worked "$work"; fi
  processes=$(train_processes "$job")
  kill -"$signal" "$(pid_of_rank "$rank")" 2>/dev/null
  begin=$(date +%s%N)
  for process in $processes; do until_true ended "$process"; done
  milliseconds=$((($(date +%s%N) - begin) / 1000000))
  # Open MPI waits for ever where it was told to leave the others alone and a rank died before the end of its MPI_Init.
  for ((tries = 0; tries < 100; ++tries)); do ended "$job" && break || sleep 0.1; done
  # shellcheck disable=SC2046  # words: process numbers
  ended "$job" || kill -KILL $(cat "/proc/$job/task/$job/children")
  wait "$job"
  code=$?
}
stopped() { # RANK WORK COMMAND...
  local what="$3, rank $1 stopped" try
  # A short command may be over before the signal comes, which proves nothing: again.
  for try in {1..20}; do
    rm -rf hf
    hit "$what, try $try" "$1" STOP "${@:2:1}" "${@:3}"
    [ "$code" = 0 ] || break
  done
  check "$what: exit 124" same "$code" 124
  in_time "$what: it ends, after a deadline of 1 s" "$milliseconds"
  check "$what: one closing line" [ "$(grep -c '^train: exit' log)" = 1 ]
  says "$what: it is named" "^train: exit 124 (.*rank $1 (.*stopped"
}
died() { # RANK WORK COMMAND...
  local what="$3, rank $1 killed"
  hit "$what" "$1" KILL "${@:2:1}" "${@:3}"
  # Told to leave the others alone, Open MPI 5 returns 0 whatever happened.
  check "$what: not well" [ "$code" != 0 -o -n "${TRIREME_MPIRUN-}" ]
  in_time "$what: all end" "$milliseconds"
  says "$what: it is named" "^train: exit [1-9].*rank $1 .*gone"
  check "$what: one closing line" [ "$(grep -c '^train: exit' log)" = 1 ]
}
evaluate=(evaluate base.json --set data.validation=synthetic --set evaluation.batches=1000000)
benchmark=(benchmark base.json --steps 1000000 --set run.hang_timeout_seconds=1)
generate=(generate --checkpoint run --token-ids 65,66 --temperature 0 --max-new-tokens 1000000)
export=(export --checkpoint run --output hf)
stopped 0 30 "${benchmark[@]}"
stopped 1 10 "${generate[@]}" --hang-timeout 1
stopped 0 0 "${export[@]}" --hang-timeout 1
case $(mpirun --version) in
*"(Open MPI) 4."*) export OMPI_MCA_orte_abort_on_non_zero_status=0 ;;
*)
  printf '#!/bin/sh\nexec mpirun --continuous "$@"\n' >continuous
  chmod +x continuous
  export TRIREME_MPIRUN=$PWD/continuous
  ;;
esac
for _ in 1 2 3 4; do
  (while :; do :; done) &
  background+=($!)
done
died 0 30 "${evaluate[@]}"
died 1 10 "${generate[@]}"
train_at_length=(base.json --set run.directory=long --set run.steps=200000)
died 1 60 "${train_at_length[@]}"
died 1 hold "${train_at_length[@]}"
finish
