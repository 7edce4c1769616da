// How many threads may run at once: the affinity mask, and the quotas of the cgroups this process is in.
#include "pool.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_SIZE = 4096, MAX_CPUS = 1 << 14 };

// First line of a file; false if it cannot be read.
static bool read_line(const char *path, char *line, int size) {
  FILE *file = fopen(path, "re");
  bool ok = file && fgets(line, size, file);
  if (file)
    fclose(file);
  return ok;
}

static uint32_t whole_cpus(double quota, double period) {
  if (quota <= 0 || period <= 0)
    return UINT32_MAX;
  double cpus = quota / period;
  return cpus < 1 ? 1 : cpus >= UINT32_MAX ? UINT32_MAX : (uint32_t)cpus;
}

// Quota of one cgroup directory, of version 2 ("max 100000") or version 1 (two files); UINT32_MAX without one.
static uint32_t directory_quota(const char *directory) {
  char path[PATH_SIZE + 32], line[128];
  double quota, period;
  snprintf(path, sizeof path, "%s/cpu.max", directory);
  if (read_line(path, line, sizeof line))
    return sscanf(line, "%lf %lf", &quota, &period) == 2 ? whole_cpus(quota, period) : UINT32_MAX;
  snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", directory);
  if (!read_line(path, line, sizeof line))
    return UINT32_MAX;
  quota = strtod(line, NULL);
  snprintf(path, sizeof path, "%s/cpu.cfs_period_us", directory);
  return read_line(path, line, sizeof line) ? whole_cpus(quota, strtod(line, NULL)) : UINT32_MAX;
}

// The least quota of the cgroup and of those above it: root is as far up as this process sees.
static uint32_t path_quota(const char *root, const char *cgroup) {
  char path[PATH_SIZE];
  uint32_t least = UINT32_MAX;
  size_t root_length = strlen(root);
  if (snprintf(path, sizeof path, "%s%s", root, cgroup) >= (int)sizeof path)
    return UINT32_MAX;
  for (;;) {
    uint32_t quota = directory_quota(path);
    least = quota < least ? quota : least;
    char *slash = strrchr(path, '/');
    if (strlen(path) <= root_length || !slash)
      return least;
    *slash = 0;
  }
}

// True if `name` is one of the comma-separated controllers.
static bool has_controller(const char *controllers, size_t length, const char *name) {
  size_t name_length = strlen(name);
  for (const char *item = controllers; item < controllers + length;) {
    size_t span = strcspn(item, ",:");
    if (span == name_length && !memcmp(item, name, span))
      return true;
    item += span + 1;
  }
  return false;
}

uint32_t infc_cpu_quota(const char *cgroup_file, const char *mount) {
  FILE *file = fopen(cgroup_file, "re");
  uint32_t least = UINT32_MAX;
  char line[PATH_SIZE], root[PATH_SIZE + 64];
  while (file && fgets(line, sizeof line, file)) { // number:controllers:path; version 2 has no controllers
    line[strcspn(line, "\n")] = 0;
    char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path)
      continue;
    size_t length = (size_t)(path - ++controllers);
    if (length && !has_controller(controllers, length, "cpu"))
      continue;
    snprintf(root, sizeof root, "%s%s%.*s", mount, length ? "/" : "", (int)length, controllers);
    uint32_t quota = path_quota(root, path + 1);
    least = quota < least ? quota : least;
  }
  if (file)
    fclose(file);
  return least;
}

static uint32_t affinity_count(void) {
  cpu_set_t *set = CPU_ALLOC(MAX_CPUS);
  size_t size = CPU_ALLOC_SIZE(MAX_CPUS);
  int count = set && !sched_getaffinity(0, size, set) ? CPU_COUNT_S(size, set) : 1;
  CPU_FREE(set);
  return count > 1 ? (uint32_t)count : 1;
}

uint32_t infc_cpu_count(void) {
  uint32_t mask = affinity_count(), quota = infc_cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup");
  return mask < quota ? mask : quota;
}
