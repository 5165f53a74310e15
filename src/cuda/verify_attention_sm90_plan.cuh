// Planning a batch for the wgmma attention kernel: once for all calls of the batch, in a kernel of
// its own. Until it is known what a thread block begins with, nothing can be copied.
#pragma once

#include "cuda/verify_attention_sm90_args.cuh"

namespace kdt::cuda::sm90 {

// Totals of the batch; all lanes call it.
__device__ __forceinline__ BatchTotals batch_totals(const BatchLengths& lengths) {
  BatchTotals t;
#pragma unroll 1
  for (int b = threadIdx.x % 32; b < lengths.n_requests; b += 32)
    t.add(lengths.items(b), lengths.key_blocks(b));
  t.items = __reduce_add_sync(kAllLanes, t.items);
  t.most_items = __reduce_max_sync(kAllLanes, t.most_items);
  t.least_items = __reduce_min_sync(kAllLanes, t.least_items);
  t.most_blocks = __reduce_max_sync(kAllLanes, t.most_blocks);
  t.least_blocks = __reduce_min_sync(kAllLanes, t.least_blocks);
  return t;
}

// The line by request of gangs of this lane's size.
__device__ __forceinline__ int line_by_request(const BatchLengths& lengths, int size) {
  const int lane = threadIdx.x % 32;
  int line = 0;
#pragma unroll 1
  for (int base = 0; base < lengths.n_requests; base += 32) {
    const int b = base + lane;
    const int items = b < lengths.n_requests ? lengths.items(b) : 0;
    const int blocks = b < lengths.n_requests ? lengths.key_blocks(b) : 0;
#pragma unroll 2
    for (int i = kFirstSmall; i < kCandidates; ++i) {
      const int tried = max(__shfl_sync(kAllLanes, size, i), 1);
      const int all = __reduce_add_sync(kAllLanes, Schedule::line_of(items, blocks, tried));
      if (lane == i) line += all;
    }
  }
  return line;
}

// How the batch is dealt out; all lanes call it.
__device__ __forceinline__ Gangs choose_gangs(const BatchLengths& lengths,
                                              const BatchTotals& totals) {
  const Schedule schedule(lengths, totals, gridDim.x);
  const int lane = threadIdx.x % 32, size = schedule.candidate(lane);  // every lane tries another
  Gangs gangs = schedule.gangs(size);
  if (!totals.uniform()) {
    const int line = line_by_request(lengths, size);
    if (lane >= kFirstSmall) Schedule::try_by_request(line, gangs);
  }
  Schedule::add_reads(__shfl_sync(kAllLanes, gangs.n, kFirstOfItems), gangs);
  const int least = __reduce_min_sync(kAllLanes, gangs.cost);
  const int best = __ffs(__ballot_sync(kAllLanes, gangs.cost == least)) - 1;
  for (int* field : {&gangs.size, &gangs.n, &gangs.overhead, &gangs.quota, &gangs.last_blocks,
                     &gangs.by_request})
    *field = __shfl_sync(kAllLanes, *field, best);
  return gangs;
}

// This thread block's next segment and its request; false if there is none. All lanes call it.
__device__ __forceinline__ bool next_segment(const PlanArgs& args, const Schedule& schedule,
                                             Schedule::Cursor& cursor, Job& job) {
  Segment& s = job.segment;
  if (!schedule.next(blockIdx.x, cursor, s)) return false;
  job.row_offset = args.row_offset[s.request];
  job.n_nodes = args.lengths.n_nodes[s.request];
  job.prefix_len = args.lengths.prefix_len[s.request];
  return true;
}

// Lane l's page is that of key block first + l.
__device__ __forceinline__ int load_pages(const PlanArgs& args, const Job& job, int first) {
  const Segment& s = job.segment;
  const int end = min(args.max_blocks, s.first_block + s.n_blocks);  // not all are of the prefix
  const int at = first + threadIdx.x % 32;
  const int32_t* table = args.block_table + int64_t{s.request} * args.max_blocks;
  return at < end ? __ldg(table + at) : 0;
}

// The row of the first key of a key block: in the pages if it is one of the prefix, else number
// `tail` of the tail's.
__device__ __forceinline__ int key_row(const Job& job, bool in_prefix, int tail, int page) {
  return in_prefix ? page * kKeys : job.row_offset + tail * kKeys;
}

__device__ __forceinline__ int query_row(const PlanArgs& args, const Job& job) {
  return job.row_offset * args.lengths.n_heads + job.segment.item * kRows;
}

// The plan of thread block `blockIdx.x` of the attention kernel, by one warp.
__device__ __forceinline__ void make_plan(const PlanArgs& args) {
  const int lane = threadIdx.x % 32;
  Plan& plan = args.plans[blockIdx.x];
  const BatchTotals totals = batch_totals(args.lengths);
  const Gangs gangs = choose_gangs(args.lengths, totals);
  const Schedule schedule(args.lengths, totals, gridDim.x, gangs);
  Schedule::Cursor cursor;
  Job job = {.kind = Job::kAttend, .launch = 1};
  do {
    if (!next_segment(args, schedule, cursor, job)) job.kind = Job::kCombine;
  } while (job.kind == Job::kAttend && job.segment.n_blocks == 0);
  if (job.kind == Job::kCombine) cursor = {};
  const int begin = job.segment.first_block, tail = begin - prefix_blocks(job);
  const int page = job.kind == Job::kAttend ? load_pages(args, job, begin) : 0;
  if (lane < kPlanWords)
    reinterpret_cast<uint4*>(&plan)[lane] = {};  // load_plan() reads padding, too
  __syncwarp();
  plan.pages[lane] = page;
  if (lane == 0) {
    plan.first = job;
    plan.in_prefix = tail < 0;
    plan.key_row = key_row(job, tail < 0, tail, page);
    plan.query_row = query_row(args, job);
    plan.cursor = cursor;
    plan.totals = totals;
    plan.gangs = gangs;
  }
  if (lane < Schedule::slots(1)) args.last_launch[Schedule::slots(blockIdx.x) + lane] = 0;
}

}  // namespace kdt::cuda::sm90
