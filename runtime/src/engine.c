// Engines: an artifact opened, validated and described.
#include "validate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const infc_section *find_section(const infc_engine *engine, uint32_t kind) {
  for (uint32_t i = 0; i < engine->section_count; i++)
    if (engine->sections[i].kind == kind)
      return &engine->sections[i];
  return NULL;
}

static uint32_t count_sections(const infc_engine *engine, uint32_t kind) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < engine->section_count; i++)
    count += engine->sections[i].kind == kind;
  return count;
}

static infc_status read_io(infc_engine *engine, const infc_file *file) {
  if (count_sections(engine, INFC_SECTION_IO) != 1 || count_sections(engine, INFC_SECTION_WEIGHTS) > 1)
    return infc_bad(file, engine->sections, "an artifact has one IO section and at most one WEIGHTS section");
  return infc_validate_io(file, find_section(engine, INFC_SECTION_IO), &engine->io);
}

static infc_status read_state(infc_engine *engine, const infc_file *file) {
  const infc_section *state = find_section(engine, INFC_SECTION_STATE);
  const infc_section *generation = find_section(engine, INFC_SECTION_GENERATION);
  if (count_sections(engine, INFC_SECTION_STATE) > 1 || count_sections(engine, INFC_SECTION_GENERATION) > 1)
    return infc_bad(file, engine->sections, "an artifact has at most one STATE and one GENERATION section");
  infc_status status = state ? infc_validate_state(file, state, &engine->state) : INFC_STATUS_OK;
  return status || !generation ? status : infc_validate_generation(file, generation, &engine->io, &engine->language);
}

static infc_status read_programs(infc_engine *engine, const infc_file *file) {
  uint32_t count = count_sections(engine, INFC_SECTION_PROGRAM);
  const infc_section *weights = find_section(engine, INFC_SECTION_WEIGHTS);
  engine->weights = weights ? engine->data + weights->offset : NULL;
  engine->programs = infc_alloc(&engine->allocator, count * sizeof *engine->programs);
  if (!engine->programs)
    return infc_fail(file->error, INFC_STATUS_OUT_OF_MEMORY, "out of memory for %u programs", count);
  memset(engine->programs, 0, count * sizeof *engine->programs);
  for (uint32_t i = 0; i < engine->section_count; i++) {
    const infc_section *section = &engine->sections[i];
    if (section->kind != INFC_SECTION_PROGRAM)
      continue;
    infc_program *program = &engine->programs[engine->program_count++];
    infc_status status = infc_validate_program(file, section, &engine->io, &engine->state, weights ? weights->size : 0,
                                               &engine->allocator, program);
    if (status)
      return status;
    for (uint32_t j = 0; j + 1 < engine->program_count; j++)
      if (engine->programs[j].header->profile == program->header->profile &&
          engine->programs[j].header->isa == program->header->isa)
        return infc_bad(file, section, "two programs serve profile %u on %s", program->header->profile,
                        infc_isa_name(program->header->isa));
  }
  return INFC_STATUS_OK;
}

static infc_status read_watch(infc_engine *engine, const infc_file *file) {
  const infc_section *section = find_section(engine, INFC_SECTION_WATCH);
  return section ? infc_validate_watch(file, section, engine->programs, engine->program_count, &engine->watch)
                 : INFC_STATUS_OK;
}

static infc_status read_plans(infc_engine *engine, const infc_file *file) {
  uint32_t count = count_sections(engine, INFC_SECTION_TENSORRT);
  engine->plans = infc_alloc(&engine->allocator, count * sizeof *engine->plans);
  if (!engine->plans)
    return infc_fail(file->error, INFC_STATUS_OUT_OF_MEMORY, "out of memory for %u engines", count);
  infc_status status = INFC_STATUS_OK;
  for (uint32_t i = 0; !status && i < engine->section_count; i++)
    if (engine->sections[i].kind == INFC_SECTION_TENSORRT)
      status = infc_validate_tensorrt(file, &engine->sections[i], &engine->io, &engine->plans[engine->plan_count++]);
  return status;
}

// Fills the selection with the programs of one instruction set; false if a profile has none.
static bool select_isa(infc_engine *engine, uint32_t isa) {
  uint32_t profiles = engine->io.header->profile_count, found = 0;
  for (uint32_t i = 0; i < engine->program_count; i++) {
    const infc_program_header *header = engine->programs[i].header;
    if (header->isa == isa) {
      engine->selection[header->profile] = &engine->programs[i];
      found++;
    }
  }
  engine->isa = isa;
  return found == profiles;
}

