#!/usr/bin/env bash
# Stands in for the trainer: `fake_train.sh exit N`, or `fake_train.sh wait SIGNALS CODE [late]`, which leaves a file
# ready.RANK in $FAKE_DIRECTORY once it listens and ends with CODE after that many SIGUSR1.
rank=${OMPI_COMM_WORLD_RANK:-${SLURM_PROCID:-0}}
ranks=${OMPI_COMM_WORLD_SIZE:-${SLURM_STEP_NUM_TASKS:-1}}
count=0
case $1 in
exit)
  printf '%s\n' "$@" >"$FAKE_DIRECTORY/arguments.$rank"
  # As the real ranks, which meet first and have handlers: srun --kill-on-bad-exit sends SIGTERM to all others as soon as one
  # ends, and where that finds one that is still being launched, the step's code is 143.
  trap '' TERM
  here=$FAKE_DIRECTORY/here.${SLURM_STEP_ID:-0}
  : >"$here.$rank"
  until [ "$(ls "$FAKE_DIRECTORY" | grep -c "^${here##*/}\.")" -ge "$ranks" ]; do sleep 0.05; done
  exit "$2"
  ;;
wait)
  if [ "${4-}" = late ]; then
    # Until the signal has been sent to run.sh: a rank still starting.
    : >"$FAKE_DIRECTORY/starting.$rank"
    until [ -e "$FAKE_DIRECTORY/sent" ]; do sleep 0.05; done
  fi
  trap 'count=$((count + 1)); : >"$FAKE_DIRECTORY/signal.$count.$rank"' USR1
  : >"$FAKE_DIRECTORY/ready.$rank"
  until [ "$count" -ge "$2" ]; do sleep 0.05; done
  # Every rank has its signals before the first exit ends the job.
  until [ "$(ls "$FAKE_DIRECTORY" | grep -c "^signal.$2\.")" -ge "$ranks" ]; do sleep 0.05; done
  exit "$3"
  ;;
esac
