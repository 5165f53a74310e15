// What a checkpoint directory holds and whether it is complete: the `kdtree inspect DIR` report.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kdt::checkpoint {

struct InspectTotals {
  std::string kind;        // "embedding", "attention", "routed experts", ...
  int64_t tensors = 0;     // on disk
  int64_t parameters = 0;  // logical weights: an INT4 word counts 8, scales count 0
  int64_t bytes = 0;       // on disk, scales included
};

// A list that remembers how long it is but keeps only the first few entries.
struct InspectFindings {
  static constexpr int64_t kKept = 20;
  int64_t count = 0;
  std::vector<std::string> first;

  void add(std::string text);
};

struct InspectReport {
  std::string dir;
  std::vector<std::string> architecture;  // lines of text
  std::vector<InspectTotals> kinds;       // only those present
  int64_t kv_elements_per_token = 0;      // latent cache of the target, K and V of the drafter
  std::string kv_formula;                 // how they come about: "61 layers x 576"
  InspectFindings missing;                // tensors the config asks for
  InspectFindings wrong;                  // wrong shape, dtype or format: whole sentences
  InspectFindings unexpected;             // neither used nor knowingly skipped

  bool complete() const { return missing.count == 0 && wrong.count == 0; }
};

// Target or drafter, by its config.json. Throws as Checkpoint and the config loaders do.
InspectReport inspect_checkpoint(const std::string& dir);

// For a terminal, one trailing newline.
std::string format_report(const InspectReport& report);

}  // namespace kdt::checkpoint
