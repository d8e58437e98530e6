// Which instruction sets this processor has, and the table in use.
#pragma once
#include "kernels.h"

namespace mtrun {

// The table called `name`, or the best one for "auto". Null when it was not built or the processor cannot run it.
const Kernels* find_kernels(const char* name);

}  // namespace mtrun
