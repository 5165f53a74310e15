// Logits as kernels see them. A row is dealt to the warps in lines of 64 logits, so that every warp
// sees logits from all over the vocabulary: token ids are ordered by frequency, and one warp per
// region would put all large logits into a few warps. Who gets which logit depends on the
// vocabulary and the number of warps only, not on the element type or alignment, so neither do the
// bits of a sum.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/device/order.cuh"

namespace kdt::cuda::device {

constexpr int kPiece = 8;          // consecutive logits of a lane
constexpr int kLine = 8 * kPiece;  // of eight lanes

__device__ __forceinline__ float to_float(float x) {
  return x;
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(__half x) {
  return __half2float(x);
}

template <typename T>
struct alignas(16) Piece {
  T x[kPiece];
};

// An element as the bits of a word.
__device__ __forceinline__ uint32_t bits_of(float x) {
  return __float_as_uint(x);
}
__device__ __forceinline__ uint32_t bits_of(__nv_bfloat16 x) {
  return __bfloat16_as_ushort(x);
}
__device__ __forceinline__ uint32_t bits_of(__half x) {
  return __half_as_ushort(x);
}

// A piece as words, to keep it in registers: its elements would take one each.
template <typename T>
struct PieceWords {
  static constexpr int kSize = kPiece * sizeof(T) / 4, kInWord = 4 / sizeof(T);
  uint32_t x[kSize];

  // What was derived from the piece before is not kept for this one either.
  __device__ __forceinline__ Piece<T> piece() const {
    uint32_t words[kSize];
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      words[i] = x[i];
      asm volatile("" : "+r"(words[i]));
    }
    Piece<T> piece;
    memcpy(&piece, words, sizeof(piece));
    return piece;
  }
};

// The piece at `at`, 16-byte aligned; -inf where it is not `there`.
template <typename T>
__device__ __forceinline__ PieceWords<T> load_whole_piece(const T* at, bool there) {
  PieceWords<T> words;
  const uint32_t nothing =
      bits_of(static_cast<T>(-INFINITY)) * (PieceWords<T>::kInWord == 2 ? 0x10001u : 1u);
#pragma unroll
  for (int i = 0; i < PieceWords<T>::kSize; i += 4) {
    uint4 four = {nothing, nothing, nothing, nothing};
    if (there) four = reinterpret_cast<const uint4*>(at)[i / 4];
    words.x[i] = four.x;
    words.x[i + 1] = four.y;
    words.x[i + 2] = four.z;
    words.x[i + 3] = four.w;
  }
  return words;
}

// Pieces at or past the end of the row, and elements past it, are -inf.
template <typename T>
__device__ __forceinline__ PieceWords<T> load_piece_words(const T* row, int vocab, int first) {
  constexpr int kInWord = PieceWords<T>::kInWord;
  PieceWords<T> words;
#pragma unroll
  for (int i = 0; i < kPiece; i += kInWord) {
    words.x[i / kInWord] = 0;
#pragma unroll
    for (int j = 0; j < kInWord; ++j) {
      const T x = first + i + j < vocab ? row[first + i + j] : static_cast<T>(-INFINITY);
      words.x[i / kInWord] |= bits_of(x) << (j * 16);
    }
  }
  return words;
}
template <typename T>
__device__ __forceinline__ Piece<T> load_piece(const T* row, int vocab, int first, bool aligned) {
  return aligned && first + kPiece <= vocab ? *reinterpret_cast<const Piece<T>*>(row + first)
                                            : load_piece_words(row, vocab, first).piece();
}

// Pieces that start at `first` and `stride` apart, all on their way at once.
template <typename T, int kPieces>
__device__ __forceinline__ void load_pieces(const T* row, int vocab, int first, int stride,
                                            PieceWords<T> (&pieces)[kPieces]) {
  if (reinterpret_cast<uintptr_t>(row) % 16 == 0 && vocab % kPiece == 0) {
#pragma unroll
    for (int j = 0; j < kPieces; ++j)
      pieces[j] = load_whole_piece(row + first + j * stride, first + j * stride < vocab);
  } else {
#pragma unroll
    for (int j = 0; j < kPieces; ++j) pieces[j] = load_piece_words(row, vocab, first + j * stride);
  }
}

// A logit and its token id as one integer; ascending keys are logits descending, then ids
// ascending. kNoLogit is above every key.
constexpr uint64_t kNoLogit = ~uint64_t{0};

__device__ __forceinline__ uint64_t logit_key(float logit, int id) {
  return uint64_t{~ascending_key(logit)} << 32 | static_cast<uint32_t>(id);
}
__device__ __forceinline__ float key_logit(uint64_t key) {
  return value_of_key(~static_cast<uint32_t>(key >> 32));
}
__device__ __forceinline__ int key_id(uint64_t key) {
  return static_cast<int>(key);
}

}  // namespace kdt::cuda::device
