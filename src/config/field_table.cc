// The rows, in the order of config.json and configs/README.md; defaults stand in run_config.h.

#include "config/field_types.h"

namespace trireme {

namespace {

constexpr double kCountMax = 9007199254740991.0;  // 2^53 - 1: every JSON reader has these integers

template <class Access>
Field make_field(std::string path, Access access, FieldRow row) {
  using T = std::remove_reference_t<decltype(access(std::declval<RunConfig&>()))>;
  using C = Codec<T>;
  if constexpr (std::is_same_v<T, std::int64_t> || std::is_same_v<T, std::optional<std::int64_t>> ||
                std::is_same_v<T, ResumeChoice>) {
    if (std::isnan(row.maximum)) row.maximum = kCountMax;
    if (std::isnan(row.minimum)) row.minimum = 0;
  }
  Field field;
  field.path = std::move(path);
  field.legal = C::legal(row);
  field.schema = C::schema(row);
  field.values = C::words(row);
  field.assign = [access, row](const Json& json, RunConfig& config) {
    return C::assign(json, row, access(config));
  };
  field.read = [access](const RunConfig& config) {
    return C::read(access(const_cast<RunConfig&>(config)));
  };
  using Of = Codec<typename Given<T>::Type>;
  if constexpr (requires(const Json& json) { Of::faults_within(json, row); })
    field.faults_within = [row](const Json& json) { return Of::faults_within(json, row); };
  field.row = std::move(row);
  return field;
}

// The JSON name is the member's name, so that the two cannot differ.
#define FIELD(member, ...)   \
  list.push_back(make_field( \
      #member, [](RunConfig & c) -> auto& { return c.member; }, FieldRow{__VA_ARGS__}))

using enum Presence;

void add_run(std::vector<Field>& list) {
  FIELD(run.directory, .text = "Folder of everything the run writes; made where it is missing",
        .example = "\"runs/first\"", .presence = kRequired,
        .peers = {"--save", "", "output_dir", "job.dump_folder"});
  FIELD(run.steps, .text = "Updates to make; exactly one of steps, tokens, epochs", .unit = "steps",
        .default_text = "none", .example = "1000", .minimum = 1,
        .peers = {"--train-iters", "", "max_steps", "training.steps"});
  FIELD(run.tokens,
        .text =
            "Train on this many tokens: ceil(tokens / (batch.global x data.sequence_length)) steps",
        .unit = "tokens", .default_text = "none", .example = "1000000000", .minimum = 1);
  FIELD(run.epochs,
        .text =
            "Train on the data this many times: floor(epochs x windows / batch.global) steps, at "
            "least 1",
        .unit = "passes over the data", .default_text = "none", .example = "1", .above = 0,
        .peers = {"", "", "num_train_epochs", ""});
  FIELD(run.seed, .text = "Of initial values, and of the data order unless data.seed is given",
        .peers = {"--seed", "", "seed", "debug.seed"});
  FIELD(run.device,
        .text =
            "What computes; auto takes a GPU where there is one; cuda-host runs the CUDA sources "
            "on the CPU (test builds)",
        .peers = {"", "", "use_cpu", ""});
  FIELD(run.cuda_graph, .text = "Replay a step as one CUDA graph where that is possible",
        .peers = {"--enable-cuda-graph --cuda-graph-impl", "", "", ""});
  FIELD(
      run.check_collectives,
      .text =
          "Compare order and size of every collective over the ranks, to name the two that differ");
  FIELD(run.threads_per_rank,
        .text = "CPU threads of a rank; 0: its share of the affinity mask or cgroup quota",
        .unit = "threads", .maximum = 4096);
  FIELD(
      run.deterministic,
      .text =
          "Equal runs give equal bits; false allows attention a faster backward pass in bf16 on a "
          "GPU and changes nothing on a CPU",
      .peers = {"--deterministic-mode", "", "full_determinism", "debug.deterministic"});
  FIELD(run.resume,
        .text =
            "Go on from the newest checkpoint that verifies (auto), only from one (must), never, "
            "from that step, or from a directory",
        .plain = true,
        .peers = {"--load --ckpt-step", "", "resume_from_checkpoint", "checkpoint.load_step"});
  FIELD(run.exit_at_step, .text = "Save after this step and exit 0", .unit = "steps",
        .default_text = "none", .example = "500", .minimum = 1,
        .peers = {"--exit-interval", "", "", ""});
  FIELD(run.exit_after_minutes, .text = "Save after this time and exit 75, to be queued again",
        .unit = "minutes", .default_text = "none", .example = "230", .above = 0, .maximum = 1e7,
        .peers = {"--exit-duration-in-mins", "", "", ""});
  FIELD(
      run.hang_timeout_seconds,
      .text =
          "A step without progress for this long ends the job with 124; 0: max(60, 5 x the slowest "
          "of the last 20 steps)",
      .unit = "seconds", .minimum = 0, .maximum = 1e7,
      .peers = {"--distributed-timeout-minutes", "", "ddp_timeout", "comm.train_timeout_seconds"});
  FIELD(run.peak_tflops, .text = "Peak of one device, for MFU", .unit = "TFLOP/s",
        .default_text = "by device, where known", .example = "989", .above = 0, .maximum = 1e9);
  FIELD(init.weights,
        .text =
            "Initial weights: drawn at random, a Hugging Face directory, or a checkpoint (weights "
            "only)",
        .values = {"random"},
        .peers = {"--pretrained-checkpoint --finetune", "", "model_name_or_path",
                  "checkpoint.initial_load_path"});
  FIELD(init.adapter,
        .text =
            "Adapters to begin from: a folder of peft's, whose rank and targets are those of lora",
        .default_text = "none", .example = "\"adapters/first\"",
        .peers = {"", "", "adapter_name_or_path", ""});
  FIELD(tokenizer, .text = "byte (ids 0-255, 256 ends a document) or a tokenizer.json",
        .values = {"byte"},
        .peers = {"--tokenizer-model --tokenizer-type", "", "tokenizer_name",
                  "model.hf_assets_path"});
}

void add_data(std::vector<Field>& list) {
  FIELD(
      data.train,
      .text =
          "Tokens to train on: PREFIX of PREFIX.bin and PREFIX.idx, a weighted blend, or synthetic",
      .example = "[[0.7, \"data/web\"], [0.3, \"data/code\"]]", .presence = kRequired,
      .peers = {"--data-path --train-data-path", "", "train_file",
                "training.dataset training.dataset_path"});
  FIELD(data.validation,
        .text =
            "Tokens to evaluate on, in the same form; or several such sets under names, each "
            "evaluated by itself",
        .default_text = "none",
        .example = "{\"web\": \"data/valid_web\", \"code\": \"data/valid_code\"}",
        .peers = {"--valid-data-path", "", "validation_file", "validation.dataset"});
  FIELD(
      data.split,
      .text =
          "Shares of the documents for training, validation and test, in place of data.validation",
      .default_text = "none", .example = "\"969,30,1\"", .peers = {"--split", "", "", ""});
  FIELD(data.sequence_length, .text = "Tokens of one sample", .unit = "tokens", .example = "1024",
        .minimum = 1, .maximum = 1 << 24, .presence = kRequired, .plain = true,
        .peers = {"--seq-length", "", "block_size max_seq_length", "training.seq_len"});
  FIELD(data.seed, .text = "Of the data order", .default_text = "run.seed",
        .peers = {"", "", "data_seed", ""});
  FIELD(data.order,
        .text =
            "shuffled: a longer run never changes what an earlier step saw; megatron: "
            "megatron-core's order, index for index; sequential: as stored",
        .peers = {"--dataloader-type", "", "", ""});
  FIELD(data.document_mask,
        .text = "Attention stays inside a document and positions restart with it",
        .peers = {"--reset-attention-mask --reset-position-ids", "", "", "model.attn_mask_type"});
  FIELD(data.mask_eod_loss, .text = "No loss where the input is the end token",
        .peers = {"--eod-mask-loss", "", "", ""});
  FIELD(data.cache_directory, .text = "Folder of sample indices",
        .default_text = "beside the data, or run.directory", .example = "\"/tmp/indices\"",
        .peers = {"--data-cache-path", "", "", ""});
  FIELD(data.scan_bytes,
        .text =
            "Foreign files are searched for token ids beyond the vocabulary up to this size, "
            "larger ones as they are read; 0: chosen and printed",
        .unit = "bytes");
  FIELD(model_backend.attention,
        .text =
            "Whose attention kernels; cudnn (9.16 or later) serves whole sequences in bf16 on a "
            "GPU, and is refused for anything else; auto: there the faster of both, measured "
            "before the first step, else own",
        .peers = {"--attention-backend --use-flash-attn", "", "attn_implementation",
                  "model.attn_type"});
  FIELD(model_backend.dropout,
        .text = "Apply the dropouts of the model's config in training, as transformers does",
        .peers = {"--attention-dropout --hidden-dropout", "", "", ""});
  FIELD(batch.global,
        .text =
            "Samples of one update: micro x accumulation x data; or a ramp, each size from the "
            "first step on before which from_token tokens are consumed",
        .unit = "samples", .default_text = "derived", .example = "64", .minimum = 1, .maximum = 1e9,
        .peers = {"--global-batch-size", "train_batch_size", "", "training.global_batch_size"});
  FIELD(batch.micro, .text = "Samples that one rank takes at a time", .unit = "samples",
        .default_text = "derived", .example = "4", .minimum = 1, .maximum = 1e9,
        .peers = {"--micro-batch-size", "train_micro_batch_size_per_gpu",
                  "per_device_train_batch_size", "training.local_batch_size"});
  FIELD(batch.accumulation, .text = "Micro-batches that one rank adds up before an update",
        .unit = "micro-batches", .default_text = "derived", .example = "2", .minimum = 1,
        .maximum = 1e9,
        .peers = {"", "gradient_accumulation_steps", "gradient_accumulation_steps", ""});
}

void add_optimizer(std::vector<Field>& list) {
  FIELD(optimizer.kind,
        .text =
            "PyTorch's AdamW; lion-pytorch's Lion, which has one moment; schedulefree's AdamW, "
            "which averages weights at a constant rate; PyTorch's Muon of layers' matrices, AdamW "
            "beside it; PyTorch's Adafactor, without moments",
        .peers = {"--optimizer", "optimizer.type", "optim", "optimizer.name"});
  FIELD(optimizer.lr, .text = "Learning rate after the warm-up", .example = "0.001", .minimum = 0,
        .presence = kRequired,
        .peers = {"--lr", "optimizer.params.lr", "learning_rate", "optimizer.lr"});
  FIELD(optimizer.matrix_lr, .text = "Muon's rate of layers' matrices, scheduled as lr is",
        .default_text = "optimizer.lr", .example = "0.002", .minimum = 0);
  FIELD(optimizer.betas,
        .text =
            "Decay of the two moments; of lion ([0.9, 0.99] where not written) the moment's share "
            "of an update and its decay; of schedule-free the average's share of what is trained",
        .minimum = 0, .below = 1,
        .peers = {"--adam-beta1 --adam-beta2", "optimizer.params.betas", "adam_beta1 adam_beta2",
                  "optimizer.beta1 optimizer.beta2"});
  FIELD(optimizer.eps, .text = "Added outside the root; lion and adafactor have none", .minimum = 0,
        .peers = {"--adam-eps", "optimizer.params.eps", "adam_epsilon", "optimizer.eps"});
  FIELD(optimizer.weight_decay, .text = "Decoupled decay of tensors with two or more dims",
        .minimum = 0,
        .peers = {"--weight-decay", "optimizer.params.weight_decay", "weight_decay",
                  "optimizer.weight_decay"});
  FIELD(optimizer.clip_grad_norm, .text = "Largest norm of the whole gradient; 0: no clipping",
        .minimum = 0, .maximum = 1e30,
        .peers = {"--clip-grad", "gradient_clipping", "max_grad_norm", "training.max_norm"});
  FIELD(optimizer.state,
        .text =
            "Type of the moments; 8bit: bitsandbytes' codes in blocks of 256 elements, of tensors "
            "of 4,096 elements or more",
        .peers = {"--exp-avg-dtype --exp-avg-sq-dtype", "", "", ""});
  FIELD(
      optimizer.groups,
      .text =
          "Of parameters whose Hugging Face name holds `match` (* any letters, ? one), the first "
          "such group's: a factor of lr, a decay in place of weight_decay, for tensors of one dim "
          "too, and whether they are trained (else they have neither gradients nor moments)",
      .example = R"([{"match": "embed_tokens", "lr_scale": 0.1}])");
  FIELD(optimizer.ema,
        .text =
            "Averages of the weights are kept and saved: behind each update average = ema x "
            "average + (1 - ema) x weight; 0: none",
        .minimum = 0, .below = 1);
}

void add_training(std::vector<Field>& list) {
  FIELD(lr_schedule.kind, .text = "Course of the learning rate after the warm-up",
        .peers = {"--lr-decay-style", "scheduler.type", "lr_scheduler_type",
                  "lr_scheduler.decay_type"});
  FIELD(lr_schedule.warmup_steps, .text = "Update k <= warmup_steps uses lr x k / warmup_steps",
        .unit = "steps",
        .peers = {"--lr-warmup-iters", "scheduler.params.warmup_num_steps", "warmup_steps",
                  "lr_scheduler.warmup_steps"});
  FIELD(lr_schedule.min_lr, .text = "Where the decay ends, as an absolute rate", .minimum = 0,
        .peers = {"--min-lr", "scheduler.params.warmup_min_lr", "min_lr",
                  "lr_scheduler.min_lr_factor"});
  FIELD(lr_schedule.decay_end_step, .text = "Last step of the decay (cosine, linear)",
        .unit = "steps", .default_text = "run.steps", .example = "1000", .minimum = 1,
        .peers = {"--lr-decay-iters", "scheduler.params.total_num_steps", "", ""});
  FIELD(lr_schedule.decay_steps, .text = "Length of the decay at the end of the run (wsd)",
        .unit = "steps", .default_text = "a tenth of run.steps", .example = "100", .minimum = 1,
        .peers = {"--lr-wsd-decay-iters", "", "num_decay_steps", "lr_scheduler.decay_ratio"});
  FIELD(lr_schedule.decay_shape, .text = "Shape of that decay (wsd)",
        .peers = {"--lr-wsd-decay-style", "", "decay_type", ""});
  FIELD(precision.compute,
        .text =
            "Type of activations and products; fp32 means no TF32; fp8: bf16, and the layers' "
            "linear products of fp8 operands",
        .default_text = "bf16 on cuda, fp32 on cpu",
        .peers = {"--bf16 --fp16 --fp8-format", "bf16.enabled fp16.enabled", "bf16 fp16",
                  "training.mixed_precision_param"});
  FIELD(precision.fp8,
        .text =
            "How with compute fp8: one scale for a tensor, or for blocks of 1 x 128 of "
            "activations and gradients and 128 x 128 of weights; the type of gradients; how many "
            "layers stay in bf16 at either end",
        .default_text = R"({"recipe": "tensor", "gradients": "e5m2", "bf16_layers": [0, 0]})",
        .example = R"({"recipe": "block", "gradients": "e4m3"})",
        .peers = {"--fp8-recipe --fp8-format --first-last-layers-bf16", "", "",
                  "quantize.linear.float8.recipe_name"});
  FIELD(precision.master, .text = "Type of the weights that the optimizer updates",
        .values = {"fp32"}, .peers = {"--main-params-dtype", "", "", ""});
  FIELD(precision.accumulate, .text = "Type in which gradients are added up", .values = {"fp32"},
        .peers = {"--accumulate-allreduce-grads-in-fp32 --main-grads-dtype",
                  "data_types.grad_accum_dtype", "", ""});
  FIELD(precision.wire,
        .text = "Type in which gradients travel between ranks; sums are fp32 either way",
        .values = {"fp32", "bf16"},
        .peers = {"--grad-reduce-in-bf16", "communication_data_type", "",
                  "training.mixed_precision_reduce"});
}

void add_parallel(std::vector<Field>& list) {
  FIELD(parallel.tensor,
        .text =
            "Ranks that share each matrix; divides heads and MLP columns, and divides KV heads or "
            "is divided by them",
        .unit = "ranks", .minimum = 1, .maximum = 1 << 20,
        .peers = {"--tensor-model-parallel-size", "tensor_parallel.autotp_size", "",
                  "parallelism.tensor_parallel_degree"});
  FIELD(parallel.sequence_parallel,
        .text = "Activations between the matrices are cut along the sequence on the tensor axis",
        .default_text = "true when parallel.tensor > 1",
        .peers = {"--sequence-parallel", "", "", ""});
  FIELD(parallel.context, .text = "Ranks that share each sequence; twice as many divide its length",
        .unit = "ranks", .minimum = 1, .maximum = 1 << 20,
        .peers = {"--context-parallel-size", "sequence_parallel_size", "",
                  "parallelism.context_parallel_degree"});
  FIELD(parallel.context_method,
        .text =
            "How keys and values meet all queries: blocks go round, or all are held, or tokens are "
            "exchanged for heads (context then shares out the heads of a rank)",
        .peers = {"--cp-comm-type", "", "", "parallelism.context_parallel_rotate_method"});
  FIELD(parallel.pipeline, .text = "Ranks that share the layers", .unit = "ranks", .minimum = 1,
        .maximum = 1 << 20,
        .peers = {"--pipeline-model-parallel-size", "pipeline.stages", "",
                  "parallelism.pipeline_parallel_degree"});
  FIELD(parallel.pipeline_schedule, .text = "Order of forward and backward over the stages",
        .values = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-auto", "zb-v", "v-half",
                   "v-min", "dualpipe-v"},
        .peers = {"", "", "", "parallelism.pipeline_parallel_schedule"});
  FIELD(parallel.virtual_stages, .text = "Stages of one rank", .unit = "stages",
        .default_text = "1; 2 for interleaved and the V kinds", .example = "2", .minimum = 1,
        .maximum = 4096, .peers = {"--num-virtual-stages-per-pipeline-rank", "", "", ""});
  FIELD(parallel.pipeline_layers,
        .text =
            "Layers of each virtual stage, in order of the model; balanced: the longest rank "
            "computes as little as can be, the head counted",
        .minimum = 0, .maximum = 4096,
        .peers = {"--pipeline-model-parallel-layout --decoder-first-pipeline-num-layers",
                  "pipeline.partition", "", "parallelism.module_fqns_per_model_part"});
  FIELD(parallel.pipeline_times,
        .text =
            "Times of F, B, W on a virtual stage and of a transfer C, for schedules that use them",
        .default_text = "plan's cost model", .example = "[1.0, 1.0, 1.0, 0.0]", .minimum = 0,
        .maximum = 1e12);
  FIELD(parallel.pipeline_memory_limit, .text = "Full-stage activations that a rank may hold",
        .unit = "activations", .default_text = "by schedule", .example = "4", .above = 0,
        .maximum = 1e6);
  FIELD(parallel.pipeline_group_size,
        .text = "Micro-batches of a group in the interleaved schedule", .unit = "micro-batches",
        .default_text = "parallel.pipeline", .example = "4", .minimum = 1, .maximum = 1 << 20,
        .peers = {"--microbatch-group-size-per-virtual-pipeline-stage", "", "", ""});
  FIELD(
      parallel.speculative_step,
      .text =
          "Update before the gradient norm is known, as if nothing were to be clipped, and take it "
          "back where something is: equal bits, no stage of a pipeline waits for the others at a "
          "step's end (zb-h2, zb-auto and zb-v gain); keeps a second copy of values and moments",
      .peers = {"--enable-optimizer-post-validation", "", "", ""});
  FIELD(parallel.expert,
        .text =
            "Ranks that the experts of a layer are dealt out to; divides their number, and with "
            "expert_tensor data x context x tensor",
        .unit = "ranks", .minimum = 1, .maximum = 1 << 20,
        .peers = {"--expert-model-parallel-size", "moe.ep_size", "",
                  "parallelism.expert_parallel_degree"});
  FIELD(parallel.expert_tensor,
        .text = "Ranks that share each expert's matrices; divides its columns", .unit = "ranks",
        .minimum = 1, .maximum = 1 << 20,
        .peers = {"--expert-tensor-parallel-size", "", "",
                  "parallelism.expert_tensor_parallel_degree"});
  FIELD(parallel.expert_placement, .text = "A file that says which rank has which experts",
        .default_text = "neighbours together", .example = "\"placement.json\"");
  FIELD(parallel.data, .text = "Ranks with samples of their own", .unit = "ranks",
        .default_text = "world / the other extents", .example = "8", .minimum = 1,
        .maximum = 1 << 20, .peers = {"", "", "", "parallelism.data_parallel_replicate_degree"});
  FIELD(parallel.zero_stage,
        .text =
            "What ranks with other tokens share: 1 optimizer state, 2 gradients too, 3 parameters "
            "too",
        .maximum = 3,
        .peers = {"--use-distributed-optimizer --data-parallel-sharding-strategy",
                  "zero_optimization.stage", "fsdp", ""});
  FIELD(
      parallel.zero_group,
      .text =
          "Ranks that hold one full copy; divides data x context; 0: those of a node where "
          "data x context fills several and their memory allows it, else data x context",
      .unit = "ranks", .default_text = "0", .example = "8", .minimum = 0, .maximum = 1 << 20,
      .peers = {"--num-distributed-optimizer-instances", "zero_hpz_partition_size mics_shard_size",
                "", "parallelism.data_parallel_shard_degree"});
  FIELD(parallel.reduction_order,
        .text = "Sums over ranks run in rank order, or in the library's (MPI, NCCL)",
        .default_text = "rank on cpu, library on cuda");
  FIELD(parallel.nccl_max_ctas,
        .text =
            "Blocks that NCCL may take on a GPU for a transfer: fewer leave more "
            "multiprocessors to what computes beside it; 0 leaves that to NCCL",
        .unit = "blocks", .maximum = 64, .peers = {"--nccl-communicator-config-path", "", "", ""});
  FIELD(
      parallel.recompute,
      .text =
          "What backward computes again instead of keeping it; selective: rotated q and k of "
          "models that norm them (norm outputs and activation products are never kept); full: all "
          "but the input of each layer. R in a schedule file does that ahead of backward",
      .peers = {"--recompute-granularity --recompute-activations", "activation_checkpointing",
                "gradient_checkpointing", "activation_checkpoint.mode"});
}

void add_moe(std::vector<Field>& list) {
  FIELD(moe.balance,
        .text =
            "What spreads tokens over the experts: a loss (aux), a bias of the choice (bias), "
            "nothing (none); auto: aux where the model's output_router_logits is true, bias where "
            "its router has one, else none",
        .peers = {"--moe-router-load-balancing-type --moe-router-enable-expert-bias", "",
                  "output_router_logits", ""});
  FIELD(moe.aux_coefficient,
        .text =
            "c of the loss of balance aux: a layer adds c E / (k T^2) times the sum over experts "
            "of count x sum of scores, T the tokens of the scope",
        .default_text = "the model's router_aux_loss_coef", .example = "0.001", .minimum = 0,
        .maximum = 1e9, .peers = {"--moe-aux-loss-coeff", "", "router_aux_loss_coef", ""});
  FIELD(moe.scope,
        .text = "Tokens that are balanced among themselves: of a sequence, or of a step");
  FIELD(moe.z_loss, .text = "Weight of the mean square of the router's log-sum-exp; 0: none",
        .minimum = 0, .maximum = 1e9, .peers = {"--moe-z-loss-coeff", "", "", ""});
  FIELD(moe.bias_rate, .text = "What a step adds to a bias, or takes from it (balance bias)",
        .minimum = 0, .maximum = 1,
        .peers = {"--moe-router-bias-update-rate", "", "", "model.moe_args.load_balance_coeff"});
  FIELD(moe.dispatch,
        .text = "How tokens reach their experts' ranks: each by itself, or all are held everywhere",
        .peers = {"--moe-token-dispatcher-type", "", "", ""});
}

void add_lora(std::vector<Field>& list) {
  FIELD(lora.rank,
        .text =
            "Train adapters of this rank beside linear products, whose own weights stand still "
            "(LoRA); init.weights names those",
        .default_text = "none: everything is trained", .example = "16", .minimum = 1,
        .maximum = 65536, .peers = {"", "", "r lora_r", ""});
  FIELD(lora.alpha, .text = "What an adapter adds is times alpha / rank",
        .default_text = "lora.rank", .example = "32", .above = 0, .maximum = 1e9,
        .peers = {"", "", "lora_alpha", ""});
  FIELD(lora.dropout, .text = "Share of the numbers that an adapter reads as 0", .minimum = 0,
        .below = 1, .peers = {"", "", "lora_dropout", ""});
  FIELD(lora.targets,
        .text =
            "Which products have adapters: their names, or the ends of those (of experts "
            "experts.gate_up_proj, experts.down_proj; a head of its own lm_head); [] for every "
            "linear product of the layers but experts'",
        .example = "[\"q_proj\", \"v_proj\"]", .peers = {"", "", "target_modules lora_target", ""});
  FIELD(lora.dora, .text = "Each row of a product has a length of its own, trained too (DoRA)",
        .peers = {"", "", "use_dora", ""});
  FIELD(lora.rslora, .text = "alpha / sqrt(rank) in place of alpha / rank (rank-stabilised)",
        .peers = {"", "", "use_rslora", ""});
  FIELD(lora.base,
        .text =
            "How the frozen weights stand: in the type of precision.compute, in fp32 (with compute "
            "fp32), or those of the layers' linear products in four bits (NF4, QLoRA)",
        .peers = {"", "", "load_in_4bit", ""});
}

void add_stability(std::vector<Field>& list) {
  FIELD(stability.skip_spikes,
        .text =
            "Leave an update out where its loss or gradient norm stands above the mean of the last "
            "`window` by more than `sigma` standard deviations",
        .example = "{\"sigma\": 6, \"window\": 128}");
  FIELD(stability.skip_steps,
        .text = "Steps [[first, last], ...] whose data are passed over without an update",
        .unit = "steps", .example = "[[1200, 1400]]", .minimum = 1, .maximum = 1e12,
        .peers = {"--iterations-to-skip", "", "", ""});
  FIELD(stability.z_loss,
        .text =
            "Weight of the mean square of the log-sum-exp of the head's logits beside the loss; 0: "
            "none",
        .minimum = 0, .maximum = 1e9);
  FIELD(stability.noise_scale,
        .text =
            "Measure the gradient noise scale: the batch size, in samples, beyond which a larger "
            "one saves few steps");
}

void add_output(std::vector<Field>& list) {
  FIELD(checkpoint.interval_steps, .text = "Save every so many steps; 0: only at the end",
        .unit = "steps", .peers = {"--save-interval", "", "save_steps", "checkpoint.interval"});
  FIELD(checkpoint.interval_minutes,
        .text = "Save also after so much time; 0: never for that reason", .unit = "minutes",
        .minimum = 0, .maximum = 1e7);
  FIELD(checkpoint.keep_last, .text = "Older ones are removed once a new one is safe; 0: keep all",
        .unit = "checkpoints", .maximum = 1e6,
        .peers = {"--most-recent-k", "", "save_total_limit", "checkpoint.keep_latest_k"});
  FIELD(checkpoint.keep_every_steps, .text = "Those at multiples of this stay for ever; 0: none",
        .unit = "steps", .peers = {"--save-retain-interval", "", "", ""});
  FIELD(checkpoint.keep_best,
        .text =
            "Save whenever an evaluation finds a better loss than any before, and point "
            "checkpoints/best there; not counted by keep_last",
        .peers = {"", "", "load_best_model_at_end", ""});
  FIELD(checkpoint.async, .text = "Write while training goes on",
        .peers = {"--async-save", "", "", "checkpoint.async_mode"});
  FIELD(checkpoint.when_busy,
        .text = "When the last save is still being written: wait for it or skip this one");
  FIELD(checkpoint.staging_bytes, .text = "Host memory for a save under way; 0: chosen and printed",
        .unit = "bytes");
  FIELD(checkpoint.min_free_bytes,
        .text = "A save that would leave less on the disk is refused; 0: chosen and printed",
        .unit = "bytes");
  FIELD(checkpoint.directory, .text = "Folder of the checkpoints",
        .default_text = "run.directory/checkpoints", .example = "\"/scratch/checkpoints\"",
        .peers = {"", "", "", "checkpoint.folder"});
  FIELD(evaluation.interval_steps, .text = "Evaluate every so many steps; 0: at the end only",
        .unit = "steps", .peers = {"--eval-interval", "", "eval_steps", "validation.freq"});
  FIELD(evaluation.batches, .text = "Global batches of one evaluation", .unit = "batches",
        .minimum = 1, .maximum = 1e9, .peers = {"--eval-iters", "", "", "validation.steps"});
  FIELD(evaluation.watch, .text = "The set of data.validation whose loss decides what is better",
        .default_text = "the mean over the sets", .example = "\"web\"",
        .peers = {"", "", "metric_for_best_model", ""});
  FIELD(evaluation.samples,
        .text = "Prompts that each evaluation continues by 64 tokens, the likeliest each time",
        .example = "[\"Once upon a time\"]");
  FIELD(evaluation.stop_after,
        .text = "Save and end after so many evaluations in a row without a better loss; 0: never",
        .unit = "evaluations", .maximum = 1e9, .peers = {"", "", "early_stopping_patience", ""});
}

void add_log(std::vector<Field>& list) {
  FIELD(log.interval_steps, .text = "A line on the console every so many steps", .unit = "steps",
        .minimum = 1,
        .peers = {"--log-interval", "steps_per_print", "logging_steps", "metrics.log_freq"});
  FIELD(log.tensorboard, .text = "Write TensorBoard event files",
        .peers = {"--tensorboard-dir", "tensorboard.enabled", "report_to",
                  "metrics.enable_tensorboard"});
  FIELD(log.report, .text = "Write report.html, a page of all that the run has to show");
  FIELD(log.blocks,
        .text =
            "The norms of gradient, weights and update of each block, at each log interval "
            "(metrics.jsonl, kind blocks)");
  FIELD(log.prometheus,
        .text =
            "For Prometheus: GET /metrics on this port of 127.0.0.1 on rank 0's host (0: a free "
            "one), and a file for node_exporter's textfile collector, written at each log interval",
        .default_text = "none", .example = R"({"port": 9400})");
  FIELD(log.trace_steps, .text = "First and last step of a trace.json", .unit = "steps",
        .default_text = "none", .example = "[10, 12]", .minimum = 1, .maximum = 1e12,
        .peers = {"--profile-step-start --profile-step-end", "", "", "profiling.profile_freq"});
  FIELD(log.command,
        .text =
            "A program and its arguments; gets each line of metrics.jsonl on standard input "
            "(W&B, MLflow)",
        .default_text = "none", .example = "[\"python3\", \"scripts/to_wandb.py\"]", .minimum = 1,
        .peers = {"--wandb-project", "wandb.enabled", "", "metrics.enable_wandb"});
  FIELD(log.cluster,
        .text =
            "A cluster file, or a name of configs/clusters: a step's predicted seconds beside the "
            "measured ones",
        .default_text = "none", .example = "\"here.json\"");
}

#undef FIELD

}  // namespace

const std::vector<Field>& fields() {
  static const std::vector<Field> table = [] {
    std::vector<Field> list;
    add_run(list);
    add_data(list);
    add_optimizer(list);
    add_training(list);
    add_parallel(list);
    add_moe(list);
    add_lora(list);
    add_stability(list);
    add_output(list);
    add_log(list);
    return list;
  }();
  return table;
}

}  // namespace trireme
