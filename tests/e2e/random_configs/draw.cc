// Whole configs: a legal frame of keys that hang together, free keys, oddities, and the files and
// overrides that say it.

#include <algorithm>
#include <functional>

#include "config/aliases.h"
#include "config/fields.h"
#include "e2e/random_configs/random_config.h"

namespace trireme {

namespace {

class Drawing {
 public:
  Drawing(std::uint64_t seed, std::int64_t index, const Fixtures& fixtures)
      : dice_(stream_key(seed, fmt::format("config {}", index))), fixtures_(fixtures) {}

  RandomConfig draw() {
    place_data();
    place_model();
    place_mesh();
    place_batch();
    place_length();
    set("run.directory", dice_.word({"run", "a run", "deep/er/run", "l\xc3\xa4uf", "./run/"}));
    set("optimizer.lr", dice_.pick<Json>({1e-4, 1e-3, 0, 1e-30, 0.01}));
    draw_free_fields(dice_, config_, situation_);
    draw_fp8(dice_, config_);
    draw_adapters(dice_, config_, situation_);
    if (dice_.percent(10)) set("log.cluster", fixtures_.cluster);
    draw_watching(dice_, config_, situation_);
    clean_up();
    out_.world = situation_.world;
    // What the mesh is refused for must not be hidden by a fault of another section.
    const int oddities = late_.empty() ? dice_.pick({0, 0, 0, 0, 0, 1, 1, 1, 1, 2}) : 0;
    for (int i = 0; i < oddities; ++i) add_oddity_of_its_own();
    // Rules between keys are not looked at where their sections have faults already.
    if (out_.must_refuse.empty() && late_.size() == 1) out_.must_refuse = late_;
    out_.refused = !out_.must_refuse.empty() || !late_.empty();
    write();
    return std::move(out_);
  }

 private:
  void set(std::string_view path, Json value) {
    touched_.emplace_back(path);
    set_at(config_, path, std::move(value));
  }
  void erase(const std::string& path) {
    touched_.push_back(path);
    const auto dot = path.find('.');
    if (Json* section = config_.find(path.substr(0, dot)); section != nullptr)
      section->erase(path.substr(dot + 1));
  }
  [[nodiscard]] const Json* given(std::string_view path) const { return value_at(config_, path); }

  void place_data() {
    situation_.world = dice_.pick<std::int64_t>({1, 1, 1, 1, 1, 2, 2, 3, 4});
    situation_.sequence_length = dice_.pick<std::int64_t>({1, 2, 3, 7, 8, 16, 17, 31, 32});
    set("data.sequence_length", situation_.sequence_length);
    situation_.synthetic = dice_.percent(40);
    if (situation_.synthetic) {
      set("data.train", "synthetic");
      if (dice_.percent(30)) set("data.validation", named([] { return Json("synthetic"); }));
      if (dice_.percent(20)) set("tokenizer", "byte");
    } else {
      place_tokens();
    }
    if (situation_.synthetic && dice_.percent(10)) {
      situation_.sequence_length = dice_.pick<std::int64_t>({200, 333, 1024});
      set("data.sequence_length", situation_.sequence_length);
    }
    if (dice_.percent(40)) {
      situation_.order = dice_.pick<std::string>({"shuffled", "megatron", "sequential"});
      set("data.order", situation_.order);
    }
    if (dice_.percent(15)) set("data.cache_directory", dice_.word({"cache", "cache/of/indices"}));
  }

  Json blend_of(const std::vector<Fixtures::Tokens>& sources) {
    Json list = Json::array();
    const std::int64_t count = dice_.between(1, 4);
    for (std::int64_t i = 0; i < count; ++i) {
      list.push_back(Json::Array{dice_.pick<Json>({1, 0.5, 0.3, 1e-3, 7.25, 1000}),
                                 dice_.pick(sources).prefix});
    }
    return list;
  }

  /// One set without a name, or several with one each.
  Json named(const std::function<Json()>& source) {
    if (dice_.percent(50)) return source();
    Json sets = Json::object();
    for (const char* name : {"web", "books and more", "l\xc3\xa4uf"}) {
      if (dice_.percent(60)) sets[name] = source();
    }
    return sets.as_object().empty() ? source() : sets;
  }

