#!/usr/bin/env bash
# Llama 3 70B over 64 GPUs: tensor 4, pipeline 8 with 5 virtual stages, global batch 256 of 8,192 tokens.
set -euo pipefail

CHECKPOINTS=${1:-"checkpoints/llama3_70b"}
GPUS=8
NODES=8

LAUNCH=(--nproc_per_node "$GPUS" --nnodes "$NODES" --master_addr "${MASTER_ADDR}" --master_port 6000)

GPT_MODEL_ARGS=(
    --use-mcore-models
    --num-layers 80            # layers
    --hidden-size 8192
    --ffn-hidden-size 28672
    --num-attention-heads 64
    --group-query-attention
    --num-query-groups 8
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --rotary-base 500000
    --rotary-percent 1.0
    --swiglu
    --normalization RMSNorm
    --norm-epsilon 1e-5
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0 --hidden-dropout 0.0
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 256
    --train-iters 100000
    --lr 1.5e-4 --min-lr 1.5e-6
    --lr-decay-style cosine
    --lr-warmup-fraction .01
    --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95
    --clip-grad 1.0
    --bf16
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size 4
    --sequence-parallel
    --pipeline-model-parallel-size 8
    --num-layers-per-virtual-pipeline-stage 2
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
    --tp-comm-overlap
)
DATA_ARGS=(
    --data-path 0.7 /data/web_text_document 0.3 /data/code_text_document
    --split 990,10,0
    --tokenizer-type HuggingFaceTokenizer
    --tokenizer-model /models/llama3
    --vocab-size 128256
)
OUTPUT_ARGS=(
    --log-interval 10 --log-throughput
    --save-interval 500 --eval-interval 500 --eval-iters 10
    --save "$CHECKPOINTS" --load "$CHECKPOINTS"
    --tensorboard-dir "$CHECKPOINTS/tensorboard"
    --ckpt-format torch_dist
)
OUTPUT_ARGS+=(--distributed-timeout-minutes 60)

if [ -n "$PROFILE" ]; then
    OUTPUT_ARGS+=(--profile --profile-step-start 4)
fi

CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun "${LAUNCH[@]}" pretrain_gpt.py \
    "${GPT_MODEL_ARGS[@]}" \
    ${TRAINING_ARGS[@]} \
    ${PARALLEL_ARGS[@]} \
    "${DATA_ARGS[@]}" \
    ${OUTPUT_ARGS[@]} $EXTRA_ARGS
