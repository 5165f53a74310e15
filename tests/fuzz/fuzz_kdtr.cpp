// Arbitrary bytes as a KDTR file: opening either rejects them or gives tensors that can be read to
// the end; and because the format is canonical, a file that verifies is what the writer makes of
// it.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kdtr/reader.h"
#include "kdtr/summary.h"
#include "kdtr/writer.h"

namespace {

using namespace kdt;

void open(std::span<const uint8_t> bytes) {
  try {
    const kdtr::Reader reader(bytes, "fuzz");
    const kdtr::Summary summary = kdtr::summarize(reader, /*verify=*/true);
    kdtr::to_text(summary);
    if (!summary.sound) return;
    const auto again = kdtr::serialize(reader.tensors(), reader.metadata(), "fuzz");
    if (!std::ranges::equal(again, bytes)) std::abort();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kBadFile) std::abort();
  }
}

// The same bytes with size and checksum made right, which mutations alone would hardly hit.
void repair(std::vector<uint8_t>& bytes) {
  kdtr::Header header;
  if (bytes.size() < sizeof header) return;
  std::memcpy(&header, bytes.data(), sizeof header);
  header.magic = kdtr::kMagic;
  header.version = kdtr::kVersion;
  header.file_bytes = bytes.size();
  const uint64_t room = bytes.size() - sizeof header;
  if (header.index_bytes > room) header.index_bytes = room;
  header.structure_crc =
      structure_crc(header, std::span(bytes).subspan(sizeof header, header.index_bytes));
  std::memcpy(bytes.data(), &header, sizeof header);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint8_t> bytes(data, data + size);
  open(bytes);
  repair(bytes);
  open(bytes);
  return 0;
}
