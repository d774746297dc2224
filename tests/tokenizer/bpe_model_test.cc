#include "tokenizer/bpe_model.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

using Ids = std::vector<std::int32_t>;

/// Tokens a to d are 0 to 3; merges by text, in order of rank, get the next ids.
BpeVocabulary vocabulary(std::initializer_list<std::pair<const char*, const char*>> merges) {
  BpeVocabulary made;
  for (const char* token : {"a", "b", "c", "d"})
    made.ids.emplace(token, static_cast<std::int32_t>(made.ids.size()));
  for (const auto& [left, right] : merges) {
    const auto joined =
        made.ids.emplace(std::string(left) + right, static_cast<std::int32_t>(made.ids.size()))
            .first->second;
    made.merges.push_back({made.ids.at(left), made.ids.at(right), joined});
  }
  return made;
}

Ids encode(const BpeModel& model, std::string_view piece) {
  BpeModel::Scratch scratch;
  Ids first, again;
  model.encode(piece, scratch, first);
  model.encode(piece, scratch, again);
  EXPECT_EQ(first, again) << "from the cache";
  return first;
}

/// The definition, word for word.
Ids reference(const BpeVocabulary& words, std::string_view piece) {
  Ids ids;
  for (const char c : piece) ids.push_back(words.ids.at(std::string(1, c)));
  while (true) {
    std::size_t best_rank = words.merges.size(), best_at = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      for (std::size_t rank = 0; rank < best_rank; ++rank) {
        if (words.merges[rank].left == ids[i] && words.merges[rank].right == ids[i + 1]) {
          best_rank = rank;
          best_at = i;
        }
      }
    }
    if (best_rank == words.merges.size()) return ids;
    ids[best_at] = words.merges[best_rank].joined;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

TEST(BpeModel, merges_by_rank_then_from_the_left) {
  const BpeModel model(vocabulary({{"b", "c"}, {"a", "b"}, {"a", "a"}}));
  EXPECT_EQ(encode(model, "abc"), (Ids{0, 4}));
  EXPECT_EQ(encode(model, "ab"), (Ids{5}));
  EXPECT_EQ(encode(model, "aaa"), (Ids{6, 0}));
  EXPECT_EQ(encode(model, ""), Ids{});
}

TEST(BpeModel, long_and_short_pieces_follow_the_definition) {
  const BpeVocabulary words = vocabulary({{"a", "b"},
                                          {"c", "d"},
                                          {"ab", "cd"},
                                          {"b", "a"},
                                          {"a", "a"},
                                          {"aa", "aa"},
                                          {"d", "ab"},
                                          {"abcd", "abcd"},
                                          {"c", "c"},
                                          {"aa", "b"}});
  const BpeModel model(words);
  std::uint32_t state = 7;
  const auto random = [&] { return (state = state * 1664525u + 1013904223u) >> 16; };
  for (std::size_t size = 1; size < 200; ++size) {
    for (int repeat = 0; repeat < 5; ++repeat) {
      std::string piece;
      while (piece.size() < size) piece += "abcd"[random() % (1 + random() % 4)];
      ASSERT_EQ(encode(model, piece), reference(words, piece)) << piece;
    }
  }
}

TEST(BpeModel, bytes_without_token_are_dropped_or_unknown) {
  BpeVocabulary words = vocabulary({});
  EXPECT_EQ(encode(BpeModel(words), "axxb"), (Ids{0, 1}));
  words.unknown_id = 9;
  EXPECT_EQ(encode(BpeModel(words), "axxb"), (Ids{0, 9, 9, 1}));
  words.fuse_unknown = true;
  EXPECT_EQ(encode(BpeModel(words), "axxbx"), (Ids{0, 9, 1, 9}));
}

TEST(BpeModel, a_piece_that_is_a_token_may_stand_before_merges) {
  BpeVocabulary words = vocabulary({});
  words.ids.emplace("abcd", 77);
  EXPECT_EQ(encode(BpeModel(words), "abcd"), (Ids{0, 1, 2, 3}));
  words.whole_piece_first = true;
  EXPECT_EQ(encode(BpeModel(words), "abcd"), (Ids{77}));
}

TEST(BpeModel, of_equal_merges_the_last_counts) {
  BpeVocabulary words = vocabulary({{"a", "b"}, {"b", "c"}});
  words.merges.push_back(words.merges.front());  // (a, b) again, after (b, c)
  EXPECT_EQ(encode(BpeModel(words), "abc"), (Ids{0, 5}));
}

}  // namespace
}  // namespace trireme
