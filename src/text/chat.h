// Conversations as the prompts that chat models were trained on. The encoders are written for the
// known formats; a checkpoint's Jinja template only serves to recognize which one it has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace kdt::text {

enum class ChatFormat {
  kTiny,            // models/tiny-k2: system, user and assistant turns only
  kKimiK2Thinking,  // tools as JSON, the model opens <think> itself
  kKimiK25,         // tools as TypeScript, the prompt opens (or closes) <think>
  kKimiK26,         // the same with preserve_thinking
  kKimiK27Code,     // thinking always preserved, no default system text
};
std::string_view chat_format_name(ChatFormat format);

// From chat_template.jinja, or else the "chat_template" of tokenizer_config.json, by features that
// only one format's template has. Throws kUnsupported for a template that is none of the above or
// missing, kIo or kBadFile for unreadable files.
ChatFormat detect_chat_format(const std::string& dir);

struct ToolCall {
  std::string id;  // empty: functions.NAME:INDEX, INDEX counting all calls of the conversation
  std::string name;
  std::string arguments_json;
};

struct Message {
  std::string role;  // "system", "user", "assistant", "tool"; Kimi formats take any other as system
  std::string content;
  std::string reasoning;  // of an assistant
  std::string name;       // shown in place of the role where not empty (Kimi formats)
  std::vector<ToolCall> tool_calls;
  std::string tool_call_id;  // of a tool's result; empty: the earliest call without a result
};

struct Conversation {
  std::vector<Message> messages;
  std::string tools_json;  // the OpenAI "tools" array; empty: none
};

struct ChatOptions {
  bool thinking = true;            // K2.5, K2.6: open <think>, or close it at once
  bool preserve_thinking = false;  // K2.6: keep the reasoning of earlier turns
  bool add_generation_prompt = true;
  // Used where the first message is not a system message; the format's own text where not set.
  std::optional<std::string> default_system = std::nullopt;
};

// Token ids of the prompt. Structure is made of special tokens; the text of messages and tools is
// encoded with SpecialTokens::kAsText, so no content can end its own turn. Throws kInvalidArgument
// for a conversation the format cannot express and kBadFile where the tokenizer lacks one of the
// format's special tokens.
std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, ChatFormat format,
                                 const Conversation& conversation, const ChatOptions& options);

// The same prompt as text, for tests and logs.
std::string render_chat(ChatFormat format, const Conversation& conversation,
                        const ChatOptions& options);

}  // namespace kdt::text
