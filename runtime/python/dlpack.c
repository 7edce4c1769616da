// Tensors of other libraries by the DLPack protocol, without copying: https://dmlc.github.io/dlpack/latest/
#include "rt.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

// ---- DLPack's structures

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13 };
enum { DL_READ_ONLY = 1, DL_COPIED = 2 };

typedef struct dl_tensor {
  void *data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t kind, bits;
  uint16_t lanes;
  int64_t *shape, *strides; // strides in elements; NULL: dense and row-major
  uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
  dl_tensor tensor;
  void *context;
  void (*deleter)(struct dl_managed *);
} dl_managed;

typedef struct dl_versioned {
  uint32_t major, minor;
  void *context;
  void (*deleter)(struct dl_versioned *);
  uint64_t flags;
  dl_tensor tensor;
} dl_versioned;

// ---- Protocol

// Turns the producer's exception into ours, which names the tensor.
static int fail_export(const char *role, const infc_tensor_info *info) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  rt_fail(INFC_STATUS_INVALID_ARGUMENT, "%s '%s': %S", role, info->name, value ? value : type);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  return -1;
}

bool rt_is_dlpack(PyObject *array) {
  PyObject *method = PyObject_GetAttrString(array, "__dlpack_device__");
  PyErr_Clear();
  Py_XDECREF(method);
  return method;
}

static int get_device(PyObject *array, int *type, int *id) {
  PyObject *method = PyObject_GetAttrString(array, "__dlpack_device__");
  PyObject *pair = method ? PyObject_CallObject(method, NULL) : NULL;
  int parsed = pair && PyArg_ParseTuple(pair, "ii", type, id);
  Py_XDECREF(method);
  Py_XDECREF(pair);
  return parsed ? 0 : -1;
}

// The capsule. What the producer has enqueued on its own stream comes before what the default stream gets from now on.
static PyObject *export_tensor(PyObject *array, bool device) {
  PyObject *method = PyObject_GetAttrString(array, "__dlpack__");
  PyObject *arguments = PyTuple_New(0), *keywords = Py_BuildValue("{s:(ii)}", "max_version", 1, 0);
  PyObject *stream = PyLong_FromLong(RT_DEFAULT_STREAM), *capsule = NULL;
  if (method && arguments && keywords && stream && (!device || !PyDict_SetItemString(keywords, "stream", stream))) {
    capsule = PyObject_Call(method, arguments, keywords);
    if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) { // it knows no versions
      PyErr_Clear();
      if (!PyDict_DelItemString(keywords, "max_version"))
        capsule = PyObject_Call(method, arguments, keywords);
    }
  }
  Py_XDECREF(method);
  Py_XDECREF(arguments);
  Py_XDECREF(keywords);
  Py_XDECREF(stream);
  return capsule;
}

// The tensor in a capsule, which stays the producer's: letting go of it frees the tensor.
static const dl_tensor *open_capsule(PyObject *capsule, uint64_t *flags) {
  *flags = 0;
  if (PyCapsule_IsValid(capsule, "dltensor"))
    return &((dl_managed *)PyCapsule_GetPointer(capsule, "dltensor"))->tensor;
  dl_versioned *versioned = PyCapsule_GetPointer(capsule, "dltensor_versioned");
  if (!versioned)
    return NULL;
  if (versioned->major != 1) {
    PyErr_Format(PyExc_BufferError, "its DLPack version is %u, not 1", versioned->major);
    return NULL;
  }
  *flags = versioned->flags;
  return &versioned->tensor;
}

// ---- Checks

static int check_device(int type, int id, const char *role, const infc_tensor_info *info, int gpu) {
  if (type == DL_CPU || type == DL_CUDA_HOST)
    return 0;
  if (type != DL_CUDA && type != DL_CUDA_MANAGED)
    rt_fail(INFC_STATUS_INVALID_ARGUMENT, "%s '%s' is neither in the CPU's memory nor on a CUDA device", role,
            info->name);
  else if (gpu < 0)
    rt_fail(INFC_STATUS_INVALID_ARGUMENT, "%s '%s' is on cuda:%d, the engine runs on the CPU: copy it there first",
            role, info->name, id);
  else if (type == DL_CUDA && id != gpu)
    rt_fail(INFC_STATUS_INVALID_ARGUMENT, "%s '%s' is on cuda:%d, the engine on cuda:%d", role, info->name, id, gpu);
  else
    return 0;
  return -1;
}

static void name_type(uint8_t kind, uint8_t bits, char name[16]) {
  static const char *const kinds[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  const char *text = kind < sizeof kinds / sizeof *kinds ? kinds[kind] : "type";
  if (!strcmp(text, "bool"))
    snprintf(name, 16, "bool");
  else
    snprintf(name, 16, "%s%u", text, bits);
}

static bool is_dense(const dl_tensor *tensor) {
  int64_t expected = 1;
  for (int32_t d = tensor->ndim - 1; tensor->strides && d >= 0; d--) {
    if (tensor->shape[d] != 1 && tensor->strides[d] != expected)
      return false;
    expected *= tensor->shape[d];
  }
  return true;
}

static int check_tensor(const dl_tensor *tensor, uint64_t flags, const char *role, const infc_tensor_info *info,
                        bool writable) {
  const rt_dtype *wanted = rt_find_dtype(info->dtype);
  if (tensor->kind != wanted->kind || tensor->bits != wanted->bits || tensor->lanes != 1) {
    char given[16], expected[16], lanes[32] = "";
    name_type(tensor->kind, tensor->bits, given);
    name_type(wanted->kind, wanted->bits, expected);
    if (tensor->lanes != 1)
      snprintf(lanes, sizeof lanes, " of %u lanes", tensor->lanes);
    rt_fail(INFC_STATUS_INVALID_ARGUMENT, "%s '%s' is %s%s, not %s", role, info->name, given, lanes, expected);
  } else if (!is_dense(tensor))
    rt_fail(INFC_STATUS_INVALID_ARGUMENT, "%s '%s' is not C-contiguous: pass a contiguous copy of it", role,
            info->name);
  else if (flags & DL_COPIED || (writable && flags & DL_READ_ONLY))
    rt_fail(INFC_STATUS_INVALID_ARGUMENT, "%s '%s' is not %s", role, info->name,
            flags & DL_COPIED ? "lent, but copied, by its library" : "writable");
  else
    return 0;
  return -1;
}

int rt_dlpack_memory(PyObject *array, const char *role, const infc_tensor_info *info, int gpu, bool writable,
                     rt_memory *out) {
  int type, id;
  if (get_device(array, &type, &id))
    return fail_export(role, info);
  if (check_device(type, id, role, info, gpu))
    return -1;
  bool device = type == DL_CUDA || type == DL_CUDA_MANAGED;
  *out = (rt_memory){.device = device, .view.obj = export_tensor(array, device)};
  uint64_t flags;
  const dl_tensor *tensor = out->view.obj ? open_capsule(out->view.obj, &flags) : NULL;
  int failed = tensor ? check_tensor(tensor, flags, role, info, writable) : fail_export(role, info);
  if (failed) {
    rt_release(out);
    return -1;
  }
  out->view.buf = (uint8_t *)tensor->data + tensor->byte_offset;
  out->view.ndim = tensor->ndim;
  out->view.shape = (Py_ssize_t *)tensor->shape;
  out->view.len = tensor->bits / 8;
  for (int32_t d = 0; d < tensor->ndim; d++)
    out->view.len *= (Py_ssize_t)tensor->shape[d];
  return 0;
}
