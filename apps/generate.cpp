// kdtree generate: prompts in, text (or JSON) out.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <utility>

#include "apps/commands.h"
#include "apps/generate_output.h"
#include "apps/interrupt.h"
#include "apps/load_progress.h"
#include "apps/output.h"
#include "apps/prompts.h"
#include "base/error.h"
#include "checkpoint/config.h"
#include "engine/engine.h"

namespace kdt::apps {
namespace {

using engine::DecodeMode;
using engine::Engine;
using engine::FinishReason;

constexpr int kDefaultBudget = 32;
constexpr int kMaxParallel = 64;  // prompts at once; more wait their turn
constexpr int kMaxNodes = 4160;  // of all trees together: 64 of budget 64; their logits take memory

struct GenerateOptions {
  std::string model_dir, draft_dir;
  PromptOptions prompts;
  int max_tokens = 256;
  int threads = 0;
  std::optional<int> budget;
  bool chain = false, no_spec = false;
  std::optional<float> temperature, top_p, min_p;
  std::optional<int> top_k;
  uint64_t seed = 0;
  int context = 0;
  bool ignore_eos = false, show_tree = false, json = false, verbose = false;
  draft::DraftConventions conventions;
};

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
  if (o.budget.has_value() + o.chain + o.no_spec > 1)
    throw UsageError("--budget, --chain and --no-spec exclude each other");
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

using Streams = std::vector<std::shared_ptr<engine::RequestStream>>;

// Follows one stream to its end; with `print`, text goes out as it becomes complete.
void follow(engine::RequestStream& stream, const text::Tokenizer* tokenizer, bool print, Run* run) {
  std::optional<text::StreamDecoder> decoder;
  if (tokenizer) decoder.emplace(*tokenizer);
  engine::Event event;
  while (stream.next(&event)) {
    run->add(event);
    std::string text;
    for (const int32_t id : event.tokens)
      if (!decoder) {
        text += fmt::format("{} ", id);
      } else if (!tokenizer->is_special(id)) {
        text += decoder->feed(id);
      }
    if (print) write_out(text);
  }
  if (decoder && print) write_out(decoder->finish());
  run->timing = stream.timing();
}

Streams submit_all(Engine& engine, const GenerateOptions& o, const Mode& mode,
                   const std::vector<Ids>& prompts) {
  Streams streams;
  for (const Ids& prompt : prompts) try {
      streams.push_back(engine.submit({.prompt = prompt,
                                       .max_tokens = o.max_tokens,
                                       .mode = mode.decode,
                                       .budget = mode.budget,
                                       .sampling = choose_sampling(o),
                                       .ignore_eos = o.ignore_eos,
                                       .want_trees = o.show_tree}));
    } catch (const Error& error) {
      if (prompts.size() == 1) throw;
      throw_error(error.code(), "prompt {}: {}", streams.size() + 1, error.what());
    }
  return streams;
}

void print_run(const Run& run, const Mode& mode, const GenerateOptions& o,
               const text::Tokenizer* tokenizer) {
  const bool is_full =
      run.reason == FinishReason::kLength && std::cmp_less(run.token_ids.size(), o.max_tokens);
  write_out(fmt::format("\n\n[{}: {}{}]\n", mode.name(), summary(run),
                        is_full ? ", ended by the context limit" : ""));
  if (o.show_tree) write_out("\n" + draw_tree(run, tokenizer, ::isatty(STDOUT_FILENO)));
}

bool has_failed(const Run& run) {
  return run.reason == FinishReason::kError;
}

// Throws what went wrong with the first run that failed, or gives the exit status.
int status_of(const std::vector<Run>& runs) {
  for (size_t i = 0; i < runs.size(); ++i)
    if (has_failed(runs[i]))
      throw_error(ErrorCode::kNumeric, "{}generation failed: {}",
                  runs.size() > 1 ? fmt::format("prompt {}: ", i + 1) : "", runs[i].error);
  const bool cancelled = std::any_of(runs.begin(), runs.end(), [](const Run& run) {
    return run.reason == FinishReason::kCancelled;
  });
  return cancelled ? kInterruptedStatus : 0;
}

int run_generate(const GenerateOptions& o) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  check_prompts(o.prompts);
  set_cpu_threads(o.threads);
  const Mode mode = choose_mode(o);
  if (o.show_tree && (o.json || mode.decode == DecodeMode::kPlain))
    throw UsageError(o.json ? "--show-tree and --json exclude each other"
                            : "--show-tree needs a tree: add --draft DIR, without --no-spec");
  int64_t context = checkpoint::load_target_config(o.model_dir).max_position_embeddings;
  if (o.context > 0) context = std::min<int64_t>(context, o.context);
  const std::optional<text::Tokenizer> loaded = load_tokenizer(o.prompts, o.model_dir);
  const text::Tokenizer* tokenizer = loaded ? &*loaded : nullptr;
  const std::vector<Ids> prompts = encode_prompts(o.prompts, o.model_dir, tokenizer);

