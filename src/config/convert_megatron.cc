// Megatron-LM's arguments of a run. Defaults are those of megatron/training/arguments.py.

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "config/convert_draft.h"
#include "config/megatron_batch.h"
#include "config/megatron_model.h"
#include "config/megatron_muon.h"
#include "config/problem.h"
#include "config/shell_commands.h"
#include "config/unbuilt.h"

namespace trireme {

namespace {

struct Word {
  std::string_view theirs, ours;
};

class MegatronRun {
 public:
  MegatronRun(const MegatronArguments& arguments, ConversionDraft& draft)
      : a_(arguments), draft_(draft) {}

  void convert() {
    for (const MegatronArgument& argument : a_.all()) take(argument);
    take_length();
    convert_megatron_model(a_, draft_);
    convert_data();
    convert_tokenizer();
    convert_start();
    convert_optimizer();
    convert_schedule();
    convert_skipped();
    convert_precision();
    convert_parallel();
    convert_balance();
    convert_pipeline();
    convert_recompute();
    convert_saving();
    report_ranks();
  }

 private:
  /// What the column of the field table says, and what has no counterpart.
  void take(const MegatronArgument& argument) {
    const MegatronRow* row = find_megatron_row(argument.name);
    if (row != nullptr && !row->why.empty()) return draft_.nothing(argument.name, row->why);
    const Field* field = find_megatron_field(argument.name);
    if (row == nullptr && field == nullptr) return draft_.unknown(argument.name);
    for (const std::string& value : argument.values) {
      if (value.find(kUnknownMark) == std::string::npos) continue;
      draft_.remark("{}: {} is known on the machine only and left out", argument.name,
                    without_marks(value));
      if (field != nullptr)
        draft_.miss(field->path, fmt::format("{} is {}", argument.name, without_marks(value)));
      return;
    }
    if (row != nullptr) return;
    const Json* type = field->schema.find("type");
    if (type != nullptr && *type == Json("boolean"))
      return draft_.set(field->path, true, argument.name);
    if (argument.values.empty()) a_.fault(argument.name, "has no value");
    const std::string& value = argument.values[0];
    if (draft_.set_text(*field, value, argument.name)) return;
    const std::string fault = fmt::format("{} is not {}", Json(value).dump(), field->legal);
    char* end = nullptr;
    std::strtod(value.c_str(), &end);
    if (value.empty() || *end != '\0') a_.fault(argument.name, fault);
    draft_.remark("{} is left out: {}", argument.name, fault);
  }

  void take_length() {
    if (const auto length = a_.whole("--encoder-seq-length"))
      draft_.set("data.sequence_length", *length, "--encoder-seq-length");
    batch_.emplace(a_, draft_);
    if (const auto steps = batch_->steps_of("--train-samples"))
      draft_.set("run.steps", *steps, "--train-samples");
    if (const auto at = a_.whole("--exit-interval")) {
      draft_.set("run.exit_at_step", *at, "--exit-interval");
      draft_.remark(
          "--exit-interval {}: Megatron-LM exits at each multiple, run.exit_at_step at "
          "this step alone",
          *at);
    }
    if (const auto minutes = a_.real("--distributed-timeout-minutes"))
      draft_.set("run.hang_timeout_seconds", *minutes * 60, "--distributed-timeout-minutes");
  }

  /// Megatron-LM counts the iterations done before: its n is update n + 1.
  void convert_skipped() {
    Json::Array ranges;
    const auto skipped = a_.wholes("--iterations-to-skip");
    for (const std::int64_t n : skipped.value_or(std::vector<std::int64_t>())) {
      const bool goes_on = !ranges.empty() && ranges.back().as_array()[1] == Json(n);
      const Json first = goes_on ? ranges.back().as_array()[0] : Json(n + 1);
      if (goes_on) ranges.pop_back();
      ranges.push_back(Json::Array{first, Json(n + 1)});
    }
    if (!ranges.empty()) draft_.set("stability.skip_steps", ranges, "--iterations-to-skip");
  }

