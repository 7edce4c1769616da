// infc.runtime._rt.LM, Sequence and Request: language models for Python.
#include "rt.h"

#include <stdlib.h>
#include <string.h>

static PyTypeObject *lm_type, *sequence_type, *request_type;

typedef struct lm_object {
  PyObject_HEAD PyObject *engine;
  infc_lm *lm;
} lm_object;

static PyObject *fail_lm(const infc_lm *lm, infc_status status) {
  if (status == INFC_STATUS_BUSY)
    return rt_fail(status, "the model is at work in another thread");
  return rt_fail(status, "%s", infc_lm_error(lm));
}

static PyObject *make(PyTypeObject *type) {
  return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

static void unmake(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
  Py_DECREF(type);
}

// A buffer of int32.
static int get_tokens(PyObject *array, Py_buffer *view) {
  if (PyObject_GetBuffer(array, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT))
    return -1;
  if (view->itemsize == 4 && view->format && *view->format == 'i')
    return 0;
  PyBuffer_Release(view);
  rt_fail(INFC_STATUS_INVALID_ARGUMENT, "tokens are an array of int32");
  return -1;
}

// ---- LM

static PyObject *lm_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
  static char *names[] = {"engine",       "cache_tokens",       "cache_bytes", "max_sequences",
                          "prefix_cache", "max_batched_tokens", NULL};
  PyObject *engine;
  unsigned long long tokens, bytes;
  int prefix;
  infc_lm_options options = {.struct_size = sizeof options};
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!KKIpI", names, rt_engine_type(), &engine, &tokens, &bytes,
                                   &options.max_sequences, &prefix, &options.max_batched_tokens))
    return NULL;
  options.cache_tokens = tokens;
  options.cache_bytes = bytes;
  options.no_prefix_cache = !prefix;
  options.pool = rt_engine_pool(engine);
  lm_object *self = (lm_object *)make(type);
  if (!self)
    return NULL;
  self->engine = Py_NewRef(engine);
  char why[512] = "";
  const infc_status status = infc_lm_create(rt_engine(engine), &options, &self->lm, why, sizeof why);
  if (status) {
    Py_DECREF(self);
    return rt_fail(status, "%s", why);
  }
  return (PyObject *)self;
}

static void lm_dealloc(PyObject *object) {
  lm_object *self = (lm_object *)object;
  infc_lm_destroy(self->lm);
  Py_XDECREF(self->engine);
  unmake(object);
}

static PyObject *lm_info(PyObject *object, PyObject *none) {
  (void)none;
  infc_lm_info i = {.struct_size = sizeof i};
  infc_lm_get_info(((lm_object *)object)->lm, &i);
  typedef unsigned long long wide;
  return Py_BuildValue("{sIsIsIsIsIsIsIsKsKsKsKsKsK}", "context", i.context, "vocabulary", i.vocabulary, "block_tokens",
                       i.block_tokens, "max_tokens", i.max_tokens, "max_rows", i.max_rows, "max_sequences",
                       i.max_sequences, "sequences", i.sequences, "cache_tokens", (wide)i.cache_tokens, "free_tokens",
                       (wide)i.free_tokens, "cache_bytes", (wide)i.cache_bytes, "memory", (wide)i.memory, "prefix_hits",
                       (wide)i.prefix_hits, "prefix_asked", (wide)i.prefix_asked);
}

static PyObject *lm_advance(PyObject *object, PyObject *none) {
  (void)none;
  infc_lm *lm = ((lm_object *)object)->lm;
  uint32_t unfinished;
  infc_status status;
  Py_BEGIN_ALLOW_THREADS status = infc_lm_advance(lm, &unfinished);
  Py_END_ALLOW_THREADS return status ? fail_lm(lm, status) : PyLong_FromUnsignedLong(unfinished);
}

static PyObject *lm_token_text(PyObject *object, PyObject *token) {
  const long number = PyLong_AsLong(token);
  if (number == -1 && PyErr_Occurred())
    return NULL;
  size_t size;
  const char *text = infc_lm_token_text(((lm_object *)object)->lm, (int32_t)number, &size);
  return PyBytes_FromStringAndSize(text, (Py_ssize_t)size);
}

