#include "x86_quantize_rows.h"
