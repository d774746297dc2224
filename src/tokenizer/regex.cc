#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "base/error.h"

namespace trireme {

void RegexCodeTraits::destroy(Raw raw) noexcept { pcre2_code_free(raw); }
void RegexMatchDataTraits::destroy(Raw raw) noexcept { pcre2_match_data_free(raw); }
void RegexMatchContextTraits::destroy(Raw raw) noexcept { pcre2_match_context_free(raw); }
void RegexJitStackTraits::destroy(Raw raw) noexcept { pcre2_jit_stack_free(raw); }

RegexScratch::RegexScratch()
    : jit_stack_(pcre2_jit_stack_create(std::size_t{32} << 10, std::size_t{8} << 20, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      data_(pcre2_match_data_create(1, nullptr)) {
  if (!context_ || !data_) throw std::bad_alloc();
  if (jit_stack_) pcre2_jit_stack_assign(context_.get(), nullptr, jit_stack_.get());
}

namespace {
std::string message_of(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}
}  // namespace

Regex::Regex(std::string_view pattern, Kind kind, std::string place)
    : pattern_(pattern), kind_(kind), place_(std::move(place)) {
  const bool literal = kind == Kind::kLiteral;
  const std::string translated = literal ? pattern_ : translate_pattern(pattern_, place_);
  const std::uint32_t options =
      PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_ = UniqueHandle<RegexCodeTraits>(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options,
                    &error, &offset, nullptr));
  if (!code_) {
    throw DataError("{}: the regular expression \"{}\" is faulty: {}", place_, pattern_,
                    message_of(error));
  }
  // Without PCRE2's compiler the interpreter gives the same matches, slower.
  compiled_to_machine_code_ = pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE) == 0;
}

bool Regex::find(std::string_view text, std::size_t from, RegexScratch& scratch,
                 Match& match) const {
  // A run of white space is given back character by character: what is fair grows with the text.
  constexpr std::size_t kStepsMin = 1'000'000, kStepsPerByte = 16, kStepsMax = 0xFFFFFFFF;
  const std::size_t steps = std::min(kStepsMin + kStepsPerByte * text.size(), kStepsMax);
  pcre2_set_match_limit(scratch.context_.get(), static_cast<std::uint32_t>(steps));
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int found = compiled_to_machine_code_
                        ? pcre2_jit_match(code_.get(), subject, text.size(), from, 0,
                                          scratch.data_.get(), scratch.context_.get())
                        : pcre2_match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                                      scratch.data_.get(), scratch.context_.get());
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) {
    throw DataError("{}: the regular expression \"{}\" failed on a text of {} bytes: {}", place_,
                    pattern_, text.size(), message_of(found));
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(scratch.data_.get());
  match = {ends[0], ends[1]};
  return true;
}

}  // namespace trireme
