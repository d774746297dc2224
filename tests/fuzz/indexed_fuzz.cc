// Token files: the parts of an input are PREFIX.idx, PREFIX.bin and PREFIX.json. Every token of
// what is accepted can be read, one by one and together.
#include <algorithm>
#include <cstring>

#include "dataset/corpus.h"
#include "dataset/indexed_file.h"
#include "dataset/token_check.h"
#include "fuzz_support.h"

using namespace trireme;
using namespace trireme::fuzz;

namespace {

constexpr std::size_t kParts = 3, kHeaderBytes = 34;

void check_tokens_agree(const IndexedFile& file) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file.tokens()));
  file.read(0, ids);
  std::int64_t next = 0;
  for (std::int64_t sequence = 0; sequence < file.sequences(); ++sequence) {
    require(file.first_token(sequence) == next, "a gap between sequences");
    next += file.length(sequence);
  }
  require(next == file.tokens(), "sequences do not make up the tokens");
  for (std::int64_t token = 0; token < file.tokens(); ++token) {
    const std::int64_t id = file.id_at(token);
    const bool fits = id >= 0 && id <= 0x7FFFFFFF;
    require(ids[static_cast<std::size_t>(token)] == (fits ? id : -1), "an id reads otherwise");
    const std::int64_t sequence = file.sequence_of(token);
    require(file.first_token(sequence) <= token && token < file.first_token(sequence + 1),
            "a token outside of its sequence");
  }
  for (const std::int64_t vocab_size : {0, 1, 257, 70000}) {
    const auto outside = file.find_outside(0, file.tokens(), vocab_size);
    for (std::int64_t token = 0; token < outside.value_or(file.tokens()); ++token) {
      const std::int64_t id = file.id_at(token);
      require(id >= 0 && id < vocab_size, "an id outside of the vocabulary was not found");
    }
    if (outside) require_readable(file.describe(*outside), 1);
  }
  require(file.index_hash().size() == 32, "no hash");
}

void check_windows(const Corpus& corpus) {
  constexpr std::int64_t kLength = 3;
  std::vector<std::int32_t> tokens(kLength + 1), begins(kLength + 1);
  for (std::int64_t i = 0; i < corpus.windows(kLength); ++i) {
    corpus.read(corpus.window_begin(i, kLength), {tokens, begins});
    for (std::int32_t at = 0; at <= kLength; ++at) {
      const std::int32_t begin = begins[static_cast<std::size_t>(at)];
      require(begin >= 0 && begin <= at, "a document that begins after its token");
    }
  }
}

template <class T>
void store(std::string& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

/// Makes the index consistent but for what `seed` leaves out, so that mutations reach the checks
/// behind the first.
void repair(std::string& index, unsigned seed) {
  const std::size_t bounds = 1 + seed / 8 % 4;
  const std::size_t room = index.size() > kHeaderBytes ? index.size() - kHeaderBytes : 0;
  const std::size_t sequences = room > bounds * 8 ? (room - bounds * 8) / 12 : 0;
  index.resize(kHeaderBytes + sequences * 12 + bounds * 8);
  index.replace(0, 9, std::string("MMIDIDX\0\0", 9));
  store(index, 9, std::uint64_t{1});
  if ((seed & 1U) == 0) {
    constexpr char kCodes[] = {1, 2, 3, 4, 5, 8};
    index[17] = kCodes[static_cast<unsigned char>(index[17]) % sizeof kCodes];
  }
  store(index, 18, static_cast<std::uint64_t>(sequences));
  store(index, 26, static_cast<std::uint64_t>(bounds));
  const int code = index[17];
  const std::int64_t width = code <= 2 ? 1 : code == 4 ? 4 : code == 5 ? 8 : 2;
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < sequences; ++i) {
    if ((seed & 2U) == 0) index[kHeaderBytes + i * 4] &= 15;
    if ((seed & 2U) == 0) index.replace(kHeaderBytes + i * 4 + 1, 3, 3, '\0');
    std::int32_t length;
    std::memcpy(&length, index.data() + kHeaderBytes + i * 4, sizeof length);
    store(index, kHeaderBytes + sequences * 4 + i * 8, offset);
    offset += length * width;
  }
  if ((seed & 4U) != 0) return;
  for (std::size_t i = 0; i < bounds; ++i) {
    store(index, kHeaderBytes + sequences * 12 + i * 8,
          static_cast<std::int64_t>(i + 1 == bounds ? sequences : i * sequences / bounds));
  }
  if (bounds == 1) store(index, kHeaderBytes + sequences * 12, std::int64_t{0});
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<std::string> parts = split_parts(text_of(data, size), kParts);
  put("t.idx", parts[0]);
  put("t.bin", parts[1]);
  std::filesystem::remove(folder() / "t.json");
  if (!parts[2].empty()) put("t.json", parts[2]);
  const std::string prefix = (folder() / "t").string();
  const Expected expected{{ExitCode::kData}, prefix};
  (void)accepted(expected, [&] {
    const auto file = std::make_shared<const IndexedFile>(prefix);
    check_tokens_agree(*file);
    const Corpus corpus(file);
    check_windows(corpus);
    for (const SequenceRange& range : split_sequences("1,1,1", file->sequences())) {
      check_windows(Corpus(file, range));
    }
    check_tokens(corpus, {.vocab_size = 300, .scan_bytes = 0, .tokenizer_hashes = {}});
  });
  return 0;
}

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t size_max,
                                    unsigned seed) {
  std::vector<std::string> parts = split_parts(text_of(data, size), kParts);
  std::string& part = parts[seed % 8 == 0 ? 2 : seed % 8 < 3 ? 1 : 0];
  mutate_part(part, part.size() + std::min<std::size_t>(64, size_max - std::min(size, size_max)));
  if (&part == &parts[0] && seed / 8 % 4 != 0) repair(part, seed / 32);
  return give_back(join_parts(parts), data, size_max);
}
