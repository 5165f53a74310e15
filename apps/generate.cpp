// kdtree generate: prompts in, text (or JSON) out.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <optional>

#include "apps/commands.h"
#include "apps/generate_output.h"
#include "apps/interrupt.h"
#include "apps/load_progress.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "engine/engine.h"
#include "text/chat.h"

namespace kdt::apps {
namespace {

using engine::DecodeMode;
using engine::Engine;
using engine::FinishReason;
using Ids = std::vector<int32_t>;

constexpr int kDefaultBudget = 32;
constexpr int kMaxParallel = 64;  // more prompts wait their turn
constexpr size_t kMaxPromptBytes = size_t{256} << 20;

struct GenerateOptions {
  std::string model_dir, draft_dir;
  std::vector<std::string> prompts, prompt_files, prompt_ids, chats;
  std::string system;
  int max_tokens = 256;
  std::optional<int> budget;
  bool chain = false, no_spec = false;
  std::optional<float> temperature, top_p, min_p;
  std::optional<int> top_k;
  uint64_t seed = 0;
  int context = 0;
  bool ignore_eos = false, show_tree = false, json = false, verbose = false;
  draft::DraftConventions conventions;
};

Ids parse_ids(const std::string& list) {
  Ids ids;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string item = list.substr(begin, end - begin);
    size_t used = 0;
    long long value = -1;
    try {
      value = std::stoll(item, &used);
    } catch (const std::logic_error&) {
      used = 0;
    }
    if (used == 0 || used != item.size() || value < 0 ||
        value > std::numeric_limits<int32_t>::max())
      throw UsageError(fmt::format("--prompt-ids takes ids like 1,2,3; '{}' is not one", item));
    ids.push_back(static_cast<int32_t>(value));
    begin = end + 1;
  }
  return ids;
}

struct Mode {
  DecodeMode decode = DecodeMode::kPlain;
  int budget = 0;

  std::string name() const {
    if (decode == DecodeMode::kPlain) return "plain decoding";
    if (decode == DecodeMode::kChain) return "DFlash chain";
    return fmt::format("DDTree with budget {}", budget);
  }
};

Mode choose_mode(const GenerateOptions& o) {
  if (o.draft_dir.empty() && (o.chain || o.budget.value_or(0) > 0))
    throw UsageError(
        fmt::format("{} needs a drafter: add --draft DIR", o.chain ? "--chain" : "--budget"));
  if (o.draft_dir.empty() || o.no_spec || o.budget == 0) return {};
  if (o.chain) return {DecodeMode::kChain, 0};
  return {DecodeMode::kTree, o.budget.value_or(kDefaultBudget)};
}

SamplingParams choose_sampling(const GenerateOptions& o) {
  const bool sampled = o.temperature || o.top_p || o.top_k || o.min_p;
  return {.temperature = o.temperature.value_or(sampled ? 1.0f : 0.0f),
          .top_p = o.top_p.value_or(1.0f),
          .min_p = o.min_p.value_or(0.0f),
          .top_k = o.top_k.value_or(0),
          .seed = o.seed};
}

// Token ids need no tokenizer; everything else does.
std::optional<text::Tokenizer> load_tokenizer(const GenerateOptions& o) {
  const bool only_ids = o.prompts.empty() && o.prompt_files.empty() && o.chats.empty();
  try {
    return text::Tokenizer::load(o.model_dir);
  } catch (const Error&) {
    if (!only_ids) throw;
    return std::nullopt;
  }
}

std::vector<Ids> encode_prompts(const GenerateOptions& o, const text::Tokenizer* tokenizer) {
  std::vector<Ids> prompts;
  for (const std::string& prompt : o.prompts)
    prompts.push_back(tokenizer->encode(prompt, text::SpecialTokens::kParse));
  for (const std::string& path : o.prompt_files)
    prompts.push_back(
        tokenizer->encode(read_text_file(path, kMaxPromptBytes), text::SpecialTokens::kParse));
  for (const std::string& ids : o.prompt_ids) prompts.push_back(parse_ids(ids));
  if (o.chats.empty()) return prompts;

  const text::ChatFormat format = text::detect_chat_format(o.model_dir);
  for (const std::string& chat : o.chats) {
    text::Conversation conversation;
    if (!o.system.empty()) conversation.messages.push_back({.role = "system", .content = o.system});
    conversation.messages.push_back({.role = "user", .content = chat});
    prompts.push_back(text::encode_chat(*tokenizer, format, conversation, {}));
  }
  return prompts;
}

// Pages for the whole run of the longest prompts that run together.
int32_t pages_for(const std::vector<Ids>& prompts, int max_tokens, int max_batch) {
  std::vector<int64_t> pages;
  for (const Ids& prompt : prompts)
    pages.push_back((static_cast<int64_t>(prompt.size()) + max_tokens + kMaxDepth) / kPageTokens +
                    1);
  std::sort(pages.rbegin(), pages.rend());
  int64_t sum = 0;
  for (int i = 0; i < max_batch; ++i) sum += pages[i];
  return static_cast<int32_t>(std::min<int64_t>(sum, std::numeric_limits<int32_t>::max()));
}

// Follows one stream to its end; `text` prints as it becomes complete, unless null.
void follow(engine::RequestStream& stream, const text::Tokenizer* tokenizer, std::FILE* text,
            Run* run) {
  std::optional<text::StreamDecoder> decoder;
  if (tokenizer) decoder.emplace(*tokenizer);
  const auto print = [&](const std::string& piece) {
    if (!text) return;
    std::fwrite(piece.data(), 1, piece.size(), text);
    std::fflush(text);
  };
  engine::Event event;
  while (stream.next(&event)) {
    run->add(event);
    for (const int32_t id : event.tokens)
      if (!decoder) {
        print(fmt::format("{} ", id));
      } else if (!tokenizer->is_special(id)) {
        print(decoder->feed(id));
      }
  }
  if (decoder) print(decoder->finish());
  run->timing = stream.timing();
}

int run_generate(const GenerateOptions& o) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const Mode mode = choose_mode(o);
  const std::optional<text::Tokenizer> loaded = load_tokenizer(o);
  const text::Tokenizer* tokenizer = loaded ? &*loaded : nullptr;
  const std::vector<Ids> prompts = encode_prompts(o, tokenizer);

