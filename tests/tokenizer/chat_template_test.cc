#include "tokenizer/chat_template.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include "tokenizer/chat_template_choice.h"
#include "tokenizer/conversations.h"

namespace trireme {
namespace {

std::uint32_t fnv1a(std::string_view bytes) {
  std::uint32_t value = 0x811C9DC5;
  for (const char byte : bytes) value = (value ^ static_cast<unsigned char>(byte)) * 0x01000193;
  return value;
}

/// As make_chat_golden.py hashes them: little-endian int32 closed by -1, then the mask in digits.
std::string hash_of(const std::vector<std::int32_t>& ids, const std::string& mask) {
  std::string bytes(reinterpret_cast<const char*>(ids.data()), 4 * ids.size());
  return fmt::format("{:08x}", fnv1a(bytes + "\xff\xff\xff\xff" + mask));
}

struct Encoded {
  std::vector<std::int32_t> ids;
  std::string mask;
};

Encoded encode(const ChatText& text, const Tokenizer& tokenizer) {
  Encoded encoded;
  std::vector<std::uint8_t> counted;
  encode_conversation(text, tokenizer, encoded.ids, counted);
  EXPECT_EQ(counted.size(), encoded.ids.size());
  for (const std::uint8_t counts : counted) encoded.mask += counts == 0 ? '0' : '1';
  return encoded;
}

/// The conversation up to the user's last message, or a question where it has none.
std::vector<ChatMessage> asked(std::vector<ChatMessage> messages, bool keeps_system) {
  const std::vector<ChatMessage> all = messages;
  while (!messages.empty() && messages.back().role != "user") messages.pop_back();
  if (!messages.empty()) return messages;
  for (const ChatMessage& message : all) {
    if (keeps_system && message.role == "system") messages.push_back(message);
  }
  messages.push_back({"user", "Why?"});
  return messages;
}

class ChatGolden : public testing::TestWithParam<std::size_t> {};

TEST_P(ChatGolden, ids_masks_and_prompts_are_those_of_transformers) {
  static const Json golden = read_golden_json("chat/chat.json");
  const Json& one = golden.find("cases")->as_array()[GetParam()];
  const auto text_of = [&](const char* key) { return one.find(key)->as_string(); };
  const ChatTemplate chat(text_of("template"), text_of("bos"), text_of("eos"));
  const auto tokenizer =
      load_tokenizer(golden_path(text_of("tokenizer") + ".tokenizer.json").string());
  const std::string roles = text_of("roles");
  SCOPED_TRACE(chat.name() + " with " + text_of("tokenizer"));
  const Json::Array& conversations = golden.find("conversations")->find(roles)->as_array();
  const Json::Array& whole = one.find("ids")->as_array();
  ASSERT_EQ(conversations.size(), 40u);
  std::size_t masked = 0;
  for (std::size_t i = 0; i < conversations.size(); ++i) {
    SCOPED_TRACE(i);
    const auto messages = read_messages(conversations[i], chat, "golden");
    const Encoded encoded = encode(chat.render(messages, ChatPurpose::kTraining), *tokenizer);
    if (i < whole.size()) {
      const std::vector<std::int64_t> wanted = flat_integers(whole[i]);
      EXPECT_EQ(encoded.ids, std::vector<std::int32_t>(wanted.begin(), wanted.end()));
      EXPECT_EQ(encoded.mask, one.find("masks")->as_array()[i].as_string());
    }
    EXPECT_EQ(hash_of(encoded.ids, encoded.mask), one.find("hashes")->as_array()[i].as_string());
    masked += encoded.mask.find("01") != std::string::npos ? 1 : 0;
    EXPECT_EQ(chat.render(asked(messages, roles == "system"), ChatPurpose::kGeneration).text,
              one.find("prompts")->as_array()[i].as_string());
  }
  EXPECT_GT(masked, 20u);
}

INSTANTIATE_TEST_SUITE_P(Cases, ChatGolden, testing::Range<std::size_t>(0, 12));

TEST(ChatTemplate, every_name_is_in_the_golden_cases) {
  const Json golden = read_golden_json("chat/chat.json");
  EXPECT_EQ(golden.find("cases")->as_array().size(), 12u);
  for (const std::string& name : ChatTemplate::names()) {
    bool found = false;
    for (const Json& one : golden.find("cases")->as_array())
      found = found || one.find("template")->as_string() == name;
    EXPECT_TRUE(found) << name;
  }
}

TEST(ChatTemplate, a_turn_and_its_end_are_the_assistants) {
  const ChatTemplate chat("chatml", "", "");
  const std::vector<ChatMessage> messages = {{"user", "Hi"}, {"assistant", "Ho"}};
  const ChatText text = chat.render(messages, ChatPurpose::kTraining);
  EXPECT_EQ(text.text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n");
  ASSERT_EQ(text.answers.size(), 1u);
  EXPECT_EQ(text.text.substr(text.answers[0].begin, text.answers[0].end - text.answers[0].begin),
            "Ho<|im_end|>\n");
  EXPECT_EQ(chat.end_of_turn(), "<|im_end|>");
  EXPECT_EQ(ChatTemplate("mistral", "<s>", "</s>").end_of_turn(), "</s>");
  EXPECT_EQ(ChatTemplate("gemma3", "", "").end_of_turn(), "<end_of_turn>");
  EXPECT_EQ(ChatTemplate("llama3.1", "", "").end_of_turn(), "<|eot_id|>");
}

template <class Fault>
std::string fault_of(const auto& work) {
  try {
    work();
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "accepted";
}

TEST(ChatTemplate, names_that_are_none_are_refused_with_those_that_are) {
  const std::string fault = fault_of<ConfigError>([] { ChatTemplate("llama-3", "", ""); });
  EXPECT_NE(fault.find("found \"llama-3\"; legal: chatml, llama3, llama3.1, qwen2"),
            std::string::npos)
      << fault;
  EXPECT_NE(fault_of<ConfigError>([] { ChatTemplate("mistral", "<s>", ""); }).find("eos_token"),
            std::string::npos);
}

TEST(ChatTemplate, hostile_messages_are_refused_with_their_place) {
  const auto fault = [](const char* name, const char* json) {
    const ChatTemplate chat(name, "<s>", "</s>");
    return fault_of<DataError>(
        [&] { (void)read_messages(parse_json(json, "test"), chat, "F: line 3: messages"); });
  };
  const std::vector<std::array<const char*, 3>> cases = {
      {"chatml", "3", "F: line 3: messages: is an integer, not an array"},
      {"chatml", "[]", "F: line 3: messages: holds no message"},
      {"chatml", R"(["a"])", "messages[0]: a string stands where {role, content} is needed"},
      {"chatml", R"([{"content": "a"}])", "messages[0]: has no \"role\""},
      {"chatml", R"([{"role": "user", "content": "a"}, {"role": "assistant"}])",
       "messages[1]: has no \"content\""},
      {"chatml", R"([{"role": "user", "content": null}])",
       "messages[0].content: is null, not a string"},
      {"chatml", R"([{"role": "user", "content": [{"type": "text", "text": "a"}]}])",
       "messages[0].content: is an array, not a string (lists of parts"},
      {"chatml", R"([{"role": 1, "content": "a"}])", "messages[0].role: is an integer"},
      {"chatml", R"([{"role": "tool", "content": "a"}])",
       "messages[0].role: found \"tool\"; legal: system, user, assistant"},
      {"chatml", R"([{"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}])",
       "messages[0].tool_calls: calls of tools are not in this version"},
      {"chatml", R"([{"role": "assistant", "content": "a", "reasoning_content": "b"}])",
       "messages[0].reasoning_content: chatml has no place for it"},
      {"gemma", R"([{"role": "system", "content": "a"}])", "messages[0].role: \"system\"; legal"},
      {"gemma", R"([{"role": "assistant", "content": "a"}])",
       "messages[0].role: \"assistant\" where gemma needs \"user\""},
      {"gemma3", R"([{"role": "user", "content": "a"}, {"role": "system", "content": "a"}])",
       "messages[1].role: \"system\" behind the first message"},
      {"mistral", R"([{"role": "user", "content": "a"}, {"role": "user", "content": "a"}])",
       "messages[1].role: \"user\" where mistral needs \"assistant\""},
      {"mistral-v3",
       R"([{"role": "system", "content": "a"}, {"role": "user", "content": "a"},)"
       R"( {"role": "assistant", "content": "a"}])",
       "messages[0].role: \"system\": mistral-v3 writes it before"}};
  for (const auto& [name, json, wanted] : cases)
    EXPECT_NE(fault(name, json).find(wanted), std::string::npos) << json << "\n"
                                                                 << fault(name, json);
  // A null is as nothing; what a template does not read is left alone.
  EXPECT_EQ(fault("chatml", R"([{"role": "user", "content": "a", "tool_calls": null, "id": 3}])"),
            "accepted");
}

class ChatTemplateChoice : public testing::Test {
 protected:
  std::string chosen(const std::string& name = "") {
    const auto tokenizer = load_tokenizer(folder_.path().string());
    return choose_chat_template(*tokenizer, name).name();
  }
  TemporaryDirectory folder_;
  std::string own_ =
      read_golden_json("chat/chat.json").find("templates")->find("qwen2")->as_string();
  std::filesystem::path tokenizer_ =
      folder_.write("tokenizer.json", read_file(golden_path("tokenizer/qwen.tokenizer.json")));
};

TEST_F(ChatTemplateChoice, hashes_of_known_templates_are_those_of_the_golden_files) {
  const Json golden = read_golden_json("chat/chat.json");
  std::size_t count = 0;
  for (const auto& [name, hashes] : golden.find("hashes")->as_object()) {
    for (const Json& hash : hashes.as_array()) {
      EXPECT_EQ(known_chat_template(hash.as_string()).value_or("none"), name) << hash.as_string();
      ++count;
    }
  }
  EXPECT_GT(count, 15u);
  EXPECT_FALSE(known_chat_template("00000000000000000000000000000000"));
  EXPECT_EQ(chat_template_hash("a\\nb\r\nc \n\n"), chat_template_hash("a\nb\nc"));
  EXPECT_NE(chat_template_hash("a b"), chat_template_hash("a  b"));
}

TEST_F(ChatTemplateChoice, the_models_own_template_is_found_in_each_of_its_files) {
  Json settings = Json::object();
  settings["chat_template"] = own_;
  folder_.write("tokenizer_config.json", settings.dump());
  EXPECT_EQ(chosen(), "qwen2");
  EXPECT_EQ(chosen("chatml"), "chatml") << "a name goes first";
  settings["chat_template"] = parse_json(
      R"([{"name": "tool_use", "template": "x"}, {"name": "default", "template": ""}])", "test");
  settings["chat_template"].as_array()[1]["template"] = own_;
  folder_.write("tokenizer_config.json", settings.dump());
  EXPECT_EQ(chosen(), "qwen2");
  std::string chatml =
      read_golden_json("chat/chat.json").find("templates")->find("chatml")->as_string();
  Json alone = Json::object();
  alone["chat_template"] = chatml;
  folder_.write("chat_template.json", alone.dump());
  EXPECT_EQ(chosen(), "chatml");
  folder_.write("chat_template.jinja", own_ + "\n");
  EXPECT_EQ(chosen(), "qwen2");
}

TEST_F(ChatTemplateChoice, an_unknown_template_and_none_are_refused_by_name) {
  const auto fault = [&] { return fault_of<ConfigError>([&] { (void)chosen(); }); };
  EXPECT_NE(fault().find("tokenizer.json: has no chat template beside it"), std::string::npos);
  EXPECT_NE(fault().find("mistral-v3"), std::string::npos) << "what is legal";
  folder_.write("chat_template.jinja", own_ + "{{ 'x' }}");
  EXPECT_NE(fault().find("chat_template.jinja: its chat template ("), std::string::npos);
  folder_.write("chat_template.jinja", own_);
  folder_.write("tokenizer_config.json", "{");
  try {
    (void)chosen();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData) << error.what();
  }
}