  /// [weight PREFIX ...] or PREFIX ...
  Json blend_of(const MegatronArgument& argument) {
    const std::vector<std::string>& words = argument.values;
    if (words.empty()) a_.fault(argument.name, "has no value");
    if (words.size() == 1) return words[0];
    const auto weight_of = [](const std::string& word) {
      char* end = nullptr;
      const double weight = std::strtod(word.c_str(), &end);
      return *end == '\0' && std::isfinite(weight) && !word.empty() ? weight : -1.0;
    };
    bool weighted = words.size() % 2 == 0;
    for (std::size_t i = 0; weighted && i < words.size(); i += 2)
      weighted = weight_of(words[i]) >= 0;
    Json blend = Json::array();
    for (std::size_t i = 0; i < words.size(); i += weighted ? 2 : 1) {
      const double weight = weighted ? weight_of(words[i]) : 1.0;
      if (weight > 0) blend.push_back(Json::Array{Json(weight), Json(words[weighted ? i + 1 : i])});
    }
    if (!weighted) {
      draft_.remark(
          "{} has no weights: Megatron-LM weighs by size, here all have weight 1 until "
          "the token counts stand in their place",
          argument.name);
    }
    return blend;
  }

  void set_blend(const char* name, const char* path) {
    const MegatronArgument* argument = a_.find(name);
    if (argument == nullptr) return;
    for (const std::string& word : argument->values) {
      if (word.find(kUnknownMark) == std::string::npos) continue;
      // Reported already. A part of a blend would be another blend.
      return draft_.miss(path, fmt::format("{} names {}", name, without_marks(word)));
    }
    draft_.set(path, blend_of(*argument), name);
  }

  void convert_data() {
    if (a_.has("--mock-data")) {
      draft_.set("data.train", "synthetic", "--mock-data");
      draft_.set("data.validation", "synthetic", "--mock-data");
    } else {
      set_blend("--data-path", "data.train");
      set_blend("--train-data-path", "data.train");
      set_blend("--valid-data-path", "data.validation");
      for (const char* name : {"--data-args-path", "--per-split-data-args-path"}) {
        if (const auto file = a_.text(name))
          draft_.miss("data.train",
                      fmt::format("{} names the file {}, which is not looked at", name, *file));
      }
      if (a_.has("--test-data-path"))
        draft_.nothing("--test-data-path", "there is no third set of data here");
      if (a_.has("--data-path") || a_.has("--train-data-path"))
        draft_.set("data.order", "megatron", "its own order of samples");
      if (a_.has("--data-path") && draft_.find("data.validation") == nullptr) convert_split();
    }
    const bool attention = a_.has("--reset-attention-mask"), ids = a_.has("--reset-position-ids");
    if (attention && ids) draft_.set("data.document_mask", true, "--reset-attention-mask");
    if (attention != ids) {
      draft_.remark("{} alone is left out: data.document_mask does both, attention and positions",
                    attention ? "--reset-attention-mask" : "--reset-position-ids");
    }
    if (const auto type = a_.text("--dataloader-type"); type && *type != "single")
      draft_.remark("--dataloader-type {} is left out: data.order says how samples follow", *type);
    convert_evaluation();
  }

  void convert_evaluation() {
    const std::int64_t batches = a_.whole("--eval-iters").value_or(100);
    if (batches < 1) {
      draft_.erase("evaluation.interval_steps");
      draft_.remark(
          "--eval-iters {}: where there are validation data, the end of the run evaluates",
          batches);
      return;
    }
    if (a_.has("--eval-iters")) draft_.set("evaluation.batches", batches, "--eval-iters");
    if (draft_.find("data.validation") == nullptr && !split_validates_) return;
    draft_.set("evaluation.batches", batches, "--eval-iters (Megatron-LM's default)");
    if (!a_.has("--eval-interval"))
      draft_.set("evaluation.interval_steps", 1000, "--eval-interval (Megatron-LM's default)");
  }

