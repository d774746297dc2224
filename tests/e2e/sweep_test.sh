#!/usr/bin/env bash
# train sweep, compare and average on runs of the program itself; codes, order and words against stand-ins for its scripts.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export TRIREME_ROOT=$root # wherever the binary is
# The runs of a sweep say their own last line in the same log.
sweep_ends_with() {
  check "$1: exit $2" same "$code" "$2"
  check "$1: the last line" same "$(tail -n 1 log | grep -o '^train: exit [0-9]* (')" "train: exit $2 ("
  [ "$code" = "$2" ] || sed 's/^/    /' log | tail -n 12
}
"$binary" tokenize --tokenizer byte --output toy text.txt >/dev/null 2>&1

# Two keys, four runs on two ranks.
train sweep base.json --set run.steps=6 --set optimizer.lr=0.001,0.003 --set data.train=toy,./toy --ranks 2 --set batch.micro=1
sweep_ends_with "a sweep" 0
first='run/run.steps=6,optimizer.lr=0.001,data.train=toy,batch.micro=1'
last='run/run.steps=6,optimizer.lr=0.003,data.train=.%2Ftoy,batch.micro=1'
check "the folders" same "$(ls run | wc -l)" 4
check_metrics "$first" 6
check_metrics "$last" 6
check "two ranks" grep -q '"world":2' "$first/metrics.jsonl"
check "the config has the values" grep -q '"lr": 0.003' "$last/config.json"
check "a table of four runs" same "$(grep -c '^run.steps=6,' out)" 4
train sweep base.json --set run.steps=6 --set optimizer.lr=0.001,0.003 --set data.train=toy,./toy --ranks 2 --set batch.micro=1
sweep_ends_with "again" 0
check "what is finished is skipped" same "$(grep -c 'is finished$' log)" 4
check "and not started" same "$(grep -c '"kind":"start"' "$first/metrics.jsonl")" 1

# Runs that end before their last step are finished, too.
for _ in once again; do
  train sweep base.json --set run.directory=early --set run.steps=6 --set run.exit_at_step=2 --set run.seed=1,2
  sweep_ends_with "runs that exit at a step" 0
done
check "they are not trained on" same "$(grep -c 'is finished$' log)" 2
check_metrics early/run.steps=6,run.exit_at_step=2,run.seed=1 2

# compare.
train compare "$first" "$last" --json --svg losses.svg
ends_with "compare" 0
check "compare: one valid JSON value" valid_json out
check "compare: the keys that differ alone" same "$(grep -o '"config":.*' out)" \
  '"config":{"data.train":["toy","./toy"],"optimizer.lr":[0.001,0.003]}}'
check "compare: steps" same "$(grep -o '"steps":[0-9]*' out | tr '\n' ' ')" '"steps":6 "steps":6 '
check "compare: loss of the last step" same "$(number loss <(grep '"kind":"step"' "$first/metrics.jsonl" | tail -n 1))" "$(number loss <(cut -d '}' -f 1 out))"
check "compare: a picture" grep -q '</svg>' losses.svg
train compare "$first"
ends_with "compare with nothing" 2
train compare "$first" absent
ends_with "compare with what is not there" 74
check "compare: it names the folder" logged log absent

# average: of one run its own bits, of two neither's.
train export --checkpoint "$first" --output one.hf --dtype fp32
train average "$first" --output mean1
ends_with "average of one" 0
check "average of one: the bits of its export" same_file mean1/model.safetensors one.hf/model.safetensors
train average "$first" "$last/checkpoints" one.hf --output mean3
ends_with "average of three" 0
check "average of three: other bits" [ "$(cmp mean3/model.safetensors one.hf/model.safetensors | wc -l)" = 1 ]
train generate --checkpoint mean3 --token-ids 115,116 --max-new-tokens 4 --temperature 0
ends_with "the mean generates" 0
train average "$first" --output mean1
ends_with "average over an earlier one" 2
train average "$first" absent --output mean4
ends_with "average of what is not there" 74

# Nothing starts where one run could not: an unknown key, a value that is not legal, a value twice, no value.
for options in '--set optimizer.lrr=1,2' '--set optimizer.lr=0.1,fast' '--set optimizer.lr=0.1,1e-1' '--set optimizer.lr=0.1,' \
  '--set run.directory=a,b' '--set batch.micro=2,3' '--ranks 0 --set run.seed=1,2' '--ranks 1'; do
  # shellcheck disable=SC2086
  train sweep base.json --set run.directory=none $options
  sweep_ends_with "sweep $options" 2
  check "sweep $options: nothing begins" [ ! -e none ]
done
train sweep base.json --set run.directory=none --set data.train=toy,absent
sweep_ends_with "sweep over data that are not there" 74
check "it names the run" logged log 'data.train=absent'

