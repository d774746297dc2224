#include "telemetry/tensorboard.h"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <system_error>

#include "base/error.h"

namespace trireme {

namespace {

constexpr auto kCrcTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82f63b78U : 0U);
    table[i] = crc;
  }
  return table;
}();

/// Protocol buffer wire format: a field is a varint key (number << 3 | wire type) and its value.
class ProtoMessage {
 public:
  void add_int64(int field, std::int64_t value) {
    add_key(field, 0);
    add_varint(static_cast<std::uint64_t>(value));
  }
  void add_double(int field, double value) {
    add_key(field, 1);
    add_little_endian(std::bit_cast<std::uint64_t>(value), 8);
  }
  void add_bytes(int field, std::string_view value) {
    add_key(field, 2);
    add_varint(value.size());
    bytes_ += value;
  }
  void add_float(int field, float value) {
    add_key(field, 5);
    add_little_endian(std::bit_cast<std::uint32_t>(value), 4);
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  void add_key(int field, int wire_type) {
    add_varint(static_cast<std::uint64_t>(field << 3 | wire_type));
  }
  void add_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  void add_little_endian(std::uint64_t value, int size) {
    for (int i = 0; i < size; ++i) bytes_ += static_cast<char>(value >> (8 * i));
  }
  std::string bytes_;
};

// Field numbers of tensorflow/core/util/event.proto and framework/summary.proto.
constexpr int kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5,
              kEventSessionLog = 7;
constexpr int kSummaryValue = 1, kValueTag = 1, kValueSimpleValue = 2;
constexpr int kSessionStatus = 1, kSessionStart = 1;

void append_little_endian(std::string& out, std::uint64_t value, int size) {
  for (int i = 0; i < size; ++i) out += static_cast<char>(value >> (8 * i));
}

std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8U; }

std::string framed(const ProtoMessage& message) {
  const std::string& data = message.bytes();
  std::string record;
  append_little_endian(record, data.size(), 8);
  append_little_endian(record, masked(crc32c(record)), 4);
  record += data;
  append_little_endian(record, masked(crc32c(data)), 4);
  return record;
}

double wall_now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::filesystem::path new_event_file(const std::filesystem::path& directory) {
  std::error_code fault;
  std::filesystem::create_directories(directory, fault);
  if (fault)
    throw DataError("{}: cannot make this folder: {}", directory.string(), fault.message());
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  // Readers order the files of a folder by name: ten digits of seconds come first.
  return directory / fmt::format("events.out.tfevents.{:010}.{}.{}.0",
                                 static_cast<std::int64_t>(wall_now_seconds()), host, ::getpid());
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char byte : bytes)
    crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xffU];
  return ~crc;
}

std::string file_version_record(double wall_seconds) {
  ProtoMessage event;
  event.add_double(kEventWallTime, wall_seconds);
  event.add_bytes(kEventFileVersion, "brain.Event:2");
  return framed(event);
}

std::string session_start_record(double wall_seconds, std::int64_t step) {
  ProtoMessage session;
  session.add_int64(kSessionStatus, kSessionStart);
  ProtoMessage event;
  event.add_double(kEventWallTime, wall_seconds);
  event.add_int64(kEventStep, step);
  event.add_bytes(kEventSessionLog, session.bytes());
  return framed(event);
}

std::string scalars_record(double wall_seconds, std::int64_t step,
                           const std::vector<TensorBoardScalar>& scalars) {
  ProtoMessage summary;
  for (const auto& [tag, number] : scalars) {
    ProtoMessage value;
    value.add_bytes(kValueTag, tag);
    value.add_float(kValueSimpleValue, number);
    summary.add_bytes(kSummaryValue, value.bytes());
  }
  ProtoMessage event;
  event.add_double(kEventWallTime, wall_seconds);
  event.add_int64(kEventStep, step);
  event.add_bytes(kEventSummary, summary.bytes());
  return framed(event);
}

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& directory,
                                     std::int64_t resume_step, std::int64_t consumed_samples,
                                     std::int64_t world)
    : file_(new_event_file(directory)), world_(world), samples_before_(consumed_samples) {
  const double now = wall_now_seconds();
  file_.append(file_version_record(now));
  if (resume_step > 0) file_.append(session_start_record(now, resume_step + 1));
}

void TensorBoardWriter::append(const StepLine& line) {
  const auto real = [](double value) { return static_cast<float>(value); };
  std::vector<TensorBoardScalar> scalars = {
      {"lm loss", real(line.loss)},
      {"grad-norm", real(line.grad_norm)},
      {"learning-rate", real(line.lr)},
      {"iteration-time", real(line.step_seconds)},
      {"throughput", real(line.tflops_per_second / static_cast<double>(world_))},
      {"tokens-per-second", real(line.tokens_per_second)},
      {"mem-max-allocated-bytes", static_cast<float>(line.memory_bytes)},
      {"batch-size", static_cast<float>(line.consumed_samples - samples_before_)},
  };
  if (line.mfu) scalars.emplace_back("mfu", real(*line.mfu));
  if (line.noise_scale) scalars.emplace_back("noise scale", real(*line.noise_scale));
  if (line.logit_z_loss) scalars.emplace_back("logit z loss", real(*line.logit_z_loss));
  samples_before_ = line.consumed_samples;
  file_.append(scalars_record(wall_now_seconds(), line.step, scalars));
}

void TensorBoardWriter::append(const EvaluationLine& line) {
  const std::string tag = "lm loss validation" + (line.name.empty() ? "" : "-" + line.name);
  const std::string perplexity_tag = tag + " ppl";
  file_.append(scalars_record(wall_now_seconds(), line.step,
                              {{tag, static_cast<float>(line.loss)},
                               {perplexity_tag, static_cast<float>(line.perplexity)}}));
}

}  // namespace trireme
