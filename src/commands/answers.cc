#include "commands/answers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

#include "base/json.h"
#include "base/utf8.h"

namespace trireme {

namespace {

/// Bytes before a UTF-8 sequence that the end cuts off.
std::size_t whole_characters(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) break;
    if (byte < 0xC0) continue;  // within a sequence: look for its first byte
    const std::size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

void print_line(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
}

}  // namespace

Answers::Answers(const std::vector<Prompt>& prompts, std::int64_t samples, AnswerForm form,
                 const Tokenizer* tokenizer, std::vector<std::int64_t> end_tokens)
    : prompts_(prompts),
      samples_(static_cast<std::size_t>(samples)),
      form_(form),
      tokenizer_(tokenizer),
      end_tokens_(std::move(end_tokens)),
      answers_(prompts.size() * samples_) {
  const bool streams = answers_.size() == 1 && form == AnswerForm::kPlain && tokenizer != nullptr;
  if (streams) stream(prompts.front().text);
}

void Answers::add(std::size_t answer, std::int32_t token) {
  answers_[answer].added.push_back(token);
  if (answers_.size() > 1 || form_ == AnswerForm::kJson || tokenizer_ == nullptr) return;
  stream(text_of(token));
}

void Answers::end(std::size_t answer) {
  answers_[answer].ended = true;
  for (; printed_ < answers_.size() && answers_[printed_].ended; ++printed_) print(printed_);
  std::fflush(stdout);
}

std::string Answers::text_of(std::int32_t token) const {
  const bool ends = std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
  return std::string(ends ? std::string_view() : tokenizer_->token_text(token));
}

std::string Answers::text_of(const Answer& answer) const {
  std::string text;
  for (const std::int32_t id : answer.added) text += text_of(id);
  return text;
}

void Answers::print(std::size_t index) const {
  const Answer& answer = answers_[index];
  const Prompt& prompt = prompt_of(index);
  std::vector<std::int32_t> ids = prompt.tokens;
  ids.insert(ids.end(), answer.added.begin(), answer.added.end());
  if (form_ == AnswerForm::kJson) {
    Json line = Json::object();
    line["prompt"] = tokenizer_ != nullptr ? Json(valid_utf8(prompt.text)) : Json();
    line["text"] = tokenizer_ != nullptr ? Json(valid_utf8(text_of(answer))) : Json();
    Json all = Json::array();
    for (const std::int32_t id : ids) all.push_back(std::int64_t{id});
    line["token_ids"] = std::move(all);
    line["new_tokens"] = std::ssize(answer.added);
    return print_line(line.dump());
  }
  if (tokenizer_ == nullptr) return print_line(fmt::format("{}", fmt::join(ids, ",")));
  if (answers_.size() == 1) return print_line(pending_);
  print_line((form_ == AnswerForm::kReply ? "" : prompt.text) + text_of(answer));
}

void Answers::stream(std::string_view bytes) {
  pending_ += bytes;
  const std::size_t whole = whole_characters(pending_);
  std::fwrite(pending_.data(), 1, whole, stdout);
  std::fflush(stdout);
  pending_.erase(0, whole);
}

}  // namespace trireme
