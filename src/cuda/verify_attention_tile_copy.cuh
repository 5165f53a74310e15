// Copies of the blocks of keys of a segment, from the pages and the tail to shared memory.
#pragma once

#include "cuda/device/prefetch.cuh"
#include "cuda/verify_attention_tile_memory.cuh"

namespace kdt::cuda {

// No branches in what every block takes: they would part the stream of other instructions.
template <typename T, int kRows, int kStages, bool kF8>
class TileCopies {
  using Tile = TileShape<T, kRows, kStages, kF8>;
  using Memory = typename Tile::Memory;
  using Keys = typename Tile::Keys;

 public:
  __device__ TileCopies(const Tile& tile, const VerifyAttentionParams& p,
                        const device::Segment& segment)
      : tile_(tile),
        p_(p),
        end_block_(segment.end_block),
        prefix_(p.rows.prefix_len[segment.request]),
        tail_row_(p.rows.row_offset[segment.request] - prefix_),
        end_key_(min(segment.end_block * kBlockKeys, prefix_ + p.rows.n_nodes[segment.request])),
        table_(device::kept(p.rows.block_table +
                            static_cast<int64_t>(segment.request) * p.rows.max_blocks)),
        page_(page_of(segment.first_block, 0)),
        copy_at_(Tile::kept_if_room(tile.block(Keys::offset(Keys::copy_row(), threadIdx.x % 8)))) {}

  // Whether some row may not see some key of a block.
  __device__ bool is_masked(int block) const {
    return Tile::same_in_warp((block + 1) * kBlockKeys > prefix_);
  }
  __device__ int prefix() const { return prefix_; }
  __device__ int end_block() const { return end_block_; }

  // Starts copying a block, if the segment has it; the page of the next one is read meanwhile. Rows
  // behind the last key keep what they hold: nobody sees them.
  __device__ void fetch(int block, int to) {
    const int key = block * kBlockKeys + Keys::copy_row();
    const bool valid = key < end_key_;
    Keys::copy(copy_at_ + to, source(key), valid);
    if (kF8 && threadIdx.x % 8 == 0 && valid)
      device::copy_async4(
          device::shared_address(tile_.floats(Memory::kKeyScales) +
                                 to / Memory::kBlockBytes * kBlockKeys + Keys::copy_row()),
          (key < prefix_ ? p_.page_scales : p_.tail_scales) + source_row(key));
    page_ = page_of(block + 1, page_);
    device::commit_copies();
  }

  // The same, but each warp its own columns, and an eighth of the rope part. It may begin as soon
  // as the warp has read these columns of the block before, when all have read its scores.
  __device__ void refill(int block, int to) {
    __syncwarp();
    const int first = block * kBlockKeys, row = Tile::lane() / 8, chunk = Tile::lane() % 8;
    const bool whole = first + kBlockKeys <= min(prefix_, end_key_);
    const char* from = static_cast<const char*>(p_.kv_pages) +
                       static_cast<uint64_t>(page_ * kPageTokens + first % kPageTokens + row) *
                           Keys::kSourceBytes +
                       Tile::warp() * 128 + chunk * 16;
    Keys::copy_columns(device::shared_address(tile_.block(to)), from, whole);
    if (Tile::same_in_warp(!whole && block < end_block_)) [[unlikely]] {
#pragma unroll 1
      for (int i = 0; i < 9; ++i) {
        const int r = (i < 8 ? i : Tile::warp()) * 4 + row, column = i < 8 ? Tile::warp() : 8;
        if (first + r < end_key_)
          device::copy_async16(
              device::shared_address(tile_.block(to) + Keys::offset(r, chunk) + column * 128),
              source(first + r) + column * 128 + chunk * 16, true);
      }
    }
    page_ = page_of(block + 1, page_);
    device::commit_copies();
  }

 private:
  // The page of a block, which lies in one page; `other` where it is no block of the prefix.
  __device__ int page_of(int block, int other) const {
    const uint32_t key = block * kBlockKeys;
    return device::load_if(static_cast<int>(key) < min(prefix_, end_key_),
                           table_ + key / kPageTokens, other);
  }
  // The row of a key in the pages or in the tail, and where it is.
  __device__ uint32_t source_row(int key) const {
    const uint32_t in_page = static_cast<uint32_t>(key) % kPageTokens;
    return key < prefix_ ? page_ * kPageTokens + in_page : tail_row_ + key;
  }
  __device__ const char* source(int key) const {
    return static_cast<const char*>(key < prefix_ ? p_.kv_pages : p_.tail) +
           static_cast<uint64_t>(source_row(key)) * Keys::kSourceBytes;
  }

  const Tile tile_;
  const VerifyAttentionParams& p_;
  const int end_block_;
  const int prefix_;            // of the request
  const int tail_row_;          // where its first key would be, if the prefix were in the tail
  const int end_key_;           // behind the segment's keys
  const int32_t* const table_;  // of the request's pages
  int page_;                    // of the next block
  const uint32_t copy_at_;      // this thread's part of the first block
};

}  // namespace kdt::cuda
