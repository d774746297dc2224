#pragma once
// Byte-pair encoding of one piece (Sennrich et al. 2016; over bytes as in GPT-2, or over characters
// as in SentencePiece, Kudo and Richardson 2018): of these symbols the adjacent pair whose merge is
// first in the list is joined, the leftmost first, until none is left.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trireme {

struct BpeMerge {
  std::int32_t left, right, joined;
};

enum class BpeSymbols { kBytes, kCharacters };

/// What SentencePiece writes for a blank: words begin with it.
inline constexpr std::string_view kWordMark = "\xE2\x96\x81";

struct BpeVocabulary {
  BpeSymbols symbols = BpeSymbols::kBytes;
  /// Token -> id. Over bytes: tokens in the byte alphabet; over characters: as they are written.
  std::unordered_map<std::string, std::int32_t> ids;
  /// In order of rank. Of equal pairs the last counts.
  std::vector<BpeMerge> merges;
  /// For a symbol without token; -1: such a symbol is dropped, as the peer does.
  std::int32_t unknown_id = -1;
  bool fuse_unknown = false;  ///< adjacent unknown symbols are one token
  /// Over characters: one without token is written as its bytes, "<0x0A>", where all have tokens.
  bool byte_fallback = false;
  /// "ignore_merges": a piece that is a token is not merged up from symbols.
  bool whole_piece_first = false;
};

class BpeModel {
 public:
  explicit BpeModel(BpeVocabulary vocabulary);

  /// One thread's working space and cache of short pieces (4 MiB, never growing).
  class Scratch {
   public:
    Scratch();

   private:
    friend class BpeModel;
    static constexpr std::size_t kKeyMax = 22, kIdsMax = 10, kEntries = std::size_t{1} << 16;
    struct Entry {
      std::uint8_t key_size, id_count;
      char key[kKeyMax];
      std::int32_t ids[kIdsMax];
    };
    static_assert(sizeof(Entry) == 64);
    std::vector<Entry> entries_;
    std::vector<std::int32_t> ids_, previous_, next_;
    std::vector<std::uint32_t> ranks_;
    struct Candidate {
      std::uint32_t rank;
      std::int32_t at, left, right;
    };
    std::vector<Candidate> heap_;
  };

  /// True where no merge joins a word to the mark that follows it: words of a piece are then
  /// encoded apart, and a piece that is cut before such a mark gives the same ids.
  [[nodiscard]] bool words_are_apart() const noexcept { return words_are_apart_; }

  /// Appends a piece's ids; over characters UTF-8, or one byte that is none. In n log n.
  void encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  static constexpr std::uint32_t kNoRank = 0xFFFFFFFF;
  struct Joined {
    std::uint32_t rank = kNoRank;
    std::int32_t id = -1;
  };
  [[nodiscard]] Joined find_merge(std::int32_t left, std::int32_t right) const noexcept;
  [[nodiscard]] bool marks_stand_first() const;
  [[nodiscard]] bool encode_whole(std::string_view piece, std::vector<std::int32_t>& ids) const;
  void encode_word(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const;
  void merge(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const;
  void first_bytes(std::string_view word, std::vector<std::int32_t>& ids) const;
  void first_characters(std::string_view word, std::vector<std::int32_t>& ids) const;
  [[nodiscard]] bool append_bytes(std::string_view symbol, std::vector<std::int32_t>& ids) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  BpeVocabulary vocabulary_;
  std::int32_t byte_ids_[256];               // over bytes; of "<0x0A>" over characters
  std::vector<std::int32_t> character_ids_;  // by code point
  bool words_are_apart_ = false;
  std::size_t longest_token_ = 0;
  struct Slot {
    std::uint64_t pair;
    Joined joined;
  };
  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  int shift_ = 0;
};

}  // namespace trireme
