// Compiled by the build alone, to see whether this compiler takes MLX's headers.
#include "mlx/backend/cpu/encoder.h"
#include "mlx/primitives.h"
#include "mlx/version.h"

const char* headers() { return mlx::core::version(); }
