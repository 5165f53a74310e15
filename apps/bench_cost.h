// What one op call must do at least: the bytes that move and the floating-point operations that
// run. The roofline (Williams et al. 2009, doi 10.1145/1498765.1498785) is made of both.
#pragma once

#include "ops/backend.h"

namespace kdt::apps {

// Each input, weight and output counts once, however often an implementation touches it; weights as
// the backend stores them. A multiply-add is two operations, an exp or a sine one. Integer work
// counts nothing.
struct OpCost {
  double bytes = 0.0;
  double flops = 0.0;
};

// Lengths, masks, expert ids and acceptance counts are read from the backend's memory, so ask after
// the op ran.
OpCost cost(const Backend& backend, const LinearParams& p);
OpCost cost(const Backend& backend, const EmbeddingParams& p);
OpCost cost(const Backend& backend, const RmsNormParams& p);
OpCost cost(const Backend& backend, const RopeParams& p);
OpCost cost(const Backend& backend, const SiluMulParams& p);
OpCost cost(const Backend& backend, const MoeRouteParams& p);
OpCost cost(const Backend& backend, const MoeExpertsParams& p);
OpCost cost(const Backend& backend, const VerifyAttentionParams& p);
OpCost cost(const Backend& backend, const LseMergeParams& p);
OpCost cost(const Backend& backend, const DraftAttentionParams& p);
OpCost cost(const Backend& backend, const DraftTopkParams& p);
OpCost cost(const Backend& backend, const TreeBuildParams& p);
OpCost cost(const Backend& backend, const TreeAcceptParams& p);
OpCost cost(const Backend& backend, const KvCommitParams& p);

}  // namespace kdt::apps
