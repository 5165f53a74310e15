// The lanes of a warp.
#pragma once

#include <cstdint>

namespace kdt::cuda::device {

constexpr uint32_t kAllLanes = 0xffffffffu;

}  // namespace kdt::cuda::device
