// Any bytes as the tools of a conversation, which come from whoever calls the model: either an
// Error, or a prompt in both of the forms that formats show tools in.
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/utf8.h"
#include "text/chat.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using kdt::text::ChatFormat;
  const kdt::text::Conversation conversation{
      .messages = {{.role = "user", .content = "hi"}},
      .tools_json = {reinterpret_cast<const char*>(data), size}};
  for (const ChatFormat format : {ChatFormat::kKimiK2Thinking, ChatFormat::kKimiK25}) {
    try {
      const std::string prompt = kdt::text::render_chat(format, conversation, {});
      if (kdt::replace_invalid_utf8(prompt) != prompt) std::abort();
    } catch (const kdt::Error& error) {
      if (error.code() == kdt::ErrorCode::kInternal) std::abort();
    }
  }
  return 0;
}
