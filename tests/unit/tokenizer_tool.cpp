// Runs the tokenizer over a file of documents, for the tests in python/tests:
//   tokenizer_tool DIR encode|encode-as-text|decode|stream < input > output
// Input and output are sequences of records: a little-endian uint32 byte count, then the bytes
// (UTF-8 text, or int32 token ids). The time spent on all records goes to stderr.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>

#include "base/error.h"
#include "text/tokenizer.h"

namespace {

using kdt::text::SpecialTokens;

std::string bytes_of(const std::vector<int32_t>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)};
}

std::vector<int32_t> ids_of(std::string_view bytes) {
  std::vector<int32_t> ids(bytes.size() / sizeof(int32_t));
  std::memcpy(ids.data(), bytes.data(), ids.size() * sizeof(int32_t));
  return ids;
}

std::string process(const kdt::text::Tokenizer& tokenizer, std::string_view mode,
                    std::string_view record) {
  if (mode == "encode") return bytes_of(tokenizer.encode(record, SpecialTokens::kParse));
  if (mode == "encode-as-text") return bytes_of(tokenizer.encode(record, SpecialTokens::kAsText));
  const std::vector<int32_t> ids = ids_of(record);
  if (mode == "decode") return tokenizer.decode(ids);
  kdt::text::StreamDecoder stream(tokenizer);
  std::string out;
  for (int32_t id : ids) out += stream.feed(id);
  return out + stream.finish();
}

void run(const std::string& dir, std::string_view mode) {
  const auto tokenizer = kdt::text::Tokenizer::load(dir);
  const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
  const auto start = std::chrono::steady_clock::now();
  for (size_t at = 0; at < input.size();) {
    uint32_t size;
    std::memcpy(&size, input.data() + at, sizeof size);
    const std::string out = process(tokenizer, mode, std::string_view(input).substr(at + 4, size));
    const auto out_size = static_cast<uint32_t>(out.size());
    std::cout.write(reinterpret_cast<const char*>(&out_size), sizeof out_size);
    std::cout << out;
    at += 4 + size;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  fmt::print(stderr, "{:.3f} s for {} bytes\n", seconds.count(), input.size());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 3) throw_error(kdt::ErrorCode::kInvalidArgument, "usage: tokenizer_tool DIR MODE");
    run(argv[1], argv[2]);
    return 0;
  } catch (const kdt::Error& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return 1;
  }
}
