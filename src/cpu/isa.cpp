#include "cpu/isa.h"

#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace kdt::cpu {
namespace {

bool choose() {
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512cd") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const char* value = std::getenv("KDT_CPU_ISA");
  const std::string_view wanted = value ? value : "";
  if (wanted == "avx2") return false;
  if (!wanted.empty() && (wanted != "avx512" || !has_avx512)) {
    throw_error(ErrorCode::kInvalidArgument, "KDT_CPU_ISA is \"{}\", this machine runs: {}", wanted,
                has_avx512 ? "avx2, avx512" : "avx2");
  }
  return has_avx512;
}

}  // namespace

bool use_avx512() {
  static const bool chosen = choose();
  return chosen;
}

}  // namespace kdt::cpu
