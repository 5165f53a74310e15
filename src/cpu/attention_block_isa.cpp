// Chooses the attention kernel of this machine.
#include "cpu/attention_block.h"
#include "cpu/isa.h"

namespace kdt::cpu {

namespace avx2 {
void attend_block(const AttentionKeys&, AttentionQuery*, int);
}
namespace avx512 {
void attend_block(const AttentionKeys&, AttentionQuery*, int);
}

void attend_block(const AttentionKeys& keys, AttentionQuery* queries, int n_queries) {
  (use_avx512() ? avx512::attend_block : avx2::attend_block)(keys, queries, n_queries);
}

}  // namespace kdt::cpu
