// infc.runtime._rt: libinfc for Python. Only what needs C; names, dtypes and dictionaries are __init__.py's.
#include "rt.h"

#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static PyObject *error_type;
static PyTypeObject *engine_type, *context_type, *section_type;

// ---- Errors

// An artifact's text, which messages cite, need not be valid UTF-8.
static PyObject *text(const char *string) {
  return PyUnicode_DecodeUTF8(string, (Py_ssize_t)strlen(string), "replace");
}

static PyObject *fail(infc_status status, const char *message) {
  PyObject *error = PyObject_CallFunction(error_type, "N", text(message));
  PyObject *code = PyLong_FromLong(status);
  if (error && code && !PyObject_SetAttrString(error, "status", code))
    PyErr_SetObject(error_type, error);
  Py_XDECREF(error);
  Py_XDECREF(code);
  return NULL;
}

PyObject *rt_fail(infc_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  PyObject *text = PyUnicode_FromFormatV(format, arguments);
  va_end(arguments);
  PyObject *bytes = text ? PyUnicode_AsUTF8String(text) : NULL;
  if (bytes)
    fail(status, PyBytes_AsString(bytes));
  Py_XDECREF(text);
  Py_XDECREF(bytes);
  return NULL;
}

// ---- Element types

static const rt_dtype dtypes[] = {
    {INFC_F32, "f", "float32", 2, 32},  {INFC_U8, "B", "uint8", 1, 8},          {INFC_I8, "b", "int8", 0, 8},
    {INFC_U16, "H", "uint16", 1, 16},   {INFC_I16, "h", "int16", 0, 16},        {INFC_I32, "i", "int32", 0, 32},
    {INFC_I64, "lq", "int64", 0, 64},   {INFC_BOOL, "?", "bool", 6, 8},         {INFC_F16, "e", "float16", 2, 16},
    {INFC_F64, "d", "float64", 2, 64},  {INFC_BF16, "H", "uint16", 4, 16},      {INFC_U32, "I", "uint32", 1, 32},
    {INFC_U64, "LQ", "uint64", 1, 64},  {INFC_F8E4M3FN, "B", "uint8", 10, 8},   {INFC_F8E4M3FNUZ, "B", "uint8", 11, 8},
    {INFC_F8E5M2, "B", "uint8", 12, 8}, {INFC_F8E5M2FNUZ, "B", "uint8", 13, 8}, {INFC_F8E8M0, "B", "uint8", 14, 8},
    {INFC_F4E2M1, "B", "uint8", 1, 8},  {INFC_U4, "B", "uint8", 1, 8},          {INFC_I4, "b", "int8", 0, 8},
    {INFC_U2, "B", "uint8", 1, 8},      {INFC_I2, "b", "int8", 0, 8},
};

const rt_dtype *rt_find_dtype(infc_dtype code) {
  size_t i = 0;
  while (dtypes[i].code != code)
    i++;
  return &dtypes[i];
}

// ---- Section: a buffer over an artifact's bytes that keeps the engine alive

typedef struct engine_object {
  PyObject_HEAD infc_engine *engine;
  infc_pool *pool; // NULL with one thread
  void *copy;      // of an artifact in memory that was not aligned; or NULL
  Py_buffer source;
} engine_object;

typedef struct section_object {
  PyObject_HEAD PyObject *owner;
  const void *data;
  size_t size;
} section_object;

static int section_buffer(PyObject *object, Py_buffer *view, int flags) {
  section_object *self = (section_object *)object;
  return PyBuffer_FillInfo(view, object, (void *)self->data, (Py_ssize_t)self->size, 1, flags);
}

static void free_object(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(object);
  Py_DECREF(type);
}

static void section_dealloc(PyObject *object) {
  Py_XDECREF(((section_object *)object)->owner);
  free_object(object);
}

static PyType_Slot section_slots[] = {
    {Py_tp_dealloc, section_dealloc},
    {Py_bf_getbuffer, section_buffer},
    {0, NULL},
};
static PyType_Spec section_spec = {"infc.runtime._rt.Section", sizeof(section_object), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, section_slots};

// ---- Engine

