#pragma once
// Byte-pair encoding of one piece (Sennrich et al. 2016; over bytes as in GPT-2): the bytes are the
// first symbols, then the adjacent pair whose merge stands first in the list is joined, the
// leftmost of equals, until none is left.

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

struct BpeVocabulary {
  /// Byte form of a token -> id, for tokens written in the byte alphabet.
  std::unordered_map<std::string, std::int32_t> ids;
  /// In order of rank. Of equal pairs the last counts.
  std::vector<BpeMerge> merges;
  std::int32_t unknown_id =
      -1;  ///< for a byte without token; -1: such a byte is dropped, as the peer does
  bool fuse_unknown = false;  ///< adjacent unknown bytes are one token
  bool whole_piece_first =
      false;  ///< "ignore_merges": a piece that is a token is not merged up from bytes
};

class BpeModel {
 public:
  explicit BpeModel(BpeVocabulary vocabulary);

  /// One thread's working space and its cache of short pieces (4 MiB, filled over the run, never
  /// growing).
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

  /// Appends the ids of a piece. Linear in the piece, times its logarithm.
  void encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  static constexpr std::uint32_t kNoRank = 0xFFFFFFFF;
  struct Joined {
    std::uint32_t rank = kNoRank;
    std::int32_t id = -1;
  };
  [[nodiscard]] Joined find_merge(std::int32_t left, std::int32_t right) const noexcept;
  void encode_uncached(std::string_view piece, Scratch& scratch,
                       std::vector<std::int32_t>& ids) const;
  void first_symbols(std::string_view piece, std::vector<std::int32_t>& ids) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  BpeVocabulary vocabulary_;
  std::int32_t byte_ids_[256];
  struct Slot {
    std::uint64_t pair;
    Joined joined;
  };
  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  int shift_ = 0;
};

}  // namespace trireme
