#!/bin/bash
# The layout of the 39.1 billion row of Megatron-LM's 2021 table: tensor 8, pipeline 2, 512 GPUs, fp16, every layer
# recomputed; one script for several sizes, as such scripts are.
SIZE=39.1

if [ $SIZE == 1.7 ]; then
  TP=1; PP=1
  MICRO=16; GLOBAL=512
  LAYERS=24; HIDDEN=2304; HEADS=24
elif [ $SIZE == 39.1 ]; then
  TP=8; PP=2
  MICRO=4; GLOBAL=1536
  LAYERS=48; HIDDEN=8192; HEADS=64
else
  echo "no such size"
  exit 1
fi

NODES=64
PER_NODE=8
WORLD=$(($NODES * PER_NODE))
DATA=${DATA:-/data/gpt2/text_document}
OUTPUT=runs/gpt_$SIZE

mkdir -p "$OUTPUT" > /dev/null 2>&1
export CUDA_DEVICE_MAX_CONNECTIONS=1

options=" \
  --tensor-model-parallel-size $TP \
  --pipeline-model-parallel-size $PP \
  --num-layers $LAYERS --hidden-size $HIDDEN --num-attention-heads $HEADS \
  --seq-length 2048 --max-position-embeddings 2048 \
  --micro-batch-size $MICRO --global-batch-size $GLOBAL \
  --train-samples 146484375 \
  --lr-decay-samples 126953125 --lr-warmup-samples 183105 \
  --lr 6.0e-5 --min-lr 6.0e-6 --lr-decay-style cosine \
  --log-interval 1 --eval-iters 50 \
  --data-path ${DATA} --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --split 98,2,0 \
  --clip-grad 1.0 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --init-method-std 0.006 \
  --fp16 --DDP-impl local --data-impl mmap --checkpoint-activations \
  --no-query-key-layer-scaling --save $OUTPUT --save-interval 1000"

run_cmd="torchrun --nproc_per_node $PER_NODE --nnodes $NODES pretrain_gpt.py ${options}"
echo $run_cmd
eval $run_cmd 2>&1 | tee "$OUTPUT/log.txt"
