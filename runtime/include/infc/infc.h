/* infc: run a compiled neural network.
 *
 * An artifact (`*.infc`) is opened as an engine, a context binds the caller's buffers to it, infc_run computes.
 *
 *   int64_t ids[] = {101, 1996, 7115, 2001, 2397, 1012, 102}, shape[] = {1, 7};
 *   float hidden[7 * 384], embedding[384];
 *   infc_engine *engine;
 *   infc_context *context;
 *   char why[256];
 *   if (infc_engine_open("minilm.infc", NULL, &engine, why, sizeof why)) return puts(why), 1;
 *   if (infc_context_create(engine, NULL, &context, why, sizeof why)) return puts(why), 1;
 *   int32_t in = infc_engine_find_input(engine, "input_ids");
 *   int32_t out[] = {infc_engine_find_output(engine, "last_hidden_state"),
 *                    infc_engine_find_output(engine, "sentence_embedding")};
 *   if (in < 0 || out[0] < 0 || out[1] < 0) return puts("another model"), 1;
 *   if (infc_context_bind_input(context, (uint32_t)in, ids, shape, 2) ||
 *       infc_context_bind_output(context, (uint32_t)out[0], hidden, sizeof hidden) ||
 *       infc_context_bind_output(context, (uint32_t)out[1], embedding, sizeof embedding) || infc_run(context))
 *     return puts(infc_context_error(context)), 1;
 *   infc_context_destroy(context);
 *   infc_engine_close(engine);
 *
 * All outputs must be bound, and all inputs but the optional ones: here attention_mask and token_type_ids are left out
 * and read as their `fill`.
 *
 * Conventions
 *   - A function that can fail returns infc_status; 0 is success. Nothing is written through `out` on failure.
 *   - A function that returns anything else needs valid pointers; NULL is allowed where it says so.
 *   - `error`, `error_size`: a buffer of the caller's that receives one line of text on failure; NULL, 0 is allowed.
 *   - Option structs begin with struct_size: set it to sizeof the struct, zero the rest. NULL means all defaults.
 *   - What is not declared here is not API. Values only grow: none is renumbered.
 */
#ifndef INFC_H
#define INFC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define INFC_API __attribute__((visibility("default")))
#else
#define INFC_API
#endif

#define INFC_MAX_DIMS 8

typedef enum infc_status {
  INFC_STATUS_OK = 0,
  INFC_STATUS_INVALID_ARGUMENT = 1, /* a NULL or out-of-range argument of the call itself */
  INFC_STATUS_OUT_OF_MEMORY = 2,
  INFC_STATUS_IO = 3,           /* the file cannot be opened, read or mapped */
  INFC_STATUS_BAD_ARTIFACT = 4, /* not an artifact, truncated or corrupt */
  INFC_STATUS_INCOMPATIBLE = 5, /* a newer format; or a CPU, GPU, driver or library it was not built for */
  INFC_STATUS_BAD_SHAPE = 6,    /* a bound tensor's dimensions fit no profile, or a buffer is too small */
  INFC_STATUS_BAD_VALUE = 7,  /* an input value outside its declared range, such as a token id beyond the vocabulary */
  INFC_STATUS_NOT_BOUND = 8,  /* infc_run with an input or output that has no buffer */
  INFC_STATUS_BUSY = 9,       /* the context is running in another thread */
  INFC_STATUS_INTERNAL = 10,  /* a bug in infc */
  INFC_STATUS_DEVICE = 11,    /* the GPU, its driver or TensorRT failed while running */
  INFC_STATUS_CACHE_FULL = 12 /* a language model's cache has too few free blocks, or no free sequence */
} infc_status;