  const int max_batch = std::min(static_cast<int>(prompts.size()), kMaxParallel);
  Engine engine(cpu_backend(), {.model_dir = o.model_dir,
                                .draft_dir = o.draft_dir,
                                .max_batch = max_batch,
                                .max_budget = mode.budget,
                                .context_len = o.context,
                                .kv_pages = pages_for(prompts, o.max_tokens, max_batch),
                                .draft_conventions = o.conventions,
                                .progress = load_progress()});
  const double load_s = std::chrono::duration<double>(Clock::now() - start).count();

  std::vector<std::shared_ptr<engine::RequestStream>> streams;
  for (const Ids& prompt : prompts)
    streams.push_back(engine.submit({.prompt = prompt,
                                     .max_tokens = o.max_tokens,
                                     .mode = mode.decode,
                                     .budget = mode.budget,
                                     .sampling = choose_sampling(o),
                                     .ignore_eos = o.ignore_eos,
                                     .want_trees = o.show_tree}));
  cancel_on_interrupt(streams);

  const bool color = ::isatty(STDOUT_FILENO);
  std::vector<Run> runs(prompts.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    runs[i].prompt_ids = prompts[i];
    if (!o.json && runs.size() > 1) std::printf("--- prompt %zu\n", i + 1);
    follow(*streams[i], tokenizer, o.json ? nullptr : stdout, &runs[i]);
    if (o.json) continue;
    std::printf("\n\n[%s: %s]\n", mode.name().c_str(), summary(runs[i]).c_str());
    if (o.show_tree) std::printf("\n%s", draw_tree(runs[i], tokenizer, color).c_str());
  }
  if (o.json) std::printf("%s\n", to_json(runs, tokenizer, load_s).c_str());
  if (o.verbose)
    std::fprintf(stderr,
                 "loaded in %.2f s; KV cache %zu bytes per token (target %zu, drafter %zu)\n",
                 load_s, engine.target_kv_bytes_per_token() + engine.draft_kv_bytes_per_token(),
                 engine.target_kv_bytes_per_token(), engine.draft_kv_bytes_per_token());

