// gcc's coverage for libFuzzer, which wants a counter for each edge, as clang makes. gcc calls a function at each; a
// call takes more than four bytes, so the address it returns to, in units of four, numbers the edges without a clash.
// It stands before libFuzzer's own function of that name, which does nothing. Edges of shared objects share counters.
#include <stddef.h>
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))
EXPORTED void __sanitizer_cov_trace_pc(void);
EXPORTED void __sanitizer_cov_trace_cmpf(float a, float b);
EXPORTED void __sanitizer_cov_trace_cmpd(double a, double b);
void __sanitizer_cov_8bit_counters_init(uint8_t *start, uint8_t *end);

// Of the linker: where the program begins and its code ends.
extern const char __executable_start[], etext[];

enum { MAX_EDGES = 1 << 22 };
static uint8_t counters[MAX_EDGES];

__attribute__((constructor)) static void register_counters(void) {
  size_t edges = (size_t)(etext - __executable_start) / 4 + 1;
  __sanitizer_cov_8bit_counters_init(counters, counters + (edges < MAX_EDGES ? edges : MAX_EDGES));
}

void __sanitizer_cov_trace_pc(void) {
  size_t edge = (size_t)((const char *)__builtin_return_address(0) - __executable_start) / 4;
  counters[edge % MAX_EDGES]++;
}

// libFuzzer has none of these two.
void __sanitizer_cov_trace_cmpf(float a, float b) {
  (void)a;
  (void)b;
}

void __sanitizer_cov_trace_cmpd(double a, double b) {
  (void)a;
  (void)b;
}