/* ONNX's TensorProto.DataType numbers. Types of 4 and 2 bits lie one element a byte, in its low bits. */
typedef enum infc_dtype {
  INFC_F32 = 1,
  INFC_U8 = 2,
  INFC_I8 = 3,
  INFC_U16 = 4,
  INFC_I16 = 5,
  INFC_I32 = 6,
  INFC_I64 = 7,
  INFC_BOOL = 9,
  INFC_F16 = 10,
  INFC_F64 = 11,
  INFC_U32 = 12,
  INFC_U64 = 13,
  INFC_BF16 = 16,
  INFC_F8E4M3FN = 17,
  INFC_F8E4M3FNUZ = 18,
  INFC_F8E5M2 = 19,
  INFC_F8E5M2FNUZ = 20,
  INFC_U4 = 21,
  INFC_I4 = 22,
  INFC_F4E2M1 = 23,
  INFC_F8E8M0 = 24,
  INFC_U2 = 25,
  INFC_I2 = 26
} infc_dtype;

/* Sections of an artifact that a program may want to read. */
typedef enum infc_section_kind {
  INFC_META = 1,      /* JSON: source, options, versions, layers */
  INFC_TOKENIZER = 6, /* the model's own tokenizer files, as an uncompressed tar */
  INFC_GOLDEN = 7,    /* inputs and expected outputs */
  INFC_REPORT = 8     /* JSON: what was built */
} infc_section_kind;

/* Memory functions of the caller's. `alloc` returns memory at a multiple of `alignment` or NULL. Both may be called
 * from any thread that creates or destroys infc objects; infc_run never calls them. */
typedef struct infc_allocator {
  void *(*alloc)(void *user, size_t size, size_t alignment);
  void (*free)(void *user, void *memory);
  void *user;
} infc_allocator;

/* ---- Library ------------------------------------------------------------------------------------------------- */

INFC_API const char *infc_version(void);
/* A short English phrase for a status; never NULL. */
INFC_API const char *infc_status_string(infc_status status);
/* The highest instruction set of this machine that the operating system lets programs use: "scalar", "x86-64-v3" or
 * "x86-64-v4". */
INFC_API const char *infc_cpu_isa(void);

/* ---- Engine: an opened artifact --------------------------------------------------------------------------------
 * Immutable; any number of threads may use one at the same time. Contexts keep their engine alive: close it whenever
 * you no longer need it yourself. */
typedef struct infc_engine infc_engine;

typedef struct infc_engine_options {
  size_t struct_size;
  const infc_allocator *allocator; /* copied; NULL: malloc */
  const char *isa; /* run programs of this instruction set; NULL: the best both the file and the CPU have */
  /* "cpu"; "cuda" or "cuda:1": the TensorRT engine on that GPU, or failure that says why not, in up to 1 KiB of text;
   * NULL or "auto": the first GPU that the file has an engine for, if everything needed is here and `isa` is not set,
   * else the CPU. */
  const char *device;
  /* Path of libtensorrt_rtx.so.1 or libnvinfer.so.11; NULL: the loader searches. */
  const char *tensorrt_library;
} infc_engine_options;

/* The file is mapped, its whole structure is validated, weights are not read; but those of a language model that runs
 * on the CPU are copied to memory in large pages, where there is enough. Replacing the file by renaming another over it
 * is safe while it is open; writing to it or truncating it in place is not. */
INFC_API infc_status infc_engine_open(const char *path, const infc_engine_options *options, infc_engine **out,
                                      char *error, size_t error_size);
/* `data` must stay valid and unchanged until the last context and the engine are gone, and start at a multiple of 64.
 */
INFC_API infc_status infc_engine_open_memory(const void *data, size_t size, const infc_engine_options *options,
                                             infc_engine **out, char *error, size_t error_size);
INFC_API void infc_engine_close(infc_engine *engine); /* NULL is allowed */
/* Reads every byte and compares checksums, weights included. */
INFC_API infc_status infc_engine_verify(const infc_engine *engine, char *error, size_t error_size);

typedef struct infc_dim {
  int64_t max;    /* size in the largest profile */
  int32_t symbol; /* index of the named dimension, or -1 for a constant */
  int32_t pads;   /* 1: any size from 1 to max is accepted; 0: exactly a profile's */
} infc_dim;

