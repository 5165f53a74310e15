#include "apps/prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>

#include "apps/commands.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "engine/request.h"
#include "ops/tree_build.h"
#include "text/chat.h"

namespace kdt::apps {
namespace {

constexpr size_t kMaxPromptBytes = size_t{256} << 20;

Ids parse_ids(const std::string& list) {
  Ids ids;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    int32_t id = -1;
    const auto [stop, error] = std::from_chars(list.data() + begin, list.data() + end, id);
    if (error != std::errc() || stop != list.data() + end || id < 0)
      throw UsageError(fmt::format("--prompt-ids takes token ids like 1,2,3; '{}' is not one",
                                   list.substr(begin, std::min<size_t>(end - begin, 40))));
    ids.push_back(id);
    begin = end + 1;
  }
  return ids;
}

std::string read_prompt(const std::string& path) {
  if (path != "-") return read_text_file(path, kMaxPromptBytes);
  std::string text;
  for (int c; text.size() <= kMaxPromptBytes && (c = std::getchar()) != EOF;)
    text += static_cast<char>(c);
  if (text.empty() || text.size() > kMaxPromptBytes)
    throw_error(ErrorCode::kBadFile, "standard input: {}",
                text.empty() ? "no prompt in it" : "too long for a prompt");
  return text;
}

}  // namespace

void add_prompt_flags(CLI::App& app, PromptOptions* o) {
  const auto add = [&](const char* name, auto& value, const char* type, const char* help) {
    return app.add_option(name, value, help)->type_name(type)->group("Prompt, one kind");
  };
  // Given again, a flag adds a prompt to the batch.
  const auto add_list = [&](const char* name, auto& values, const char* type, const char* help) {
    add(name, values, type, help)
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  add_list("--prompt", o->texts, "TEXT", "Text to continue; special tokens are parsed, no BOS");
  add_list("--prompt-file", o->files, "FILE", "The same, from a file; -: from standard input");
  add_list("--prompt-ids", o->ids, "1,2,3", "Token ids, used as given");
  add_list("--chat", o->chats, "TEXT", "A user's message, in the model's chat format");
  add("--system", o->system, "TEXT", "System message of --chat (default: the format's own)");
}

void check_prompts(const PromptOptions& o) {
  const int kinds = !o.texts.empty() + !o.files.empty() + !o.ids.empty() + !o.chats.empty();
  if (kinds != 1)
    throw UsageError(
        fmt::format("{} prompt: give one of --prompt TEXT, --prompt-file FILE, "
                    "--prompt-ids 1,2,3 or --chat TEXT",
                    kinds ? "more than one kind of" : "no"));
  if (!o.system.empty() && o.chats.empty()) throw UsageError("--system needs --chat TEXT");
}

std::optional<text::Tokenizer> load_tokenizer(const PromptOptions& o,
                                              const std::string& model_dir) {
  try {
    return text::Tokenizer::load(model_dir);
  } catch (const std::exception&) {
    if (!o.only_ids()) throw;
    return std::nullopt;
  }
}

std::vector<Ids> encode_prompts(const PromptOptions& o, const std::string& model_dir,
                                const text::Tokenizer* tokenizer) {
  using text::SpecialTokens;
  std::vector<Ids> prompts;
  for (const std::string& prompt : o.texts)
    prompts.push_back(tokenizer->encode(prompt, SpecialTokens::kParse));
  for (const std::string& path : o.files)
    prompts.push_back(tokenizer->encode(read_prompt(path), SpecialTokens::kParse));
  for (const std::string& ids : o.ids) prompts.push_back(parse_ids(ids));
  if (o.chats.empty()) return prompts;

  const text::ChatFormat format = text::detect_chat_format(model_dir);
  for (const std::string& chat : o.chats) {
    text::Conversation conversation;
    if (!o.system.empty()) conversation.messages.push_back({.role = "system", .content = o.system});
    conversation.messages.push_back({.role = "user", .content = chat});
    prompts.push_back(text::encode_chat(*tokenizer, format, conversation, {}));
  }
  return prompts;
}

int32_t pages_for(const std::vector<Ids>& prompts, int max_tokens, int max_batch, int64_t context) {
  std::vector<int64_t> pages;
  for (const Ids& prompt : prompts) {
    const engine::Request request{.prompt = prompt, .max_tokens = max_tokens};
    pages.push_back(engine::pages_needed(request, context, kMaxDepth));
  }
  std::sort(pages.rbegin(), pages.rend());
  int64_t sum = 0;
  for (int i = 0; i < max_batch; ++i) sum += pages[i];
  return static_cast<int32_t>(std::min<int64_t>(sum, std::numeric_limits<int32_t>::max()));
}

}  // namespace kdt::apps
