#include "tokenizer/normalizer.h"

#include "tokenizer/unicode.h"

namespace trireme {

bool Normalizer::only_replaces(std::string_view literal, std::string_view content) const {
  if (steps_.size() != 1) return false;
  const auto* step = std::get_if<Replacement>(&steps_.front());
  return step != nullptr && step->is_literal() && step->pattern() == literal &&
         step->content() == content;
}

std::string_view Normalizer::apply(std::string_view text, Before before, Scratch& scratch) const {
  for (const auto& step : steps_) {
    bool changed = false;
    if (const auto* prepend = std::get_if<Prepend>(&step)) {
      changed = !text.empty() && before != Before::kText;
      if (changed) scratch.next.assign(prepend->prefix).append(text);
    } else if (const auto* replacement = std::get_if<Replacement>(&step)) {
      changed = replacement->apply(text, scratch.regex, scratch.next);
    } else {
      changed = normalize_nfc(text, scratch.next);
    }
    if (!changed) continue;
    scratch.text.swap(scratch.next);
    text = scratch.text;
  }
  return text;
}

double Normalizer::growth() const {
  double growth = 1;
  for (const auto& step : steps_) {
    if (const auto* prepend = std::get_if<Prepend>(&step)) {
      growth += static_cast<double>(prepend->prefix.size());
    } else if (const auto* replacement = std::get_if<Replacement>(&step)) {
      growth *= replacement->growth();
    }
  }
  return growth;
}

Json Normalizer::describe() const {
  Json steps = Json::array();
  for (const auto& step : steps_) {
    Json::Array parts;
    if (const auto* prepend = std::get_if<Prepend>(&step)) {
      parts = {Json("prepend"), Json(prepend->prefix)};
    } else if (const auto* replacement = std::get_if<Replacement>(&step)) {
      parts = {Json(replacement->is_literal() ? "replace" : "replace_pattern"),
               Json(replacement->pattern()), Json(replacement->content())};
    } else {
      parts = {Json("nfc")};
    }
    steps.push_back(Json(std::move(parts)));
  }
  return steps;
}

}  // namespace trireme
