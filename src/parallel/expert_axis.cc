#include "parallel/expert_axis.h"

#include <algorithm>

#include "kernels/expert_rows/expert_rows.h"
#include "tensor/transfer.h"

namespace trireme {

namespace {

/// offsets[i + 1] = offsets[i] + counts(i)
template <class Counts>
std::vector<std::int64_t> offsets_of(std::size_t count, const Counts& counts) {
  std::vector<std::int64_t> offsets(count + 1);
  for (std::size_t i = 0; i < count; ++i) offsets[i + 1] = offsets[i] + counts(i);
  return offsets;
}

std::vector<std::int32_t> to_host(Context& context, ConstTensorView tensor) {
  std::vector<std::int32_t> host(static_cast<std::size_t>(tensor.count()));
  copy_out(context, std::as_writable_bytes(std::span(host)), tensor);
  return host;
}

void to_device(Context& context, const TensorView& tensor, std::span<const std::int32_t> host) {
  const TensorView flat = tensor.reshape({tensor.count()});
  copy_in(context, flat.rows(0, std::ssize(host)), std::as_bytes(host));
}

/// As what copying ops take: bits.
template <class Byte>
BasicTensorView<Byte> as_floats(BasicTensorView<Byte> view) {
  if (view.dtype == DType::kI32) view.dtype = DType::kF32;
  return view;
}

void add_message(std::vector<Message>& messages, int rank, const TensorView& rows,
                 std::int64_t first, std::int64_t count) {
  if (count > 0) messages.push_back(message_of(rank, rows.rows(first, count)));
}

}  // namespace

ExpertAxis::ExpertAxis(Communicator& group, Communicator& channel, const ExpertCut& cut,
                       DispatchMethod method)
    : group_(&group), channel_(&channel), cut_(cut), method_(method) {
  expect(group.size() == cut.ranks() && group.rank() == cut.index(),
         "an expert axis of {} ranks in a group of {}", cut.ranks(), group.size());
}

void ExpertAxis::find(Context& context, ExpertRoute& route, const ExpertRouteTables& tables,
                      const ExpertPlaces& places, ConstTensorView chosen_Sk) const {
  const auto ranks = static_cast<std::size_t>(cut_.ranks());
  const std::vector<std::int32_t> chosen = to_host(context, chosen_Sk);
  const std::int64_t tokens = chosen_Sk.shape[0];
  const std::vector<std::int32_t>&place = places.place_in_order(), &rank_of = places.ranks();
  const std::size_t experts = place.size();

  // To each expert rank its tokens; how many rows each expert will send back.
  std::vector<std::vector<std::int32_t>> leaving(static_cast<std::size_t>(cut_.expert.extent));
  std::vector<std::int32_t> mine(experts + ranks);
  const auto slots = static_cast<std::size_t>(chosen_Sk.shape[1]);
  for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
    const auto token = static_cast<std::int32_t>(t);
    for (std::size_t j = 0; j < slots; ++j) {
      const auto expert = static_cast<std::size_t>(chosen[t * slots + j]);
      ++mine[static_cast<std::size_t>(place[expert])];
      std::vector<std::int32_t>& to = leaving[static_cast<std::size_t>(rank_of[expert])];
      if (to.empty() || to.back() != token) to.push_back(token);
    }
  }
  const auto leaves_for = [&](std::size_t rank) {
    return method_ == DispatchMethod::kAllGather
               ? tokens
               : std::ssize(leaving[rank / static_cast<std::size_t>(cut_.tensor.extent)]);
  };
  for (std::size_t r = 0; r < ranks; ++r)
    mine[experts + r] = static_cast<std::int32_t>(leaves_for(r));
  std::vector<std::int32_t> all(ranks * mine.size());
  group_->all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));

  const auto of_rank = [&](std::size_t rank) { return all.data() + rank * mine.size(); };
  const auto self = static_cast<std::size_t>(cut_.index());
  const Slice here = places.of(cut_.expert.index);
  route.sent = offsets_of(ranks, leaves_for);
  route.received = offsets_of(ranks, [&](std::size_t r) { return of_rank(r)[experts + self]; });
  route.rows = offsets_of(static_cast<std::size_t>(here.size) * ranks, [&](std::size_t i) {
    return of_rank(i % ranks)[static_cast<std::size_t>(here.begin) + i / ranks];
  });
  route.home_rows = offsets_of(experts, [&](std::size_t i) { return mine[i]; });

  std::vector<std::int32_t> list;
  if (method_ == DispatchMethod::kAllToAll) {
    for (std::size_t r = 0; r < ranks; ++r) {
      const auto& to = leaving[r / static_cast<std::size_t>(cut_.tensor.extent)];
      list.insert(list.end(), to.begin(), to.end());
    }
    to_device(context, tables.sent_token, list);
  }
  list.assign(route.received.begin(), route.received.end());
  to_device(context, tables.sources, list);
  make_home_tables(context, route, tables, places, chosen, tokens);
}