  for (const Run& run : runs) {
    if (run.reason == FinishReason::kError)
      throw_error(ErrorCode::kNumeric, "generation failed: {}", run.error);
    if (run.reason == FinishReason::kCancelled) return kInterruptedStatus;
  }
  return 0;
}

void add_flags(CLI::App& app, GenerateOptions* o) {
  app.add_option("--model", o->model_dir,
                 "Checkpoint directory of the target (Hugging Face layout)")
      ->required();
  app.add_option("--draft", o->draft_dir, "Checkpoint directory of its DFlash drafter");

  CLI::Option_group* prompt =
      app.add_option_group("prompt", "Exactly one kind; repeat for a batch");
  prompt->add_option("--prompt", o->prompts, "Text to continue; special tokens are parsed, no BOS")
      ->allow_extra_args(false);
  prompt->add_option("--prompt-file", o->prompt_files, "The same from a file")
      ->allow_extra_args(false);
  prompt->add_option("--prompt-ids", o->prompt_ids, "Token ids, e.g. 1,2,3; used as given")
      ->allow_extra_args(false);
  prompt->add_option("--chat", o->chats, "A user's message, in the model's chat format")
      ->allow_extra_args(false);
  prompt->require_option(1);
  app.add_option("--system", o->system, "System message for --chat (default: the format's own)");

  app.add_option("--max-tokens", o->max_tokens, "Tokens to generate at most")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  CLI::Option_group* mode = app.add_option_group("mode", "With --draft alone: --budget 32");
  mode->add_option("--budget", o->budget, "DDTree: nodes of a draft tree, 0..1024 (0: plain)")
      ->check(CLI::Range(0, kMaxBudget));
  mode->add_flag("--chain", o->chain, "DFlash chain: the drafter's best token per position");
  mode->add_flag("--no-spec", o->no_spec, "Plain decoding");
  mode->require_option(0, 1);

  CLI::Option_group* sampling = app.add_option_group(
      "sampling", "Greedy without these; the output is the same in every mode");
  sampling->add_option("--temperature", o->temperature,
                       "0: greedy (default 1 with a filter below)");
  sampling->add_option("--top-p", o->top_p, "Keep the likeliest tokens up to this probability");
  sampling->add_option("--top-k", o->top_k, "Keep this many tokens, 0: all");
  sampling->add_option("--min-p", o->min_p,
                       "Keep tokens at least this likely, relative to the best");
  sampling->add_option("--seed", o->seed, "Seed of the sampler")->capture_default_str();

  app.add_option("--context", o->context, "Context limit in tokens (default: the model's)");
  app.add_flag("--ignore-eos", o->ignore_eos, "Do not stop at stop tokens");
  app.add_flag("--show-tree", o->show_tree, "Draw the draft tree of the round that accepted most");
  app.add_flag("--json", o->json, "Print one JSON object (a list for several prompts)");
  app.add_flag("--verbose", o->verbose, "Memory and timing on stderr");
  const std::map<std::string, checkpoint::DraftAmplitude> amplitudes{
      {"auto", checkpoint::DraftAmplitude::kByRopeType},
      {"full", checkpoint::DraftAmplitude::kFullMscale},
      {"ratio", checkpoint::DraftAmplitude::kMscaleRatio}};
  app.add_option("--draft-yarn-amplitude", o->conventions.amplitude,
                 "YaRN amplitude of the drafter: auto (by rope_type), full (vLLM), ratio (HF)")
      ->transform(CLI::CheckedTransformer(amplitudes));
  app.add_flag("--draft-causal-sliding,!--no-draft-causal-sliding",
               o->conventions.causal_sliding_layers,
               "Sliding drafter layers are causal within the block (default) or not");
}

}  // namespace

Command add_generate(CLI::App& app) {
  const auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand("generate", "Generate text from a checkpoint");
  add_flags(*command, options.get());
  return [options] {
    install_interrupt_handler();
    return run_generate(*options);
  };
}

}  // namespace kdt::apps