// The best instruction set at or below `level` that serves every profile, or exactly `wanted` unless that is -1.
static infc_status select_programs(infc_engine *engine, uint32_t level, int wanted, infc_error error) {
  engine->selection = infc_alloc(&engine->allocator, engine->io.header->profile_count * sizeof *engine->selection);
  if (!engine->selection)
    return infc_fail(error, INFC_STATUS_OUT_OF_MEMORY, "out of memory for %u profiles",
                     engine->io.header->profile_count);
  if (wanted > (int)level)
    return infc_fail(error, INFC_STATUS_INCOMPATIBLE, "this machine has no %s, only %s",
                     infc_isa_name((uint32_t)wanted), infc_isa_name(level));
  for (int isa = wanted < 0 ? (int)level : wanted; isa >= (wanted < 0 ? 0 : wanted); isa--)
    if (select_isa(engine, (uint32_t)isa))
      return INFC_STATUS_OK;
  return infc_fail(error, INFC_STATUS_INCOMPATIBLE, "the artifact has no programs for %s%s",
                   infc_isa_name(wanted < 0 ? level : (uint32_t)wanted), wanted < 0 ? " or below" : "");
}

static infc_status read_artifact(infc_engine *engine, infc_error error) {
  infc_file file = {engine->data, engine->size, error};
  infc_status status = infc_validate_file(&file, &engine->sections, &engine->section_count);
  if (!status)
    status = read_io(engine, &file);
  if (!status)
    status = read_state(engine, &file);
  if (!status)
    status = read_programs(engine, &file);
  if (!status)
    status = read_watch(engine, &file);
  if (!status)
    status = read_plans(engine, &file);
  return status;
}

// Where the caller wants to run.
typedef struct infc_choice {
  int isa; // -1: the best
  bool cpu, gpu;
  int number; // of the GPU; -1: any
} infc_choice;

static infc_status read_options(const infc_engine_options *options, infc_choice *choice, infc_error error) {
  const char *device = options->device ? options->device : "auto";
  *choice = (infc_choice){.isa = options->isa ? infc_isa_find(options->isa) : -1, .number = -1};
  if (options->isa && choice->isa < 0)
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT,
                     "'%s' is not an instruction set: scalar, x86-64-v3 or x86-64-v4", options->isa);
  bool automatic = !strcmp(device, "auto");
  choice->cpu = automatic || !strcmp(device, "cpu");
  choice->gpu = automatic ? !options->isa : !choice->cpu;
  if (!choice->gpu || automatic || !strcmp(device, "cuda"))
    return INFC_STATUS_OK;
  size_t digits = strncmp(device, "cuda:", 5) ? 0 : strspn(device + 5, "0123456789");
  if (digits == 0 || digits > 4 || device[5 + digits])
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "'%s' is not a device: auto, cpu, cuda, cuda:0, cuda:1 ...",
                     device);
  choice->number = atoi(device + 5);
  return INFC_STATUS_OK;
}

static infc_status choose_device(infc_engine *engine, const infc_engine_options *options, infc_error error) {
  infc_choice choice;
  infc_status status = read_options(options, &choice, error);
  if (status)
    return status;
  if (choice.gpu && !choice.cpu && engine->plan_count == 0)
    return infc_fail(error, INFC_STATUS_INCOMPATIBLE,
                     "the artifact has no engine for a GPU: build it with --target "
                     "tensorrt-rtx or tensorrt");
  if (choice.gpu && engine->plan_count) {
    infc_error note = {engine->note, sizeof engine->note};
    status = infc_gpu_open(engine, choice.number, options->tensorrt_library, note);
    if (!status)
      engine->note[0] = 0;
    if (!status || !choice.cpu || engine->program_count == 0)
      return status ? infc_fail(error, status, "%s", engine->note) : status;
  }
  if (engine->program_count == 0 && engine->plan_count)
    return infc_fail(error, INFC_STATUS_INCOMPATIBLE,
                     "the artifact has engines for a GPU only: build it with --target cpu,...");
  infc_cpu cpu = infc_cpu_read();
  return select_programs(engine, infc_cpu_level(&cpu), choice.isa, error);
}

// A language model reads all its weights for every token, which is up to twice as fast from large pages (infc_alloc) as
// from a mapped file; so it gets a copy, and what was mapped of them is given back. Without memory for it they stay
// where they are.
static void keep_weights(infc_engine *engine) {
  const infc_section *weights = find_section(engine, INFC_SECTION_WEIGHTS);
  if (!engine->state.header || !weights || engine->gpu.api)
    return;
  engine->resident = infc_alloc(&engine->allocator, weights->size);
  if (!engine->resident)
    return;
  memcpy(engine->resident, engine->weights, weights->size);
  if (engine->mapped)
    madvise((void *)engine->data, engine->size, MADV_DONTNEED);
  engine->weights = engine->resident;
}