static PyObject *allocate(PyTypeObject *type) {
  return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

// The number in "cuda:1"; -1 on the CPU.
static int gpu_of(const infc_engine *engine) {
  int number = -1;
  sscanf(infc_engine_device(engine), "cuda:%d", &number);
  return number;
}

static int open_source(engine_object *self, PyObject *source, const infc_engine_options *options) {
  char why[1024] = "";
  infc_status status;
  if (PyUnicode_Check(source)) {
    PyObject *path;
    if (!PyUnicode_FSConverter(source, &path))
      return -1;
    const char *name = PyBytes_AsString(path);
    Py_BEGIN_ALLOW_THREADS status = infc_engine_open(name, options, &self->engine, why, sizeof why);
    Py_END_ALLOW_THREADS Py_DECREF(path);
  } else {
    if (PyObject_GetBuffer(source, &self->source, PyBUF_SIMPLE))
      return -1;
    const void *data = self->source.buf;
    size_t size = (size_t)self->source.len;
    if ((uintptr_t)data % 64) {
      if (posix_memalign(&self->copy, 64, size ? size : 1)) {
        self->copy = NULL;
        PyErr_NoMemory();
        return -1;
      }
      data = memcpy(self->copy, data, size);
      PyBuffer_Release(&self->source);
    }
    Py_BEGIN_ALLOW_THREADS status = infc_engine_open_memory(data, size, options, &self->engine, why, sizeof why);
    Py_END_ALLOW_THREADS
  }
  if (status)
    fail(status, why);
  return status ? -1 : 0;
}

static PyObject *engine_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
  static char *names[] = {"source", "threads", "isa", "device", "tensorrt_library", NULL};
  PyObject *source;
  int threads;
  infc_engine_options options = {.struct_size = sizeof options};
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "Oizzz", names, &source, &threads, &options.isa,
                                   &options.device, &options.tensorrt_library))
    return NULL;
  engine_object *self = (engine_object *)allocate(type);
  if (!self)
    return NULL;
  if (open_source(self, source, &options)) {
    Py_DECREF(self);
    return NULL;
  }
  if (threads != 1 && gpu_of(self->engine) < 0) {
    char why[256] = "";
    infc_pool_options pool = {.struct_size = sizeof pool, .threads = (uint32_t)threads};
    infc_status status = infc_pool_create(&pool, &self->pool, why, sizeof why);
    if (status) {
      Py_DECREF(self);
      return fail(status, why);
    }
  }
  return (PyObject *)self;
}

static void engine_dealloc(PyObject *object) {
  engine_object *self = (engine_object *)object;
  infc_engine_close(self->engine);
  infc_pool_destroy(self->pool);
  free(self->copy);
  if (self->source.obj)
    PyBuffer_Release(&self->source);
  free_object(object);
}

PyTypeObject *rt_engine_type(void) {
  return engine_type;
}

infc_engine *rt_engine(PyObject *engine) {
  return ((engine_object *)engine)->engine;
}

infc_pool *rt_engine_pool(PyObject *engine) {
  return ((engine_object *)engine)->pool;
}

static PyObject *describe(const infc_tensor_info *info) {
  PyObject *dims = PyTuple_New(info->rank);
  for (int32_t d = 0; dims && d < info->rank; d++)
    PyTuple_SetItem(dims, d, Py_BuildValue("Li", (long long)info->dims[d].max, (int)info->dims[d].symbol));
  PyObject *range =
      info->has_range ? Py_BuildValue("LL", (long long)info->range_min, (long long)info->range_max) : Py_BuildValue("");
  return Py_BuildValue("NsNNN", text(info->name), rt_find_dtype(info->dtype)->numpy, dims,
                       PyBool_FromLong(info->optional), range);
}

static PyObject *tensors(const infc_engine *engine, uint32_t count,
                         infc_status (*get)(const infc_engine *, uint32_t, infc_tensor_info *)) {
  PyObject *list = PyList_New(0);
  for (uint32_t i = 0; list && i < count; i++) {
    infc_tensor_info info = {.struct_size = sizeof info};
    get(engine, i, &info);
    PyObject *item = describe(&info);
    if (!item || PyList_Append(list, item))
      Py_CLEAR(list);
    Py_XDECREF(item);
  }
  return list;
}

static PyObject *engine_inputs(PyObject *self, PyObject *none) {
  (void)none;
  const infc_engine *engine = ((engine_object *)self)->engine;
  return tensors(engine, infc_engine_input_count(engine), infc_engine_input);
}

static PyObject *engine_outputs(PyObject *self, PyObject *none) {
  (void)none;
  const infc_engine *engine = ((engine_object *)self)->engine;
  return tensors(engine, infc_engine_output_count(engine), infc_engine_output);
}