typedef struct infc_tensor_info {
  size_t struct_size; /* set by the caller */
  const char *name;   /* UTF-8, lives as long as the engine */
  infc_dtype dtype;
  int32_t rank;
  infc_dim dims[INFC_MAX_DIMS];
  int32_t optional;  /* inputs: 1 if it may stay unbound and then reads as `fill` everywhere */
  int32_t has_range; /* inputs: 1 if values are held against the range at every run */
  int64_t range_min, range_max, fill;
} infc_tensor_info;

INFC_API uint32_t infc_engine_input_count(const infc_engine *engine);
INFC_API uint32_t infc_engine_output_count(const infc_engine *engine);
INFC_API infc_status infc_engine_input(const infc_engine *engine, uint32_t index, infc_tensor_info *info);
INFC_API infc_status infc_engine_output(const infc_engine *engine, uint32_t index, infc_tensor_info *info);
/* Index of a tensor by name, or -1. */
INFC_API int32_t infc_engine_find_input(const infc_engine *engine, const char *name);
INFC_API int32_t infc_engine_find_output(const infc_engine *engine, const char *name);

INFC_API uint32_t infc_engine_profile_count(const infc_engine *engine);
INFC_API uint32_t infc_engine_symbol_count(const infc_engine *engine);
INFC_API const char *infc_engine_symbol(const infc_engine *engine, uint32_t symbol);
/* Size of a named dimension in a profile; -1 if either index is out of range. */
INFC_API int64_t infc_engine_profile_size(const infc_engine *engine, uint32_t profile, uint32_t symbol);
/* Instruction set of the programs this engine runs; "" on a GPU. */
INFC_API const char *infc_engine_isa(const infc_engine *engine);
/* Where it runs: "cpu", or "cuda:" and a number. */
INFC_API const char *infc_engine_device(const infc_engine *engine);
/* Why an automatic choice did not take the GPU, in one line; "" if it did, or if the artifact has nothing for one. */
INFC_API const char *infc_engine_note(const infc_engine *engine);
/* Bytes of a section, valid as long as the engine; NULL with size 0 if the artifact has none. The checksum is compared.
 */
INFC_API infc_status infc_engine_section(const infc_engine *engine, infc_section_kind kind, const void **data,
                                         size_t *size);

/* ---- Pool: worker threads --------------------------------------------------------------------------------------
 * Contexts may share a pool; runs of contexts that share one take turns. Workers spin for a bounded time after a run
 * and then sleep. In a child after fork() a pool has no threads: create a new one there. */
typedef struct infc_pool infc_pool;

typedef struct infc_pool_options {
  size_t struct_size;
  uint32_t threads; /* the caller of infc_run included; 0: as many as affinity mask and cgroup quota allow */
  uint32_t spin_us; /* how long an idle worker spins before it sleeps; 0: the default, 50 */
  const infc_allocator *allocator;
} infc_pool_options;

INFC_API infc_status infc_pool_create(const infc_pool_options *options, infc_pool **out, char *error,
                                      size_t error_size);
/* No context may use the pool any more. NULL is allowed. */
INFC_API void infc_pool_destroy(infc_pool *pool);
INFC_API uint32_t infc_pool_threads(const infc_pool *pool);

/* ---- Context: one caller's buffers ------------------------------------------------------------------------------
 * Used by one thread at a time. All memory a run needs is allocated at creation. */
typedef struct infc_context infc_context;

typedef struct infc_context_options {
  size_t struct_size;
  infc_pool *pool; /* NULL: the calling thread alone; unused on a GPU */
  const infc_allocator *allocator;
} infc_context_options;

INFC_API infc_status infc_context_create(infc_engine *engine, const infc_context_options *options, infc_context **out,
                                         char *error, size_t error_size);
INFC_API void infc_context_destroy(infc_context *context); /* NULL is allowed */

/* Binds dense row-major memory of the caller's, read at every run until another is bound. The dimensions of all inputs
 * together select the smallest profile that fits at the next run. */
INFC_API infc_status infc_context_bind_input(infc_context *context, uint32_t index, const void *data,
                                             const int64_t *dims, uint32_t rank);
/* `size` in bytes must hold the output for the dimensions in use; a larger buffer is left untouched beyond them. The
 * memory must not overlap that of another tensor: outputs may be written before all inputs are read. */
