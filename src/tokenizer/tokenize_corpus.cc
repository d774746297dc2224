#include "tokenizer/tokenize_corpus.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "base/json.h"
#include "base/signal_free_thread.h"
#include "base/stop_flag.h"
#include "tokenizer/conversations.h"
#include "tokenizer/corpus_reader.h"
#include "tokenizer/json_lines.h"

namespace trireme {

namespace {

struct Task {
  CorpusBlock block;
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> counted;  // of conversations
  std::vector<std::size_t> ends;      // of documents in `ids`
  std::exception_ptr error;
  bool done = false;
};

void encode_conversations(const Tokenizer& tokenizer, const TokenizeOptions& options, Task& task) {
  for_each_object(task.block, [&](const Json& object, const std::string& place) {
    const std::string& key = *options.json_key;
    const Json* tools = object.find("tools");
    const bool has_tools =
        tools != nullptr && !tools->is_null() && *tools != Json::array() && *tools != Json("");
    if (has_tools) throw DataError("{}: tools: calls of tools are not in this version", place);
    const std::vector<ChatMessage> messages =
        read_messages(member_of_line(object, key, "--messages", place), *options.chat,
                      fmt::format("{}: {}", place, key));
    const ChatText text = options.chat->render(messages, ChatPurpose::kTraining);
    try {
      encode_conversation(text, tokenizer, task.ids, task.counted);
    } catch (const DataError& fault) {
      throw DataError("{}: {}", place, fault.what());
    }
    task.ends.push_back(task.ids.size());
  });
}

void encode(const Tokenizer& tokenizer, const TokenizeOptions& options, Task& task) {
  if (options.chat) return encode_conversations(tokenizer, options, task);
  if (options.json_key) {
    for_each_text(task.block, *options.json_key, [&](std::string_view text) {
      tokenizer.encode(text, task.ids);
      task.ends.push_back(task.ids.size());
    });
    return;
  }
  tokenizer.encode(task.block.text, task.ids);
  if (task.block.ends_document) task.ends.push_back(task.ids.size());
}

/// Threads that encode blocks; the owner hands them out and takes them back in the same order.
class Workers {
 public:
  Workers(const Tokenizer& tokenizer, const TokenizeOptions& options) {
    threads_.reserve(static_cast<std::size_t>(options.workers));
    const auto work = [this, &tokenizer, &options] {
      while (const std::shared_ptr<Task> task = take()) {
        try {
          encode(tokenizer, options, *task);
        } catch (...) {
          task->error = std::current_exception();
        }
        const std::lock_guard lock(mutex_);
        task->done = true;
        finished_.notify_one();
      }
    };
    try {
      for (int i = 0; i < options.workers; ++i) threads_.push_back(signal_free_thread(work));
    } catch (const EnvironmentError&) {  // those that there are do it all
      if (threads_.empty()) throw;
    }
  }
  ~Workers() {
    {
      const std::lock_guard lock(mutex_);
      waiting_.clear();
      ended_ = true;
    }
    offered_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  void offer(CorpusBlock block) {
    auto task = std::make_shared<Task>();
    task->block = std::move(block);
    const std::lock_guard lock(mutex_);
    in_order_.push_back(task);
    waiting_.push_back(std::move(task));
    offered_.notify_one();
  }
  [[nodiscard]] std::size_t in_flight() const { return in_order_.size(); }
  /// The oldest block, encoded. Rethrows its fault.
  std::shared_ptr<Task> take_finished() {
    std::unique_lock lock(mutex_);
    const std::shared_ptr<Task> task = in_order_.front();
    finished_.wait(lock, [&] { return task->done; });
    in_order_.pop_front();
    if (task->error) std::rethrow_exception(task->error);
    return task;
  }

 private:
  std::shared_ptr<Task> take() {
    std::unique_lock lock(mutex_);
    offered_.wait(lock, [&] { return ended_ || !waiting_.empty(); });
    if (ended_) return nullptr;
    std::shared_ptr<Task> task = std::move(waiting_.front());
    waiting_.pop_front();
    return task;
  }

  std::mutex mutex_;
  std::condition_variable offered_, finished_;
  std::deque<std::shared_ptr<Task>> waiting_, in_order_;
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

void write(const Task& task, std::optional<std::int32_t> end_token, IndexedWriter& writer) {
  const std::span<const std::int32_t> ids = task.ids;
  const std::span<const std::uint8_t> counted = task.counted;
  std::size_t begin = 0;
  for (const std::size_t end : task.ends) {
    writer.append(ids.subspan(begin, end - begin),
                  counted.empty() ? counted : counted.subspan(begin, end - begin));
    if (end_token && writer.open_document_tokens() > 0) writer.append({&*end_token, 1});
    writer.end_document();
    begin = end;
  }
  writer.append(ids.subspan(begin));
}

}  // namespace

void tokenize_corpus(const Tokenizer& tokenizer, const TokenizeOptions& options,
                     IndexedWriter& writer) {
  CorpusReader reader(options.inputs,
                      options.json_key ? CorpusFormat::kJsonLines : CorpusFormat::kDocuments,
                      [&](std::string_view text, std::size_t from) {
                        return tokenizer.split_position(text, from);
                      });
  Progress progress("tokenize", reader.total_bytes(), ProgressUnit::kBytes, options.progress);
  Workers workers(tokenizer, options);
  const auto in_flight_max = static_cast<std::size_t>(2 * options.workers + 1);
  const auto write_oldest = [&] {
    give_up_if_stopped("train tokenize");
    const std::shared_ptr<Task> task = workers.take_finished();
    write(*task, options.end_token, writer);
    progress.add(task->block.input_bytes);
  };
  CorpusBlock block;
  PlainTextCheck check;
  while (reader.next(block)) {
    if (!options.json_key) check.look_at(block);
    workers.offer(std::move(block));
    while (workers.in_flight() >= in_flight_max) write_oldest();
  }
  while (workers.in_flight() > 0) write_oldest();
  if (writer.totals().documents == 0) {
    throw DataError("{}: no text in {} (there is nothing to train on)", options.inputs.front(),
                    options.inputs.size() == 1
                        ? "it"
                        : fmt::format("it and {} more", options.inputs.size() - 1));
  }
}

Json describe_tokenizer(const Tokenizer& tokenizer, std::optional<std::int32_t> end_token) {
  Json about = Json::object();
  about["tokenizer"] = Json(tokenizer.source());
  about["tokenizer_kind"] = Json(tokenizer.source() == "byte" ? "byte" : "bpe");
  about["tokenizer_hash"] = Json(tokenizer.hash());
  about["vocab_size"] = Json(std::int64_t{tokenizer.vocab_size()});
  about["end_token"] = end_token ? Json(std::int64_t{*end_token}) : Json();
  return about;
}

}  // namespace trireme