// Takes over the mapping.
static infc_status open_data(const void *data, size_t size, bool mapped, const infc_engine_options *options,
                             infc_engine **out, infc_error error) {
  infc_allocator allocator = infc_allocator_or_default(options->allocator);
  infc_engine *engine = infc_alloc(&allocator, sizeof *engine);
  if (!engine) {
    if (mapped)
      munmap((void *)data, size);
    return infc_fail(error, INFC_STATUS_OUT_OF_MEMORY, "out of memory for an engine");
  }
  memset(engine, 0, sizeof *engine);
  atomic_init(&engine->references, 1);
  engine->allocator = allocator;
  engine->data = data;
  engine->size = size;
  engine->mapped = mapped;
  infc_status status = read_artifact(engine, error);
  if (!status)
    status = choose_device(engine, options, error);
  if (!status)
    keep_weights(engine);
  if (status)
    infc_engine_close(engine);
  else
    *out = engine;
  return status;
}

infc_status infc_engine_open_memory(const void *data, size_t size, const infc_engine_options *options,
                                    infc_engine **out, char *error_text, size_t error_size) {
  infc_error error = {error_text, error_size};
  infc_engine_options ours;
  infc_status status = infc_options_copy(&ours, sizeof ours, options, error);
  if (status)
    return status;
  if (!data || !out)
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "data or out is NULL");
  if ((uintptr_t)data % INFC_SECTION_ALIGN)
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "an artifact in memory must start at a multiple of %d",
                     INFC_SECTION_ALIGN);
  return open_data(data, size, false, &ours, out, error);
}

static infc_status map_file(const char *path, const void **data, size_t *size, infc_error error) {
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe is refused below, not waited for
  if (file < 0)
    return infc_fail(error, INFC_STATUS_IO, "%s: %s", path, strerror(errno));
  struct stat info;
  infc_status status = INFC_STATUS_OK;
  if (fstat(file, &info) || !S_ISREG(info.st_mode))
    status = infc_fail(error, INFC_STATUS_IO, "%s: not a regular file", path);
  else if (info.st_size < (off_t)sizeof(infc_header))
    status = infc_fail(error, INFC_STATUS_BAD_ARTIFACT, "byte 0: the file has %lld bytes, too few for a header",
                       (long long)info.st_size);
  else {
    *size = (size_t)info.st_size;
    *data = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, file, 0);
    if (*data == MAP_FAILED)
      status = infc_fail(error, INFC_STATUS_IO, "%s: cannot be mapped: %s", path, strerror(errno));
  }
  close(file);
  return status;
}

infc_status infc_engine_open(const char *path, const infc_engine_options *options, infc_engine **out, char *error_text,
                             size_t error_size) {
  infc_error error = {error_text, error_size};
  infc_engine_options ours;
  infc_status status = infc_options_copy(&ours, sizeof ours, options, error);
  if (status)
    return status;
  if (!path || !out)
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "path or out is NULL");
  const void *data = NULL;
  size_t size = 0;
  status = map_file(path, &data, &size, error);
  return status ? status : open_data(data, size, true, &ours, out, error);
}

infc_engine *infc_engine_retain(infc_engine *engine) {
  atomic_fetch_add_explicit(&engine->references, 1, memory_order_relaxed);
  return engine;
}

void infc_engine_close(infc_engine *engine) {
  if (!engine || atomic_fetch_sub_explicit(&engine->references, 1, memory_order_acq_rel) > 1)
    return;
  infc_gpu_close(engine);
  infc_free(&engine->allocator, engine->plans);
  for (uint32_t i = 0; i < engine->program_count; i++)
    infc_free(&engine->allocator, engine->programs[i].kernels);
  infc_free(&engine->allocator, engine->programs);
  infc_free(&engine->allocator, engine->selection);
  infc_free(&engine->allocator, engine->resident);
  if (engine->mapped)
    munmap((void *)engine->data, engine->size);
  infc_allocator allocator = engine->allocator;
  infc_free(&allocator, engine);
}

infc_status infc_engine_verify(const infc_engine *engine, char *error_text, size_t error_size) {
  infc_file file = {engine ? engine->data : NULL, engine ? engine->size : 0, {error_text, error_size}};
  if (!engine)
    return infc_fail(file.error, INFC_STATUS_INVALID_ARGUMENT, "engine is NULL");
  for (uint32_t i = 0; i < engine->section_count; i++) {
    const infc_section *section = &engine->sections[i];
    if (infc_crc32(engine->data + section->offset, section->size) != section->crc32)
      return infc_bad(&file, &section->crc32, "the checksum of section kind %u does not match", section->kind);
  }
  return INFC_STATUS_OK;
}