TEST_F(ChatTemplateChoice, tokens_that_begin_and_end_a_text_are_the_settings_or_the_usual_ones) {
  const auto text_of = [&](const char* settings) {
    folder_.write("tokenizer_config.json", settings);
    const auto tokenizer = load_tokenizer(folder_.path().string());
    const std::vector<ChatMessage> messages = {{"user", "a"}};
    return choose_chat_template(*tokenizer, "gemma").render(messages, ChatPurpose::kTraining).text;
  };
  const std::string turn = "<start_of_turn>user\na<end_of_turn>\n";
  EXPECT_EQ(text_of(R"({"bos_token": "<|im_start|>"})"), "<|im_start|>" + turn);
  EXPECT_EQ(text_of(R"({"bos_token": {"content": "<x>", "special": true}})"), "<x>" + turn);
  EXPECT_EQ(text_of(R"({"bos_token": null})"), turn);
  std::filesystem::copy_file(golden_path("tokenizer/gemma.tokenizer.json"), tokenizer_,
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(text_of("{}"), "<bos>" + turn);
}

TEST(EncodeAndFind, a_token_over_the_edge_of_an_answer_is_the_assistants) {
  // The line feed of the header and the answer's own are one token.
  const auto tokenizer = load_tokenizer(golden_path("tokenizer/gpt2.tokenizer.json").string());
  const std::string text = "a\n\n\nb";
  std::vector<std::int32_t> ids = {7};
  for (std::size_t place = 0; place < text.size(); ++place) {
    const std::size_t places[] = {place};
    ids.resize(1);
    const std::size_t token = tokenizer->encode_and_find(text, places, ids).front();
    ASSERT_LT(token, ids.size());
    std::size_t begin = 0;
    for (std::size_t i = 1; i < token; ++i) begin += tokenizer->token_text(ids[i]).size();
    EXPECT_LE(begin, place);
    EXPECT_LT(place, begin + tokenizer->token_text(ids[token]).size());
  }
}

TEST(EncodeAndFind, text_without_tokens_of_its_own_is_refused_and_not_guessed) {
  const auto tokenizer = load_tokenizer(golden_path("tokenizer/metaspace.tokenizer.json").string());
  std::vector<std::int32_t> ids;
  const std::size_t places[] = {5};  // behind the character, in its word
  EXPECT_THROW((void)tokenizer->encode_and_find("a\xf0\x90\x8d\x88z b", places, ids), DataError);
  ids.clear();
  EXPECT_NO_THROW((void)tokenizer->encode("a\xf0\x90\x8d\x88z b"));
}

}  // namespace
}  // namespace trireme