# Ctrl-C: the run saves, the next does not begin, 75; the same command goes on.
long=(sweep base.json --set run.directory=long --set run.steps=1000000 --set run.seed=1,2)
begun='long/run.steps=1000000,run.seed=1'
start log "$binary" "${long[@]}"
until_true grep -qs '"kind":"step"' "$begun/metrics.jsonl"
kill -INT "$job"
wait "$job"
code=$?
sweep_ends_with "Ctrl-C" 75
check "Ctrl-C: the run was stopped as a run is" same "$(end_reason "$begun")" signal
check "Ctrl-C: it saved" [ -n "$(ls "$begun/checkpoints")" ]
check "Ctrl-C: the next run does not begin" [ ! -e 'long/run.steps=1000000,run.seed=2' ]
check "Ctrl-C: it says how to go on" logged log 'same command goes on'

# A sweep that is killed takes its run with it.
resumed() { grep -qs '"kind":"resume"' "$begun/metrics.jsonl"; }
saved_again() { [ "$(end_reason "$begun")" = signal ]; }
start log "$binary" "${long[@]}"
until_true resumed
kill -KILL "$job"
until_true saved_again

# What the scripts are given and what comes of their codes.
mkdir -p fake/scripts bin
cat >fake/scripts/run.sh <<'FAKE'
#!/usr/bin/env bash
printf '<%s>' "$@" >>"$TRIREME_ROOT/arguments" && echo >>"$TRIREME_ROOT/arguments"
case $* in *seed=2*) exit 4 ;; *seed=3*) exit 74 ;; esac
FAKE
cp fake/scripts/run.sh fake/scripts/slurm.sbatch
printf '#!/usr/bin/env bash\n[ "${FAKE_SBATCH-0}" = 0 ] || exit "$FAKE_SBATCH"\necho "Submitted batch job 7"\n' >bin/sbatch
chmod +x fake/scripts/run.sh bin/sbatch
export TRIREME_ROOT=$PWD/fake
train sweep base.json --set run.directory="a b" --set run.seed=1,2,3,4 --ranks 3 --set batch.global=6
sweep_ends_with "failures" 4
check "failures: the others run" same "$(wc -l <fake/arguments)" 4
check "failures: the words" same "$(head -n 1 fake/arguments)" \
  '<-n><3><base.json><--set><run.seed=1><--set><batch.global=6><--set><run.directory=a b/run.seed=1,batch.global=6>'
check "failures: a table all the same" same "$(grep -c '^run.seed=' out)" 4

# As a job array.
rm fake/arguments
PATH=$PWD/bin:$PATH train sweep base.json --set run.directory="a b" --set run.seed=1,2 --ranks 3 --set batch.global=6 --slurm
sweep_ends_with "--slurm" 0
check "--slurm: the script and what sbatch says" same "$(cat out)" $'a b/sweep.sbatch\nSubmitted batch job 7'
check "--slurm: two tasks of three ranks" same "$(grep -c -e '^#SBATCH --array=0-1$' -e '^#SBATCH --ntasks=3$' 'a b/sweep.sbatch')" 2
(cd / && SLURM_ARRAY_TASK_ID=1 bash "$OLDPWD/a b/sweep.sbatch")
check "--slurm: a task is its run" same "$?" 4
check "--slurm: with its words" same "$(cat fake/arguments)" \
  '<base.json><--set><run.seed=2><--set><batch.global=6><--set><run.directory=a b/run.seed=2,batch.global=6>'
(bash 'a b/sweep.sbatch' 2>log)
check "--slurm: the script alone says how" logged log 'submit this by sbatch'
FAKE_SBATCH=1 PATH=$PWD/bin:$PATH train sweep base.json --set run.directory="a b" --set run.seed=1,2 --slurm
sweep_ends_with "--slurm, and sbatch refuses" 3
echo 'mine' >'a b/sweep.sbatch'
train sweep base.json --set run.directory="a b" --set run.seed=1,2 --slurm
sweep_ends_with "--slurm over a file of somebody else's" 2
check "which stays" same "$(cat 'a b/sweep.sbatch')" mine
OMPI_COMM_WORLD_SIZE=2 train sweep base.json --set run.seed=1,2
sweep_ends_with "under a launcher" 3
check "under a launcher: what to type" logged log '--ranks N'

# Installed: the scripts under the prefix.
mkdir -p prefix/bin prefix/share/trireme/scripts
cp "$binary" prefix/bin/train
printf '#!/usr/bin/env bash\n[ "$TRIREME_TRAIN" = "%s/prefix/bin/train" ] && exit 71\n' "$PWD" >prefix/share/trireme/scripts/run.sh
chmod +x prefix/share/trireme/scripts/run.sh
(unset TRIREME_ROOT && prefix/bin/train sweep base.json --set run.seed=5,6 >out 2>log)
check "installed: the prefix's scripts start the prefix's program" same $? 71
TRIREME_ROOT=$PWD/absent train sweep base.json --set run.seed=1,2
sweep_ends_with "without scripts" 3
finish
