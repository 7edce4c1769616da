// Settings, counts of calls, the failure to come, broken rules.
#include "fake_cuda.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TABLES = 4, FAILED_AT_EXIT = 70 };

fake_settings fake_set;

static struct {
  fake_call *calls;
  uint32_t count;
} tables[TABLES];

static struct {
  atomic_bool armed, done;
  char call[64];
  uint64_t occurrence;
  int result;
} failure;

static pthread_mutex_t problem_lock = PTHREAD_MUTEX_INITIALIZER;
static char problem[512];

void fake_register(fake_call *calls, uint32_t count) {
  for (int i = 0; i < TABLES; i++)
    if (!tables[i].calls || tables[i].calls == calls) {
      tables[i].calls = calls;
      tables[i].count = count;
      return;
    }
  abort();
}

int fake_enter(fake_call *call) {
  uint64_t count = 1 + atomic_fetch_add_explicit(&call->count, 1, memory_order_relaxed);
  if (!atomic_load_explicit(&failure.armed, memory_order_relaxed) ||
      (failure.occurrence && failure.occurrence != count) || strcmp(call->name, failure.call))
    return 0;
  atomic_store(&failure.done, true);
  return failure.result;
}

uint64_t fake_count(const char *call) {
  uint64_t count = 0;
  const char *name;
  for (uint32_t i = 0; (name = fake_called(i, &count)); i++)
    if (!strcmp(name, call))
      return count;
  return 0;
}

const char *fake_called(uint32_t index, uint64_t *count) {
  for (int i = 0; i < TABLES; index -= tables[i++].count)
    if (index < tables[i].count) {
      *count = atomic_load(&tables[i].calls[index].count);
      return tables[i].calls[index].name;
    }
  return NULL;
}

void fake_fail(const char *call, uint64_t occurrence, int result) {
  snprintf(failure.call, sizeof failure.call, "%s", call);
  failure.occurrence = occurrence;
  failure.result = result;
  atomic_store(&failure.done, false);
  atomic_store(&failure.armed, true);
}

bool fake_failed(void) {
  return atomic_load(&failure.done);
}

void fake_misuse(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  pthread_mutex_lock(&problem_lock);
  if (!*problem)
    vsnprintf(problem, sizeof problem, format, arguments);
  pthread_mutex_unlock(&problem_lock);
  va_end(arguments);
}

const char *fake_problem(void) {
  pthread_mutex_lock(&problem_lock);
  bool any = *problem;
  pthread_mutex_unlock(&problem_lock);
  return any ? problem : NULL;
}

void fake_reset(void) {
  for (int i = 0; i < TABLES; i++)
    for (uint32_t j = 0; j < tables[i].count; j++)
      atomic_store(&tables[i].calls[j].count, 0);
  atomic_store(&failure.armed, false);
  atomic_store(&failure.done, false);
  pthread_mutex_lock(&problem_lock);
  *problem = 0;
  pthread_mutex_unlock(&problem_lock);
  fake_fault_reset();
}

bool fake_setting(const char *settings, const char *key, char *text, size_t size) {
  size_t length = strlen(key);
  for (const char *at = settings; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
    if (!strncmp(at, key, length) && at[length] == '=') {
      snprintf(text, size, "%.*s", (int)strcspn(at + length + 1, ","), at + length + 1);
      return true;
    }
  return false;
}

static int64_t number(const char *settings, const char *key, int64_t otherwise) {
  char text[64];
  return fake_setting(settings, key, text, sizeof text) ? strtoll(text, NULL, 0) : otherwise;
}

void fake_configure(const char *settings) {
  fake_set = (fake_settings){
      .devices = (int)number(settings, "devices", 1),
      .driver = (int)number(settings, "driver", 13000),
      .memory = number(settings, "memory", 1 << 30),
      .async = number(settings, "async", 0),
      .delay = (int)number(settings, "delay", 0),
  };
  if (fake_set.devices > FAKE_MAX_DEVICES)
    abort();
  char text[256] = "89", call[64];
  fake_setting(settings, "sm", text, sizeof text);
  const char *sm = text;
  for (int i = 0; i < FAKE_MAX_DEVICES; i++) {
    fake_set.sms[i] = atoi(sm);
    sm = strchr(sm, '+') ? strchr(sm, '+') + 1 : sm;
  }
  unsigned long occurrence;
  int result;
  if (fake_setting(settings, "fail", text, sizeof text) &&
      sscanf(text, "%63[^:]:%lu:%d", call, &occurrence, &result) == 3)
    fake_fail(call, occurrence, result);
}

__attribute__((constructor)) static void begin(void) {
  const char *settings = getenv("FAKE_CUDA");
  fake_configure(settings ? settings : "");
}

// A program that leaves something behind fails.
__attribute__((destructor)) static void end(void) {
  if (fake_problem())
    fprintf(stderr, "fake GPU: %s\n", fake_problem());
  if (fake_live())
    fprintf(stderr, "fake GPU: left behind: %s\n", fake_live_text());
  if (fake_problem() || fake_live())
    _exit(FAILED_AT_EXIT);
}