// ---- Sequence

typedef struct sequence_object {
  PyObject_HEAD PyObject *owner; // the LM
  infc_sequence *sequence;
} sequence_object;

static infc_lm *lm_of(const sequence_object *self) {
  return ((lm_object *)self->owner)->lm;
}

static PyObject *wrap_sequence(PyObject *owner, infc_sequence *sequence) {
  sequence_object *self = (sequence_object *)make(sequence_type);
  if (!self) {
    infc_sequence_destroy(sequence);
    return NULL;
  }
  self->owner = Py_NewRef(owner);
  self->sequence = sequence;
  return (PyObject *)self;
}

static void sequence_dealloc(PyObject *object) {
  sequence_object *self = (sequence_object *)object;
  infc_sequence_destroy(self->sequence);
  Py_XDECREF(self->owner);
  unmake(object);
}

static PyObject *lm_sequence(PyObject *object, PyObject *none) {
  (void)none;
  infc_lm *lm = ((lm_object *)object)->lm;
  infc_sequence *sequence;
  const infc_status status = infc_sequence_create(lm, &sequence);
  return status ? fail_lm(lm, status) : wrap_sequence(object, sequence);
}

static PyObject *sequence_fork(PyObject *object, PyObject *none) {
  (void)none;
  const sequence_object *self = (sequence_object *)object;
  infc_sequence *made;
  const infc_status status = infc_sequence_fork(self->sequence, &made);
  return status ? fail_lm(lm_of(self), status) : wrap_sequence(self->owner, made);
}

static PyObject *sequence_truncate(PyObject *object, PyObject *length) {
  const sequence_object *self = (sequence_object *)object;
  const unsigned long number = PyLong_AsUnsignedLong(length);
  if (PyErr_Occurred())
    return NULL;
  const infc_status status = infc_sequence_truncate(self->sequence, (uint32_t)number);
  return status ? fail_lm(lm_of(self), status) : Py_NewRef(Py_None);
}

static PyObject *sequence_reuse(PyObject *object, PyObject *tokens) {
  const sequence_object *self = (sequence_object *)object;
  Py_buffer view;
  if (get_tokens(tokens, &view))
    return NULL;
  uint32_t reused;
  const infc_status status = infc_sequence_reuse(self->sequence, view.buf, (uint32_t)(view.len / 4), &reused);
  PyBuffer_Release(&view);
  return status ? fail_lm(lm_of(self), status) : PyLong_FromUnsignedLong(reused);
}

static PyObject *sequence_tokens(PyObject *object, PyObject *none) {
  (void)none;
  const infc_sequence *sequence = ((sequence_object *)object)->sequence;
  return PyBytes_FromStringAndSize((const char *)infc_sequence_tokens(sequence),
                                   (Py_ssize_t)infc_sequence_length(sequence) * 4);
}

static PyObject *sequence_save(PyObject *object, PyObject *none) {
  (void)none;
  const sequence_object *self = (sequence_object *)object;
  const size_t size = infc_sequence_save_size(self->sequence);
  PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
  if (!bytes)
    return NULL;
  const infc_status status = infc_sequence_save(self->sequence, PyBytes_AsString(bytes), size);
  if (!status)
    return bytes;
  Py_DECREF(bytes);
  return fail_lm(lm_of(self), status);
}

static PyObject *sequence_restore(PyObject *object, PyObject *saved) {
  const sequence_object *self = (sequence_object *)object;
  Py_buffer view;
  if (PyObject_GetBuffer(saved, &view, PyBUF_SIMPLE))
    return NULL;
  const infc_status status = infc_sequence_restore(self->sequence, view.buf, (size_t)view.len);
  PyBuffer_Release(&view);
  return status ? fail_lm(lm_of(self), status) : Py_NewRef(Py_None);
}

static Py_ssize_t sequence_length(PyObject *object) {
  return infc_sequence_length(((sequence_object *)object)->sequence);
}

