#include "comm/communicator.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <new>
#include <utility>

#include "base/math.h"
#include "comm/rounds.h"

namespace trireme {

void Pending::wait() {
  // Cleared first: the transfer's slot belongs to somebody else once its wait returns.
  if (const auto wait = std::exchange(wait_, nullptr)) wait();
}

template <class T, class F>
void Communicator::reduce(std::span<T> values, const F& combine) {
  if (size() == 1) return;
  const std::size_t bytes = values.size_bytes();
  gathered_.resize(std::max(gathered_.size(), bytes * static_cast<std::size_t>(size())));
  const std::span<std::byte> all =
      std::span(gathered_).first(bytes * static_cast<std::size_t>(size()));
  all_gather(std::as_bytes(values), all);
  for (int rank = 0; rank < size(); ++rank) {
    const std::byte* theirs = all.data() + static_cast<std::size_t>(rank) * bytes;
    for (std::size_t i = 0; i < values.size(); ++i) {
      T value;
      std::memcpy(&value, theirs + i * sizeof(T), sizeof(T));
      values[i] = rank == 0 ? value : combine(values[i], value);
    }
  }
}

void Communicator::sum(std::span<double> values) {
  reduce(values, [](double a, double b) { return a + b; });
}

void Communicator::sum(std::span<std::int64_t> values) {
  // Wraps instead of overflowing: words of an exact sum may be anything.
  reduce(values, [](std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  });
}

void Communicator::maximum(std::span<std::int64_t> values) {
  reduce(values, [](std::int64_t a, std::int64_t b) { return std::max(a, b); });
}

std::string Communicator::broadcast_text(std::string_view text, int root) {
  std::int64_t size_bytes = static_cast<std::int64_t>(text.size());
  broadcast(std::as_writable_bytes(std::span(&size_bytes, 1)), root);
  std::string received(rank() == root ? text : std::string_view());
  received.resize(static_cast<std::size_t>(size_bytes));
  broadcast(std::as_writable_bytes(std::span(received)), root);
  return received;
}

Memory Communicator::transfer_memory(Device device, std::size_t bytes) { return {device, bytes}; }

std::shared_ptr<void> Communicator::register_memory(std::span<std::byte> /*memory*/) { return {}; }

Pending Communicator::start_combine(std::span<std::byte> value, Combine combine) {
  std::vector<std::byte> all(value.size() * static_cast<std::size_t>(size()));
  all_gather(value, all);
  std::span<const std::byte> rest = all;
  std::copy_n(rest.begin(), value.size(), value.begin());
  while ((rest = rest.subspan(value.size())).size() > 0) combine(value, rest.first(value.size()));
  return {};
}

std::string Communicator::reduce_text(
    std::string mine,
    const std::function<std::string(const std::string& lower, const std::string& higher)>&
        combine) {
  const auto bytes_of = [](auto& values) { return std::as_writable_bytes(std::span(values)); };
  const ReductionTree tree = reduction_tree(rank(), size());
  std::array<std::int64_t, 1> count{};
  for (const int child : tree.children) {
    start_exchange({}, std::array{Message{child, bytes_of(count)}}).wait();
    std::string theirs(static_cast<std::size_t>(count[0]), '\0');
    start_exchange({}, std::array{Message{child, bytes_of(theirs)}}).wait();
    mine = combine(mine, theirs);
  }
  if (tree.parent < 0) return mine;
  count[0] = std::ssize(mine);
  start_exchange(std::array{Message{tree.parent, bytes_of(count)}}, {}).wait();
  start_exchange(std::array{Message{tree.parent, bytes_of(mine)}}, {}).wait();
  return "";
}

void Communicator::expect_summable(const char* operation, TensorView values) {
  expect(values.dtype == DType::kF32 || values.dtype == DType::kBF16, "{} of {} values", operation,
         name_of(values.dtype));
  expect(values.given() || values.count() == 0, "{} of no values", operation);
}

void Communicator::expect_shards(const char* operation, TensorView shards) const {
  expect(shards.given() || shards.count() == 0, "{} of no values", operation);
  expect(shards.count() % size() == 0, "{} of {} values in {} shards", operation, shards.count(),
         size());
}

void Communicator::expect_messages(std::span<const Message> sends,
                                   std::span<const Message> receives) const {
  for (const std::span<const Message> list : {sends, receives}) {
    for (const Message& message : list) {
      expect(message.rank >= 0 && message.rank < size(), "a message of rank {} of {}", message.rank,
             size());
    }
  }
  const auto own = [this](std::span<const Message> list, std::size_t from) {
    while (from < list.size() && list[from].rank != rank()) ++from;
    return from;
  };
  std::size_t out = own(sends, 0), in = own(receives, 0);
  while (out < sends.size() && in < receives.size()) {
    expect(sends[out].bytes.size() == receives[in].bytes.size(),
           "a message of {} bytes to oneself, received into {}", sends[out].bytes.size(),
           receives[in].bytes.size());
    out = own(sends, out + 1);
    in = own(receives, in + 1);
  }
  expect(out == sends.size() && in == receives.size(),
         "messages to oneself: {} is without its other end",
         out < sends.size() ? "a send" : "a receive");
}

std::int64_t all_reduce_bytes_sent(std::int64_t count, DType dtype, int ranks, int rank) {
  const std::int64_t mine = even_slice(count, ranks, rank).size;
  return (count - mine + mine * (ranks - 1)) * static_cast<std::int64_t>(size_of(dtype));
}

std::int64_t one_way_bytes_sent(std::int64_t bytes, int ranks) {
  return bytes / ranks * (ranks - 1);
}

void copy_own_messages(int rank, std::span<const Message> sends,
                       std::span<const Message> receives) {
  auto in = receives.begin();
  for (const Message& message : sends) {
    if (message.rank != rank) continue;
    in = std::find_if(in, receives.end(), [&](const Message& each) { return each.rank == rank; });
    if (!message.bytes.empty()) {
      std::memmove(in->bytes.data(), message.bytes.data(), message.bytes.size());
    }
    ++in;
  }
}

namespace {
/// "2 the text" of what `work` threw, "" where it threw nothing.
std::string outcome_of(const std::function<void()>& work) {
  const auto outcome = [](ExitCode code, const char* text) {
    return fmt::format("{} {}", static_cast<int>(code), text);
  };
  try {
    work();
    return "";
  } catch (const Error& error) {
    return outcome(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return outcome(ExitCode::kEnvironment,
                   "out of memory (host). Use fewer ranks on this host or a smaller batch.");
  } catch (const std::exception& error) {
    return outcome(ExitCode::kInternal, error.what());
  }
}
}  // namespace

void run_together(Communicator& world, const std::function<void()>& work) {
  if (world.size() == 1) return work();
  const std::vector<std::string> outcomes = world.all_gather_text(outcome_of(work));
  const auto first = std::find_if(outcomes.begin(), outcomes.end(),
                                  [](const auto& each) { return !each.empty(); });
  if (first == outcomes.end()) return;
  const bool common = std::all_of(outcomes.begin(), outcomes.end(),
                                  [&](const auto& each) { return each == *first; });
  int code = 0;
  std::from_chars(first->data(), first->data() + first->size(), code);
  const std::string text = first->substr(first->find(' ') + 1);
  throw SharedError(static_cast<ExitCode>(code),
                    common ? text : fmt::format("rank {}: {}", first - outcomes.begin(), text));
}

}  // namespace trireme
