// A row of logits, dealt to the warps of a cluster of CTAs, that is read several times: what fits
// is kept in shared memory.
#pragma once

#include "cuda/device/logits.cuh"

namespace kdt::cuda::device {

constexpr int kRowThreads = 512;  // of a CTA
constexpr int kRowWarps = kRowThreads / 32;
constexpr int kMaxCluster = 8;
constexpr int kMaxRowWarps = kRowWarps * kMaxCluster;
constexpr int kSmallVocab = 1024;  // up to here one CTA is enough

// Pieces of a lane.
__host__ __device__ constexpr int pieces_of(int vocab, int n_ctas) {
  const int n = n_ctas * kRowThreads * kPiece;
  return (vocab + n - 1) / n;
}

template <typename T>
class StagedRow {
 public:
  // warp: of this lane, in the cluster. staged[n_staged, kRowThreads]: this CTA's shared memory.
  __device__ StagedRow(const T* row, int vocab, int warp, int n_ctas, int n_staged,
                       Piece<T>* staged)
      : row_(row),
        vocab_(vocab),
        stride_(4 * n_ctas * kRowWarps * kLine),
        first_((static_cast<int>(threadIdx.x) % 32 / 8 * n_ctas * kRowWarps + warp) * kLine +
               static_cast<int>(threadIdx.x) % 8 * kPiece),
        n_pieces_(pieces_of(vocab, n_ctas)),
        n_staged_(n_staged),
        aligned_(reinterpret_cast<uintptr_t>(row) % 16 == 0),
        staged_(staged + threadIdx.x) {}

  // The first pieces, on their way to registers.
  template <int kLoaded>
  __device__ __forceinline__ void load(PieceWords<T> (&pieces)[kLoaded]) const {
    load_pieces(row_, vocab_, first_, stride_, pieces);
  }
  // Keeps n_staged of them, before the first for_each. A thread reads what it staged itself: no
  // barrier is needed.
  template <int kLoaded>
  __device__ __forceinline__ void stage(const PieceWords<T> (&pieces)[kLoaded]) const {
#pragma unroll
    for (int j = 0; j < kLoaded; ++j)
      if (j < n_staged_) staged_[j * kRowThreads] = pieces[j].piece();
  }
  // for_each without staging.
  template <int kLoaded, typename Fn>
  __device__ __forceinline__ void for_each_loaded(const PieceWords<T> (&pieces)[kLoaded],
                                                  const Fn& fn) const {
#pragma unroll
    for (int j = 0; j < kLoaded; ++j) fn(pieces[j].piece(), first_ + j * stride_);
#pragma unroll 1
    for (int j = kLoaded; j < n_pieces_; ++j) {
      const int first = first_ + j * stride_;
      fn(load_piece(row_, vocab_, first, aligned_), first);
    }
  }

  // fn(piece, its first id) for this lane's pieces. Logits past the vocabulary are -inf.
  template <typename Fn>
  __device__ __forceinline__ void for_each(const Fn& fn) const {
#pragma unroll 1
    for (int j = 0; j < n_pieces_; ++j) {
      const int first = first_ + j * stride_;
      fn(j < n_staged_ ? staged_[j * kRowThreads] : load_piece(row_, vocab_, first, aligned_),
         first);
    }
  }

  // fn(key) for this lane's logits above -inf, one at a time, from memory.
  template <typename Fn>
  __device__ __forceinline__ void for_each_key(const Fn& fn) const {
#pragma unroll 1
    for (int i = 0; i < n_pieces_ * kPiece; ++i) {
      const int id = first_ + i / kPiece * stride_ + i % kPiece;
      if (id >= vocab_) break;
      const float x = to_float(row_[id]);
      if (x > -INFINITY) fn(logit_key(x, id));
    }
  }

  __device__ int vocab() const {
    return vocab_;
  }

 private:
  const T* const row_;
  const int vocab_, stride_, first_;  // ids between this lane's pieces, of its first one
  const int n_pieces_, n_staged_;
  const bool aligned_;
  Piece<T>* const staged_;  // this thread's, kRowThreads apart
};

}  // namespace kdt::cuda::device
