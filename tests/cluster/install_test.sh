#!/usr/bin/env bash
# What `cmake --install` puts into a prefix runs from another folder, without the source tree's help.
#   install_test.sh CMAKE BUILD_FOLDER
cmake=$1 build=$(cd "$2" && pwd)
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"
unset TRIREME_TRAIN TRIREME_ROOT
export OMPI_MCA_btl_vader_single_copy_mechanism=none
prefix="$scratch/a prefix"
cd "$scratch" || exit 1
"$cmake" --install "$build" --prefix "$prefix" --strip >log 2>&1
check "it installs" [ $? = 0 ]
[ "$failures" = 0 ] || { cat log && exit 1; }
share=$prefix/share/trireme
check "the schema is the program's" cmp -s <("$prefix/bin/train" schema) "$share/config.schema.json"
check "the configs are there" cmp -s "$root/configs/tiny_llama.json" "$share/configs/tiny_llama.json"
check "the man page is the program's" cmp -s <("$prefix/bin/train" man) "$prefix/share/man/man1/train.1"
for place in bash:bash-completion/completions/train zsh:zsh/site-functions/_train fish:fish/vendor_completions.d/train.fish; do
  check "completion for ${place%%:*}" cmp -s <("$prefix/bin/train" completion "${place%%:*}") "$prefix/share/${place#*:}"
done
check "none of them is empty" [ -z "$(find "$prefix" -type f -size 0)" ]
check "the scripts for log.command" [ -x "$share/scripts/metrics_to_wandb.py" -a -x "$share/scripts/metrics_to_mlflow.py" ]
check "licence and README, too" [ -e "$prefix/share/doc/trireme/LICENSE" -a -e "$prefix/share/doc/trireme/README.md" ]
check "scripts find each other in it" lacks "$(grep -rlE "(^|[^[:alnum:]_./~}-])$root(/|\$)" "$share" 2>/dev/null)" "$share"

# Two ranks by the installed run.sh: which has to find the program of its own prefix.
settings=(--set run.steps=3 --set run.threads_per_rank=1 --set data.train=synthetic --set evaluation.interval_steps=0)
"$share/scripts/run.sh" -n 2 "$share/configs/tiny_llama.json" "${settings[@]}" --set run.directory=run >log 2>&1
check "two ranks train by the installed run.sh" [ $? = 0 ]
[ "$failures" = 0 ] || cat log
check "and save" [ -e run/checkpoints/step-00000003/manifest.json ]
ln -s "$share/scripts/run.sh" run_here
./run_here -n 1 "$share/configs/tiny_llama.json" "${settings[@]}" --set run.directory=linked >log 2>&1
check "a link to run.sh finds it, too" [ $? = 0 ]
TRIREME_TRAIN=/nothing "$share/scripts/run.sh" -n 1 none.json 2>log
check "a TRIREME_TRAIN that is not there: exit 3" [ $? = 3 ]
check "and named" grep -q 'TRIREME_TRAIN=/nothing' log
"$share/scripts/run_with_restart.sh" -n 1 "$share/configs/tiny_llama.json" "${settings[@]}" --set run.directory=again >log 2>&1
check "run_with_restart.sh finds run.sh" [ $? = 0 ]
"$share/data/text.sh" --output text "$share/data/sample.txt" --vocab-size 300 >log 2>&1
check "a recipe of data/ finds it" [ -s text/train.bin ]
[ "$failures" = 0 ] || cat log
check "help names the installed script" contains "$("$prefix/bin/train" --help)" "$share/scripts/run.sh -n N"
OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=0 "$prefix/bin/train" "$share/configs/tiny_llama.json" 2>log
check "a wrong launch names the installed script" grep -q "$share/scripts/run.sh" log

# Slurm runs a copy of slurm.sbatch elsewhere: where it was submitted from stands in the job's record.
mkdir spool bin submitted
cp "$share/scripts/slurm.sbatch" spool/slurm_script
cat >bin/scontrol <<SCONTROL
#!/bin/sh
echo "JobId=7 JobName=train WorkDir=$scratch/submitted Command=$scratch/link/share/trireme/scripts/slurm.sbatch c.json StdErr=x"
SCONTROL
ln -s "$prefix" link # a path with spaces ends early in that record
printf '#!/bin/sh\nshift 2\nexec "$@"\n' >bin/srun
chmod +x bin/*
(cd submitted && PATH=$scratch/bin:$PATH SLURM_JOB_ID=7 SLURM_JOB_NODELIST=here SLURM_SUBMIT_DIR=$PWD \
  bash "$scratch/spool/slurm_script" "$share/configs/tiny_llama.json" "${settings[@]}" --set run.directory=run) >log 2>&1
check "slurm.sbatch finds its neighbours" [ $? = 0 ]
[ "$failures" = 0 ] || cat log
check "and the job trained" [ -e submitted/run/checkpoints/step-00000003/manifest.json ]

# A package is built by DESTDIR: nothing outside of it.
DESTDIR=$scratch/package "$cmake" --install "$build" --prefix /opt/trireme >log 2>&1
check "DESTDIR is honoured" [ -x package/opt/trireme/bin/train -a -s package/opt/trireme/share/trireme/config.schema.json ]
check "and nothing is outside of it" [ ! -e /opt/trireme/share/trireme/config.schema.json ]
finish
