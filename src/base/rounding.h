// Integer division and multiples, rounded up. Arguments are not negative and their sum fits.
#pragma once

namespace kdt {

constexpr auto ceil_div(auto a, auto b) {
  return (a + b - 1) / b;
}
constexpr auto round_up(auto n, auto multiple) {
  return ceil_div(n, multiple) * multiple;
}

}  // namespace kdt