  void convert_split() {
    std::string split = a_.text("--split").value_or("969,30,1");
    std::erase(split, ' ');
    std::replace(split.begin(), split.end(), '/', ',');
    const auto comma = split.find(',');
    const std::string second =
        comma == std::string::npos
            ? ""
            : split.substr(comma + 1, split.find(',', comma + 1) - comma - 1);
    split_validates_ = second.find_first_of("123456789") != std::string::npos;
    draft_.set("data.split", split, a_.has("--split") ? "--split" : "Megatron-LM's default");
  }

  void convert_tokenizer() {
    const auto model = a_.text("--tokenizer-model");
    const std::string type = megatron_tokenizer(a_);
    if (type == "NullTokenizer" || (type.empty() && !a_.has("--tokenizer-model"))) return;
    std::error_code ignored;
    for (const std::string& file : {model.value_or(""), model.value_or("") + "/tokenizer.json"}) {
      if (!file.ends_with(".json") || !std::filesystem::is_regular_file(file, ignored)) continue;
      return draft_.set("tokenizer", file, "--tokenizer-model");
    }
    draft_.unset(fmt::format(
        "tokenizer: the tokenizer.json that made the data ({}{}); \"byte\" holds until it is set",
        type.empty() ? "--tokenizer-model" : type, model ? " " + *model : ""));
  }

  void convert_start() {
    const MegatronArgument* load = a_.find("--load");
    const MegatronArgument* save = a_.find("--save");
    if (load != nullptr && save != nullptr && load->values == save->values) {
      draft_.nothing("--load", "a run goes on from its own newest checkpoint by itself");
    }
    const bool other = load != nullptr && (save == nullptr || load->values != save->values);
    if (other || a_.has("--pretrained-checkpoint") || a_.has("--finetune")) {
      draft_.unset(
          "init.weights: Megatron-LM's checkpoints are not read; a Hugging Face directory of the "
          "same weights is");
    }
    if (const auto step = a_.whole("--ckpt-step")) draft_.set("run.resume", *step, "--ckpt-step");
  }

  void convert_optimizer() {
    const std::string kind = a_.text("--optimizer").value_or("adam");
    if (kind == "adam" || kind == "adamw") {
      draft_.set("optimizer.kind", "adamw", "--optimizer");
    } else if (kind == "muon" || kind == "dist_muon") {
      convert_megatron_muon(a_, draft_);
    } else if (!draft_.set_text(*find_field("optimizer.kind"), kind, "--optimizer")) {
      draft_.remark("--optimizer {} is not in this version: AdamW holds", kind);
    }
    if (kind == "lion") {
      draft_.unset(
          "optimizer.betas, optimizer.eps: --adam-beta1, --adam-beta2 and --adam-eps are "
          "not Lion's");
      draft_.erase("optimizer.eps");
    } else {
      draft_.set("optimizer.betas",
                 Json::Array{Json(a_.real("--adam-beta1").value_or(0.9)),
                             Json(a_.real("--adam-beta2").value_or(0.999))},
                 "--adam-beta1, --adam-beta2");
    }
    if (draft_.find("optimizer.weight_decay") == nullptr)
      draft_.set("optimizer.weight_decay", 0.01, "--weight-decay (Megatron-LM's default)");
    const std::string growth = a_.text("--weight-decay-incr-style").value_or("constant");
    const auto first = a_.real("--start-weight-decay"), last = a_.real("--end-weight-decay");
    if (growth != "constant" || first != last) {
      draft_.remark(
          "--weight-decay-incr-style, --start-weight-decay, --end-weight-decay: the decay "
          "is constant here");
    }
  }