INFC_API infc_status infc_context_bind_output(infc_context *context, uint32_t index, void *data, size_t size);
/* Dimensions an output will have with the inputs bound now. `dims` has room for INFC_MAX_DIMS. */
INFC_API infc_status infc_context_output_dims(infc_context *context, uint32_t index, int64_t *dims, uint32_t *rank);
/* Computes. Allocates nothing, takes no lock but the pool's, and makes no system call but to wake sleeping workers. */
INFC_API infc_status infc_run(infc_context *context);
/* One line about the last failure of a call on this context; "" if there was none. Valid until the next call. */
INFC_API const char *infc_context_error(const infc_context *context);

/* ---- Running on a GPU ------------------------------------------------------------------------------------------
 * Everything above works there too: what is bound in host memory is copied in and out by infc_run. Device memory can be
 * bound instead, and a run can be enqueued on a stream of the caller's. Each profile is captured into one CUDA graph; a
 * run launches it. Binding other device memory captures anew at the next run. A call leaves the thread's current CUDA
 * context as it was. In a child after fork() calls that need the GPU fail with INFC_STATUS_DEVICE, and contexts and
 * engines are closed without it. On the CPU these fail with INFC_STATUS_INVALID_ARGUMENT. */

/* As infc_context_bind_input and _output with device memory: `memory` is a CUdeviceptr of the engine's GPU, a multiple
 * of 256. Dimensions must be exactly those of a profile: nothing is padded in the caller's memory. Values there are not
 * held against an input's range. An engine may write an output into an input's memory, as one does that updates a cache
 * in place: bind both to the same device memory, or both to memory of the host, where they are two. infc_run refuses
 * anything else, naming both. */
INFC_API infc_status infc_context_bind_input_device(infc_context *context, uint32_t index, uint64_t memory,
                                                    const int64_t *dims, uint32_t rank);
INFC_API infc_status infc_context_bind_output_device(infc_context *context, uint32_t index, uint64_t memory,
                                                     size_t size);
/* Enqueues a run on `stream`, a CUstream; NULL: the context's own. Inputs in host memory are read before it returns,
 * outputs in host memory are written by infc_context_wait; device memory belongs to the run until the stream has passed
 * it. The stream must not be capturing. One run of a context may be in flight: another, or a bind, waits for it first.
 */
INFC_API infc_status infc_run_async(infc_context *context, void *stream);
/* Returns when the run in flight, if any, is done and its outputs in host memory are written. */
INFC_API infc_status infc_context_wait(infc_context *context);

/* Time by step. While on, steps are timed and runs are slower. On a GPU there are no steps to time. */
INFC_API infc_status infc_context_set_timing(infc_context *context, int on);

typedef struct infc_step_time {
  size_t struct_size;
  const char *name; /* layer */
  const char *kernel;
  uint64_t calls;
  double seconds; /* of the slowest thread, summed over calls */
} infc_step_time;

/* Steps of the profile used last. */
INFC_API uint32_t infc_context_step_count(const infc_context *context);
INFC_API infc_status infc_context_step_time(const infc_context *context, uint32_t step, infc_step_time *out);
/* Values within a run, to find where a result goes wrong. */
typedef struct infc_traced {
  size_t struct_size; /* set by the library */
  uint32_t step;
  uint32_t output;  /* which of the step's */
  const char *name; /* layer */
  const char *kernel;
  infc_dtype dtype;
  int32_t rank;
  int64_t dims[INFC_MAX_DIMS]; /* of what is in use; the largest profile's rows may be more */
  int64_t row_stride;          /* elements from one index of dims[0] to the next; rows are dense */
  const void *data;            /* until the callback returns */
} infc_traced;

/* After each step of the runs that follow, `trace` is called with what the step wrote to the context's own memory; what
 * goes to bound outputs is there. It must not call this library on the context. Such runs are made by the calling
 * thread alone. NULL ends it. On a GPU it fails with INFC_STATUS_INVALID_ARGUMENT. */
