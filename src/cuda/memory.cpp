// Device memory, copies, the device's name, and the timing method of the benchmarks.
#include <algorithm>
#include <vector>

#include "base/error.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace kdt::cuda {

void throw_cuda_error(cudaError_t error, const char* call, const char* file, int line) {
  const bool memory = error == cudaErrorMemoryAllocation;
  throw_error(memory ? ErrorCode::kOutOfResources : ErrorCode::kInternal, "{}:{}: {}: {} ({})",
              file, line, call, cudaGetErrorString(error), cudaGetErrorName(error));
}

void* allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  void* data = nullptr;
  if (cudaMalloc(&data, bytes) != cudaSuccess) {
    cudaGetLastError();  // the failure is reported below, not by the next call
    size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    throw_error(ErrorCode::kOutOfResources,
                "the GPU refused {} bytes of memory ({:.1f} GiB); {:.1f} of {:.1f} GiB are free",
                bytes, bytes / 0x1p30, free_bytes / 0x1p30, total_bytes / 0x1p30);
  }
  KDT_CUDA_CHECK(cudaMemset(data, 0, bytes));
  return data;
}

void deallocate(void* data, size_t) {
  cudaFree(data);  // runs in destructors: an earlier kernel's error must not throw here
}

// Copies from and to pageable host memory have taken or filled it when they return.
void copy_in(void* device, const void* host, size_t bytes, Stream stream) {
  if (bytes)
    KDT_CUDA_CHECK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, native(stream)));
}

void copy_out(void* host, const void* device, size_t bytes, Stream stream) {
  if (bytes)
    KDT_CUDA_CHECK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, native(stream)));
}

void copy(void* to, const void* from, size_t bytes, Stream stream) {
  if (bytes)
    KDT_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, native(stream)));
}

void synchronize(Stream stream) {
  KDT_CUDA_CHECK(cudaStreamSynchronize(native(stream)));
}

std::string describe() {
  int device = 0, driver = 0;
  cudaDeviceProp properties;
  KDT_CUDA_CHECK(cudaGetDevice(&device));
  KDT_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  KDT_CUDA_CHECK(cudaDriverGetVersion(&driver));
  return std::string(properties.name) + " (sm_" + std::to_string(properties.major) +
         std::to_string(properties.minor) + ", " + std::to_string(properties.multiProcessorCount) +
         " multiprocessors), CUDA driver " + std::to_string(driver / 1000) + "." +
         std::to_string(driver % 1000 / 10);
}

namespace {

// One call as a graph, with what is needed to replay and time it.
class TimedGraph {
 public:
  explicit TimedGraph(const std::function<void(Stream)>& call) {
    KDT_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    KDT_CUDA_CHECK(cudaEventCreate(&start_));
    KDT_CUDA_CHECK(cudaEventCreate(&end_));
    KDT_CUDA_CHECK(cudaMalloc(&flush_, kFlushBytes));
    call({stream_});  // loads modules and sets kernel attributes outside the capture
    KDT_CUDA_CHECK(cudaStreamSynchronize(stream_));
    KDT_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    call({stream_});
    KDT_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph_));
    KDT_CUDA_CHECK(cudaGraphInstantiate(&executable_, graph_, 0));
  }
  TimedGraph(const TimedGraph&) = delete;
  TimedGraph& operator=(const TimedGraph&) = delete;
  ~TimedGraph() {
    if (executable_) cudaGraphExecDestroy(executable_);
    if (graph_) cudaGraphDestroy(graph_);
    cudaFree(flush_);
    cudaEventDestroy(end_);
    cudaEventDestroy(start_);
    cudaStreamDestroy(stream_);
  }

  double replay_us() {
    KDT_CUDA_CHECK(cudaMemsetAsync(flush_, ++fill_, kFlushBytes, stream_));
    KDT_CUDA_CHECK(cudaEventRecord(start_, stream_));
    KDT_CUDA_CHECK(cudaGraphLaunch(executable_, stream_));
    KDT_CUDA_CHECK(cudaEventRecord(end_, stream_));
    KDT_CUDA_CHECK(cudaEventSynchronize(end_));
    float ms = 0.0f;
    KDT_CUDA_CHECK(cudaEventElapsedTime(&ms, start_, end_));
    return 1e3 * ms;
  }

 private:
  static constexpr size_t kFlushBytes = size_t{256} << 20;  // several times the L2

  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
  void* flush_ = nullptr;
  int fill_ = 0;
};

}  // namespace

double time_cold(const std::function<void(Stream)>& call, int n_warmups, int n_repeats) {
  TimedGraph graph(call);
  for (int i = 0; i < n_warmups; ++i) graph.replay_us();
  std::vector<double> samples(n_repeats);
  for (double& sample : samples) sample = graph.replay_us();
  std::sort(samples.begin(), samples.end());
  return (samples[(n_repeats - 1) / 2] + samples[n_repeats / 2]) / 2;
}

}  // namespace kdt::cuda