static PyObject *engine_symbols(PyObject *self, PyObject *none) {
  (void)none;
  const infc_engine *engine = ((engine_object *)self)->engine;
  PyObject *list = PyList_New(infc_engine_symbol_count(engine));
  for (uint32_t s = 0; list && s < infc_engine_symbol_count(engine); s++)
    PyList_SetItem(list, s, text(infc_engine_symbol(engine, s)));
  return list;
}

static PyObject *engine_profiles(PyObject *self, PyObject *none) {
  (void)none;
  const infc_engine *engine = ((engine_object *)self)->engine;
  uint32_t symbols = infc_engine_symbol_count(engine);
  PyObject *list = PyList_New(infc_engine_profile_count(engine));
  for (uint32_t p = 0; list && p < infc_engine_profile_count(engine); p++) {
    PyObject *sizes = PyList_New(symbols);
    for (uint32_t s = 0; sizes && s < symbols; s++)
      PyList_SetItem(sizes, s, PyLong_FromLongLong(infc_engine_profile_size(engine, p, s)));
    PyList_SetItem(list, p, sizes);
  }
  return list;
}

static PyObject *engine_isa(PyObject *self, PyObject *none) {
  (void)none;
  return text(infc_engine_isa(((engine_object *)self)->engine));
}

static PyObject *engine_device(PyObject *self, PyObject *none) {
  (void)none;
  return text(infc_engine_device(((engine_object *)self)->engine));
}

static PyObject *engine_note(PyObject *self, PyObject *none) {
  (void)none;
  return text(infc_engine_note(((engine_object *)self)->engine));
}

static PyObject *engine_threads(PyObject *self, PyObject *none) {
  (void)none;
  const infc_pool *pool = ((engine_object *)self)->pool;
  return PyLong_FromUnsignedLong(pool ? infc_pool_threads(pool) : 1);
}

static PyObject *engine_verify(PyObject *self, PyObject *none) {
  (void)none;
  char why[256] = "";
  infc_status status;
  Py_BEGIN_ALLOW_THREADS status = infc_engine_verify(((engine_object *)self)->engine, why, sizeof why);
  Py_END_ALLOW_THREADS return status ? fail(status, why) : Py_BuildValue("");
}

static PyObject *engine_section(PyObject *self, PyObject *kind) {
  long number = PyLong_AsLong(kind);
  if (number == -1 && PyErr_Occurred())
    return NULL;
  const void *data;
  size_t size;
  infc_status status = infc_engine_section(((engine_object *)self)->engine, (infc_section_kind)number, &data, &size);
  if (status)
    return rt_fail(status, "the checksum of section kind %ld does not match", number);
  if (!data)
    return Py_BuildValue("");
  section_object *section = (section_object *)allocate(section_type);
  if (!section)
    return NULL;
  section->owner = Py_NewRef(self);
  section->data = data;
  section->size = size;
  PyObject *view = PyMemoryView_FromObject((PyObject *)section);
  Py_DECREF(section);
  return view;
}

