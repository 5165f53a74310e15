#include "text/chat.h"

#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "text/tool_declaration.h"

namespace kdt::text {
namespace {

constexpr std::string_view kKimiSystem = "You are Kimi, an AI assistant created by Moonshot AI.";
constexpr std::string_view kTinySystem = "You write Python code.";

// A prompt as runs of text and special tokens; neighbouring texts are one, as they are tokenized
// together.
struct Part {
  bool special;
  std::string text;
};

class PromptWriter {
 public:
  void special(std::string_view token) { parts_.push_back({true, std::string(token)}); }
  void text(std::string_view text) {
    if (text.empty()) return;
    if (parts_.empty() || parts_.back().special) parts_.push_back({false, {}});
    parts_.back().text += text;
  }
  void turn_begin(std::string_view token, std::string_view name) {
    special(token);
    text(name);
    special("<|im_middle|>");
  }
  void turn(std::string_view token, std::string_view name, std::string_view content) {
    turn_begin(token, name);
    text(content);
    special("<|im_end|>");
  }
  std::vector<Part> take() { return std::move(parts_); }

 private:
  std::vector<Part> parts_;
};

[[noreturn]] void refuse(ChatFormat format, std::string_view what) {
  throw_error(ErrorCode::kInvalidArgument, "chat format {}: {}", chat_format_name(format), what);
}

std::vector<Part> tiny_prompt(const Conversation& conversation, const ChatOptions& options) {
  if (!conversation.tools_json.empty()) refuse(ChatFormat::kTiny, "it has no tools");
  PromptWriter out;
  for (const Message& message : conversation.messages) {
    const bool first = &message == &conversation.messages.front();
    if (first && message.role != "system") {
      out.turn("<|im_system|>", "system",
               options.default_system.value_or(std::string(kTinySystem)));
    }
    if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      refuse(ChatFormat::kTiny, "it has no role '" + message.role + "'");
    }
    out.turn("<|im_" + message.role + "|>", message.role, message.content);
  }
  if (options.add_generation_prompt) out.turn_begin("<|im_assistant|>", "assistant");
  return out.take();
}

// The K2-Thinking template is public (llama.cpp
// models/templates/moonshotai-Kimi-K2-Thinking.jinja); what later formats change is described by
// the kimi_k25 and kimi_k26 renderers of tinker-cookbook, which are tested against the published
// tokenizers.
class KimiPrompt {
 public:
  KimiPrompt(ChatFormat format, const Conversation& conversation, const ChatOptions& options)
      : format_(format), conversation_(conversation), options_(options) {
    if (options.preserve_thinking && format != ChatFormat::kKimiK26 &&
        format != ChatFormat::kKimiK27Code) {
      refuse(format, "it has no preserve_thinking");
    }
  }

  std::vector<Part> write() {
    write_tools();
    const auto& messages = conversation_.messages;
    if (messages.empty() || messages[0].role != "system") write_default_system();
    const size_t n_history = history_size();
    for (size_t i = 0; i < messages.size(); ++i) {
      write_message(messages[i], /*keep_reasoning=*/keeps_reasoning(i >= n_history));
    }
    if (options_.add_generation_prompt) {
      out_.turn_begin("<|im_assistant|>", "assistant");
      if (prompts_thinking()) {
        out_.special("<think>");
        if (!options_.thinking) out_.special("</think>");
      }
    }
    return out_.take();
  }

 private:
  bool prompts_thinking() const { return format_ != ChatFormat::kKimiK2Thinking; }

  void write_tools() {
    if (conversation_.tools_json.empty()) return;
    const Json tools = parse_json(conversation_.tools_json, "tools");
    if (!tools.is_array()) refuse(format_, "tools are not a JSON array");
    if (tools.empty()) return;
    std::optional<std::string> text;
    if (format_ != ChatFormat::kKimiK2Thinking) text = tools_as_typescript(tools);
    out_.turn("<|im_system|>", "tool_declare", text ? *text : tools_as_json(tools));
  }

  void write_default_system() {
    if (options_.default_system) {
      out_.turn("<|im_system|>", "system", *options_.default_system);
    } else if (format_ != ChatFormat::kKimiK27Code) {
      out_.turn("<|im_system|>", "system", kKimiSystem);
    }
  }

  // Messages up to the last answer without tool calls are history. What follows belongs to the turn
  // in progress, whose reasoning the model still needs.
  size_t history_size() const {
    const auto& messages = conversation_.messages;
    for (size_t n = messages.size(); n > 0; --n) {
      if (messages[n - 1].role == "assistant" && messages[n - 1].tool_calls.empty()) return n;
    }
    return 0;
  }

  bool keeps_reasoning(bool in_progress) const {
    if (format_ == ChatFormat::kKimiK27Code || options_.preserve_thinking) return true;
    return in_progress && (options_.thinking || !prompts_thinking());
  }

