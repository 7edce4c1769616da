// Between a caller's dense tensor and a profile's larger one.
#ifndef INFC_TENSORRT_STAGING_H
#define INFC_TENSORRT_STAGING_H

#include "executor.h"

// Bytes of a tensor in its profile; validated to be far from overflow.
size_t infc_staging_bytes(const infc_gpu_tensor *tensor);

// Writes an input of the binding's dimensions into `staging`, of the tensor's. Beyond the dimensions in use it is zero;
// an unbound input is its fill within them. `changed` false: the last call had the same binding, so that only values
// can differ.
void infc_staging_fill(const infc_gpu_tensor *tensor, const infc_gpu_binding *binding, bool changed, uint8_t *staging);

// Cuts the dimensions in use out of `staging` into the binding's memory.
void infc_staging_read(const infc_gpu_tensor *tensor, const infc_gpu_binding *binding, const uint8_t *staging);

#endif // INFC_TENSORRT_STAGING_H