static PyMethodDef engine_methods[] = {
    {"inputs", engine_inputs, METH_NOARGS, NULL},
    {"outputs", engine_outputs, METH_NOARGS, NULL},
    {"symbols", engine_symbols, METH_NOARGS, NULL},
    {"profiles", engine_profiles, METH_NOARGS, NULL},
    {"isa", engine_isa, METH_NOARGS, NULL},
    {"device", engine_device, METH_NOARGS, NULL},
    {"note", engine_note, METH_NOARGS, NULL},
    {"threads", engine_threads, METH_NOARGS, NULL},
    {"verify", engine_verify, METH_NOARGS, NULL},
    {"section", engine_section, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot engine_slots[] = {
    {Py_tp_new, engine_new}, {Py_tp_dealloc, engine_dealloc}, {Py_tp_methods, engine_methods}, {0, NULL}};
static PyType_Spec engine_spec = {"infc.runtime._rt.Engine", sizeof(engine_object), 0, Py_TPFLAGS_DEFAULT,
                                  engine_slots};

// ---- Context

typedef struct context_object {
  PyObject_HEAD PyObject *engine;
  infc_context *context;
  uint32_t inputs, outputs, device_arrays; // the latter: how many are bound
  int gpu;                                 // -1 on the CPU
  rt_memory *bound;                        // inputs, then outputs
} context_object;

static const infc_engine *engine_of(const context_object *self) {
  return ((engine_object *)self->engine)->engine;
}

static PyObject *context_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
  static char *names[] = {"engine", NULL};
  PyObject *engine;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!", names, engine_type, &engine))
    return NULL;
  context_object *self = (context_object *)allocate(type);
  if (!self)
    return NULL;
  self->engine = Py_NewRef(engine);
  self->inputs = infc_engine_input_count(engine_of(self));
  self->outputs = infc_engine_output_count(engine_of(self));
  self->gpu = gpu_of(engine_of(self));
  self->bound = calloc(self->inputs + self->outputs, sizeof *self->bound);
  char why[1024] = "";
  infc_context_options options = {.struct_size = sizeof options, .pool = ((engine_object *)engine)->pool};
  infc_status status =
      self->bound ? infc_context_create(((engine_object *)engine)->engine, &options, &self->context, why, sizeof why)
                  : INFC_STATUS_OUT_OF_MEMORY;
  if (status) {
    Py_DECREF(self);
    return fail(status, why);
  }
  return (PyObject *)self;
}

static void context_dealloc(PyObject *object) {
  context_object *self = (context_object *)object;
  infc_context_destroy(self->context);
  for (uint32_t i = 0; self->bound && i < self->inputs + self->outputs; i++)
    rt_release(&self->bound[i]);
  free(self->bound);
  Py_XDECREF(self->engine);
  free_object(object);
}

static PyObject *fail_context(const context_object *self, infc_status status) {
  if (status == INFC_STATUS_BUSY)
    return fail(status, "the context is running in another thread");
  return fail(status, infc_context_error(self->context));
}

// "input 'ids' is int32, not int64": what a user passed instead of a fitting array.
static void fail_array(PyObject *array, const char *role, const infc_tensor_info *info, const rt_dtype *wanted) {
  PyErr_Clear();
  // Tensors have a dtype too, but no buffer.
  PyObject *given = PyObject_CheckBuffer(array) ? PyObject_GetAttrString(array, "dtype") : NULL;
  if (!given) {
    PyErr_Clear();
    PyObject *type = PyType_GetName(Py_TYPE(array));
    rt_fail(INFC_STATUS_INVALID_ARGUMENT, "%s '%s' is a %S, not a numpy array of %s", role, info->name, type,
            wanted->numpy);
    Py_XDECREF(type);
    return;
  }
  PyObject *name = PyObject_Str(given);
  PyObject *expected = PyUnicode_FromString(wanted->numpy);
  if (name && expected && PyUnicode_Compare(name, expected))
    rt_fail(INFC_STATUS_INVALID_ARGUMENT, "%s '%s' is %S, not %s: pass it as .astype(np.%s)", role, info->name, name,
            wanted->numpy, wanted->numpy);
  else if (name && expected)
    rt_fail(INFC_STATUS_INVALID_ARGUMENT, "%s '%s' is not a %sC-contiguous array: pass np.ascontiguousarray of it",
            role, info->name, *role == 'o' ? "writable " : "");
  Py_DECREF(given);
  Py_XDECREF(name);
  Py_XDECREF(expected);
}

// The array's memory, if it is dense, row-major and of the tensor's type.
static int get_memory(const context_object *self, PyObject *array, const char *role, const infc_tensor_info *info,
                      bool writable, rt_memory *memory) {
  if (!PyObject_CheckBuffer(array) && rt_is_dlpack(array))
    return rt_dlpack_memory(array, role, info, self->gpu, writable, memory);
  const rt_dtype *wanted = rt_find_dtype(info->dtype);
  int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
  if (!PyObject_GetBuffer(array, &memory->view, flags)) {
    const char *format = memory->view.format ? memory->view.format : "B";
    if (strlen(format) == 1 && strchr(wanted->formats, *format))
      return 0;
    PyBuffer_Release(&memory->view);
  }
  fail_array(array, role, info, wanted);
  return -1;
}

// A capsule's destructor, which PyBuffer_Release calls, may be another library's Python code.
void rt_release(rt_memory *memory) {
  if (!memory->view.obj)
    return;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyBuffer_Release(&memory->view);
  PyErr_Restore(type, value, trace);
}

// Puts memory that libinfc has taken in the place of what was bound before; that which it has refused is let go of.
static PyObject *keep_memory(context_object *self, uint32_t tensor, rt_memory *memory, infc_status status) {
  rt_memory *kept = &self->bound[tensor], old = status ? *memory : *kept;
  if (!status) {
    self->device_arrays += (uint32_t)memory->device - (uint32_t)kept->device;
    *kept = *memory;
  }
  PyObject *result = status ? fail_context(self, status) : Py_BuildValue("");
  rt_release(&old);
  return result;
}

static PyObject *context_bind_input(PyObject *object, PyObject *arguments) {
  context_object *self = (context_object *)object;
  unsigned int index;
  PyObject *array;
  if (!PyArg_ParseTuple(arguments, "IO", &index, &array))
    return NULL;
  infc_tensor_info info = {.struct_size = sizeof info};
  if (infc_engine_input(engine_of(self), index, &info))
    return rt_fail(INFC_STATUS_INVALID_ARGUMENT, "there is no input %u", index);
  rt_memory memory = {0};
  if (array != Py_None && get_memory(self, array, "input", &info, false, &memory))
    return NULL;
  const Py_buffer *view = &memory.view;
  int64_t dims[PyBUF_MAX_NDIM] = {0};
  for (int d = 0; d < view->ndim && d < PyBUF_MAX_NDIM; d++)
    dims[d] = view->shape[d];
  uint32_t rank = (uint32_t)view->ndim;
  infc_status status = memory.device
                           ? infc_context_bind_input_device(self->context, index, (uintptr_t)view->buf, dims, rank)
                           : infc_context_bind_input(self->context, index, view->buf, dims, rank);
  return keep_memory(self, index, &memory, status);
}

static PyObject *context_bind_output(PyObject *object, PyObject *arguments) {
  context_object *self = (context_object *)object;
  unsigned int index;
  PyObject *array;
  if (!PyArg_ParseTuple(arguments, "IO", &index, &array))
    return NULL;
  infc_tensor_info info = {.struct_size = sizeof info};
  if (infc_engine_output(engine_of(self), index, &info))
    return rt_fail(INFC_STATUS_INVALID_ARGUMENT, "there is no output %u", index);
  rt_memory memory = {0};
  if (array != Py_None && get_memory(self, array, "output", &info, true, &memory))
    return NULL;
  const Py_buffer *view = &memory.view;
  infc_status status =
      memory.device ? infc_context_bind_output_device(self->context, index, (uintptr_t)view->buf, (size_t)view->len)
                    : infc_context_bind_output(self->context, index, view->buf, (size_t)view->len);
  return keep_memory(self, self->inputs + index, &memory, status);
}

static PyObject *context_output_dims(PyObject *object, PyObject *index) {
  context_object *self = (context_object *)object;
  unsigned long number = PyLong_AsUnsignedLong(index);
  if (PyErr_Occurred())
    return NULL;
  int64_t dims[INFC_MAX_DIMS];
  uint32_t rank;
  infc_status status = infc_context_output_dims(self->context, (uint32_t)number, dims, &rank);
  if (status)
    return fail_context(self, status);
  PyObject *tuple = PyTuple_New(rank);
  for (uint32_t d = 0; tuple && d < rank; d++)
    PyTuple_SetItem(tuple, d, PyLong_FromLongLong(dims[d]));
  return tuple;
}

// Arrays of the device's are written and read by other libraries, on the default stream unless told otherwise: a run on
// that stream comes after what wrote its inputs and before what reads its outputs.
static void *default_stream(const context_object *self) {
  return self->device_arrays ? (void *)RT_DEFAULT_STREAM : NULL;
}

static infc_status run(context_object *self) {
  if (!self->device_arrays)
    return infc_run(self->context);
  infc_status status = infc_run_async(self->context, default_stream(self));
  return status ? status : infc_context_wait(self->context);
}

static PyObject *context_run(PyObject *object, PyObject *none) {
  (void)none;
  context_object *self = (context_object *)object;
  infc_status status;
  Py_BEGIN_ALLOW_THREADS status = run(self);
  Py_END_ALLOW_THREADS return status ? fail_context(self, status) : Py_NewRef(Py_None);
}

static PyObject *context_enqueue(PyObject *object, PyObject *handle) {
  context_object *self = (context_object *)object;
  void *stream = default_stream(self);
  if (handle != Py_None) {
    unsigned long long number = PyLong_AsUnsignedLongLong(handle);
    if (PyErr_Occurred())
      return NULL;
    stream = (void *)(uintptr_t)(number ? number : RT_DEFAULT_STREAM); // 0 is its other name
  }
  infc_status status;
  Py_BEGIN_ALLOW_THREADS status = infc_run_async(self->context, stream);
  Py_END_ALLOW_THREADS return status ? fail_context(self, status) : Py_NewRef(Py_None);
}

static PyObject *context_wait(PyObject *object, PyObject *none) {
  (void)none;
  context_object *self = (context_object *)object;
  infc_status status;
  Py_BEGIN_ALLOW_THREADS status = infc_context_wait(self->context);
  Py_END_ALLOW_THREADS return status ? fail_context(self, status) : Py_NewRef(Py_None);
}

static PyObject *context_set_timing(PyObject *object, PyObject *on) {
  context_object *self = (context_object *)object;
  int truth = PyObject_IsTrue(on);
  if (truth < 0)
    return NULL;
  infc_status status = infc_context_set_timing(self->context, truth);
  return status ? fail_context(self, status) : Py_BuildValue("");
}

static PyObject *context_step_times(PyObject *object, PyObject *none) {
  (void)none;
  const infc_context *context = ((context_object *)object)->context;
  PyObject *list = PyList_New(0);
  infc_step_time time = {.struct_size = sizeof time};
  for (uint32_t s = 0; list && !infc_context_step_time(context, s, &time); s++) {
    PyObject *record =
        Py_BuildValue("NNKd", text(time.name), text(time.kernel), (unsigned long long)time.calls, time.seconds);
    if (!record || PyList_Append(list, record))
      Py_CLEAR(list);
    Py_XDECREF(record);
  }
  return list;
}

static PyObject *context_drift(PyObject *object, PyObject *none) {
  (void)none;
  const infc_context *context = ((context_object *)object)->context;
  PyObject *list = PyList_New(0);
  infc_drift drift = {.struct_size = sizeof drift};
  for (uint32_t layer = 0; list && !infc_context_drift(context, layer, &drift); layer++) {
    PyObject *record = Py_BuildValue("NfffffKKK", text(drift.name), drift.low, drift.high, drift.expected, drift.least,
                                     drift.greatest, (unsigned long long)drift.values, (unsigned long long)drift.beyond,
                                     (unsigned long long)drift.runs);
    if (!record || PyList_Append(list, record))
      Py_CLEAR(list);
    Py_XDECREF(record);
  }
  return list;
}

static PyObject *context_set_watch(PyObject *object, PyObject *argument) {
  context_object *self = (context_object *)object;
  const unsigned long every = PyLong_AsUnsignedLong(argument);
  if (PyErr_Occurred())
    return NULL;
  if (every > UINT32_MAX)
    return PyErr_Format(PyExc_OverflowError, "every %lu runs", every);
  infc_status status = infc_context_set_watch(self->context, (uint32_t)every);
  return status ? fail_context(self, status) : Py_BuildValue("");
}

// A trace in progress: a Python function, and the exception that it has raised.
typedef struct trace_state {
  PyObject *function, *type, *value, *traceback;
} trace_state;

// The rows in use, one after the other.
static PyObject *dense(const infc_traced *traced, size_t element) {
  size_t row = element;
  for (int d = 1; d < traced->rank; d++)
    row *= (size_t)traced->dims[d];
  PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(row * (size_t)traced->dims[0]));
  for (int64_t r = 0; bytes && r < traced->dims[0]; r++)
    memcpy(PyBytes_AsString(bytes) + (size_t)r * row,
           (const char *)traced->data + (size_t)r * (size_t)traced->row_stride * element, row);
  return bytes;
}