INFC_API infc_status infc_context_set_trace(infc_context *context, void (*trace)(void *user, const infc_traced *value),
                                            void *user);
/* Activations of quantised layers beyond the range that calibration gave them, in engines built with --watch-ranges.
 * Every so many runs of a context one counts, the first one among them; the others cost nothing. */
typedef struct infc_drift {
  size_t struct_size;      /* set by the caller */
  const char *name;        /* layer */
  float low, high;         /* the range */
  float expected;          /* part of calibration's values that lay beyond */
  float least, greatest;   /* values met, if beyond the range; of layers that read bytes, the range itself */
  uint64_t values, beyond; /* counted */
  uint64_t runs;           /* that counted */
} infc_drift;

/* Layers that are watched; 0 in engines without, and on a GPU. */
INFC_API uint32_t infc_context_drift_count(const infc_context *context);
/* Counts so far. Not while the context runs. */
INFC_API infc_status infc_context_drift(const infc_context *context, uint32_t layer, infc_drift *out);
/* Counts in the next run and in one of `every` from then on, instead of as built; 0: in none. Forgets what was counted.
 */
INFC_API infc_status infc_context_set_watch(infc_context *context, uint32_t every);
/* Bytes this context allocated. */
INFC_API size_t infc_context_memory(const infc_context *context);

/* ---- Language models -------------------------------------------------------------------------------------------
 * An artifact of a language model keeps keys and values of past tokens in a cache of blocks, which sequences own. A
 * step adds tokens to sequences and gives logits. A model and its sequences are used by one thread at a time: a call
 * while another runs fails with INFC_STATUS_BUSY. Memory is allocated at creation; steps allocate nothing.
 *
 * On a GPU a sequence has a cache for a whole context, which is allocated when it first runs and stays for the next
 * sequence. Nothing is shared: a fork copies the cache, and there is no prefix cache. A run computes one sequence, so
 * several in a step take one run each. */
typedef struct infc_lm infc_lm;
typedef struct infc_sequence infc_sequence;

typedef struct infc_lm_options {
  size_t struct_size;
  infc_pool *pool; /* NULL: the calling thread alone */
  const infc_allocator *allocator;
  uint64_t cache_tokens;    /* that the cache holds, of all sequences together; 0: one sequence at the full context */
  uint64_t cache_bytes;     /* most bytes of the cache: it holds fewer tokens, or sequences, if need be; 0: no limit */
  uint32_t max_sequences;   /* at one time; 0: 64, on a GPU as many as cache_tokens hold if that is given */
  uint32_t no_prefix_cache; /* 1: blocks of the past are not kept for sequences that begin alike */
  uint32_t
      max_batched_tokens; /* of a step that infc_lm_advance makes; 0: as many as the largest profile has, but so few
                             of prompts that steps of those who generate take at most about 2.5 times as long */
} infc_lm_options;

/* Keeps the engine alive. */
INFC_API infc_status infc_lm_create(infc_engine *engine, const infc_lm_options *options, infc_lm **out, char *error,
                                    size_t error_size);
/* Its sequences and requests go with it. NULL is allowed. */
INFC_API void infc_lm_destroy(infc_lm *lm);
/* One line about the last failure of a call on this model or its sequences. Valid until the next call. */
INFC_API const char *infc_lm_error(const infc_lm *lm);

typedef struct infc_lm_info {
  size_t struct_size; /* set by the caller */
  uint32_t context;   /* most tokens of a sequence */
  uint32_t vocabulary;
  uint32_t block_tokens;
  uint32_t max_tokens, max_rows; /* tokens, and rows of logits, of one run; a step makes as many as it needs */
  uint32_t max_sequences, sequences;
  uint64_t cache_tokens, free_tokens; /* what the prefix cache would give up counts as free */
  uint64_t cache_bytes, memory;       /* of the cache; of everything */
  uint64_t prefix_hits, prefix_asked; /* tokens that sequences began with, and that were looked for */
} infc_lm_info;

INFC_API infc_status infc_lm_get_info(const infc_lm *lm, infc_lm_info *info);

