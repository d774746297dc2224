#!/usr/bin/env bash
# What a person leaves running: several validation sets, the best checkpoint, an early stop, samples, a program that
# gets the metrics, and evaluation of any weights on any tokens.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

awk 'BEGIN { for (i = 0; i < 120; ++i) print "if (x" i % 9 ") { y = " i * 31 % 97 "; }" }' >code.txt
train tokenize --tokenizer byte --output code code.txt
sets='data.validation={"text": "toy", "code": "code"}'
watched=(--set "$sets" --set evaluation.interval_steps=2 --set checkpoint.keep_best=true)
evaluations() { grep -c '"kind":"evaluation".*"name":"'"$2"'"' "$1/metrics.jsonl"; }
best() { readlink "$1/checkpoints/best"; }
steps_saved() { find "$1/checkpoints" -maxdepth 1 -name 'step-*' -printf '%f\n' | sort | sed 's/step-0*//' | tr '\n' ' '; }
loss_of() { sed -n 's/.*"kind":"evaluation","step":'"$2"',"loss":\([^,]*\),.*"name":"'"$3"'".*/\1/p' "$1/metrics.jsonl"; }

# Named sets, the best of all, samples; the bits of training are those without.
train base.json --set run.directory=plain --set run.steps=6 --set checkpoint.keep_last=0 --set checkpoint.interval_steps=3
train base.json --set run.directory=best "${watched[@]}" --set run.steps=6 --set checkpoint.interval_steps=3 \
  --set checkpoint.keep_last=1 --set 'evaluation.samples=["stroke 7", "the sea\n"]'
ends_with "named sets, the best, samples" 0
check_metrics best 6
check "each set has a line at each evaluation" same "$(evaluations best text) $(evaluations best code)" "3 3"
check "no line without a name" same "$(grep -c '"kind":"evaluation"' best/metrics.jsonl)" 6
says "the console tells of each set" 'step 2/6 | validation loss of code'
check "the plot shows each set" grep -q 'validation code' best/loss.svg
check "best points to the last evaluation" same "$(best best)" step-00000006
check "what was the best goes; the newest other stays" same "$(steps_saved best)" "3 6 "
check "a sample of each prompt at each evaluation" same "$(grep -c '"kind":"sample"' best/metrics.jsonl)" 6
check "a sample has a prompt with its line feed" grep -q '"kind":"sample","step":6,"prompt":"the sea\\n","text":"' best/metrics.jsonl
same_run "evaluation changes no bits" best 6 plain
train checkpoint list best
check "the list marks the best" same "$(grep -c '(best)' out) $(grep '(best)' out | grep -c step-00000006)" "1 1"
train generate --checkpoint best/checkpoints/best --prompt "stroke 7" --max-new-tokens 64 --temperature 0
cp out generated
check "generation from the link says what the sample said" same \
  "$(tr -d '\n' <generated | cut -c 9- | head -c 12)" \
  "$(sed -n 's/.*"step":6,"prompt":"stroke 7","text":"\(.*\)"}/\1/p' best/metrics.jsonl | sed 's/\\n//g' | head -c 12)"
for command in "export --output exported" "evaluate --data toy --sequence-length 32" "checkpoint show"; do
  # shellcheck disable=SC2086
  case $command in
    checkpoint*) train $command best/checkpoints/best ;;
    *) train $command --checkpoint best/checkpoints/best ;;
  esac
  ends_with "$command of the link" 0
done

train base.json --set run.directory=half --set run.steps=4 --set precision.compute=bf16 --set data.validation=null \
  --set evaluation.interval_steps=2 --set 'evaluation.samples=["stroke 7"]' --set parallel.zero_stage=1
ends_with "samples in bf16, without validation data" 0
check "they need none" same "$(grep -c '"kind":"sample"' half/metrics.jsonl)" 2
train base.json --set run.directory=refused --set 'evaluation.samples=["", "a"]'
ends_with "an empty prompt" 2
says "which one" 'evaluation.samples: prompt 1 has no tokens'

