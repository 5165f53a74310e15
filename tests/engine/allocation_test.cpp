// Decode rounds allocate nothing on the data path (engine/CONTRACT.md, promise 6): no backend
// memory in a round, no heap memory inside any op. The heap's entry points are counted: operator
// new by replacement, malloc by the linker (--wrap in src/engine/CMakeLists.txt).
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <numeric>

#include "tests/engine/tiny_pair.h"

namespace {

std::atomic<int> ops_running{0};        // ops of the backend under test, on any thread
std::atomic<int> heap_calls_in_ops{0};  // from any thread while one runs
std::atomic<int> backend_allocations{0};

void count_heap_call() {
  if (ops_running) ++heap_calls_in_ops;
}

void* allocate_or_throw(size_t bytes, std::align_val_t alignment = std::align_val_t{16}) {
  const size_t align = static_cast<size_t>(alignment);
  if (void* data = std::aligned_alloc(align, (bytes + align) / align * align)) return data;
  throw std::bad_alloc();
}

}  // namespace

extern "C" {
void* __real_malloc(size_t bytes);
void* __real_aligned_alloc(size_t alignment, size_t bytes);
void* __wrap_malloc(size_t bytes) {
  count_heap_call();
  return __real_malloc(bytes);
}
void* __wrap_aligned_alloc(size_t alignment, size_t bytes) {
  count_heap_call();
  return __real_aligned_alloc(alignment, bytes);
}
}

void* operator new(size_t bytes) {
  return allocate_or_throw(bytes);
}
void* operator new[](size_t bytes) {
  return allocate_or_throw(bytes);
}
void* operator new(size_t bytes, std::align_val_t a) {
  return allocate_or_throw(bytes, a);
}
void* operator new[](size_t bytes, std::align_val_t a) {
  return allocate_or_throw(bytes, a);
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return std::aligned_alloc(16, (bytes + 16) / 16 * 16);
}
void operator delete(void* data) noexcept {
  std::free(data);
}
void operator delete[](void* data) noexcept {
  std::free(data);
}
void operator delete(void* data, size_t) noexcept {
  std::free(data);
}
void operator delete[](void* data, size_t) noexcept {
  std::free(data);
}
void operator delete(void* data, std::align_val_t) noexcept {
  std::free(data);
}
void operator delete[](void* data, std::align_val_t) noexcept {
  std::free(data);
}
void operator delete(void* data, size_t, std::align_val_t) noexcept {
  std::free(data);
}
void operator delete[](void* data, size_t, std::align_val_t) noexcept {
  std::free(data);
}
void operator delete(void* data, const std::nothrow_t&) noexcept {
  std::free(data);
}

namespace kdt {
namespace {

// The CPU backend's function in one slot of the table, marked as running while it runs.
template <auto kSlot>
struct Watched;
template <typename Result, typename... Args, Result (*Backend::*kSlot)(Args...)>
struct Watched<kSlot> {
  static Result call(Args... args) {
    struct Running {
      Running() { ++ops_running; }
      ~Running() { --ops_running; }
    } running;
    return (cpu_backend().*kSlot)(args...);
  }
};

template <auto... kSlots>
void watch(Backend* backend) {
  ((backend->*kSlots = Watched<kSlots>::call), ...);
}

Backend watched_backend() {
  Backend backend = cpu_backend();
  watch<&Backend::copy_in, &Backend::copy_out, &Backend::copy, &Backend::linear,
        &Backend::embedding, &Backend::rms_norm, &Backend::rope, &Backend::silu_mul,
        &Backend::moe_route, &Backend::moe_experts, &Backend::verify_attention_plan,
        &Backend::verify_attention, &Backend::draft_attention, &Backend::draft_topk,
        &Backend::tree_build, &Backend::tree_accept, &Backend::kv_commit>(&backend);
  backend.allocate = [](size_t bytes) {
    ++backend_allocations;
    return cpu_backend().allocate(bytes);
  };
  return backend;
}

TEST(Allocation, NoneInDecodeRounds) {
  const Backend backend = watched_backend();
  engine::EngineOptions options = test::tiny_options();
  options.max_budget = 64;
  engine::Executor executor(backend, options);
  EXPECT_GT(backend_allocations, 0);

  // Speculative sequences first, each over pages of its own, and prompts that cross pages.
  std::vector<engine::Sequence> sequences;
  for (const int budget : {64, 15, -1, 0}) {
    engine::Sequence s;
    s.request = test::with_budget({.prompt = std::vector<int32_t>(60, 100 + budget)}, budget);
    if (budget == 15) s.request.sampling = {.temperature = 0.9f, .top_p = 0.9f, .top_k = 50};
    s.pages.resize(4);
    std::iota(s.pages.begin(), s.pages.end(), static_cast<int32_t>(sequences.size()) * 4);
    sequences.push_back(std::move(s));
  }
  std::vector<engine::Sequence*> all;
  for (engine::Sequence& s : sequences) {
    all.push_back(&s);
    engine::Sequence* one[] = {&s};
    const int32_t count[] = {s.prompt_len()};
    executor.prefill(one, count);
  }
  executor.round(all);  // first use may set up threads

  heap_calls_in_ops = backend_allocations = 0;
  for (int i = 0; i < 4; ++i) {
    executor.round(all);
    EXPECT_EQ(heap_calls_in_ops, 0) << "round " << i;
    EXPECT_EQ(backend_allocations, 0) << "round " << i;
  }
}

// The counter counts: an op that allocates is seen, whichever way it does.
TEST(Allocation, TheCountWorks) {
  ++ops_running;
  heap_calls_in_ops = 0;
  std::vector<int>* volatile on_heap = new std::vector<int>(100);
  EXPECT_EQ(heap_calls_in_ops, 2);
  delete on_heap;
  void* volatile data = std::malloc(10);
  EXPECT_EQ(heap_calls_in_ops, 3);
  std::free(data);
  --ops_running;
}

}  // namespace
}  // namespace kdt