  void convert_schedule() {
    const std::string style = a_.text("--lr-decay-style").value_or("linear");
    const auto steps = draft_.integer("run.steps");
    if (const auto end = batch_->steps_of("--lr-decay-samples"))
      draft_.set("lr_schedule.decay_end_step", *end, "--lr-decay-samples");
    const std::optional<std::int64_t> end = draft_.integer("lr_schedule.decay_end_step")
                                                ? draft_.integer("lr_schedule.decay_end_step")
                                                : steps;
    if (style == "constant" || style == "linear" || style == "cosine") {
      draft_.set("lr_schedule.kind", style, "--lr-decay-style");
    } else if (style == "WSD") {
      convert_wsd(end, steps);
    } else {
      draft_.remark(
          "--lr-decay-style {} has no counterpart: lr_schedule.kind is left out, and cosine holds",
          style);
    }
    if (style == "WSD" || style == "constant") draft_.erase("lr_schedule.decay_end_step");
    if (style != "WSD") draft_.erase("lr_schedule.decay_steps");
    convert_warmup(end);
    draft_.remark(
        "the learning rate of update k is Megatron-LM's of update k + 1: its warm-up and "
        "decay are one update behind");
  }

  void convert_wsd(std::optional<std::int64_t> end, std::optional<std::int64_t> steps) {
    draft_.set("lr_schedule.kind", "wsd", "--lr-decay-style");
    if (const auto decay = batch_->steps_of("--lr-wsd-decay-samples"))
      draft_.set("lr_schedule.decay_steps", *decay, "--lr-wsd-decay-samples");
    constexpr Word kShapes[] = {{"linear", "linear"}, {"cosine", "cosine"}, {"minus_sqrt", "sqrt"}};
    const std::string shape = a_.text("--lr-wsd-decay-style").value_or("exponential");
    const auto same = std::find_if(std::begin(kShapes), std::end(kShapes),
                                   [&](const Word& one) { return one.theirs == shape; });
    if (same == std::end(kShapes)) {
      draft_.erase("lr_schedule.decay_shape");
      draft_.remark("--lr-wsd-decay-style {} has no counterpart: the decay is linear", shape);
    } else {
      draft_.set("lr_schedule.decay_shape", same->ours, "--lr-wsd-decay-style");
    }
    if (end && steps && *end != *steps)
      draft_.remark("--lr-decay-iters {}: the decay of wsd ends with the run, at step {}", *end,
                    *steps);
  }

  void convert_warmup(std::optional<std::int64_t> end) {
    if (const auto warmup = batch_->steps_of("--lr-warmup-samples"))
      draft_.set("lr_schedule.warmup_steps", *warmup, "--lr-warmup-samples");
    if (const auto fraction = a_.real("--lr-warmup-fraction")) {
      if (!end) {
        draft_.remark(
            "--lr-warmup-fraction {} is of a length that is not known: set "
            "lr_schedule.warmup_steps",
            *fraction);
      } else {
        const double warmup = *fraction * static_cast<double>(*end);
        const auto whole = static_cast<std::int64_t>(std::llround(std::clamp(warmup, 0.0, 1e15)));
        if (static_cast<double>(whole) != warmup)
          draft_.remark("--lr-warmup-fraction {} of {} steps is {}: {}", *fraction, *end, warmup,
                        whole);
        draft_.set("lr_schedule.warmup_steps", whole, "--lr-warmup-fraction");
      }
    }
    if (const auto from = a_.real("--lr-warmup-init"); from && *from != 0)
      draft_.remark("--lr-warmup-init {} is left out: the warm-up begins at lr / warmup_steps",
                    *from);
  }

  /// Delayed scaling and MXFP8 have no counterpart: they become the current scaling of tensors, and
  /// of blocks.
  void convert_fp8() {
    const std::string format = a_.text("--fp8-format").value_or("hybrid"),
                      recipe = a_.text("--fp8-recipe").value_or("delayed");
    const bool block = recipe == "blockwise" || recipe == "mxfp8";
    Json fp8 = Json::object();
    fp8["recipe"] = block ? "block" : "tensor";
    fp8["gradients"] = format == "e4m3" ? "e4m3" : "e5m2";
    draft_.set("precision.fp8", std::move(fp8), "--fp8-format");
    if (recipe != "tensorwise" && recipe != "blockwise")
      draft_.remark("--fp8-recipe {} has no counterpart: scales are those of the current {}",
                    recipe, block ? "blocks" : "tensors");
  }