static PyObject *call_trace(PyObject *function, const infc_traced *traced) {
  const rt_dtype *dtype = rt_find_dtype(traced->dtype);
  PyObject *shape = PyTuple_New(traced->rank), *data = dense(traced, dtype->bits / 8);
  for (int d = 0; shape && d < traced->rank; d++)
    PyTuple_SetItem(shape, d, PyLong_FromLongLong(traced->dims[d]));
  if (!shape || !data) {
    Py_XDECREF(shape);
    Py_XDECREF(data);
    return NULL;
  }
  return PyObject_CallFunction(function, "IINNIsNN", traced->step, traced->output, text(traced->name),
                               text(traced->kernel), (unsigned int)traced->dtype, dtype->numpy, shape, data);
}

static void on_traced(void *user, const infc_traced *traced) {
  trace_state *state = user;
  PyGILState_STATE lock = PyGILState_Ensure();
  if (!state->type) {
    Py_XDECREF(call_trace(state->function, traced));
    PyErr_Fetch(&state->type, &state->value, &state->traceback);
  }
  PyGILState_Release(lock);
}

// One run that calls a function with (step, output, name, kernel, type, numpy's type, shape, bytes) of each value.
static PyObject *context_run_traced(PyObject *object, PyObject *function) {
  context_object *self = (context_object *)object;
  trace_state state = {.function = function};
  infc_status status = infc_context_set_trace(self->context, on_traced, &state);
  if (status)
    return fail_context(self, status);
  Py_BEGIN_ALLOW_THREADS status = infc_run(self->context);
  infc_context_set_trace(self->context, NULL, NULL);
  Py_END_ALLOW_THREADS if (state.type) {
    PyErr_Restore(state.type, state.value, state.traceback);
    return NULL;
  }
  return status ? fail_context(self, status) : Py_NewRef(Py_None);
}

