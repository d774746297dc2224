#pragma once
// A config as a person might write it: mostly plausible, with at most a few oddities, and what must
// follow from it.

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "e2e/random_configs/dice.h"

namespace trireme {

/// What the configs may refer to; made once for all of them.
struct Fixtures {
  struct Tokens {
    std::string prefix, tokenizer;
    std::int64_t vocabulary = 0, tokens = 0, documents = 0;
  };
  std::vector<Tokens> tokens;            ///< each long enough for 40 windows of 32 tokens
  Tokens short_tokens;                   ///< shorter than a window of 64 tokens
  std::vector<std::string> weights;      ///< Hugging Face directories
  std::vector<std::string> checkpoints;  ///< run folders with a checkpoint of a llama
  std::string cluster;                   ///< a file of one, of CPUs
};

struct RandomConfig {
  std::vector<std::pair<std::string, std::string>> files;  ///< beside the config: name and text
  std::vector<std::string> configs;                        ///< texts, the later over the earlier
  std::vector<std::string> overrides;                      ///< of --set
  std::int64_t world = 1;

  Json merged;                           ///< what all of them say together, for paths
  std::vector<std::string> oddities;     ///< in words
  std::vector<std::string> must_refuse;  ///< each of these paths must have an error
  bool refused = false;                  ///< there must be an error, at whatever path
  bool may_refuse = false;               ///< an oddity that may be legal or not
  /// Exit codes besides 0 that the run of an accepted config may have, since they hang on what a
  /// plan does not look at: the machine, the run's folder, time.
  std::set<int> codes;
  bool finite = true;      ///< the losses must be
  bool affordable = true;  ///< small enough to be run where it is accepted
};

/// Number `index` of the configs of this seed.
RandomConfig draw_config(std::uint64_t seed, std::int64_t index, const Fixtures& fixtures);

// ---- parts of the drawing

/// What has been settled so far and other keys must fit.
struct Situation {
  std::int64_t world = 1, data_ranks = 1, steps = 1, sequence_length = 1, global = 1;
  std::string family;
  std::int64_t vocabulary = 0, positions = 0;
  bool experts = false;  ///< the family has some; of "weights" nobody knows
  bool synthetic = true, has_steps = true;
  std::string order = "shuffled";
  std::int64_t warmup = 0;
};

/// "model" inline: a legal one of any family with a vocabulary of at least `vocabulary`.
Json draw_model(Dice& dice, std::int64_t vocabulary, Situation& situation);

/// Another key or value in a legal model, and what must follow.
void add_model_oddity(Dice& dice, Json& config, RandomConfig& drawn, Situation& situation);

/// The experts of a layer of a model that has some.
struct DrawnExperts {
  std::int64_t count = 0, columns = 0;
  explicit DrawnExperts(const Json& model);
};

/// Extents of the mesh, ZeRO and what hangs on them, with the length of a sequence where that is
/// changed for them; and where a plan must refuse them.
struct DrawnMesh {
  std::vector<std::pair<std::string, Json>> values;
  std::vector<std::pair<std::string, std::string>> refused;  ///< in words, and the path
};
/// `model`: the inline one, or null where its heads are not known here.
DrawnMesh draw_mesh(Dice& dice, const Json* model, Situation& situation);

/// Keys of the batch, a ramp now and then; its largest size into the situation.
std::vector<std::pair<std::string, Json>> draw_batch(Dice& dice, Situation& situation);

/// Legal values of the keys that fit on their own, each given now and then.
void draw_free_fields(Dice& dice, Json& config, const Situation& situation);
/// Products in fp8, where the inline model's sizes on a rank are known and fit.
void draw_fp8(Dice& dice, Json& config);
/// Adapters, beside weights from files.
void draw_adapters(Dice& dice, Json& config, const Situation& situation);
/// What follows an evaluation, where there is one; when all else is drawn.
void draw_watching(Dice& dice, Json& config, const Situation& situation);
/// Says some of the integers in counts of thousands or in KiB, which change nothing.
void draw_units(Dice& dice, Json& config);
/// The keys that draw_free_fields or draw_config know how to draw.
std::set<std::string> drawn_fields();

/// Where an unknown key is reported: a section that is no section as a whole.
std::string refusal_path(const std::string& path);

/// A value that the field cannot take, as JSON text (no JSON value holds 1e400).
std::string illegal_value(Dice& dice, std::string_view path);

/// Puts `text`, which is JSON, where `path` points; overrides and files print it as it is.
Json raw(std::string text);
/// JSON of a value with raw parts.
std::string text_of(const Json& value, int indent = -1);

/// The value at a dotted path, or nullptr.
const Json* value_at(const Json& config, std::string_view path);
/// Sets the value at a path of one or two keys.
void set_at(Json& config, std::string_view path, Json value);

}  // namespace trireme