/* An empty sequence; INFC_STATUS_CACHE_FULL if max_sequences are there. */
INFC_API infc_status infc_sequence_create(infc_lm *lm, infc_sequence **out);
/* One that has the same tokens. Blocks are shared until one of the two writes to them. */
INFC_API infc_status infc_sequence_fork(infc_sequence *sequence, infc_sequence **out);
/* NULL is allowed. Full blocks stay in the prefix cache. */
INFC_API void infc_sequence_destroy(infc_sequence *sequence);
INFC_API uint32_t infc_sequence_length(const infc_sequence *sequence);
/* Its tokens, until the next call on it. */
INFC_API const int32_t *infc_sequence_tokens(const infc_sequence *sequence);
/* Takes back all but the first `length` tokens. Where layers have windows, at most 64 of the most that it had can be
 * taken back, or all of them. */
INFC_API infc_status infc_sequence_truncate(infc_sequence *sequence, uint32_t length);
/* Has an empty sequence begin with those of the `count` tokens that the prefix cache knows, whole blocks; how many. */
INFC_API infc_status infc_sequence_reuse(infc_sequence *sequence, const int32_t *tokens, uint32_t count,
                                         uint32_t *reused);

/* A sequence in memory of the caller's. It can be restored into an empty sequence of the same artifact, also in another
 * process; data of unknown origin is refused or gives nonsense, no more. What was restored is not given to the prefix
 * cache. */
INFC_API size_t infc_sequence_save_size(const infc_sequence *sequence);
INFC_API infc_status infc_sequence_save(infc_sequence *sequence, void *memory, size_t size);
INFC_API infc_status infc_sequence_restore(infc_sequence *sequence, const void *memory, size_t size);

/* What a step adds to one sequence. */
typedef struct infc_lm_part {
  infc_sequence *sequence; /* each at most once in a step */
  const int32_t *tokens;
  uint32_t count;
  uint32_t logit_rows; /* the last so many tokens' logits are wanted */
} infc_lm_part;

/* Adds tokens to sequences. `logits`, `size` bytes, receives a row of f32 [vocabulary] for each token whose logits are
 * wanted, in order of the parts. A step is as long as one likes. On failure sequences are as they were before;
 * INFC_STATUS_CACHE_FULL: there are too few blocks. (Should a run in the middle of a step fail, which takes a program
 * that was not made for its inputs, sequences whose windows have moved on are left empty.) */
INFC_API infc_status infc_lm_step(infc_lm *lm, const infc_lm_part *parts, uint32_t count, float *logits, size_t size);

/* ---- Generation ------------------------------------------------------------------------------------------------
 * A request is a prompt to be continued. Those of a model are computed together: each step takes one token of every
 * request that generates and a chunk of those whose prompt is not through, at most max_batched_tokens. Where the cache
 * is full the latest request gives its blocks up and is computed anew later. What a request gives depends on nothing
 * but its prompt and options. Requests belong to their model's thread; only infc_request_cancel may come from any. */
typedef struct infc_request infc_request;

typedef struct infc_logit_bias {
  int32_t token;
  float bias; /* added to the token's logit */
} infc_logit_bias;

