#pragma once
// Adapters merged into the weights that they stand beside (config/model_config.h, AdapterConfig):
//   V = W + scale B A                     W [out, in], A [rank, in], B [out, rank]
//   V = m / |W + scale B A| (W + scale B A)   of DoRA, lengths by row
// in fp32: the products of one element are added in order of the rank, scaled, and added to W, so
// that its bits do not depend on the box that it is computed in. Squares of DoRA's rows are added
// in fp64, box by box. GPT-2's weights are stored [in, out]. An expert's gate and up are the halves
// of one product's V.

#include <functional>
#include <set>
#include <string>

#include "checkpoint/expert_adapters.h"
#include "checkpoint/weight_source.h"
#include "comm/communicator.h"
#include "config/model_config.h"
#include "store/state.h"

namespace trireme {

/// Merges into the weights of `state` ("parameters/NAME", fp32, filled; together the ranks have all
/// of the model's). `model` has the adapters. `load` fills a state with the boxes of the adapters'
/// parameters that this rank needs: of a box of W the rows of B and m and the columns of A.
/// Collective; throws what `load` does.
void add_adapters(const ModelConfig& model, State& state, const std::function<void(State&)>& load,
                  Communicator& world);

/// The same of whole tensors, one at a time.
class AdapterMerge {
 public:
  /// `source` holds the adapters; both must outlive this. Weights of `nf4` stand in NF4 beside them
  /// (nf4_base.h).
  AdapterMerge(const ModelConfig& model, const WeightSource& source, std::set<std::string> nf4 = {})
      : model_(model),
        source_(source),
        nf4_(std::move(nf4)),
        of_experts_(expert_adapter_parts(model)) {}
  /// Whether `add` changes this weight.
  [[nodiscard]] bool changes(const std::string& weight) const {
    return nf4_.contains(weight) || adapts(weight);
  }
  /// `values`: all of it.
  void add(const std::string& weight, std::span<float> values) const;

 private:
  /// Whether adapters stand beside this weight.
  [[nodiscard]] bool adapts(const std::string& weight) const;
  void add_to_expert(const ExpertWeight& of, std::span<float> values) const;
  /// To all of a layer's, which GPT-OSS's files have in one tensor.
  void add_to_experts(const std::string& weight, std::span<float> values) const;
  [[nodiscard]] const std::vector<float>& of_layer(const std::string& stored) const;

  const ModelConfig& model_;
  const WeightSource& source_;
  const std::set<std::string> nf4_;
  const std::map<std::string, ExpertAdapterPart> of_experts_;
  mutable std::map<std::string, std::vector<float>> kept_;  // of the layer whose experts come
};

}  // namespace trireme
