// What `kdtree inspect` says of a KDTR file: metadata, and statistics of every tensor.
//   const kdtr::Summary summary = kdtr::summarize(kdtr::Reader(path), verify);
//   fmt::print("{}", kdtr::to_text(summary));
//   return summary.sound ? 0 : 1;
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kdtr/reader.h"

namespace kdt::kdtr {

struct TensorSummary {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  uint64_t n_elements;
  uint64_t n_nan;
  // Over the elements that are not NaN; all zero if there are none. The 64-bit mantissa of x86's
  // long double holds every value of every dtype exactly.
  long double min;
  long double max;
  long double mean;
  std::optional<std::string> fault;  // what verifying found wrong
};

struct Summary {
  std::string path;
  Metadata metadata;
  std::vector<TensorSummary> tensors;
  uint64_t payload_bytes;
  bool verified;  // payloads were checked
  bool sound;     // and no fault found; true if not checked
};

// Reads every payload once, twice with `verify`. A fault is reported, not thrown.
Summary summarize(const Reader& file, bool verify);

// The lines that the command prints, with control characters escaped.
std::string to_text(const Summary& summary);

}  // namespace kdt::kdtr