  void place_tokens() {
    // One tokenizer for all sources.
    const std::string tokenizer = dice_.pick(fixtures_.tokens).tokenizer;
    std::vector<Fixtures::Tokens> sources;
    for (const auto& one : fixtures_.tokens) {
      if (one.tokenizer == tokenizer) sources.push_back(one);
    }
    for (const auto& one : sources) vocabulary_ = std::max(vocabulary_, one.vocabulary);
    if (tokenizer != "byte" || dice_.percent(50)) set("tokenizer", tokenizer);
    const auto source = [&] {
      return dice_.percent(60) ? Json(dice_.pick(sources).prefix) : blend_of(sources);
    };
    set("data.train", source());
    if (dice_.percent(40)) {
      const auto any = [&] { return dice_.percent(85) ? source() : Json("synthetic"); };
      set("data.validation", named(any));
    } else if (dice_.percent(35)) {
      // Shares that leave every part a window, whatever the source.
      set("data.split", dice_.word({"969,30,1", "50,50", "1", "0.5,0.25,0.25", "90,10,0"}));
      split_ = true;
    }
  }

  void place_model() {
    if (dice_.percent(15)) {
      place_weights();
      return;
    }
    Json model = draw_model(dice_, vocabulary_, situation_);
    if (dice_.percent(80)) {
      config_["model"] = std::move(model);
      return;
    }
    // From a file, or from a file with some keys over it.
    const bool folder = dice_.percent(50);
    out_.files.emplace_back(folder ? "model/config.json" : "model.json", text_of(model, 2));
    const std::string path = folder ? "model" : "model.json";
    if (dice_.percent(50)) {
      config_["model"] = path;
    } else {
      config_["model"] = Json::Object{{"path", path}, {"initializer_range", 0.03}};
    }
    model_inline_ = false;
  }

  void place_weights() {
    model_inline_ = false;
    const bool checkpoint = dice_.percent(40);
    const auto& list = checkpoint ? fixtures_.checkpoints : fixtures_.weights;
    set("init.weights", dice_.pick(list));
    // All of them know 257 ids at least, and 64 positions.
    if (vocabulary_ > 257) {
      config_.erase("tokenizer");
      set("data.train", "synthetic");
      if (given("data.validation") != nullptr)
        set("data.validation", named([] { return Json("synthetic"); }));
      if (split_) config_.find("data")->erase("split");
      split_ = false;
      situation_.synthetic = true;
    }
    situation_.family = "weights";
    if (situation_.sequence_length > 60) {
      situation_.sequence_length = 60;
      set("data.sequence_length", 60);
    }
  }

  void place_mesh() {
    const DrawnMesh mesh =
        draw_mesh(dice_, model_inline_ ? config_.find("model") : nullptr, situation_);
    for (const auto& [path, value] : mesh.values) set(path, value);
    for (const auto& [what, path] : mesh.refused) refused_late_at(what, path);
  }

  void place_batch() {
    for (const auto& [path, value] : draw_batch(dice_, situation_)) set(path, value);
  }

  void place_length() {
    const std::int64_t per_step = situation_.global * situation_.sequence_length;
    // megatron's order builds an index of the whole run.
    const std::int64_t many = situation_.order == "megatron" ? 50 : 1'000'000'000;
    situation_.steps = dice_.pick<std::int64_t>({1, 2, 2, 2, 3, 7, many});
    switch (dice_.between(0, 5)) {
      case 0:
        set("run.tokens", per_step * situation_.steps - dice_.between(0, per_step - 1));
        break;
      case 1:
        if (!situation_.synthetic) {
          set("run.epochs", dice_.pick<Json>({0.001, 0.5, 1, 2.25}));
          situation_.has_steps = false;
          break;
        }
        [[fallthrough]];
      default:
        set("run.steps", situation_.steps);
    }
  }

  /// Free keys that do not fit what came before.
  void clean_up() {
    const Json* min_lr = given("lr_schedule.min_lr");
    if (min_lr != nullptr && min_lr->as_double() > given("optimizer.lr")->as_double())
      config_.find("lr_schedule")->erase("min_lr");
    for (const char* path : {"run.seed", "data.seed"}) {  // numpy takes 32 bits
      const Json* seed = given(path);
      if (situation_.order == "megatron" && seed != nullptr && seed->as_integer() >> 32 != 0)
        set(path, 7);
    }
    // A bias of the experts' choice moves by counts that an update ahead does not have.
    const Json* weights = given("init.weights");
    const bool biased =
        situation_.family == "glm4_moe" || situation_.family == "deepseek_v3" ||
        (weights != nullptr && weights->is_string() &&
         (weights->as_string().find("glm") < 1000 || weights->as_string().find("deepseek") < 1000));
    if (biased && given("parallel.speculative_step") != nullptr) erase("parallel.speculative_step");
    const Json *eps = given("optimizer.eps"), *decay = given("optimizer.weight_decay");
    if (eps != nullptr && eps->as_double() < 1e-20) out_.finite = false;
    if (decay != nullptr && decay->as_double() > 1) out_.finite = false;
  }