  const int max_batch =
      std::min({static_cast<int>(prompts.size()), kMaxParallel, kMaxNodes / (mode.budget + 1)});
  Engine engine(cpu_backend(), {.model_dir = o.model_dir,
                                .draft_dir = o.draft_dir,
                                .max_batch = max_batch,
                                .max_budget = mode.budget,
                                .context_len = o.context,
                                .kv_pages = pages_for(prompts, o.max_tokens, max_batch, context),
                                .draft_conventions = o.conventions,
                                .progress = load_progress()});
  const double load_s = std::chrono::duration<double>(Clock::now() - start).count();
  if (o.verbose)
    std::fprintf(stderr,
                 "loaded in %.2f s; KV cache %zu bytes per token (target %zu, drafter %zu)\n",
                 load_s, engine.target_kv_bytes_per_token() + engine.draft_kv_bytes_per_token(),
                 engine.target_kv_bytes_per_token(), engine.draft_kv_bytes_per_token());

  const Streams streams = submit_all(engine, o, mode, prompts);
  cancel_on_interrupt(streams);
  std::vector<Run> runs(prompts.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    runs[i].prompt_ids = prompts[i];
    if (!o.json && runs.size() > 1)
      write_out(fmt::format("{}--- prompt {}\n", i ? "\n" : "", i + 1));
    follow(*streams[i], tokenizer, !o.json, &runs[i]);
    if (!o.json && !has_failed(runs[i])) print_run(runs[i], mode, o, tokenizer);
  }
  // A run that fails has no answer; the others of its batch keep theirs.
  if (o.json && !std::all_of(runs.begin(), runs.end(), has_failed))
    write_out(to_json(runs, tokenizer, load_s) + "\n");
  return status_of(runs);
}

void add_model_flags(CLI::App& app, GenerateOptions* o) {
  const auto in_group = [](CLI::Option* option) { option->group("Model"); };
  in_group(app.add_option("--model", o->model_dir, "Checkpoint directory of the target")
               ->type_name("DIR")
               ->check(not_empty())
               ->required());
  in_group(app.add_option("--draft", o->draft_dir, "Checkpoint directory of its DFlash drafter")
               ->type_name("DIR")
               ->check(not_empty()));
  in_group(app.add_option("--context", o->context, "Context limit in tokens (default: the model's)")
               ->type_name("N")
               ->check(in_range(1, std::numeric_limits<int>::max())));
  const std::map<std::string, checkpoint::DraftAmplitude> amplitudes{
      {"auto", checkpoint::DraftAmplitude::kByRopeType},
      {"full", checkpoint::DraftAmplitude::kFullMscale},
      {"ratio", checkpoint::DraftAmplitude::kMscaleRatio}};
  in_group(app.add_option("--draft-yarn-amplitude", o->conventions.amplitude,
                          "auto (by rope_type), full (vLLM) or ratio (Hugging Face)")
               ->type_name("WORD")
               ->transform(CLI::Transformer(amplitudes).description(""))
               ->transform(CLI::IsMember(amplitudes).description("")));  // runs first, names all
  in_group(app.add_flag_callback(
      "--no-draft-causal-sliding", [o] { o->conventions.causal_sliding_layers = false; },
      "Let sliding drafter layers see all of their block"));
}

void add_decoding_flags(CLI::App& app, GenerateOptions* o) {
  const auto in_group = [](CLI::Option* option) { option->group("Decoding, at most one mode"); };
  in_group(app.add_option("--budget", o->budget,
                          "DDTree with this many nodes, at most 1024 (default: 32); 0: plain")
               ->type_name("N")
               ->check(in_range(0, kMaxBudget)));
  in_group(app.add_flag("--chain", o->chain, "DFlash chain: the best draft token per position"));
  in_group(app.add_flag("--no-spec", o->no_spec, "Plain decoding, as without --draft"));
  in_group(app.add_option("--max-tokens", o->max_tokens, "Tokens to generate at most")
               ->type_name("N")
               ->check(in_range(1, std::numeric_limits<int>::max()))
               ->capture_default_str());
  in_group(app.add_flag("--ignore-eos", o->ignore_eos, "Do not stop at stop tokens"));
}

// The parser would take -1 and 2^64 for the largest seed.
CLI::Validator is_seed() {
  return {[](std::string& text) -> std::string {
            uint64_t seed = 0;
            const char* end = text.data() + text.size();
            const auto [stop, error] = std::from_chars(text.data(), end, seed);
            if (error == std::errc() && stop == end) return {};
            return fmt::format("'{}' is not a number from 0 to {}", text, UINT64_MAX);
          },
          ""};
}

void add_sampling_flags(CLI::App& app, GenerateOptions* o) {
  const auto add = [&](const char* name, auto& value, const char* type, const char* help) {
    return app.add_option(name, value, help)
        ->type_name(type)
        ->group("Sampling (greedy without these; the same tokens in every mode)");
  };
  add("--temperature", o->temperature, "T", "0: greedy (default 1 with another of these)")
      ->check(
          number_that<float>([](float t) { return std::isfinite(t) && t >= 0; }, "of 0 or more"));
  add("--top-p", o->top_p, "P", "Keep the likeliest tokens up to this probability")
      ->check(number_that<float>([](float p) { return p > 0 && p <= 1; }, "above 0 and at most 1"));
  add("--top-k", o->top_k, "K", "Keep this many tokens, 0: all")
      ->check(in_range(0, std::numeric_limits<int>::max()));
  add("--min-p", o->min_p, "P", "Keep tokens at least this likely, relative to the best")
      ->check(number_that<float>([](float p) { return p >= 0 && p < 1; }, "from 0 to below 1"));
  add("--seed", o->seed, "S", "Seed of the sampler")->check(is_seed())->capture_default_str();
}

void add_flags(CLI::App& app, GenerateOptions* o) {
  add_model_flags(app, o);
  add_prompt_flags(app, &o->prompts);
  add_decoding_flags(app, o);
  add_sampling_flags(app, o);
  app.add_flag("--show-tree", o->show_tree,
               "Draw the draft tree of a round that a chain would have lost");
  app.add_flag("--json", o->json, "Print one JSON object (a list for a batch) and nothing else");
  app.add_flag("--verbose", o->verbose, "Loading time and KV bytes per token on stderr");
  add_threads_flag(app, &o->threads);
  app.footer(
      "Repeat a prompt flag for a batch. Examples:\n"
      "  kdtree generate --model models/tiny-k2 --prompt 'import os'\n"
      "  kdtree generate --model models/tiny-k2 --draft models/tiny-k2-dflash --show-tree \\\n"
      "      --chat 'Write a function that reverses a list.'\n"
      "  kdtree generate --model models/tiny-k2 --draft models/tiny-k2-dflash --budget 64 \\\n"
      "      --prompt 'class Stack:' --temperature 0.8 --seed 7 --json\n");
}

}  // namespace

Command add_generate(CLI::App& app) {
  const auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand("generate", "Generate text from a checkpoint");
  add_flags(*command, options.get());
  return [options] { return run_generate(*options); };
}

}  // namespace kdt::apps
