#include "generate/generator.h"

#include <algorithm>
#include <deque>
#include <optional>

#include "base/error.h"

namespace trireme {

namespace {

/// A request that has begun.
struct Sequence {
  std::size_t request;
  std::vector<std::int32_t> ids;  // prompt and new tokens
  std::int64_t prompt_tokens;
  int slot = -1;  // of the decoder; -1: waits for one
};

class Generator {
 public:
  Generator(Decoder& decoder, std::span<const SequenceRequest> requests,
            const SamplingOptions& options, std::span<const std::int64_t> end_tokens,
            const GenerationCalls& calls)
      : decoder_(decoder),
        requests_(requests),
        options_(options),
        end_tokens_(end_tokens),
        calls_(calls) {
    for (int slot = 0; slot < decoder.shape().sequences; ++slot) free_slots_.push_back(slot);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      expect(!requests[i].prompt.empty(), "a request without a prompt");
      waiting_.push_back({i, requests[i].prompt, std::ssize(requests[i].prompt)});
    }
  }

  GenerationCounts run() {
    while (admit()) {
      feed_prompt();
      feed_together();
    }
    return counts_;
  }

 private:
  [[nodiscard]] std::int64_t fed(const Sequence& of) const { return decoder_.length(of.slot); }
  [[nodiscard]] std::int64_t unfed(const Sequence& of) const {
    return std::ssize(of.ids) - fed(of);
  }
  /// How many tokens of the prompt go next by themselves: whole chunks, and a last one that is long
  /// enough. It depends on the prompt alone, and so do the bits.
  [[nodiscard]] std::int64_t prompt_part(const Sequence& of) const {
    const std::int64_t part = std::min(decoder_.shape().rows, of.prompt_tokens - fed(of));
    return part >= static_cast<std::int64_t>(Decoder::kAlone) ? part : 0;
  }

  /// Begins what there is room for, in order. False when all have ended.
  bool admit() {
    while (!waiting_.empty() && !free_slots_.empty()) {
      Sequence& next = waiting_.front();
      if (requests_[next.request].new_tokens == 0) {
        calls_.ended(next.request);
        waiting_.pop_front();
        continue;
      }
      const std::int64_t pages = PageTable::pages_of(std::ssize(next.ids));
      if (pages > decoder_.free_pages() - std::ssize(active_)) {  // one to grow for each
        if (!active_.empty()) break;
        expect(pages <= decoder_.free_pages(), "a prompt of {} pages, {} in all", pages,
               decoder_.free_pages());
      }
      next.slot = free_slots_.back();
      free_slots_.pop_back();
      active_.push_back(std::move(next));
      waiting_.pop_front();
    }
    counts_.sequences_most = std::max(counts_.sequences_most, std::ssize(active_));
    return !active_.empty();
  }

  /// Pages that so many tokens more of a sequence take.
  [[nodiscard]] std::int64_t pages_for(const Sequence& of, std::int64_t tokens) const {
    return PageTable::pages_of(fed(of) + tokens) - PageTable::pages_of(fed(of));
  }
  /// Sees to so many free pages for the active sequence at `index`, if need be by taking those of
  /// younger ones. False: its own, as it is the youngest.
  bool make_room(std::size_t index, std::int64_t pages) {
    while (pages > decoder_.free_pages()) {
      const bool itself = index + 1 == active_.size();
      expect(!itself || index > 0, "a sequence of {} tokens fills the cache", fed(active_[index]));
      Sequence& youngest = active_.back();
      release(youngest);
      waiting_.push_front(std::move(youngest));
      active_.pop_back();
      ++counts_.restarted;
      if (itself) return false;
    }
    return true;
  }
  void release(Sequence& of) {
    decoder_.end(of.slot);
    free_slots_.push_back(of.slot);
    of.slot = -1;
  }

  /// A chunk of the oldest prompt that has one.
  void feed_prompt() {
    const auto found = std::find_if(active_.begin(), active_.end(),
                                    [&](const Sequence& of) { return prompt_part(of) > 0; });
    if (found == active_.end()) return;
    const auto index = static_cast<std::size_t>(found - active_.begin());
    const std::int64_t part = prompt_part(*found);
    if (!make_room(index, pages_for(*found, part))) return;
    feed({index}, {part});
  }

  /// New tokens of all others, and the ends of prompts.
  void feed_together() {
    std::vector<std::size_t> indices;
    std::vector<std::int64_t> sizes;
    std::int64_t room = decoder_.shape().rows, pages = 0;
    for (std::size_t i = 0; i < active_.size(); ++i) {
      if (prompt_part(active_[i]) > 0) continue;
      const std::int64_t size =
          std::min({unfed(active_[i]), std::int64_t{Decoder::kAlone} - 1, room});
      pages += pages_for(active_[i], size);
      if (size == 0 || !make_room(i, pages)) break;
      indices.push_back(i);
      sizes.push_back(size);
      room -= size;
    }
    if (!indices.empty()) feed(indices, sizes);
  }

  void feed(const std::vector<std::size_t>& indices, const std::vector<std::int64_t>& sizes) {
    std::vector<Decoder::Part> parts;
    std::vector<std::size_t> wanting;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const Sequence& of = active_[indices[i]];
      const auto begin = static_cast<std::size_t>(fed(of)),
                 size = static_cast<std::size_t>(sizes[i]);
      const bool last = begin + size == of.ids.size();
      if (last) wanting.push_back(indices[i]);
      parts.push_back({of.slot, std::span(of.ids).subspan(begin, size), last});
      counts_.prompt_tokens += std::clamp<std::int64_t>(of.prompt_tokens - fed(of), 0, sizes[i]);
    }
    calls_.between();
    decoder_.feed(parts);
    if (!wanting.empty()) add_tokens(wanting);
  }

  void add_tokens(const std::vector<std::size_t>& indices) {
    std::vector<std::int32_t> tokens;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const Sequence& of = active_[indices[i]];
      const std::span<const float> logits = decoder_.logits(i);
      const TokenDraw draw{requests_[of.request].sample, std::ssize(of.ids) - of.prompt_tokens};
      tokens.push_back(logits.empty() ? -1 : sample_token(logits, options_, draw));
    }
    calls_.agree(tokens);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      Sequence& of = active_[indices[i]];
      of.ids.push_back(tokens[i]);
      ++counts_.new_tokens;
      calls_.added(of.request, tokens[i]);
      const bool full = std::ssize(of.ids) - of.prompt_tokens == requests_[of.request].new_tokens;
      if (!full &&
          std::find(end_tokens_.begin(), end_tokens_.end(), tokens[i]) == end_tokens_.end())
        continue;
      calls_.ended(of.request);
      release(of);
    }
    std::erase_if(active_, [](const Sequence& of) { return of.slot < 0; });
  }

  Decoder& decoder_;
  std::span<const SequenceRequest> requests_;
  const SamplingOptions& options_;
  std::span<const std::int64_t> end_tokens_;
  const GenerationCalls& calls_;
  std::deque<Sequence> waiting_;
  std::vector<Sequence> active_;  // the oldest first
  std::vector<int> free_slots_;
  GenerationCounts counts_;
};

}  // namespace

GenerationCounts generate(Decoder& decoder, std::span<const SequenceRequest> requests,
                          const SamplingOptions& options, std::span<const std::int64_t> end_tokens,
                          const GenerationCalls& calls) {
  return Generator(decoder, requests, options, end_tokens, calls).run();
}

}  // namespace trireme