  // ---- oddities

  void refused_at(std::string what, std::string path) {
    out_.oddities.push_back(std::move(what));
    out_.must_refuse.push_back(std::move(path));
  }
  /// By a rule between keys that needs the number of ranks or the data.
  void refused_late_at(std::string what, std::string path) {
    out_.oddities.push_back(std::move(what));
    late_.push_back(std::move(path));
  }

  /// One that leaves alone what those before it changed: each must be reported.
  void add_oddity_of_its_own() {
    const Json config = config_;
    const RandomConfig out = out_;
    const std::vector<std::string> late = late_;
    touched_.clear();
    add_oddity();
    const bool meets = std::any_of(touched_.begin(), touched_.end(), [&](const std::string& path) {
      return std::find(odd_.begin(), odd_.end(), path) != odd_.end();
    });
    if (!meets) {
      odd_.insert(odd_.end(), touched_.begin(), touched_.end());
      return;
    }
    config_ = config;
    out_ = out;
    late_ = late;
  }

  void set_illegal() {
    const std::vector<Field>& table = fields();
    const std::string path = dice_.pick(table).path;
    std::string text = illegal_value(dice_, path);
    set(path, raw(text));
    refused_at(fmt::format("{} = {}", path, text), path);
  }

  void add_unknown() {
    std::string path;
    if (dice_.percent(50)) {
      std::vector<std::string> names;
      for (const auto& [name, own] : key_aliases()) names.push_back(name);
      path = dice_.pick(names);
      // Dots separate keys of ours.
      std::replace(path.begin(), path.end(), '.', '_');
    } else {
      path = dice_.pick(fields()).path;
      const auto at =
          static_cast<std::size_t>(dice_.between(0, static_cast<std::int64_t>(path.size()) - 1));
      if (path[at] != '.') path.insert(at, 1, path[at]);
    }
    const auto& known = sections();
    if (find_field(path) != nullptr || path == "model" ||
        std::find(known.begin(), known.end(), path) != known.end()) {
      return;
    }
    const Json* section = config_.find(path.substr(0, path.find('.')));
    if (section != nullptr && !section->is_object()) return;
    set(path, dice_.pick<Json>({1, "x", true, Json::object()}));
    refused_at("unknown " + path, refusal_path(path));
  }

  void contradict_evaluation() {
    switch (dice_.between(0, 2)) {
      case 0:
        for (const char* key : {"data.validation", "data.split", "evaluation.watch"}) erase(key);
        set("evaluation.stop_after", 0);
        set("checkpoint.keep_best", true);
        return refused_at("the best of no evaluation", "checkpoint.keep_best");
      case 1:
        set("evaluation.watch", "wbe");
        return refused_at("a set of no such name", "evaluation.watch");
      default:
        erase("evaluation.interval_steps");
        set("evaluation.stop_after", 3);
        return refused_at("stops after evaluations that are not made", "evaluation.stop_after");
    }
  }

  void contradict() {
    switch (dice_.between(0, 14)) {
      case 12:
      case 13:
      case 14:
        return contradict_evaluation();
      case 0:
        set("run.steps", 2);
        set("run.tokens", 1000);
        erase("run.epochs");
        return refused_at("two lengths", "run.tokens");
      case 1:
        if (situation_.synthetic) return;
        set("data.split", "90,10");
        set("data.validation", *given("data.train"));
        return refused_at("split and validation", "data.split");
      case 2:
        set("lr_schedule.kind", "wsd");
        set("lr_schedule.decay_end_step", 10);
        return refused_at("decay_end_step of wsd", "lr_schedule.decay_end_step");
      case 3:
        set("lr_schedule.kind", "cosine");
        set("lr_schedule.decay_shape", "sqrt");
        return refused_at("decay_shape of cosine", "lr_schedule.decay_shape");
      case 4:
        set("optimizer.lr", 1e-4);
        set("lr_schedule.min_lr", 1e-3);
        return refused_at("min_lr above lr", "lr_schedule.min_lr");
      case 5:
        set("log.trace_steps", Json::Array{5, 2});
        return refused_at("trace_steps backwards", "log.trace_steps");
      case 6:
        set("batch.global", 7 * situation_.world);
        set("batch.micro", 2);
        set("batch.accumulation", 3);
        return refused_late_at("batch does not multiply", "batch.global");
      case 7:
        if (situation_.data_ranks > 1 && dice_.percent(50)) {
          erase("batch.micro");
          erase("batch.accumulation");
          set("batch.global", situation_.data_ranks * 2 + 1);
          return refused_late_at("global does not divide", "batch.global");
        }
        set("parallel.data", situation_.world + 1);
        return refused_late_at("data is not the world", "parallel.data");
      case 8:
        for (const char* key : {"batch.micro", "batch.global", "batch.accumulation"}) erase(key);
        return refused_at("no batch", "batch.micro");
      case 9:
        for (const char* key : {"run.steps", "run.tokens", "run.epochs"}) erase(key);
        return refused_at("no length", "run.steps");
      case 10: {
        const std::string path = dice_.pick<std::string>(
            {"run.directory", "data.train", "data.sequence_length", "optimizer.lr"});
        erase(path);
        return refused_at("no " + path, path);
      }
      default:
        if (!situation_.synthetic) return;
        for (const char* key : {"run.steps", "run.tokens"}) erase(key);
        set("run.epochs", 1);
        return refused_late_at("epochs of synthetic data", "run.epochs");
    }
  }

