// Enqueued work captured as a CUDA graph, and the timing method of the benchmarks.
#include <algorithm>
#include <memory>
#include <vector>

#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace kdt::cuda {
namespace {

class OwnedStream {
 public:
  OwnedStream() { KDT_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~OwnedStream() { cudaStreamDestroy(stream_); }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Graph {
 public:
  explicit Graph(const std::function<void(Stream)>& call) {
    const OwnedStream stream;
    // Relaxed: a kernel's first launch may load its module, which other modes refuse.
    KDT_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    call({stream});
    cudaGraph_t graph = nullptr;
    KDT_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    const cudaError_t error = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    KDT_CUDA_CHECK(error);
  }
  ~Graph() { cudaGraphExecDestroy(executable_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(cudaStream_t stream) const { KDT_CUDA_CHECK(cudaGraphLaunch(executable_, stream)); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

// Replays with cold caches between two events.
class Timer {
 public:
  Timer() {
    KDT_CUDA_CHECK(cudaEventCreate(&start_));
    KDT_CUDA_CHECK(cudaEventCreate(&end_));
    KDT_CUDA_CHECK(cudaMalloc(&flush_, kFlushBytes));
  }
  ~Timer() {
    cudaFree(flush_);
    cudaEventDestroy(end_);
    cudaEventDestroy(start_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  double replay_us(const Graph& graph) {
    KDT_CUDA_CHECK(cudaMemsetAsync(flush_, ++fill_, kFlushBytes, stream_));
    KDT_CUDA_CHECK(cudaEventRecord(start_, stream_));
    graph.launch(stream_);
    KDT_CUDA_CHECK(cudaEventRecord(end_, stream_));
    KDT_CUDA_CHECK(cudaEventSynchronize(end_));
    float ms = 0.0f;
    KDT_CUDA_CHECK(cudaEventElapsedTime(&ms, start_, end_));
    return 1e3 * ms;
  }

 private:
  static constexpr size_t kFlushBytes = size_t{256} << 20;  // several times the L2

  OwnedStream stream_;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
  void* flush_ = nullptr;
  int fill_ = 0;
};

}  // namespace

std::function<void(Stream)> capture(const std::function<void(Stream)>& call) {
  return [graph = std::make_shared<const Graph>(call)](Stream stream) {
    graph->launch(native(stream));
  };
}

double time_cold(const std::function<void(Stream)>& call, int n_warmups, int n_repeats) {
  Timer timer;
  call({});
  synchronize({});  // what fails, fails here and not in a capture
  const Graph graph(call);
  for (int i = 0; i < n_warmups; ++i) timer.replay_us(graph);
  std::vector<double> samples(n_repeats);
  for (double& sample : samples) sample = timer.replay_us(graph);
  std::sort(samples.begin(), samples.end());
  return (samples[(n_repeats - 1) / 2] + samples[n_repeats / 2]) / 2;
}

}  // namespace kdt::cuda