void ExpertAxis::make_home_tables(Context& context, const ExpertRoute& route,
                                  const ExpertRouteTables& tables, const ExpertPlaces& places,
                                  std::span<const std::int32_t> chosen, std::int64_t tokens) const {
  const std::vector<std::int32_t>& place = places.place_in_order();
  std::vector<std::int64_t> next(route.home_rows.begin(), route.home_rows.end());
  const auto parts = static_cast<std::size_t>(cut_.tensor.extent);
  std::vector<std::int32_t> rows(chosen.size() * parts);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const std::int64_t row =
        next[static_cast<std::size_t>(place[static_cast<std::size_t>(chosen[i])])]++;
    for (std::size_t part = 0; part < parts; ++part)
      rows[i * parts + part] =
          static_cast<std::int32_t>(row + static_cast<std::int64_t>(part) * std::ssize(chosen));
  }
  expect(tables.home_slot_row.shape[0] == tokens, "tables of {} tokens for {}",
         tables.home_slot_row.shape[0], tokens);
  to_device(context, tables.home_slot_row, rows);
}

Pending ExpertAxis::start_dispatch(Context& context, const ExpertRoute& route,
                                   const ExpertRouteTables& tables, TensorView received,
                                   ConstTensorView x_SC, TensorView sent) const {
  std::vector<Message> sends, receives;
  const bool all = method_ == DispatchMethod::kAllGather;
  TensorView rows = sent;
  rows.shape = x_SC.shape;
  if (all) {
    copy_bytes(context, rows.data, x_SC.data, x_SC.bytes());
  } else {
    rows.shape.set(0, route.sent.back());
    gather_rows(context, as_floats(rows), as_floats(x_SC),
                tables.sent_token.rows(0, route.sent.back()), {}, 1);
  }
  for (int r = 0; r < cut_.ranks(); ++r) {
    const auto at = static_cast<std::size_t>(r);
    add_message(sends, r, rows, all ? 0 : route.sent[at], route.sent[at + 1] - route.sent[at]);
    add_message(receives, r, received, route.received[at],
                route.received[at + 1] - route.received[at]);
  }
  return channel_->start_exchange(sends, receives);
}

Pending ExpertAxis::start_return(const ExpertRoute& route, const ExpertPlaces& places,
                                 TensorView home, TensorView rows) const {
  std::vector<Message> sends, receives;
  const int ranks = cut_.ranks();
  const std::int64_t here = places.of(cut_.expert.index).size, part_rows = route.home_rows.back();
  for (int r = 0; r < ranks; ++r) {
    for (std::int64_t g = 0; g < here; ++g) {
      const auto at = static_cast<std::size_t>(g * ranks + r);
      add_message(sends, r, rows, route.rows[at], route.rows[at + 1] - route.rows[at]);
    }
    const Slice experts = places.of(r / cut_.tensor.extent);
    const std::int64_t part = r % cut_.tensor.extent;
    for (std::int64_t i = experts.begin; i < experts.begin + experts.size; ++i) {
      const auto at = static_cast<std::size_t>(i);
      add_message(receives, r, home, part * part_rows + route.home_rows[at],
                  route.home_rows[at + 1] - route.home_rows[at]);
    }
  }
  return channel_->start_exchange(sends, receives);
}

}  // namespace trireme