# A worse loss is not saved as the best, over a resume with another rate too; keep_last does not count the best.
train base.json --set run.directory=best "${watched[@]}" --set run.steps=14 --set optimizer.lr=0.9 \
  --set lr_schedule.kind=constant --set checkpoint.interval_steps=3 --set checkpoint.keep_last=2
ends_with "a resume that gets worse" 0
check "best stays through worse losses" same "$(best best)" step-00000006
check "retention keeps the best beside the newest two" same "$(steps_saved best)" "6 12 14 "
train base.json --set run.directory=fork "${watched[@]}" --set run.steps=8 --set run.resume=best/checkpoints/best
ends_with "a run that goes on from the link" 0
check "it went on from step 6" grep -q '"kind":"resume","step":6' fork/metrics.jsonl
check "it has a best of its own" same "$(best fork)" step-00000008

# Killed between the commit and the link: the next start mends it.
ln -sfn step-00000012 best/checkpoints/best
ln -s step-00000012 best/checkpoints/best.tmp-left
train base.json --set run.directory=best "${watched[@]}" --set run.steps=15 --set optimizer.lr=0.9 \
  --set lr_schedule.kind=constant --set checkpoint.keep_last=2
check "the link is mended" same "$(best best)" step-00000006
check "what a killed run left is removed" [ ! -L best/checkpoints/best.tmp-left ]

# A watched set alone decides.
train base.json --set run.directory=watch "${watched[@]}" --set run.steps=4 --set evaluation.watch=code
check "the watched set decides" grep -q 'that of code' log
train base.json --set run.directory=refused "${watched[@]}" --set evaluation.watch=cod
ends_with "a set that is none" 2
says "the nearest name is given" 'nearest.*code'
check "nothing was made" [ ! -e refused ]
train base.json --set run.directory=refused --set data.validation=null --set checkpoint.keep_best=true
ends_with "the best of nothing" 2
train base.json --set run.directory=refused --set evaluation.stop_after=2
ends_with "a stop that no evaluation can ask for" 2

# Early stop: a rate of 0 gets no better. The count goes on over a restart.
early=(--set "$sets" --set run.directory=early --set optimizer.lr=0 --set evaluation.interval_steps=2
       --set evaluation.stop_after=3 --set checkpoint.keep_best=true)
train base.json "${early[@]}" --set run.exit_at_step=5
ends_with "before the early stop" 0
train base.json "${early[@]}"
ends_with "an early stop" 0
check "the end says so" same "$(end_reason early)" early_stop
check_metrics early 8
check "it is saved" [ -d early/checkpoints/step-00000008 ]
check "the best is the first" same "$(best early)" step-00000002
train base.json "${early[@]}"
ends_with "a run that has stopped early" 0
says "it is finished, and says why" 'finished: step 8 of 20.*evaluation.stop_after'
check "nothing was trained" same "$(steps_of early | wc -l)" 8
train base.json "${early[@]}" --set evaluation.stop_after=5
check "a larger number goes on" same "$(end_reason early) $(steps_of early | wc -l)" "early_stop 12"
train base.json "${early[@]}" --set run.directory=once --set evaluation.stop_after=1
says "one is singular" '^1 evaluation in a row found no loss'

# A program gets every line; one that is missing is told of before anything is made.
train base.json --set run.directory=told --set run.steps=4 --set 'log.command=["sh", "-c", "cat > told.jsonl"]'
ends_with "a command that reads" 0
check "it got every line" same_file told.jsonl told/metrics.jsonl
train base.json --set run.directory=deaf --set run.steps=4 --set 'log.command=["false"]'
ends_with "a command that ends at once" 0
check_metrics deaf 4
train base.json --set run.directory=refused --set 'log.command=["no-such-program"]'
ends_with "a command that is missing" 2
says "it is named" 'log.command.*no-such-program'
check "nothing was made" [ ! -e refused ]