static PyMethodDef sequence_methods[] = {
    {"fork", sequence_fork, METH_NOARGS, NULL},
    {"truncate", sequence_truncate, METH_O, NULL},
    {"reuse", sequence_reuse, METH_O, NULL},
    {"tokens", sequence_tokens, METH_NOARGS, NULL},
    {"save", sequence_save, METH_NOARGS, NULL},
    {"restore", sequence_restore, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot sequence_slots[] = {
    {Py_tp_dealloc, sequence_dealloc}, {Py_tp_methods, sequence_methods}, {Py_sq_length, sequence_length}, {0, NULL}};
static PyType_Spec sequence_spec = {"infc.runtime._rt.Sequence", sizeof(sequence_object), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, sequence_slots};

// The parts of a step: a list of (sequence, tokens, rows).
static int get_parts(PyObject *list, Py_ssize_t count, infc_lm_part *parts, Py_buffer *views) {
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *item = PyList_GetItem(list, i), *sequence, *tokens;
    if (!PyTuple_Check(item) ||
        !PyArg_ParseTuple(item, "O!OI", sequence_type, &sequence, &tokens, &parts[i].logit_rows) ||
        get_tokens(tokens, &views[i])) {
      if (!PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "a part is a tuple (sequence, tokens, rows)");
      return -1;
    }
    parts[i].sequence = ((sequence_object *)sequence)->sequence;
    parts[i].tokens = views[i].buf;
    parts[i].count = (uint32_t)(views[i].len / 4);
  }
  return 0;
}

static PyObject *lm_step(PyObject *object, PyObject *arguments) {
  infc_lm *lm = ((lm_object *)object)->lm;
  PyObject *list;
  Py_buffer logits;
  if (!PyArg_ParseTuple(arguments, "O!w*", &PyList_Type, &list, &logits))
    return NULL;
  const Py_ssize_t count = PyList_Size(list);
  infc_lm_part *parts = calloc((size_t)count + 1, sizeof *parts);
  Py_buffer *views = calloc((size_t)count + 1, sizeof *views);
  PyObject *result = NULL;
  if (!parts || !views)
    PyErr_NoMemory();
  else if (!get_parts(list, count, parts, views)) {
    infc_status status;
    Py_BEGIN_ALLOW_THREADS status = infc_lm_step(lm, parts, (uint32_t)count, logits.buf, (size_t)logits.len);
    Py_END_ALLOW_THREADS result = status ? fail_lm(lm, status) : Py_NewRef(Py_None);
  }
  for (Py_ssize_t i = 0; views && i < count; i++)
    if (views[i].obj)
      PyBuffer_Release(&views[i]);
  PyBuffer_Release(&logits);
  free(parts);
  free(views);
  return result;
}

// ---- Request: an iterator of tokens

typedef struct request_object {
  PyObject_HEAD PyObject *owner; // the LM
  infc_request *request;
  PyObject *mask;                 // or NULL
  PyObject *draft;                // an LM, or NULL
  PyObject *type, *value, *trace; // what the mask raised
  infc_finish finish;
} request_object;

// Calls the mask with the tokens and with bits to clear, both as memory that is valid until it returns.
static void call_mask(void *user, const int32_t *tokens, uint32_t count, uint32_t *allowed) {
  request_object *self = user;
  infc_lm_info info = {.struct_size = sizeof info};
  infc_lm_get_info(((lm_object *)self->owner)->lm, &info);
  const Py_ssize_t bytes = (Py_ssize_t)(info.vocabulary + 31) / 32 * 4;
  PyGILState_STATE lock = PyGILState_Ensure();
  PyObject *given = PyBytes_FromStringAndSize((const char *)tokens, (Py_ssize_t)count * 4);
  PyObject *bits = self->type || !given ? NULL : PyObject_CallFunctionObjArgs(self->mask, given, NULL);
  char *from;
  Py_ssize_t size;
  if (bits && !PyBytes_AsStringAndSize(bits, &from, &size) && size == bytes) {
    memcpy(allowed, from, (size_t)bytes);
  } else if (!self->type) {
    if (!PyErr_Occurred())
      rt_fail(INFC_STATUS_INVALID_ARGUMENT, "the mask has not given %zd bytes", bytes);
    PyErr_Fetch(&self->type, &self->value, &self->trace);
    memset(allowed, 0, (size_t)bytes);
  }
  Py_XDECREF(given);
  Py_XDECREF(bits);
  PyGILState_Release(lock);
}

static int get_strings(PyObject *list, infc_generate_options *options, const char **strings) {
  options->stop_string_count = (uint32_t)PyList_Size(list);
  for (uint32_t i = 0; i < options->stop_string_count; i++)
    if (!(strings[i] = PyBytes_AsString(PyList_GetItem(list, i))))
      return -1;
  options->stop_strings = strings;
  return 0;
}

static int get_biases(PyObject *list, infc_generate_options *options, infc_logit_bias *biases) {
  options->bias_count = (uint32_t)PyList_Size(list);
  for (uint32_t i = 0; i < options->bias_count; i++)
    if (!PyArg_ParseTuple(PyList_GetItem(list, i), "if", &biases[i].token, &biases[i].bias))
      return -1;
  options->bias = biases;
  return 0;
}

static PyObject *lm_submit(PyObject *object, PyObject *arguments, PyObject *keywords) {
  static char *names[] = {"tokens",
                          "max_new_tokens",
                          "ignore_eos",
                          "temperature",
                          "top_k",
                          "top_p",
                          "min_p",
                          "repetition_penalty",
                          "presence_penalty",
                          "frequency_penalty",
                          "seed",
                          "bias",
                          "stop_tokens",
                          "stop_strings",
                          "log_probabilities",
                          "mask",
                          "prompt_lookup",
                          "draft",
                          NULL};
  infc_lm *lm = ((lm_object *)object)->lm;
  infc_generate_options o = {.struct_size = sizeof o};
  PyObject *tokens, *bias, *stops, *strings, *mask, *draft;
  unsigned long long seed;
  int ignore, probabilities, lookup;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O$IpfIfffffKO!OO!pOpO", names, &tokens, &o.max_new_tokens,
                                   &ignore, &o.temperature, &o.top_k, &o.top_p, &o.min_p, &o.repetition_penalty,
                                   &o.presence_penalty, &o.frequency_penalty, &seed, &PyList_Type, &bias, &stops,
                                   &PyList_Type, &strings, &probabilities, &mask, &lookup, &draft))
    return NULL;
  o.ignore_eos = (uint32_t)ignore;
  o.log_probabilities = (uint32_t)probabilities;
  o.prompt_lookup = (uint32_t)lookup;
  o.seed = seed;
  request_object *self = (request_object *)make(request_type);
  if (!self)
    return NULL;
  self->owner = Py_NewRef(object);
  if (PyObject_TypeCheck(draft, lm_type)) {
    self->draft = Py_NewRef(draft);
    o.draft = ((lm_object *)draft)->lm;
  }
  if (mask != Py_None) {
    self->mask = Py_NewRef(mask);
    o.mask = call_mask;
    o.mask_user = self;
  }
  Py_buffer prompt = {0}, ends = {0};
  const char **texts = malloc(((size_t)PyList_Size(strings) + 1) * sizeof *texts);
  infc_logit_bias *biases = malloc(((size_t)PyList_Size(bias) + 1) * sizeof *biases);
  if (!texts || !biases)
    PyErr_NoMemory();
  else if (!get_tokens(tokens, &prompt) && !get_tokens(stops, &ends) && !get_strings(strings, &o, texts) &&
           !get_biases(bias, &o, biases)) {
    o.stop_tokens = ends.buf;
    o.stop_token_count = (uint32_t)(ends.len / 4);
    const infc_status status = infc_lm_submit(lm, prompt.buf, (uint32_t)(prompt.len / 4), &o, &self->request);
    if (status)
      fail_lm(lm, status);
  }
  if (prompt.obj)
    PyBuffer_Release(&prompt);
  if (ends.obj)
    PyBuffer_Release(&ends);
  free(texts);
  free(biases);
  if (!self->request)
    Py_CLEAR(self);
  return (PyObject *)self;
}

