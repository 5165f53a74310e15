// How the files of bench cases make them.
#pragma once

#include <memory>
#include <utility>

#include "apps/bench_cases.h"
#include "apps/bench_data.h"

namespace kdt::apps {

inline constexpr int32_t kNodes = 65;  // a tree of budget 64 and its root

template <typename Params>
using Op = void (*)(const Backend&, const Params&, Stream);

template <typename Params>
PreparedCase prepared(std::shared_ptr<CaseData> data, Op<Params> op, const Params& p) {
  return {.run = [data, op, p] { op(data->backend(), p, {}); },
          .cost = [data, p] { return cost(data->backend(), p); },
          .sound = [data] { return data->outputs_sound(); }};
}

// A case whose parameters `fill` makes of fresh data.
template <typename Params>
BenchCase make_case(const char* name, std::string shape, Op<Params> op,
                    std::function<Params(CaseData&)> fill) {
  return {name, std::move(shape), [op, fill](const Backend& backend) {
            const auto data = std::make_shared<CaseData>(backend);
            return prepared(data, op, fill(*data));
          }};
}

// Append cases in the order of the backend's table.
void add_linear_cases(const BenchModel& model, std::vector<BenchCase>* cases);
void add_row_cases(const BenchModel& model, std::vector<BenchCase>* cases);
void add_moe_cases(const BenchModel& model, std::vector<BenchCase>* cases);
void add_attention_cases(const BenchModel& model, std::vector<BenchCase>* cases);
void add_draft_cases(const BenchModel& model, std::vector<BenchCase>* cases);
void add_accept_cases(const BenchModel& model, std::vector<BenchCase>* cases);

}  // namespace kdt::apps
