// A WATCH section: layers with their ranges, and the steps at which values are held against them.
#include "validate.h"

enum { MAX_LAYERS = 1 << 16 };

static infc_status check_place(const infc_file *file, const infc_watch_place *place, const infc_watch_place *before,
                               const infc_program *programs, uint32_t program_count, uint32_t layer_count) {
  if (place->program >= program_count || place->layer >= layer_count || place->by_row > 1 || place->reserved)
    return infc_bad(file, place, "a place of WATCH names program %u, layer %u", place->program, place->layer);
  if (before &&
      (place->program < before->program || (place->program == before->program && place->step <= before->step)))
    return infc_bad(file, place, "the places of WATCH are not in order");
  const infc_program *program = &programs[place->program];
  if (place->step < program->header->prologue_steps || place->step >= program->header->step_count)
    return infc_bad(file, &place->step, "a place of WATCH is step %u", place->step);
  const infc_step *step = &program->steps[place->step];
  if (place->operand >= step->input_count)
    return infc_bad(file, &place->operand, "a place of WATCH is input %u of step %u", place->operand, place->step);
  const infc_operand *operand = &program->operands[step->first_operand + place->operand];
  const uint16_t op = program->kernels[step->kernel]->op;
  const bool whole =
      op == INFC_OP_QUANTIZE || op == INFC_OP_QUANTIZE_ROWS; // what they read of an input is what is bound
  if ((operand->space != INFC_SPACE_ARENA && !(operand->space == INFC_SPACE_INPUT && whole)) ||
      operand->packing != INFC_PACK_ROW_MAJOR || (operand->dtype != INFC_DTYPE_F32 && operand->dtype != INFC_DTYPE_U8))
    return infc_bad(file, &place->operand, "input %u of step %u cannot be watched", place->operand, place->step);
  return INFC_STATUS_OK;
}

infc_status infc_validate_watch(const infc_file *file, const infc_section *section, const infc_program *programs,
                                uint32_t program_count, infc_watch *watch) {
  infc_span span = {file->data + section->offset, section->size};
  if (infc_crc32(span.next, span.left) != section->crc32)
    return infc_bad(file, &section->crc32, "the checksum of section kind %u does not match", section->kind);
  const infc_watch_header *header = infc_span_take(&span, 1, sizeof *header);
  if (!header)
    return infc_bad(file, section, "WATCH is too short for its header");
  if (header->layer_count == 0 || header->layer_count > MAX_LAYERS || header->every == 0)
    return infc_bad(file, header, "WATCH has %u layers, every %u runs", header->layer_count, header->every);
  const infc_watch_layer *layers = infc_span_take(&span, header->layer_count, sizeof *layers);
  const infc_watch_place *places = layers ? infc_span_take(&span, header->place_count, sizeof *places) : NULL;
  const char *strings = places ? infc_span_take(&span, header->strings_size, 1) : NULL;
  if (!strings || span.left)
    return infc_bad(file, header, "WATCH is not as long as its header says");
  if (header->strings_size == 0 || strings[header->strings_size - 1])
    return infc_bad(file, strings, "the strings do not end with a zero byte");
  for (uint32_t i = 0; i < header->layer_count; i++)
    if (!infc_string_ok(layers[i].name, header->strings_size))
      return infc_bad(file, &layers[i].name, "a layer of WATCH has no name");
  for (uint32_t i = 0; i < header->place_count; i++) {
    infc_status status =
        check_place(file, &places[i], i ? &places[i - 1] : NULL, programs, program_count, header->layer_count);
    if (status)
      return status;
  }
  *watch = (infc_watch){header, layers, places, strings};
  return INFC_STATUS_OK;
}
