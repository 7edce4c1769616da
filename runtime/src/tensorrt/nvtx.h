// Ranges for NVIDIA's profilers, where the environment variable INFC_NVTX is set and its library is found.
#ifndef INFC_TENSORRT_NVTX_H
#define INFC_TENSORRT_NVTX_H

void infc_nvtx_load(void);
void infc_nvtx_push(const char *range);
void infc_nvtx_pop(void);

#endif // INFC_TENSORRT_NVTX_H
