#include "../math/x86_avx2.h"

#include "x86_quantize_rows.h"
