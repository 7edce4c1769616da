#include "../math/x86_avx512.h"

#include "x86_quantize_rows.h"