static PyObject *context_memory(PyObject *object, PyObject *none) {
  (void)none;
  return PyLong_FromSize_t(infc_context_memory(((context_object *)object)->context));
}

static PyMethodDef context_methods[] = {
    {"bind_input", context_bind_input, METH_VARARGS, NULL},
    {"bind_output", context_bind_output, METH_VARARGS, NULL},
    {"output_dims", context_output_dims, METH_O, NULL},
    {"run", context_run, METH_NOARGS, NULL},
    {"run_traced", context_run_traced, METH_O, NULL},
    {"enqueue", context_enqueue, METH_O, NULL},
    {"wait", context_wait, METH_NOARGS, NULL},
    {"set_timing", context_set_timing, METH_O, NULL},
    {"times", context_step_times, METH_NOARGS, NULL},
    {"counts", context_drift, METH_NOARGS, NULL},
    {"set_watch", context_set_watch, METH_O, NULL},
    {"allocated", context_memory, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot context_slots[] = {
    {Py_tp_new, context_new}, {Py_tp_dealloc, context_dealloc}, {Py_tp_methods, context_methods}, {0, NULL}};
static PyType_Spec context_spec = {"infc.runtime._rt.Context", sizeof(context_object), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, context_slots};

// ---- Module

static PyObject *kernels(PyObject *module, PyObject *none) {
  (void)module, (void)none;
  PyObject *list = PyList_New((Py_ssize_t)infc_kernel_count);
  for (size_t i = 0; list && i < infc_kernel_count; i++) {
    const infc_kernel *kernel = &infc_kernels[i];
    PyList_SetItem(list, (Py_ssize_t)i,
                   Py_BuildValue("sss", kernel->name, infc_operators[kernel->op].name, infc_isa_name(kernel->isa)));
  }
  return list;
}

static PyObject *cpu_isa(PyObject *module, PyObject *none) {
  (void)module, (void)none;
  return text(infc_cpu_isa());
}

static PyMethodDef functions[] = {
    {"kernels", kernels, METH_NOARGS, NULL}, {"cpu_isa", cpu_isa, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_rt", NULL, -1, functions, NULL, NULL, NULL, NULL};

int rt_add_type(PyObject *module, const char *name, PyType_Spec *spec, PyTypeObject **type) {
  *type = (PyTypeObject *)PyType_FromSpec(spec);
  return *type ? PyModule_AddObjectRef(module, name, (PyObject *)*type) : -1;
}

PyMODINIT_FUNC PyInit__rt(void) {
  PyObject *module = PyModule_Create(&definition);
  error_type = PyErr_NewExceptionWithDoc("infc.runtime.Error", "A failure of the runtime; `status` is a Status.",
                                         PyExc_ValueError, NULL);
  if (!module || !error_type || PyModule_AddObjectRef(module, "Error", error_type) ||
      rt_add_type(module, "Engine", &engine_spec, &engine_type) ||
      rt_add_type(module, "Context", &context_spec, &context_type) ||
      rt_add_type(module, "Section", &section_spec, &section_type) || rt_add_lm(module) ||
      PyModule_AddStringConstant(module, "version", infc_version()))
    Py_CLEAR(module);
  return module;
}
