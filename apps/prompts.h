// The prompt flags that `generate` and `bench` share.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace kdt::apps {

using Ids = std::vector<int32_t>;

struct PromptOptions {
  std::vector<std::string> texts, files, ids, chats;
  std::string system;

  bool only_ids() const { return texts.empty() && files.empty() && chats.empty(); }
  bool any() const { return !only_ids() || !ids.empty(); }
};

// --prompt, --prompt-file, --prompt-ids, --chat and --system.
void add_prompt_flags(CLI::App& app, PromptOptions* options);

// Throws UsageError unless there are prompts, all of one kind.
void check_prompts(const PromptOptions& o);

// The tokenizer of `model_dir`. Token ids need none: then a checkpoint without one gives nothing.
std::optional<text::Tokenizer> load_tokenizer(const PromptOptions& o, const std::string& model_dir);

// In the order of their kind. Throws UsageError for ids that are no numbers.
std::vector<Ids> encode_prompts(const PromptOptions& o, const std::string& model_dir,
                                const text::Tokenizer* tokenizer);

// KV pages for the whole runs of the longest prompts that run together, none beyond `context`.
int32_t pages_for(const std::vector<Ids>& prompts, int max_tokens, int max_batch, int64_t context);

}  // namespace kdt::apps
