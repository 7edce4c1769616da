// What the files of the extension share.
#ifndef INFC_PYTHON_RT_H
#define INFC_PYTHON_RT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "infc/infc.h"

#include <stdbool.h>

// Raises infc.runtime.Error with that status; as PyErr_Format. NULL.
PyObject *rt_fail(infc_status status, const char *format, ...);

typedef struct rt_dtype {
  infc_dtype code;
  const char *formats; // of the buffer protocol
  const char *numpy;
  uint8_t kind, bits; // of DLPack
} rt_dtype;

const rt_dtype *rt_find_dtype(infc_dtype code);

// Memory that an array lends until rt_release. view.obj is what owns it: NULL where nothing is bound.
typedef struct rt_memory {
  Py_buffer view;
  bool device; // view.buf is an address of the GPU's
} rt_memory;

// Leaves a raised exception raised.
void rt_release(rt_memory *memory);

// Whether it is another library's tensor that speaks DLPack.
bool rt_is_dlpack(PyObject *array);
// The tensor's memory, if it is dense, row-major, of that type, and in the host's memory or on the engine's `gpu` (-1:
// the engine runs on the CPU). Sets buf, obj, len, ndim and shape of the view. Raises and returns -1 otherwise.
int rt_dlpack_memory(PyObject *array, const char *role, const infc_tensor_info *info, int gpu, bool writable,
                     rt_memory *out);

// CUDA's default stream, as DLPack and the driver number it: it waits for, and is waited for by, what other libraries
// enqueue unless told another stream.
#define RT_DEFAULT_STREAM 1

// What an object of the type Engine holds.
PyTypeObject *rt_engine_type(void);
infc_engine *rt_engine(PyObject *engine);
infc_pool *rt_engine_pool(PyObject *engine); // NULL with one thread

// Makes a type and adds it to the module; `type` keeps its reference for the life of the process.
int rt_add_type(PyObject *module, const char *name, PyType_Spec *spec, PyTypeObject **type);
// The types of lm.c.
int rt_add_lm(PyObject *module);

#endif // INFC_PYTHON_RT_H