# On two ranks, data-parallel with ZeRO 3, as a pipeline, and with a tensor axis: samples, best, and the same losses.
for mesh in "data parallel.zero_stage=3" "pipeline parallel.pipeline=2" "context parallel.context=2" \
  "tensor parallel.tensor=2"; do
  name=${mesh%% *}
  ranks 2 base.json --set "run.directory=$name" "${watched[@]}" --set "${mesh#* }" --set run.steps=6 \
    --set 'evaluation.samples=["stroke 7"]' --set checkpoint.interval_steps=0
  ends_with "on two ranks, $name" 0
  check "$name: a sample at each evaluation" same "$(grep -c '"kind":"sample"' "$name/metrics.jsonl")" 3
  check "$name: the best" same "$(best "$name")" step-00000006
  check "$name: the same sample as alone" same \
    "$(sed -n 's/.*"step":4,"prompt":"stroke 7",//p' "$name/metrics.jsonl")" \
    "$(sed -n 's/.*"step":4,"prompt":"stroke 7",//p' best/metrics.jsonl)"
done

# Evaluation without a config: every window counts once, on any number of ranks.
tokens=$(sed -n 's/.*"tokens": *\([0-9]*\).*/\1/p' toy.json)
windows=$(((tokens - 1) / 32))
train evaluate --checkpoint plain --data toy --json
ends_with "evaluation without a config" 0
check "all windows count" same "$(number tokens out)" $((windows * 32))
alone=$(number loss out)
says "the sequence length is told" "$windows windows of 32 tokens, in fp32"
ranks 2 evaluate --checkpoint plain --data toy --json
ends_with "on two ranks" 0
check "all windows count once" same "$(number tokens out)" $((windows * 32))
check "the loss is that of one rank" same "$(number loss out | cut -c 1-10)" "$(cut -c 1-10 <<<"$alone")"
for axis in tensor pipeline; do
  ranks 2 evaluate --checkpoint plain --data toy --json "--$axis" 2
  check "with a $axis axis all windows count once" same "$(number tokens out)" $((windows * 32))
  check "with a $axis axis the loss is that of one rank" same "$(number loss out | cut -c 1-8)" "$(cut -c 1-8 <<<"$alone")"
done
train export --checkpoint plain --output hf
train evaluate --checkpoint hf --data toy --sequence-length 32 --json
check "the exported weights have the same loss" same "$(number loss out | cut -c 1-10)" "$(cut -c 1-10 <<<"$alone")"
train evaluate --checkpoint hf --data toy --batches 3 --json
check "the model's positions are the length; three windows" same "$(number tokens out)" $((3 * 64))
train evaluate --checkpoint plain --data toy --document-mask --precision bf16 --sequence-length 16
ends_with "masked, in bf16" 0
printf 'x' >toy.mask
train evaluate --checkpoint plain --data toy
ends_with "a mask of other data" 74
rm toy.mask
for words in "--data toy" "--checkpoint plain" "base.json --data toy" "--checkpoint plain --data toy --batches 0" \
  "--checkpoint plain --data toy --set run.steps=1" "--checkpoint plain --data toy --precision fp64"; do
  # shellcheck disable=SC2086
  train evaluate $words
  ends_with "evaluate $words" 2
done
train evaluate --checkpoint plain --data absent
ends_with "data that is missing" 74
check "absent data are named once" same "$(grep -o absent.idx log | wc -l)" 1
train evaluate --checkpoint plain --data toy --sequence-length 100000
ends_with "data shorter than a window" 2
train evaluate base.json --set "$sets" --checkpoint plain --json
check "a line for each set" same "$(grep -c '"name":"text"' out) $(grep -c '"name":"code"' out)" "1 1"
train --progress never --color=never evaluate --checkpoint plain --data toy
ends_with "words for all commands before the command" 0
train checkpoint list plain --color always
ends_with "and behind a command of two words" 0
train evaluate --checkpoint plain --data toy --progress sometimes
ends_with "a word for bars that is none" 2
finish