  void convert_precision() {
    const bool bf16 = a_.has("--bf16"), fp16 = a_.has("--fp16"), fp8 = a_.has("--fp8-format");
    if (bf16 && fp16) draft_.remark("--bf16 and --fp16 contradict each other: bf16 is taken");
    if (fp16 && !bf16)
      draft_.remark("--fp16 has no counterpart: bf16 is taken, which needs no loss scale");
    draft_.set("precision.compute", fp8 ? "fp8" : bf16 || fp16 ? "bf16" : "fp32", "the precision");
    if (fp8) convert_fp8();
    if (a_.has("--grad-reduce-in-bf16"))
      draft_.set("precision.wire", "bf16", "--grad-reduce-in-bf16");
    for (const char* name :
         {"--main-params-dtype", "--main-grads-dtype", "--exp-avg-dtype", "--exp-avg-sq-dtype"}) {
      const bool moment = std::string_view(name).starts_with("--exp");
      if (const auto type = a_.text(name); type && *type != "fp32")
        draft_.remark("{} {} is left out: it is fp32 here{}", name, *type,
                      moment ? ", or in 8 bits (optimizer.state \"8bit\")" : "");
    }
  }

  void convert_parallel() {
    const std::int64_t tensor = draft_.integer("parallel.tensor").value_or(1);
    if (tensor > 1)
      draft_.set("parallel.sequence_parallel", a_.has("--sequence-parallel"),
                 "--sequence-parallel");
    constexpr Word kMethods[] = {{"p2p", "ring"}, {"all_gather", "allgather"}, {"a2a", "ulysses"}};
    if (const auto type = a_.text("--cp-comm-type")) {
      const auto same = std::find_if(std::begin(kMethods), std::end(kMethods),
                                     [&](const Word& one) { return one.theirs == *type; });
      if (same != std::end(kMethods)) {
        draft_.set("parallel.context_method", same->ours, "--cp-comm-type");
      } else {
        draft_.remark("--cp-comm-type {} has no counterpart: ring holds", *type);
      }
    }
    convert_zero();
  }

  /// Megatron-LM's coefficient is ours: a layer adds its loss by itself.
  void convert_balance() {
    constexpr Word kDispatchers[] = {
        {"alltoall", "alltoall"}, {"allgather", "allgather"}, {"flex", "alltoall"}};
    if (const auto type = a_.text("--moe-token-dispatcher-type")) {
      const auto same = std::find_if(std::begin(kDispatchers), std::end(kDispatchers),
                                     [&](const Word& one) { return one.theirs == *type; });
      if (same != std::end(kDispatchers)) {
        draft_.set("moe.dispatch", same->ours, "--moe-token-dispatcher-type");
      } else {
        draft_.remark("--moe-token-dispatcher-type {} has no counterpart: alltoall holds", *type);
      }
    }
    const std::string type = a_.text("--moe-router-load-balancing-type").value_or("aux_loss");
    const bool aux = type == "aux_loss" || type == "seq_aux_loss" || type == "global_aux_loss";
    if (a_.has("--moe-router-enable-expert-bias")) {
      draft_.set("moe.balance", "bias", "--moe-router-enable-expert-bias");
      draft_.erase("moe.aux_coefficient");
      if (aux && a_.real("--moe-aux-loss-coeff").value_or(0) > 0)
        draft_.remark(
            "--moe-router-load-balancing-type {} beside --moe-router-enable-expert-bias: the bias "
            "alone balances here",
            type);
      return;
    }
    draft_.erase("moe.bias_rate");
    if (!aux || a_.real("--moe-aux-loss-coeff").value_or(0) == 0) {
      draft_.erase("moe.aux_coefficient");
      if (!aux && type != "none")
        draft_.remark("--moe-router-load-balancing-type {} has no counterpart: none holds", type);
      return;
    }
    draft_.set("moe.balance", "aux", "--moe-router-load-balancing-type");
    if (type == "global_aux_loss") {
      draft_.set("moe.scope", "global", "--moe-router-load-balancing-type");
      draft_.remark(
          "--moe-router-load-balancing-type global_aux_loss: Megatron-LM averages its gradient "
          "over data-parallel ranks, which makes it weaker by their number; moe.aux_coefficient "
          "here holds as it stands");
    }
    if (type == "aux_loss") {
      draft_.remark(
          "--moe-router-load-balancing-type aux_loss: each sequence is balanced by itself here, "
          "all of a micro-batch together in Megatron-LM");
    }
  }

