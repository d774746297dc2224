// Combinations: small records up a tree and down again.

#include <algorithm>

#include "comm/transfer_channel.h"

namespace trireme {

namespace {
constexpr int kCombineTag = TransferChannel::kSegmentTags + 2;
}  // namespace

TransferChannel::Transfer* TransferChannel::start_combine(std::span<std::byte> value,
                                                          Communicator::Combine combine) {
  Transfer* transfer;
  {
    const std::lock_guard lock(mutex_);
    transfer = take(Operation::kCombine);
    transfer->data = value.data();
    transfer->count = value.size();
    transfer->bytes = std::ssize(value);
    transfer->combine = combine;
    if (options_.check) describe(*transfer);
    put(transfer);
  }
  engine_.add_work();
  return transfer;
}

std::int64_t TransferChannel::combine_bytes_sent(std::size_t bytes) const {
  const std::size_t messages = tree_.children.size() + (tree_.parent < 0 ? 0 : 1);
  return static_cast<std::int64_t>(messages * bytes);
}

void TransferChannel::post_combine(Transfer& transfer) {
  transfer.under_way = true;
  transfer.stage = 0;
  transfer.received.resize(transfer.count * tree_.children.size());
  combinations_.push_back(&transfer);
  const std::lock_guard lock(engine_.mutex());
  std::byte* target = transfer.received.data();
  for (const int child : tree_.children) {
    receive({target, transfer.count}, child, kCombineTag, transfer.requests);
    target += transfer.count;
  }
}

bool TransferChannel::move_combine(Transfer& transfer) {
  if (!all_done(transfer.requests, MPI_STATUSES_IGNORE)) return false;
  transfer.requests.clear();
  const std::span<std::byte> value(transfer.data, transfer.count);
  const auto post = [&](const auto& messages) {
    const std::lock_guard lock(engine_.mutex());
    messages();
  };
  switch (transfer.stage++) {
    case 0: {  // the children's are here
      std::span<const std::byte> theirs = transfer.received;
      for (std::size_t i = 0; i < tree_.children.size(); ++i) {
        transfer.combine(value, theirs.first(value.size()));
        theirs = theirs.subspan(value.size());
      }
      if (tree_.parent >= 0)
        post([&] { send(value, tree_.parent, kCombineTag, transfer.requests); });
      break;
    }
    case 1:  // the parent has it
      if (tree_.parent >= 0)
        post([&] { receive(value, tree_.parent, kCombineTag, transfer.requests); });
      break;
    case 2:  // what all say is here: first to who has the most below
      post([&] {
        for (auto child = tree_.children.rbegin(); child != tree_.children.rend(); ++child)
          send(value, *child, kCombineTag, transfer.requests);
      });
      break;
    default:
      std::erase(combinations_, &transfer);
      finish(transfer);
  }
  return true;
}

}  // namespace trireme
