#include "tokenizer/tokenizer_steps.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/utf8.h"

namespace trireme {

namespace {

constexpr std::size_t kStepsMax = 64;  // each is compiled, and each sees the whole text

/// Steps that each write more than they read would fill memory from a line of text.
void check_growth(const JsonReader& reader, double growth) {
  constexpr double kGrowthMax = 64;
  if (growth > kGrowthMax)
    reader.fail(fmt::format("its steps make more than {} bytes of one", kGrowthMax));
}

const JsonReader& short_list(const JsonReader& list) {
  if (list.array().size() > kStepsMax) list.fail(fmt::format("more than {} steps", kStepsMax));
  return list;
}

/// {"String": literal} or {"Regex": pattern}.
Regex read_pattern(const JsonReader& reader) {
  reader.allow({"String", "Regex"});
  const bool literal = !reader.member("String").is_null();
  const JsonReader text = reader.member(literal ? "String" : "Regex");
  if (text.string().empty()) text.fail("an empty pattern");
  const auto kind = literal ? Regex::Kind::kLiteral : Regex::Kind::kPattern;
  return {text.string(), kind, text.place()};
}

/// What Metaspace is written for, of the one or the other form.
Metaspace read_metaspace(const JsonReader& reader) {
  reader.allow({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  Metaspace made;
  const JsonReader mark = reader.member("replacement");
  made.mark = mark.string();
  if (made.mark.empty() || utf8_length(made.mark) != static_cast<int>(made.mark.size()))
    mark.fail("is not one character");
  if (made.mark == " ") mark.refuse("a blank");
  const JsonReader scheme = reader.member("prepend_scheme");
  const std::string& name = scheme.is_null() ? std::string("always") : scheme.string();
  if (name == "first") {
    made.prepend = Metaspace::Prepend::kFirst;
  } else if (name == "never") {
    made.prepend = Metaspace::Prepend::kNever;
  } else if (name != "always") {
    scheme.refuse(fmt::format("prepend_scheme {}", name));
  }
  const JsonReader prefix = reader.member("add_prefix_space");
  if (!prefix.boolean(true)) {
    if (!scheme.is_null() && name != "never")
      prefix.fail(fmt::format("false contradicts prepend_scheme {}", name));
    made.prepend = Metaspace::Prepend::kNever;
  }
  made.splits = reader.member("split").boolean(true);
  return made;
}

std::size_t read_count(const JsonReader& reader) {
  return static_cast<std::size_t>(reader.is_null() ? 0 : reader.id());
}

}  // namespace

void read_normalizer(const JsonReader& reader, Normalizer& normalizer) {
  if (reader.is_null()) return;
  const std::string& type = reader.type();
  if (type == "NFC") {
    reader.allow({"type"});
    normalizer.add_nfc();
  } else if (type == "Prepend") {
    reader.allow({"type", "prepend"});
    normalizer.add_prepend(reader.member("prepend").string());
  } else if (type == "Replace") {
    reader.allow({"type", "pattern", "content"});
    const std::string content = reader.member("content").string();
    Regex pattern = read_pattern(reader.member("pattern"));
    normalizer.add_replacement(pattern.kind() == Regex::Kind::kLiteral
                                   ? Replacement(pattern.pattern(), content)
                                   : Replacement(std::move(pattern), content));
  } else if (type == "Sequence") {
    reader.allow({"type", "normalizers"});
    const JsonReader list = short_list(reader.member("normalizers"));
    for (std::size_t i = 0; i < list.array().size(); ++i)
      read_normalizer(list.element(i), normalizer);
  } else {
    reader.refuse(fmt::format("normalizer {}", type));
  }
  check_growth(reader, normalizer.growth());
}

namespace {

void read_split(const JsonReader& reader, PreTokenizer& pre_tokenizer) {
  struct Named {
    std::string_view name;
    SplitBehavior behavior;
  };
  constexpr std::array<Named, 5> kBehaviors = {
      {{"Removed", SplitBehavior::kRemoved},
       {"Isolated", SplitBehavior::kIsolated},
       {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
       {"MergedWithNext", SplitBehavior::kMergedWithNext},
       {"Contiguous", SplitBehavior::kContiguous}}};
  reader.allow({"type", "pattern", "behavior", "invert"});
  const JsonReader behavior = reader.member("behavior");
  const auto found = std::find_if(kBehaviors.begin(), kBehaviors.end(),
                                  [&](const Named& n) { return n.name == behavior.string(); });
  if (found == kBehaviors.end()) behavior.refuse(fmt::format("behavior {}", behavior.string()));
  const auto matches = reader.member("invert").boolean(false) ? SplitMatches::kArePieces
                                                              : SplitMatches::kAreDelimiters;
  pre_tokenizer.add_split(read_pattern(reader.member("pattern")), found->behavior, matches);
}

}  // namespace

bool read_pre_tokenizer(const JsonReader& reader, PreTokenizer& pre_tokenizer) {
  if (reader.is_null()) return false;
  const std::string& type = reader.type();
  if (type == "ByteLevel") {
    reader.allow({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    if (reader.member("add_prefix_space").boolean(true)) pre_tokenizer.add_prefix_space();
    if (reader.member("use_regex").boolean(true)) {
      pre_tokenizer.add_split(Regex(kGpt2Pattern, Regex::Kind::kPattern, reader.place()),
                              SplitBehavior::kIsolated, SplitMatches::kAreDelimiters);
    }
    return true;
  }
  if (type == "Split") {
    read_split(reader, pre_tokenizer);
  } else if (type == "Digits") {
    reader.allow({"type", "individual_digits"});
    const bool individual = reader.member("individual_digits").boolean(false);
    pre_tokenizer.add_split(Regex(kDigitPattern, Regex::Kind::kPattern, reader.place()),
                            individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
                            SplitMatches::kAreDelimiters);
  } else if (type == "Metaspace") {
    if (pre_tokenizer.rewrites()) reader.refuse("Metaspace after a step that writes text");
    pre_tokenizer.add_metaspace(read_metaspace(reader));
  } else if (type == "Sequence") {
    reader.allow({"type", "pretokenizers"});
    const JsonReader list = short_list(reader.member("pretokenizers"));
    bool done = false;
    for (std::size_t i = 0; i < list.array().size(); ++i) {
      if (done) list.element(i).refuse("a pre-tokenizer after ByteLevel");
      done = read_pre_tokenizer(list.element(i), pre_tokenizer);
    }
    return done;
  } else {
    reader.refuse(fmt::format("pre-tokenizer {}", type));
  }
  return false;
}

void check_post_processor(const JsonReader& reader) {
  if (reader.is_null()) return;
  const std::string& type = reader.type();
  if (type == "Sequence") {
    const JsonReader list = reader.member("processors");
    for (std::size_t i = 0; i < list.array().size(); ++i) check_post_processor(list.element(i));
    return;
  }
  constexpr std::array<std::string_view, 4> kKnown = {"ByteLevel", "TemplateProcessing",
                                                      "RobertaProcessing", "BertProcessing"};
  if (std::find(kKnown.begin(), kKnown.end(), type) == kKnown.end()) {
    reader.refuse(fmt::format("post-processor {}", type));
  }
}

void read_decoder(const JsonReader& reader, TokenDecoder& decoder) {
  if (reader.is_null()) return;
  const std::string& type = reader.type();
  if (type == "Replace") {
    reader.allow({"type", "pattern", "content"});
    const JsonReader pattern = reader.member("pattern");
    if (pattern.member("String").is_null())
      pattern.refuse("a regular expression in a decoder", "text");
    decoder.add_replacement(read_pattern(pattern).pattern(), reader.member("content").string());
  } else if (type == "ByteFallback") {
    reader.allow({"type"});
    decoder.add_byte_fallback();
  } else if (type == "Fuse") {
    reader.allow({"type"});
    decoder.add_fuse();
  } else if (type == "Strip") {
    reader.allow({"type", "content", "start", "stop"});
    const JsonReader content = reader.member("content");
    if (utf8_length(content.string()) != static_cast<int>(content.string().size()) ||
        content.string().empty()) {
      content.fail("is not one character");
    }
    decoder.add_strip(content.string(), read_count(reader.member("start")),
                      read_count(reader.member("stop")));
  } else if (type == "Metaspace") {
    const Metaspace metaspace = read_metaspace(reader);
    decoder.add_metaspace(metaspace.mark, metaspace.prepend != Metaspace::Prepend::kNever);
  } else if (type == "Sequence") {
    reader.allow({"type", "decoders"});
    const JsonReader list = short_list(reader.member("decoders"));
    for (std::size_t i = 0; i < list.array().size(); ++i) read_decoder(list.element(i), decoder);
  } else {
    reader.refuse(fmt::format("decoder {}", type), "text");
  }
  check_growth(reader, decoder.growth());
}

void check_byte_level_decoder(const JsonReader& reader) {
  if (reader.is_null()) return;
  if (reader.type() == "Sequence") {
    const JsonReader list = reader.member("decoders");
    for (std::size_t i = 0; i < list.array().size(); ++i) check_byte_level_decoder(list.element(i));
    return;
  }
  if (reader.type() != "ByteLevel") reader.refuse(fmt::format("decoder {}", reader.type()), "text");
}

}  // namespace trireme