  void convert_zero() {
    if (a_.has("--use-distributed-optimizer"))
      draft_.set("parallel.zero_stage", 1, "--use-distributed-optimizer");
    if (a_.has("--use-torch-fsdp2")) draft_.set("parallel.zero_stage", 3, "--use-torch-fsdp2");
    if (a_.has("--use-megatron-fsdp") || a_.has("--use-custom-fsdp")) {
      constexpr std::string_view kStages[] = {"no_shard", "optim", "optim_grads",
                                              "optim_grads_params"};
      const std::string strategy =
          a_.text("--data-parallel-sharding-strategy").value_or("no_shard");
      const auto at = std::find(std::begin(kStages), std::end(kStages), strategy);
      if (at == std::end(kStages)) a_.fault("--data-parallel-sharding-strategy", "is no strategy");
      draft_.set("parallel.zero_stage", std::int64_t{at - std::begin(kStages)},
                 "--data-parallel-sharding-strategy");
    }
    if (const auto stage = a_.whole("--zero-stage"))
      draft_.set("parallel.zero_stage", *stage, "--zero-stage");
    if (a_.has("--deepspeed-config") || a_.has("--deepspeed")) {
      draft_.remark("{}: convert that file too (--from deepspeed) and give both to `train`",
                    a_.has("--deepspeed-config") ? "--deepspeed-config" : "--deepspeed");
    }
    if (const auto copies = a_.whole("--num-distributed-optimizer-instances");
        copies && *copies > 1) {
      const auto data = data_ranks();
      if (data && *data % *copies == 0) {
        draft_.set("parallel.zero_group", *data / *copies, "--num-distributed-optimizer-instances");
      } else {
        draft_.remark(
            "--num-distributed-optimizer-instances {}: parallel.zero_group is the number "
            "of data-parallel ranks divided by it",
            *copies);
      }
    }
  }

  /// Data-parallel and context ranks together, where the launcher's arguments give them.
  std::optional<std::int64_t> data_ranks() const {
    const std::int64_t model = draft_.integer("parallel.tensor").value_or(1) *
                               draft_.integer("parallel.pipeline").value_or(1);
    if (!a_.ranks() || *a_.ranks() % model != 0) return std::nullopt;
    return *a_.ranks() / model;
  }

  void convert_pipeline() {
    const std::int64_t stages = draft_.integer("parallel.pipeline").value_or(1);
    const auto layers = a_.size("--num-layers");
    if (const auto each = a_.size("--num-layers-per-virtual-pipeline-stage")) {
      if (layers && *layers % stages == 0 && *layers / stages % *each == 0) {
        draft_.set("parallel.virtual_stages", *layers / stages / *each,
                   "--num-layers-per-virtual-pipeline-stage");
      } else {
        draft_.remark(
            "--num-layers-per-virtual-pipeline-stage {} does not divide the layers of a "
            "stage: left out",
            *each);
      }
    }
    if (draft_.integer("parallel.virtual_stages").value_or(1) > 1) {
      draft_.set("parallel.pipeline_schedule", "interleaved", "virtual stages");
    } else {
      draft_.erase("parallel.virtual_stages");
      draft_.erase("parallel.pipeline_group_size");
    }
    if (a_.has("--pipeline-model-parallel-layout")) {
      draft_.remark(
          "--pipeline-model-parallel-layout {}: set parallel.pipeline_layers, the number of "
          "t in each part; balanced holds",
          a_.text("--pipeline-model-parallel-layout").value_or(""));
    }
    if (layers)
      convert_layers(*layers, stages * draft_.integer("parallel.virtual_stages").value_or(1));
  }

