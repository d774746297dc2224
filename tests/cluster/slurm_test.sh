#!/usr/bin/env bash
# The program under a real Slurm: controller, two nodes and munge on this machine, in a process namespace and a scratch
# folder of their own, so that nothing outlives the test.
#   slurm_test.sh TRAIN
# scripts/slurm.sbatch through a time limit, a rank that is killed, a requeue (what preemption does) and scancel; in the
# end every step stands once, with the bits of a run that nobody disturbed. Without Slurm (scripts/setup.sh --slurm) or
# the right to namespaces it is skipped (77).
if [ "${2-}" != inside ]; then
  binary=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
  skip() {
    echo "skipped: $*" >&2
    exit 77
  }
  for tool in slurmctld slurmd srun sbatch munged mpirun unshare; do
    command -v $tool >/dev/null || [ -x /usr/sbin/$tool ] || skip "no $tool here (scripts/setup.sh --slurm)"
  done
  [ "$(id -u)" = 0 ] || skip "the daemons of Slurm need root here"
  spaces=(--mount --ipc --pid --fork --kill-child --mount-proc)
  unshare "${spaces[@]}" true 2>/dev/null || skip "no namespaces here"
  exec unshare "${spaces[@]}" "${BASH_SOURCE[0]}" "$binary" inside
fi
PATH=$PATH:/usr/sbin
# Jobs, logs and the two runs.
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/lib.sh" "$1"
export OMP_NUM_THREADS=1
show_logs() {
  local log
  for log in train-*.log cluster/log/slurm*; do echo "==> $log <==" && grep -v '^step ' "$log" | tail -n 60; done
}
trap '[ $? = 0 ] || show_logs; end_background' EXIT

