// Which instruction sets this machine runs: what the CPU has (CPUID) and the operating system saves (XGETBV).
#include "cpu_features.h"
#include "internal.h"

#include <cpuid.h>
#include <string.h>

enum { // CPUID.1:ECX
  FMA = 1u << 12,
  MOVBE = 1u << 22,
  OSXSAVE = 1u << 27,
  AVX = 1u << 28,
  F16C = 1u << 29,
};
enum { // CPUID.7.0:EBX
  BMI1 = 1u << 3,
  AVX2 = 1u << 5,
  BMI2 = 1u << 8,
  AVX512F = 1u << 16,
  AVX512DQ = 1u << 17,
  AVX512CD = 1u << 28,
  AVX512BW = 1u << 30,
};
static const uint32_t AVX512VL = 1u << 31;              // does not fit an enumerator
enum { LZCNT = 1u << 5 };                               // CPUID.80000001:ECX
enum { AVX512_VBMI = 1u << 1, AVX512_VNNI = 1u << 11 }; // CPUID.7.0:ECX
enum { AVX_VNNI = 1u << 4, AVX512_BF16 = 1u << 5 };     // CPUID.7.1:EAX
enum { XCR0_YMM = 0x06, XCR0_ZMM = 0xE6 };              // SSE and AVX state; opmask and both halves of ZMM as well

static const struct {
  const char *name;
  uint32_t isa;
} names[] = {{"scalar", INFC_ISA_SCALAR}, {"x86-64-v3", INFC_ISA_X86_64_V3}, {"x86-64-v4", INFC_ISA_X86_64_V4}};

infc_cpu infc_cpu_read(void) {
  infc_cpu cpu = {0};
  uint32_t a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d))
    cpu.leaf1_ecx = c;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d))
    cpu.leaf7_ebx = b, cpu.leaf7_ecx = c;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d))
    cpu.leaf71_eax = a;
  if (__get_cpuid(0x80000001u, &a, &b, &c, &d))
    cpu.extended1_ecx = c;
  if (cpu.leaf1_ecx & OSXSAVE) {
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    cpu.xcr0 = (uint64_t)d << 32 | a;
  }
  return cpu;
}

static bool has(uint64_t value, uint64_t bits) {
  return (value & bits) == bits;
}

uint32_t infc_cpu_level(const infc_cpu *cpu) {
  if (!has(cpu->leaf1_ecx, FMA | MOVBE | OSXSAVE | AVX | F16C) || !has(cpu->leaf7_ebx, BMI1 | AVX2 | BMI2) ||
      !has(cpu->extended1_ecx, LZCNT) || !has(cpu->xcr0, XCR0_YMM))
    return INFC_ISA_SCALAR;
  if (!has(cpu->leaf7_ebx, AVX512F | AVX512DQ | AVX512CD | AVX512BW | AVX512VL) || !has(cpu->xcr0, XCR0_ZMM))
    return INFC_ISA_X86_64_V3;
  return INFC_ISA_X86_64_V4;
}

uint32_t infc_cpu_features_of(const infc_cpu *cpu) {
  const uint32_t level = infc_cpu_level(cpu);
  uint32_t features = 0;
  if (level >= INFC_ISA_X86_64_V3 && has(cpu->leaf71_eax, AVX_VNNI))
    features |= INFC_CPU_AVX_VNNI;
  if (level < INFC_ISA_X86_64_V4)
    return features;
  features |= has(cpu->leaf7_ecx, AVX512_VNNI) ? INFC_CPU_AVX512_VNNI : 0;
  features |= has(cpu->leaf71_eax, AVX512_BF16) ? INFC_CPU_AVX512_BF16 : 0;
  return features | (has(cpu->leaf7_ecx, AVX512_VBMI) ? INFC_CPU_AVX512_VBMI : 0);
}

static atomic_uint allowed = ~0u;

uint32_t infc_cpu_features(void) {
  static atomic_uint known; // the features, and a bit that says so
  const uint32_t asked = 1u << 31;
  uint32_t features = atomic_load_explicit(&known, memory_order_relaxed);
  if (!features) {
    const infc_cpu cpu = infc_cpu_read();
    features = infc_cpu_features_of(&cpu) | asked;
    atomic_store_explicit(&known, features, memory_order_relaxed);
  }
  return features & ~asked & atomic_load_explicit(&allowed, memory_order_relaxed);
}

void infc_cpu_allow(uint32_t features) {
  atomic_store_explicit(&allowed, features, memory_order_relaxed);
}

const char *infc_isa_name(uint32_t isa) {
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (names[i].isa == isa)
      return names[i].name;
  return NULL;
}

int infc_isa_find(const char *name) {
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(names[i].name, name))
      return (int)names[i].isa;
  return -1;
}

const char *infc_cpu_isa(void) {
  infc_cpu cpu = infc_cpu_read();
  return infc_isa_name(infc_cpu_level(&cpu));
}
