#include "../math/x86_avx512.h"

#include "x86_softmax.h"