is_taken() { (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
start_cluster() {
  local node host
  host=$(hostname)
  local -i port=$((20000 + RANDOM % 9000))
  while is_taken $port || is_taken $((port + 1)) || is_taken $((port + 2)); do port=$((20000 + RANDOM % 9000)); done
  mkdir -p cluster/{state,spool.n1,spool.n2,tmp.n1,tmp.n2,log} && mkdir -m 700 cluster/munge
  head -c 1024 /dev/urandom >cluster/munge/key && chmod 400 cluster/munge/key
  munged --force --socket="$PWD/cluster/munge/socket" --key-file="$PWD/cluster/munge/key" \
    --pid-file="$PWD/cluster/munge/pid" --log-file="$PWD/cluster/log/munged" --seed-file="$PWD/cluster/munge/seed"
  # With one TmpFS, the second node would find the first one's folder of a step.
  cat >cluster/slurm.conf <<CONF
ClusterName=trireme
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket=$PWD/cluster/munge/socket
StateSaveLocation=$PWD/cluster/state
SlurmdSpoolDir=$PWD/cluster/spool.%n
TmpFS=$PWD/cluster/tmp.%n
SlurmctldPidFile=$PWD/cluster/slurmctld.pid
SlurmdPidFile=$PWD/cluster/slurmd.%n.pid
SlurmctldLogFile=$PWD/cluster/log/slurmctld
SlurmdLogFile=$PWD/cluster/log/slurmd.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MailProg=/bin/true
ReturnToService=2
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
KillWait=10
NodeName=n[1-2] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + 2))] CPUs=4 RealMemory=1000 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
  export SLURM_CONF=$PWD/cluster/slurm.conf
  slurmctld -f "$SLURM_CONF"
  for node in n1 n2; do slurmd -N $node -f "$SLURM_CONF"; done
  until_true nodes_idle
}
nodes_idle() { [ "$(sinfo -h -N -o %t 2>/dev/null | sort -u)" = idle ]; }
submit() { sbatch --parsable "$@" || { echo "FAILED: sbatch $*" && tail cluster/log/*; }; }
state_of() { scontrol show job "$1" | sed -n 's/.*JobState=\([A-Z]*\).*/\1/p'; }
is_in() { [[ " $2 " == *" $(state_of "$1") "* ]]; }
times() {
  local -i found
  found=$(grep -c -e "$2" "train-$1.log" 2>/dev/null)
  ((found >= $3))
}
# A requeued job may wait for up to two minutes before it starts again. Asked too soon, while its last life is being cleared
# away, Slurm does not hurry; asked all the time it never comes to look.
start_now() {
  local -i seconds
  for ((seconds = 0; seconds < 90; ++seconds)); do
    times "$1" 'requeued 1 times' 1 && return
    if ((seconds % 15 == 2)) && is_in "$1" PENDING; then scontrol update JobId="$1" StartTime=now 2>/dev/null; fi
    sleep 1
  done
  echo "FAILED: job $1 did not start again"
  exit 1
}
# ends_in JOB STATES: and shows its log where it does not.
ends_in() {
  until_true is_in "$1" "COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL PREEMPTED"
  check "job $1 ends as $2" is_in "$1" "$2"
  is_in "$1" "$2" || tail -n 30 "train-$1.log"
}

saved_at() { sed -n 's/^saved step \([0-9]*\) .*/\1/p' "train-$1.log" | tail -n 1; }
resumed_at() { sed -n 's/^resuming from step \([0-9]*\) .*/\1/p' "train-$1.log" | tail -n 1; }
# The step that stood last in the log when the last life went on.
saved_before_resuming() {
  awk '/^saved step/ { saved = $3 } /^resuming from step/ { before = saved } END { print before }' "train-$1.log"
}
# The ranks of a run, by what stands in their command line.
ranks_of() {
  local process
  for process in /proc/[0-9]*; do
    [ "$(readlink "$process/exe" 2>/dev/null)" = "$binary" ] || continue
    if tr '\0' '\n' <"$process/cmdline" | grep -qx "run.directory=$1"; then echo "${process#/proc/}"; fi
  done
}

step_is_gone() { ! grep -qsF "slurmstepd: [$1]" /proc/[0-9]*/cmdline; }

start_cluster
export TRIREME_ROOT=$root
job=("$root/scripts/slurm.sbatch" base.json --set batch.micro=1 --set run.steps=200000 --set log.interval_steps=20)

# The time limit, for which Slurm looks twice a minute: beside all that follows.
limited=$(submit --time=1 --signal=USR1@60 "${job[@]}" --set run.directory=limited)
until_true times "$limited" '^step ' 1

# A launch that Open MPI cannot see, alone or in the template.
srun --mpi=none -n 2 "$binary" base.json --set batch.micro=1 >out 2>log
check "srun without pmix: exit 3" same $? 3
says "srun without pmix: what to type" 'srun --mpi=pmix -n 2 train'
check "srun without pmix: nothing is trained" [ ! -e run ]

# A stand-in says how the template reads codes: diverged, no requeue; whatever else, no requeue either.
mkdir fake && ln -s "$root/tests/cluster/fake_train.sh" fake/train
export FAKE_DIRECTORY=$PWD/fake
diverged=$(TRIREME_TRAIN=$PWD/fake/train submit "$root/scripts/slurm.sbatch" exit 4 --set run.directory=fake)
ends_in "$diverged" FAILED
check "diverged: code 4 is the job's" logged <(scontrol show job "$diverged") 'ExitCode=4:0'
check "diverged: no requeue" times "$diverged" 'diverged.*no requeue' 1

# A rank dies: the step starts again in the same allocation.
disturbed=$(submit "${job[@]}" --set run.directory=disturbed --set checkpoint.interval_steps=5)
until_true times "$disturbed" '^saved step' 1
kill -KILL "$(ranks_of disturbed | tail -n 1)"
until_true times "$disturbed" '^resuming from step' 1
check "a rank that dies starts the step again" times "$disturbed" '^run_with_restart: life 1 .*again in' 1
check "in the same allocation" same "$(grep -c '^slurm.sbatch: job' "train-$disturbed.log")" 1
# What preemption does: TERM, and back into the queue.
until_true times "$disturbed" '^step .*tokens/s' 3
scontrol requeue "$disturbed"
until_true times "$disturbed" '^train: exit 75' 1
start_now "$disturbed"
until_true times "$disturbed" '^resuming from step' 2
check "requeued: the log goes on" times "$disturbed" 'requeued 1 times' 1
check "requeued: from the last step" same "$(resumed_at "$disturbed")" "$(saved_before_resuming "$disturbed")"
until_true times "$disturbed" '^step .*tokens/s' 6
scancel "$disturbed"
ends_in "$disturbed" CANCELLED
until_true times "$disturbed" '^train: exit 75' 2
check "scancel: saved" times "$disturbed" '^saved step' 2
sleep 1
check "scancel: not in the queue again" is_in "$disturbed" CANCELLED
# A job that was cancelled goes on in the next one.
end=$(($(saved_at "$disturbed") + 5))
srun --mpi=pmix -N 2 -n 2 "$binary" base.json --set batch.micro=1 --set run.steps=200000 --set run.directory=disturbed \
  --set run.exit_at_step=$end >out 2>log
code=$?
ends_with "the run goes on in a step of its own" 0
says "from where it was cancelled" "^resuming from step $((end - 5)) "
check_metrics disturbed $end
srun --mpi=pmix -N 2 -n 2 "$binary" base.json --set batch.micro=1 --set run.steps=200000 --set run.directory=whole \
  --set run.exit_at_step=$end >out 2>log
code=$?
ends_with "undisturbed" 0
same_run "killed, requeued, cancelled" disturbed $end whole

# By now the limit has come near.
until_true times "$limited" 'slurm.sbatch: saved, requeued' 1
check "time limit: 75 on record" times "$limited" '^train: exit 75' 1
# A limit of a minute with a signal a minute before it lets Slurm's next look end the second life as well.
until_true scontrol update JobId="$limited" TimeLimit=30
# As if that step still ended: the next life's first step, which bears its number, cannot be launched beside it.
until_true step_is_gone "$limited.0"
touch cluster/spool.n{1,2}/stepd.slurm.pmix."$limited.0"
start_now "$limited"
until_true times "$limited" '^resuming from step' 1
check "a step that cannot be launched: srun ends with 0, and another follows" \
  times "$limited" '^run_with_restart: life 1 .*not launched.*again in' 1
check "time limit: the job starts again" times "$limited" 'requeued 1 times' 1
check "time limit: from the last step" same "$(resumed_at "$limited")" "$(saved_before_resuming "$limited")"
touch limited/stop
ends_in "$limited" COMPLETED
check_metrics limited "$(saved_at "$limited")"
check "no process of a job is left" same "$(ranks_of limited)$(ranks_of disturbed)" ""

# A sweep as a job array.
"$binary" sweep base.json --set run.directory=array --set run.steps=4 --set run.seed=1,2 --slurm >out 2>log
check "sweep --slurm: submitted" logged out '^Submitted batch job'
of_seed() { end_reason "array/run.steps=4,run.seed=$1" 2>/dev/null; }
both_ended() { [ "$(of_seed 1)$(of_seed 2)" = stepssteps ]; }
until_true both_ended
check_metrics 'array/run.steps=4,run.seed=2' 4
check "sweep --slurm: a log for each task" same "$(ls array/slurm-*_[01].log | wc -l)" 2
finish