  /// Fewer layers where embedding and loss are.
  void convert_layers(std::int64_t layers, std::int64_t parts) {
    const std::int64_t stages = draft_.integer("parallel.pipeline").value_or(1);
    const bool embedding = a_.has("--account-for-embedding-in-pipeline-split"),
               loss = a_.has("--account-for-loss-in-pipeline-split");
    const auto first = a_.size("--decoder-first-pipeline-num-layers"),
               last = a_.size("--decoder-last-pipeline-num-layers");
    if (!embedding && !loss && !first && !last) return;
    const char* from = embedding || loss ? "--account-for-...-in-pipeline-split"
                                         : "--decoder-...-pipeline-num-layers";
    std::vector<std::int64_t> each;
    if ((embedding || loss) && parts > 1 && parts <= 4096) {
      const std::int64_t slots = layers + (embedding ? 1 : 0) + (loss ? 1 : 0);
      if (slots % parts == 0) each.assign(static_cast<std::size_t>(parts), slots / parts);
      if (!each.empty() && embedding) --each.front();
      if (!each.empty() && loss) --each.back();
    } else if (parts == stages && stages > 1 && stages <= 4096) {
      const std::int64_t ends = (first ? 1 : 0) + (last ? 1 : 0),
                         rest = layers - first.value_or(0) - last.value_or(0);
      if (stages > ends && rest > 0 && rest % (stages - ends) == 0)
        each.assign(static_cast<std::size_t>(stages), rest / (stages - ends));
      if (!each.empty() && first) each.front() = *first;
      if (!each.empty() && last) each.back() = *last;
    }
    if (each.empty()) {
      draft_.remark("{} is left out: set parallel.pipeline_layers; balanced holds", from);
      return;
    }
    Json list = Json::array();
    for (const std::int64_t count : each) list.push_back(count);
    draft_.set("parallel.pipeline_layers", std::move(list), from);
  }

  void convert_recompute() {
    if (a_.has("--recompute-activations"))
      draft_.set("parallel.recompute", "selective", "--recompute-activations");
    if (a_.has("--checkpoint-activations"))
      draft_.set("parallel.recompute", "full", "--checkpoint-activations");
    if (const auto how = a_.text("--recompute-granularity")) {
      if (*how != "full" && *how != "selective")
        a_.fault("--recompute-granularity", "is neither full nor selective");
      draft_.set("parallel.recompute", *how, "--recompute-granularity");
    }
    const auto count = a_.whole("--recompute-num-layers");
    if (count && (*count > 1 || a_.text("--recompute-method").value_or("") == "block")) {
      draft_.remark(
          "--recompute-num-layers {}: parallel.recompute \"full\" is of every layer, each "
          "from its own input",
          *count);
    }
  }

  void convert_saving() {
    if (draft_.find("checkpoint.keep_last") == nullptr && a_.has("--save"))
      draft_.set("checkpoint.keep_last", 0, "Megatron-LM keeps every checkpoint");
    if (draft_.find("checkpoint.interval_steps") == nullptr && a_.has("--save"))
      draft_.set("checkpoint.interval_steps", 0, "no --save-interval: at the end only");
    if (draft_.find("log.interval_steps") == nullptr)
      draft_.set("log.interval_steps", 100, "--log-interval (Megatron-LM's default)");
    const auto first = a_.whole("--profile-step-start"), last = a_.whole("--profile-step-end");
    if (first && last && *last > *first) {
      draft_.set("log.trace_steps", Json::Array{Json(*first + 1), Json(*last)},
                 "--profile-step-start");
    }
  }

  void report_ranks() {
    if (!a_.ranks()) return;
    draft_.remark(
        "torchrun starts {0} ranks there: `scripts/run.sh -n {0} CONFIG` or srun here, and "
        "`train plan CONFIG --world {0}` before",
        *a_.ranks());
  }

  const MegatronArguments& a_;
  ConversionDraft& draft_;
  std::optional<MegatronBatch> batch_;
  bool split_validates_ = false;
};

}  // namespace

void convert_megatron(std::string_view text, std::string_view source, ConversionDraft& draft) {
  const MegatronArguments arguments(text, source, draft);
  MegatronRun(arguments, draft).convert();
}

}  // namespace trireme