static void request_dealloc(PyObject *object) {
  request_object *self = (request_object *)object;
  infc_request_destroy(self->request);
  Py_XDECREF(self->type);
  Py_XDECREF(self->value);
  Py_XDECREF(self->trace);
  Py_XDECREF(self->mask);
  Py_XDECREF(self->draft);
  Py_XDECREF(self->owner);
  unmake(object);
}

static int next_event(request_object *self, infc_event *event) {
  infc_status status = INFC_STATUS_OK;
  if (!infc_request_poll(self->request, event)) {
    Py_BEGIN_ALLOW_THREADS status = infc_request_next(self->request, event);
    Py_END_ALLOW_THREADS
  }
  if (status) {
    fail_lm(((lm_object *)self->owner)->lm, status);
    return -1;
  }
  self->finish = event->finish;
  if (self->finish && self->type) {
    PyErr_Restore(self->type, self->value, self->trace);
    self->type = self->value = self->trace = NULL;
    return -1;
  }
  return 0;
}

static PyObject *request_iternext(PyObject *object) {
  infc_event event = {.struct_size = sizeof event};
  if (next_event((request_object *)object, &event) || event.finish)
    return NULL;
  return PyLong_FromLong(event.token);
}

// (token or None at the end, text as bytes, log probability)
static PyObject *request_event(PyObject *object, PyObject *none) {
  (void)none;
  infc_event event = {.struct_size = sizeof event};
  if (next_event((request_object *)object, &event))
    return NULL;
  PyObject *token = event.finish ? Py_NewRef(Py_None) : PyLong_FromLong(event.token);
  return Py_BuildValue("Ny#d", token, event.text, (Py_ssize_t)event.text_size, (double)event.log_probability);
}

