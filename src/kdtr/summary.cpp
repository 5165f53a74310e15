#include "kdtr/summary.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace kdt::kdtr {
namespace {

// Scans codes of type T, each decoded to its value.
template <typename T, typename Decode>
void scan(const Tensor& tensor, TensorSummary& out, Decode decode) {
  const std::span<const T> codes = tensor.as<T>(tensor.dtype);
  long double sum = 0;
  bool first = true;
  for (const T code : codes) {
    const auto value = decode(code);
    if (value != value) {
      ++out.n_nan;
      continue;
    }
    const long double x = value;
    out.min = first ? x : std::min(out.min, x);
    out.max = first ? x : std::max(out.max, x);
    sum += x;
    first = false;
  }
  out.n_elements = codes.size();
  const uint64_t n_numbers = out.n_elements - out.n_nan;
  if (n_numbers > 0) out.mean = sum / static_cast<long double>(n_numbers);
}

void scan_elements(const Tensor& tensor, TensorSummary& out) {
  const auto itself = [](auto x) { return x; };
  switch (tensor.dtype) {
    case DType::kF64:
      return scan<double>(tensor, out, itself);
    case DType::kF32:
      return scan<float>(tensor, out, itself);
    case DType::kF16:
      return scan<uint16_t>(tensor, out, f16_to_f32);
    case DType::kBF16:
      return scan<uint16_t>(tensor, out, bf16_to_f32);
    case DType::kF8E4M3:
      return scan<uint8_t>(tensor, out, f8e4m3_to_f32);
    case DType::kI64:
      return scan<int64_t>(tensor, out, itself);
    case DType::kI32:
      return scan<int32_t>(tensor, out, itself);
    case DType::kI16:
      return scan<int16_t>(tensor, out, itself);
    case DType::kI8:
      return scan<int8_t>(tensor, out, itself);
    case DType::kU64:
      return scan<uint64_t>(tensor, out, itself);
    case DType::kU32:
      return scan<uint32_t>(tensor, out, itself);
    case DType::kU16:
      return scan<uint16_t>(tensor, out, itself);
    case DType::kU8:
    case DType::kBool:
      return scan<uint8_t>(tensor, out, itself);
  }
}

bool is_float(DType dtype) {
  return dtype <= DType::kF8E4M3;
}

using Row = std::array<std::string, 8>;

Row text_row(const TensorSummary& t, bool verified) {
  const bool any = t.n_elements > t.n_nan;
  const auto extreme = [&](long double x) {
    return !any ? "-" : is_float(t.dtype) ? fmt::format("{:.6g}", x) : fmt::format("{:.0f}", x);
  };
  return {printable(t.name),
          std::string(dtype_name(t.dtype)),
          fmt::format("[{}]", fmt::join(t.shape, ", ")),
          extreme(t.min),
          extreme(t.max),
          any ? fmt::format("{:.6g}", t.mean) : "-",
          std::to_string(t.n_nan),
          !verified ? ""
          : t.fault ? "BAD"
                    : "ok"};
}

// Columns padded to their widest cell: name, dtype and shape to the left, numbers to the right.
std::string align_columns(const std::vector<Row>& rows) {
  std::array<size_t, std::tuple_size_v<Row>> width{};
  for (const Row& row : rows)
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      line +=
          i < 3 ? fmt::format("{:<{}}", row[i], width[i]) : fmt::format("{:>{}}", row[i], width[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace

Summary summarize(const Reader& file, bool verify) {
  Summary summary{file.path(), file.metadata(), {}, 0, verify, true};
  for (size_t i = 0; i < file.tensors().size(); ++i) {
    const Tensor& tensor = file.tensors()[i];
    TensorSummary t{tensor.name, tensor.dtype, tensor.shape, 0, 0, 0, 0, 0, std::nullopt};
    scan_elements(tensor, t);
    if (verify) t.fault = file.payload_fault(i);
    summary.sound &= !t.fault;
    summary.payload_bytes += tensor.bytes.size();
    summary.tensors.push_back(std::move(t));
  }
  return summary;
}

std::string to_text(const Summary& summary) {
  std::string text =
      fmt::format("{}: KDTR version {}, {} tensors, {} payload bytes\n", printable(summary.path),
                  kVersion, summary.tensors.size(), summary.payload_bytes);
  for (const auto& [key, value] : summary.metadata)
    text += fmt::format("  {} = {}\n", printable(key), printable(value));
  std::vector<Row> rows = {
      {"tensor", "dtype", "shape", "min", "max", "mean", "nan", summary.verified ? "crc" : ""}};
  for (const TensorSummary& t : summary.tensors) rows.push_back(text_row(t, summary.verified));
  if (rows.size() > 1) text += align_columns(rows);
  for (const TensorSummary& t : summary.tensors)
    if (t.fault) text += fmt::format("{}\n", printable(*t.fault));
  return text;
}

}  // namespace kdt::kdtr