  void write_message(const Message& message, bool keep_reasoning) {
    const bool user = message.role == "user", assistant = message.role == "assistant";
    out_.turn_begin(user        ? "<|im_user|>"
                    : assistant ? "<|im_assistant|>"
                                : "<|im_system|>",
                    message.name.empty() ? message.role : message.name);
    if (assistant) {
      out_.special("<think>");
      if (keep_reasoning) out_.text(message.reasoning);
      out_.special("</think>");
    } else if (message.role == "tool") {
      out_.text("## Return of " + result_id(message) + "\n");
    }
    out_.text(message.content);
    if (assistant && !message.tool_calls.empty()) write_tool_calls(message);
    out_.special("<|im_end|>");
  }

  void write_tool_calls(const Message& message) {
    out_.special("<|tool_calls_section_begin|>");
    for (const ToolCall& call : message.tool_calls) {
      const std::string id =
          call.id.empty() ? fmt::format("functions.{}:{}", call.name, n_calls_) : call.id;
      ++n_calls_;
      unanswered_.push_back(id);
      out_.special("<|tool_call_begin|>");
      out_.text(id);
      out_.special("<|tool_call_argument_begin|>");
      out_.text(call.arguments_json);
      out_.special("<|tool_call_end|>");
    }
    out_.special("<|tool_calls_section_end|>");
  }

  std::string result_id(const Message& message) {
    if (message.tool_call_id.empty() && unanswered_.empty()) {
      refuse(format_, "a tool result without tool_call_id follows no tool call");
    }
    const std::string id =
        message.tool_call_id.empty() ? unanswered_.front() : message.tool_call_id;
    std::erase(unanswered_, id);
    return id;
  }

  ChatFormat format_;
  const Conversation& conversation_;
  const ChatOptions& options_;
  PromptWriter out_;
  int n_calls_ = 0;
  std::deque<std::string> unanswered_;
};

std::vector<Part> write_prompt(ChatFormat format, const Conversation& conversation,
                               const ChatOptions& options) {
  if (format == ChatFormat::kTiny) return tiny_prompt(conversation, options);
  return KimiPrompt(format, conversation, options).write();
}

std::string read_chat_template(const std::string& dir) {
  constexpr size_t kMaxTemplateBytes = 1 << 20, kMaxConfigBytes = 1 << 26;
  const auto path = std::filesystem::path(dir);
  const std::string file = (path / "chat_template.jinja").string();
  if (file_exists(file)) return read_text_file(file, kMaxTemplateBytes);
  const std::string config_file = (path / "tokenizer_config.json").string();
  if (file_exists(config_file)) {
    const Json config = parse_json(read_text_file(config_file, kMaxConfigBytes), config_file);
    const Json* text = JsonObject(config, config_file).find("chat_template");
    if (text && text->is_string()) return text->get<std::string>();
  }
  throw_error(ErrorCode::kUnsupported,
              "{}: no chat template (chat_template.jinja, or a string in tokenizer_config.json)",
              dir);
}

}  // namespace

std::string_view chat_format_name(ChatFormat format) {
  switch (format) {
    case ChatFormat::kTiny:
      return "tiny-k2";
    case ChatFormat::kKimiK2Thinking:
      return "kimi-k2-thinking";
    case ChatFormat::kKimiK25:
      return "kimi-k2.5";
    case ChatFormat::kKimiK26:
      return "kimi-k2.6";
    case ChatFormat::kKimiK27Code:
      return "kimi-k2.7-code";
  }
  return "unknown";
}

ChatFormat detect_chat_format(const std::string& dir) {
  const std::string text = read_chat_template(dir);
  const auto has = [&](std::string_view part) { return text.find(part) != std::string::npos; };
  const bool kimi_turns = has("<|im_user|>") && has("<|im_assistant|>") && has("<|im_middle|>");
  if (kimi_turns && has(kTinySystem)) return ChatFormat::kTiny;
  if (kimi_turns && has("<think>") && has("tool_declare")) {
    if (has("tools_ts_str")) {
      if (!has(kKimiSystem)) return ChatFormat::kKimiK27Code;
      return has("preserve_thinking") ? ChatFormat::kKimiK26 : ChatFormat::kKimiK25;
    }
    if (has(kKimiSystem)) return ChatFormat::kKimiK2Thinking;
  }
  throw_error(ErrorCode::kUnsupported,
              "{}: unknown chat template; known are those of tiny-k2, Kimi K2-Thinking, K2.5, K2.6 "
              "and K2.7-Code",
              dir);
}

std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, ChatFormat format,
                                 const Conversation& conversation, const ChatOptions& options) {
  std::vector<int32_t> ids;
  for (const Part& part : write_prompt(format, conversation, options)) {
    if (!part.special) {
      const auto text = tokenizer.encode(part.text, SpecialTokens::kAsText);
      ids.insert(ids.end(), text.begin(), text.end());
      continue;
    }
    const std::optional<int32_t> id = tokenizer.find_added(part.text);
    if (!id) {
      throw_error(ErrorCode::kBadFile, "{}: no token {}, which chat format {} needs",
                  tokenizer.source(), part.text, chat_format_name(format));
    }
    ids.push_back(*id);
  }
  return ids;
}

std::string render_chat(ChatFormat format, const Conversation& conversation,
                        const ChatOptions& options) {
  std::string text;
  for (const Part& part : write_prompt(format, conversation, options)) text += part.text;
  return text;
}

}  // namespace kdt::text