static PyObject *request_finish(PyObject *object, PyObject *none) {
  (void)none;
  return PyLong_FromLong(((request_object *)object)->finish);
}

static PyObject *request_cancel(PyObject *object, PyObject *none) {
  (void)none;
  infc_request_cancel(((request_object *)object)->request);
  return Py_NewRef(Py_None);
}

static PyObject *request_stats(PyObject *object, PyObject *none) {
  (void)none;
  infc_generation_stats s = {.struct_size = sizeof s};
  infc_request_stats(((request_object *)object)->request, &s);
  return Py_BuildValue("{sIsIsIsIsIsIsdsdsdsd}", "prompt_tokens", s.prompt_tokens, "cached_tokens", s.cached_tokens,
                       "new_tokens", s.new_tokens, "guessed", s.guessed, "accepted", s.accepted, "preemptions",
                       s.preemptions, "queue_seconds", s.queue_seconds, "prefill_seconds", s.prefill_seconds,
                       "decode_seconds", s.decode_seconds, "sample_seconds", s.sample_seconds);
}

static PyMethodDef request_methods[] = {
    {"event", request_event, METH_NOARGS, NULL},
    {"finish", request_finish, METH_NOARGS, NULL},
    {"cancel", request_cancel, METH_NOARGS, NULL},
    {"stats", request_stats, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot request_slots[] = {{Py_tp_dealloc, request_dealloc},
                                      {Py_tp_methods, request_methods},
                                      {Py_tp_iter, PyObject_SelfIter},
                                      {Py_tp_iternext, request_iternext},
                                      {0, NULL}};
static PyType_Spec request_spec = {"infc.runtime._rt.Request", sizeof(request_object), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, request_slots};

static PyMethodDef lm_methods[] = {
    {"info", lm_info, METH_NOARGS, NULL},
    {"advance", lm_advance, METH_NOARGS, NULL},
    {"token_text", lm_token_text, METH_O, NULL},
    {"sequence", lm_sequence, METH_NOARGS, NULL},
    {"step", lm_step, METH_VARARGS, NULL},
    {"submit", (PyCFunction)(void (*)(void))lm_submit, METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot lm_slots[] = {
    {Py_tp_new, lm_new}, {Py_tp_dealloc, lm_dealloc}, {Py_tp_methods, lm_methods}, {0, NULL}};
static PyType_Spec lm_spec = {"infc.runtime._rt.LM", sizeof(lm_object), 0, Py_TPFLAGS_DEFAULT, lm_slots};

int rt_add_lm(PyObject *module) {
  return rt_add_type(module, "LM", &lm_spec, &lm_type) ||
         rt_add_type(module, "Sequence", &sequence_spec, &sequence_type) ||
         rt_add_type(module, "Request", &request_spec, &request_type);
}
