// The CPU backend's functions, one per entry of the backend table. Arguments are checked already
// (src/ops); every call returns when its work is done.
#pragma once

#include "ops/backend.h"

namespace kdt::cpu {

void* allocate(size_t bytes);
void deallocate(void* data, size_t bytes);

}  // namespace kdt::cpu