infc_status infc_engine_section(const infc_engine *engine, infc_section_kind kind, const void **data, size_t *size) {
  if (!engine || !data || !size)
    return INFC_STATUS_INVALID_ARGUMENT;
  const infc_section *section = find_section(engine, kind);
  if (section && infc_crc32(engine->data + section->offset, section->size) != section->crc32)
    return INFC_STATUS_BAD_ARTIFACT;
  *data = section ? engine->data + section->offset : NULL;
  *size = section ? section->size : 0;
  return INFC_STATUS_OK;
}

uint32_t infc_engine_input_count(const infc_engine *engine) {
  return engine->io.header->input_count;
}

uint32_t infc_engine_output_count(const infc_engine *engine) {
  return engine->io.header->output_count;
}

static infc_status describe(const infc_engine *engine, const infc_io_tensor *tensor, infc_tensor_info *info) {
  const infc_io *io = &engine->io;
  infc_tensor_info ours = {
      .name = infc_tensor_name(io, tensor),
      .dtype = (infc_dtype)tensor->dtype,
      .rank = tensor->rank,
      .optional = tensor->flags & INFC_TENSOR_OPTIONAL,
      .has_range = tensor->has_range,
      .range_min = tensor->range_min,
      .range_max = tensor->range_max,
      .fill = tensor->fill,
  };
  for (uint32_t d = 0; d < tensor->rank; d++) {
    infc_dim *dim = &ours.dims[d];
    dim->symbol = infc_dim_symbol(tensor->dims[d]);
    dim->pads = dim->symbol >= 0 && io->symbols[dim->symbol].policy == INFC_DIM_PADS;
    for (uint32_t p = 0; p < io->header->profile_count; p++) {
      int64_t bound = infc_dim_bound(io, p, tensor->dims[d]);
      dim->max = bound > dim->max ? bound : dim->max;
    }
  }
  return infc_result_copy(info, &ours, sizeof ours) ? INFC_STATUS_OK : INFC_STATUS_INVALID_ARGUMENT;
}

infc_status infc_engine_input(const infc_engine *engine, uint32_t index, infc_tensor_info *info) {
  if (!engine || !info || index >= engine->io.header->input_count)
    return INFC_STATUS_INVALID_ARGUMENT;
  return describe(engine, &engine->io.inputs[index], info);
}

infc_status infc_engine_output(const infc_engine *engine, uint32_t index, infc_tensor_info *info) {
  if (!engine || !info || index >= engine->io.header->output_count)
    return INFC_STATUS_INVALID_ARGUMENT;
  return describe(engine, &engine->io.outputs[index], info);
}

static int32_t find_tensor(const infc_io *io, const infc_io_tensor *tensors, uint32_t count, const char *name) {
  for (uint32_t i = 0; name && i < count; i++)
    if (!strcmp(infc_tensor_name(io, &tensors[i]), name))
      return (int32_t)i;
  return -1;
}

int32_t infc_engine_find_input(const infc_engine *engine, const char *name) {
  return find_tensor(&engine->io, engine->io.inputs, engine->io.header->input_count, name);
}

int32_t infc_engine_find_output(const infc_engine *engine, const char *name) {
  return find_tensor(&engine->io, engine->io.outputs, engine->io.header->output_count, name);
}

uint32_t infc_engine_profile_count(const infc_engine *engine) {
  return engine->io.header->profile_count;
}

uint32_t infc_engine_symbol_count(const infc_engine *engine) {
  return engine->io.header->symbol_count;
}

const char *infc_engine_symbol(const infc_engine *engine, uint32_t symbol) {
  return symbol < engine->io.header->symbol_count ? engine->io.strings + engine->io.symbols[symbol].name : NULL;
}

int64_t infc_engine_profile_size(const infc_engine *engine, uint32_t profile, uint32_t symbol) {
  const infc_io_header *header = engine->io.header;
  if (profile >= header->profile_count || symbol >= header->symbol_count)
    return -1;
  return engine->io.bounds[(size_t)profile * header->symbol_count + symbol];
}

const char *infc_engine_isa(const infc_engine *engine) {
  return engine->gpu.api ? "" : infc_isa_name(engine->isa);
}

const char *infc_engine_device(const infc_engine *engine) {
  return engine->gpu.api ? engine->gpu.name : "cpu";
}

const char *infc_engine_note(const infc_engine *engine) {
  return engine->note;
}
