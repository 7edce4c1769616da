// Elements in order, whatever their type.
#ifndef INFC_KERNELS_ORDER_H
#define INFC_KERNELS_ORDER_H

#include "../operand.h"

// Calls X(type name, C type, INFC_DTYPE_*) for every type that has an order.
#define INFC_ORDERED_TYPES(X)                                                                                          \
  X(f32, float, F32)                                                                                                   \
  X(f64, double, F64)                                                                                                  \
  X(i8, int8_t, I8)                                                                                                    \
  X(u8, uint8_t, U8)                                                                                                   \
  X(i16, int16_t, I16)                                                                                                 \
  X(u16, uint16_t, U16) X(i32, int32_t, I32) X(u32, uint32_t, U32) X(i64, int64_t, I64) X(u64, uint64_t, U64)

static inline bool infc_type_is_ordered(uint8_t dtype) {
  switch (dtype) {
#define ORDERED(name, T, DTYPE) case INFC_DTYPE_##DTYPE:
    INFC_ORDERED_TYPES(ORDERED)
#undef ORDERED
    return true;
  default:
    return false;
  }
}

#endif // INFC_KERNELS_ORDER_H
