// A TENSORRT section: which devices and profiles a serialised engine serves, and the engine.
#include "validate.h"

static infc_status check_header(const infc_file *file, const infc_tensorrt_header *header, uint32_t profile_count) {
  if (header->flavour != INFC_TENSORRT_ENTERPRISE && header->flavour != INFC_TENSORRT_RTX)
    return infc_bad(file, &header->flavour, "TensorRT flavour %u is unknown", header->flavour);
  if (header->sm_count == 0 || header->sm_count > INFC_MAX_SMS)
    return infc_bad(file, &header->sm_count, "an engine is for %u SMs", header->sm_count);
  for (uint32_t i = 0; i < INFC_MAX_SMS; i++) {
    uint64_t least = i == 0 ? 1 : (uint64_t)header->sms[i - 1] + 1;
    if (i < header->sm_count ? header->sms[i] < least : header->sms[i] != 0)
      return infc_bad(file, &header->sms[i], "the list of SMs is not ascending");
  }
  if (header->reserved[0] || header->reserved[1])
    return infc_bad(file, header->reserved, "a reserved field is not zero");
  if (header->profile_count == 0 || header->profile_count > profile_count)
    return infc_bad(file, &header->profile_count, "an engine has %u profiles, IO has %u", header->profile_count,
                    profile_count);
  return INFC_STATUS_OK;
}

static infc_status check_profiles(const infc_file *file, const uint32_t *profiles, uint32_t count,
                                  uint32_t profile_count) {
  for (uint32_t i = 0; i < count; i++) {
    if (profiles[i] >= profile_count)
      return infc_bad(file, &profiles[i], "an engine serves profile %u, IO has %u", profiles[i], profile_count);
    for (uint32_t j = 0; j < i; j++)
      if (profiles[j] == profiles[i])
        return infc_bad(file, &profiles[i], "an engine serves profile %u twice", profiles[i]);
  }
  return INFC_STATUS_OK;
}

// The plan starts at the next multiple of 64, ends with the section, and nothing but zeros lies before it.
static infc_status take_plan(const infc_file *file, const infc_tensorrt_header *header, uint64_t used, infc_span *span,
                             infc_gpu_plan *plan) {
  uint64_t start = infc_round_up(used);
  if (header->plan_offset != start)
    return infc_bad(file, &header->plan_offset, "the plan starts at %llu, not %llu",
                    (unsigned long long)header->plan_offset, (unsigned long long)start);
  const uint8_t *gap = infc_span_take(span, start - used, 1);
  for (uint64_t i = 0; gap && i < start - used; i++)
    if (gap[i])
      return infc_bad(file, gap + i, "the gap before the plan is not zero");
  if (!gap || header->plan_size == 0 || header->plan_size != span->left)
    return infc_bad(file, &header->plan_size, "a plan of %llu bytes does not end with its section",
                    (unsigned long long)header->plan_size);
  plan->data = span->next;
  plan->size = span->left;
  return INFC_STATUS_OK;
}

infc_status infc_validate_tensorrt(const infc_file *file, const infc_section *section, const infc_io *io,
                                   infc_gpu_plan *plan) {
  infc_span span = {file->data + section->offset, section->size};
  uint32_t profile_count = io->header->profile_count;
  const infc_tensorrt_header *header = plan->header = infc_span_take(&span, 1, sizeof *header);
  if (!header)
    return infc_bad(file, section, "TENSORRT is too short for its header");
  infc_status status = check_header(file, header, profile_count);
  if (status)
    return status;
  plan->profiles = infc_span_take(&span, header->profile_count, sizeof *plan->profiles);
  const char *strings = plan->profiles ? infc_span_take(&span, header->strings_size, 1) : NULL;
  if (!strings)
    return infc_bad(file, header, "TENSORRT is too short for what its header counts");
  if ((status = check_profiles(file, plan->profiles, header->profile_count, profile_count)))
    return status;
  if (header->strings_size && strings[header->strings_size - 1])
    return infc_bad(file, strings, "the strings do not end with a zero byte");
  if (header->command != INFC_NO_STRING && !infc_string_ok(header->command, header->strings_size))
    return infc_bad(file, &header->command, "the command lies outside the strings");
  plan->command = header->command == INFC_NO_STRING ? "" : strings + header->command;
  return take_plan(file, header, section->size - span.left, &span, plan);
}