  /// Legal, but at an edge: accepted or not, it must end well.
  void go_to_an_edge() {
    const auto edge = [&](const char* path, Json value) {
      out_.oddities.push_back(fmt::format("{} = {}", path, text_of(value)));
      set(path, std::move(value));
    };
    out_.may_refuse = true;
    constexpr std::int64_t kHuge = 9007199254740991;
    switch (dice_.between(0, 20)) {
      case 20:  // weights of which the sum or the quotient leaves the numbers
        if (situation_.synthetic) return;
        return edge("data.train", weighted({dice_.pick<Json>({1e308, 1e-320, 5e-324, 1e300}),
                                            dice_.pick<Json>({1e308, 1, 1e-300}), 1e308}));
      case 19:
        if (situation_.synthetic) return;
        return edge("data.train", weighted(Json::Array(30, 0.1)));
      case 18:
        return edge("checkpoint.directory", dice_.word({".", "run", "run/checkpoints/../x"}));
      case 0:
        return edge("run.steps", kHuge);
      case 1:
        return edge("run.tokens", kHuge);
      case 2:
        return edge("run.epochs", 1e300);
      case 3:
        out_.affordable = false;
        return edge("batch.global", dice_.pick<Json>({1'000'000'000, 999'999'937}));
      case 4:
        out_.affordable = false;
        return edge("batch.micro", 1'000'000'000);
      case 5:
        out_.affordable = false;
        return edge("batch.accumulation", 1'000'000'000);
      case 6:
        out_.affordable = false;
        return edge("data.sequence_length", 1 << 24);
      case 7:
        out_.finite = false;
        return edge("optimizer.lr", dice_.pick<Json>({1e30, 1e300, 5e-324}));
      case 8:
        out_.finite = false;
        set("optimizer.kind", "adamw");
        erase("optimizer.matrix_lr");
        return edge("optimizer.eps", 0);
      case 9:
        return edge("lr_schedule.warmup_steps", kHuge);
      case 10:
        return edge("run.threads_per_rank", 64);
      case 11:
        out_.finite = false;
        return edge("optimizer.weight_decay", 1e300);
      case 12:
        return edge("data.split", dice_.word({"0,1,0", "1,0,0", "1e3", "0.0001,99", "1,2,3,4",
                                              "1,,2", "99999999999999999999,1", "33.3,33.3,33.4"}));
      case 13:
        return edge("lr_schedule.decay_end_step", 1);
      case 14:
        return edge("lr_schedule.min_lr", 1e-6);
      case 15:
        out_.codes.insert(75);
        return edge("run.exit_after_minutes", 1e-9);
      case 16:
        return edge("data.train", fixtures_.short_tokens.prefix);
      default:
        if (situation_.synthetic) return edge("data.order", "megatron");
        return edge("evaluation.batches", 1'000'000'000);
    }
  }

  /// The first source of data.train with each of these weights.
  Json weighted(const Json::Array& weights) {
    const Json& train = *given("data.train");
    const Json& prefix = train.is_string() ? train : train.as_array()[0].as_array()[1];
    Json list = Json::array();
    for (const Json& weight : weights) list.push_back(Json::Array{weight, prefix});
    return list;
  }

  /// What a plan does not look at.
  void meet_the_machine() {
    const auto expect_code = [&](int code, const char* path, Json value) {
      out_.oddities.push_back(fmt::format("{} = {}", path, text_of(value)));
      set(path, std::move(value));
      out_.codes.insert(code);
    };
    switch (dice_.between(0, 11)) {
      case 11:
        return expect_code(74, "run.directory",
                           dice_.pick<std::string>({"/proc/no/such", "/dev/null/run",
                                                    std::string(300, 'x'), "config0.json"}));
      case 10:
        out_.codes.insert(2);  // another model's
        return expect_code(74, "checkpoint.directory",
                           dice_.pick(fixtures_.checkpoints) + "/checkpoints");
      case 9:
        out_.codes.insert(2);
        return expect_code(
            74, "init.weights",
            dice_.pick(dice_.percent(70) ? fixtures_.weights : fixtures_.checkpoints));
      case 8:
        return expect_code(74, "data.cache_directory", "/proc/no/such");
      case 0:
        return expect_code(3, "run.device", "cuda");
      case 1:
        return expect_code(74, "run.resume", dice_.pick<Json>({"must", 5, "nowhere"}));
      case 2:
        return expect_code(74, "checkpoint.min_free_bytes", 9007199254740991);
      case 3:
        out_.may_refuse = true;  // epochs need to count them
        return expect_code(74, "data.train", "no/such/tokens");
      case 4:
        return expect_code(74, "data.validation", "no/such/tokens"), out_.may_refuse = true, void();
      case 5:
        return expect_code(74, "tokenizer", "no/such/tokenizer.json");
      case 6:
        out_.may_refuse = true;
        return expect_code(74, "init.weights", "no/such/weights");
      default:
        out_.may_refuse = true;
        return expect_code(74, "model", "no/such/model.json");
    }
  }

  void add_oddity() {
    const std::int64_t kind = dice_.between(0, 99);
    if (kind < 40) return set_illegal();
    if (kind < 50) return add_unknown();
    if (kind < 65) return contradict();
    if (kind < 80 && model_inline_ && config_.find("model")->is_object()) {
      touched_.push_back("model");
      if (late_.empty() && situation_.world > 1) out_.may_refuse = true;  // by a rule of the mesh
      return add_model_oddity(dice_, config_, out_, situation_);
    }
    if (kind < 93) return go_to_an_edge();
    meet_the_machine();
  }

  // ---- the form

  void write() {
    out_.merged = config_;
    if (dice_.percent(30)) draw_units(dice_, config_);
    Json first = config_, second = Json::object();
    const int form = static_cast<int>(dice_.between(0, 9));
    if (form < 3) {  // some keys come by --set
      for (const Json::Member& section : config_.as_object()) {
        if (section.first == "model" || !section.second.is_object()) continue;
        for (const Json::Member& key : section.second.as_object()) {
          const std::string text = text_of(key.second);
          // What is no JSON is a string there: legal for some keys.
          if (!dice_.percent(20) || text.starts_with("1e4")) continue;
          out_.overrides.push_back(fmt::format("{}.{}={}", section.first, key.first, text));
          first.find(section.first)->erase(key.first);
        }
      }
    } else if (form < 5) {  // a second file, over values that are there no more in the end
      for (const Json::Member& section : config_.as_object()) {
        if (section.first == "model" || !section.second.is_object() || !dice_.percent(50)) continue;
        second[section.first] = section.second;
        for (Json::Member& key : first.find(section.first)->as_object()) {
          if (dice_.percent(50)) key.second = "something else";
        }
      }
      first["log"]["no_such_key"] = 1;
      second["log"]["no_such_key"] = nullptr;
    }
    if (dice_.percent(1)) {
      out_.overrides.emplace_back(dice_.word({"run.steps", "=3", "run..steps=2", ".run=1"}));
      refused_at("--set without a key and a value", "--set");
      out_.refused = true;
    }
    const int indent = dice_.pick({-1, 2});
    std::string text = text_of(first, indent);
    if (dice_.percent(10)) text = "// a comment\n" + text + " /* and another */\n";
    out_.configs.push_back(std::move(text));
    if (!second.as_object().empty()) out_.configs.push_back(text_of(second, indent));
    if (dice_.percent(3) && form >= 5) {
      std::string& only = out_.configs.front();
      only.insert(only.find("\"run\""), "\"run\": {}, ");
      refused_at("a key twice", "run");
      out_.refused = true;
    } else if (dice_.percent(2) && !out_.refused) {
      out_.configs.front() = out_.configs.front().substr(0, out_.configs.front().size() / 2);
      refused_at("cut in the middle", "");
      out_.refused = true;
    }
  }

  Dice dice_;
  const Fixtures& fixtures_;
  RandomConfig out_;
  Json config_ = Json::object();
  Situation situation_;
  std::int64_t vocabulary_ = 0;
  std::vector<std::string> touched_, odd_, late_;
  bool split_ = false, model_inline_ = true;
};

}  // namespace

RandomConfig draw_config(std::uint64_t seed, std::int64_t index, const Fixtures& fixtures) {
  return Drawing(seed, index, fixtures).draw();
}

}  // namespace trireme