/* All zero: greedy, until a token that ends a text, or to the end of the context. */
typedef struct infc_generate_options {
  size_t struct_size;
  uint32_t max_new_tokens; /* 0: as many as the context has room for */
  uint32_t ignore_eos;     /* 1: the model's own stop tokens are tokens like any */
  float temperature;       /* 0: the most likely token; else logits are divided by it */
  uint32_t top_k;          /* of the so many most likely tokens; 0: all */
  float top_p;             /* of the most likely ones that have this much probability together; 0: all */
  float min_p;             /* 0 to 1: those that are at least so likely, relative to the most likely one */
  float
      repetition_penalty; /* logits of tokens of prompt and text are divided by it if positive, else multiplied; 0: 1 */
  float presence_penalty; /* subtracted from logits of tokens of the text */
  float frequency_penalty; /* the same, times how often */
  uint64_t seed;           /* equal seeds give equal texts, whatever else is computed at the time */
  const infc_logit_bias *bias;
  uint32_t bias_count;
  uint32_t stop_token_count;
  const int32_t *stop_tokens;      /* besides the model's */
  const char *const *stop_strings; /* UTF-8; the text ends before the first that appears */
  uint32_t stop_string_count;
  uint32_t log_probabilities; /* 1: of each token, as the model has it, before penalties and temperature */
  /* Called before each token with the tokens so far, prompt included. Clears bits of `allowed`, a bit a token, lowest
   * first. It must not call this library on the model. */
  void (*mask)(void *user, const int32_t *tokens, uint32_t count, uint32_t *allowed);
  void *mask_user;
  /* 1: what followed the last tokens' earlier appearance is guessed to follow again, and checked in the same step; it
   * pauses while that does not pay. The text is the same. */
  uint32_t prompt_lookup;
  /* Another model of the same vocabulary, whose guesses are checked in the same way; it must outlive the request, and
   * no other thread may use it meanwhile. With prompt_lookup it guesses where nothing is found. NULL: none. */
  infc_lm *draft;
} infc_generate_options;

typedef enum infc_finish {
  INFC_FINISH_NONE = 0,   /* there is more to come */
  INFC_FINISH_STOP = 1,   /* a stop token, which is not in the text, or a stop string */
  INFC_FINISH_LENGTH = 2, /* max_new_tokens, or the end of the context */
  INFC_FINISH_CANCELLED = 3,
  INFC_FINISH_CACHE = 4,    /* the cache is too small for this request alone */
  INFC_FINISH_NO_TOKEN = 5, /* the mask allows none, or logits are NaN */
  INFC_FINISH_FAILED = 6    /* a step failed: infc_lm_error says why */
} infc_finish;

typedef struct infc_event {
  size_t struct_size;
  int32_t token; /* -1: the end, without a token */
  infc_finish finish;
  float log_probability; /* if asked for */
  const char *text; /* what can be shown now: whole characters of UTF-8, nothing that may begin a stop string; until
                       the next call on the request */
  size_t text_size;
} infc_event;

/* Copies the prompt and the options. */
INFC_API infc_status infc_lm_submit(infc_lm *lm, const int32_t *prompt, uint32_t count,
                                    const infc_generate_options *options, infc_request **out);
/* One step of all requests; how many are not finished. INFC_STATUS_OK where there is nothing to do. */
INFC_API infc_status infc_lm_advance(infc_lm *lm, uint32_t *unfinished);
/* The next token of a request, making steps until there is one. After the last token comes the end, once and again. */
INFC_API infc_status infc_request_next(infc_request *request, infc_event *event);
/* The same without a step: 0 if there is nothing yet. */
INFC_API int infc_request_poll(infc_request *request, infc_event *event);
/* Its next step is its end. */
INFC_API void infc_request_cancel(infc_request *request);
INFC_API void infc_request_destroy(infc_request *request); /* NULL is allowed */

typedef struct infc_generation_stats {
  size_t struct_size;
  uint32_t prompt_tokens, cached_tokens; /* the latter of the former: from the prefix cache */
  uint32_t new_tokens;
  uint32_t guessed, accepted; /* tokens that speculation proposed, and that were right */
  uint32_t preemptions;
  double queue_seconds, prefill_seconds, decode_seconds; /* until the first step, the first token, the last token */
  double sample_seconds;
} infc_generation_stats;

INFC_API infc_status infc_request_stats(const infc_request *request, infc_generation_stats *stats);

/* Continues a prompt and calls `on_event` with each token; it returns 1 to cancel. */
INFC_API infc_status infc_generate(infc_lm *lm, const int32_t *prompt, uint32_t count,
                                   const infc_generate_options *options,
                                   int (*on_event)(void *user, const infc_event *event), void *user);
/* Bytes of a token's text, not NUL-terminated; "" of size 0 for special tokens and those that are none. */
INFC_API const char *infc_lm_token_text(const infc_lm *lm, int32_t token, size_t *size);

#ifdef __cplusplus
}
#endif
#endif /* INFC_H */
