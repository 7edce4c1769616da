// Worker threads: every thread runs, barriers hold, sleepers wake, several callers take turns; and the CPU count.
#include "pool.h"
#include "test.h"

#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_TEST_THREADS = 8, PHASES = 40 };

typedef struct stress {
  infc_pool *pool;
  uint32_t threads;
  // Written by one thread each, without atomics: a barrier that leaks is a wrong sum, and a race to ThreadSanitizer.
  uint32_t values[MAX_TEST_THREADS];
  uint32_t wrong[MAX_TEST_THREADS];
} stress;

static void stress_job(void *argument, uint32_t thread) {
  stress *s = argument;
  for (uint32_t phase = 1; phase <= PHASES; phase++) {
    s->values[thread] = phase;
    infc_pool_barrier(s->pool, thread);
    for (uint32_t t = 0; t < s->threads; t++)
      s->wrong[thread] += s->values[t] != phase;
    infc_pool_barrier(s->pool, thread);
  }
}

static infc_pool *make_pool(uint32_t threads, uint32_t spin_us) {
  infc_pool *pool = NULL;
  infc_pool_options options = {.struct_size = sizeof options, .threads = threads, .spin_us = spin_us};
  char why[256] = "";
  CHECK(!infc_pool_create(&options, &pool, why, sizeof why), "%s", why);
  CHECK(infc_pool_threads(pool) == threads);
  return pool;
}

// Also with more threads than cores.
static void test_barriers(void) {
  for (uint32_t threads = 1; threads <= MAX_TEST_THREADS; threads++) {
    infc_pool *pool = make_pool(threads, 0);
    for (int job = 0; job < 5; job++) {
      stress s = {.pool = pool, .threads = threads};
      infc_pool_run(pool, stress_job, &s);
      for (uint32_t t = 0; t < threads; t++)
        CHECK(s.wrong[t] == 0 && s.values[t] == PHASES, "thread %u of %u: %u wrong", t, threads, s.wrong[t]);
    }
    infc_pool_destroy(pool);
  }
}

static void mark(void *argument, uint32_t thread) {
  ((uint32_t *)argument)[thread]++;
}

// Workers that have gone to sleep wake for a job.
static void test_sleep(void) {
  infc_pool *pool = make_pool(3, 1);
  uint32_t calls[3] = {0};
  for (int i = 0; i < 50; i++) {
    infc_pool_run(pool, mark, calls);
    nanosleep(&(struct timespec){0, (i % 5) * 100000}, NULL);
  }
  for (int t = 0; t < 3; t++)
    CHECK(calls[t] == 50, "thread %d: %u calls", t, calls[t]);
  infc_pool_destroy(pool);
}

// Created and destroyed at once, workers awake or asleep.
static void test_destroy(void) {
  for (int i = 0; i < 50; i++) {
    infc_pool *pool = make_pool(4, i % 2 ? 1 : 0);
    if (i % 4 == 3)
      nanosleep(&(struct timespec){0, 200000}, NULL);
    infc_pool_destroy(pool);
  }
}

typedef struct caller {
  infc_pool *pool;
  uint32_t calls[3];
} caller;

static void *call_often(void *argument) {
  caller *self = argument;
  for (int i = 0; i < 100; i++)
    infc_pool_run(self->pool, mark, self->calls);
  return NULL;
}

static void test_turns(void) {
  infc_pool *pool = make_pool(3, 0);
  caller callers[4];
  pthread_t handles[4];
  for (int i = 0; i < 4; i++) {
    callers[i] = (caller){.pool = pool};
    pthread_create(&handles[i], NULL, call_often, &callers[i]);
  }
  for (int i = 0; i < 4; i++) {
    pthread_join(handles[i], NULL);
    for (int t = 0; t < 3; t++)
      CHECK(callers[i].calls[t] == 100);
  }
  infc_pool_destroy(pool);
}

// ---- CPU count

static void write_file(const char *folder, const char *name, const char *content) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "w");
  CHECK(file && fputs(content, file) >= 0 && !fclose(file), "%s", path);
}

static void make_folder(const char *folder, const char *name) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  CHECK(!mkdir(path, 0700), "%s", path);
}

static void test_quota(void) {
  char root[] = "/tmp/infc_cgroup_XXXXXX", file[64], command[64];
  CHECK(mkdtemp(root) != NULL);
  snprintf(file, sizeof file, "%s/cgroup", root);
  make_folder(root, "a");
  make_folder(root, "a/b");
  write_file(root, "cgroup", "0::/a/b\n");
  CHECK(infc_cpu_quota(file, root) == UINT32_MAX, "no limit anywhere");
  write_file(root, "a/b/cpu.max", "max 100000\n");
  CHECK(infc_cpu_quota(file, root) == UINT32_MAX);
  write_file(root, "a/cpu.max", "250000 100000\n");
  CHECK(infc_cpu_quota(file, root) == 2, "the group above limits too: %u", infc_cpu_quota(file, root));
  write_file(root, "a/b/cpu.max", "50000 100000\n");
  CHECK(infc_cpu_quota(file, root) == 1, "half a CPU is one thread");
  write_file(root, "a/b/cpu.max", "rubbish\n");
  CHECK(infc_cpu_quota(file, root) == 2);
  // Version 1: a mount a set of controllers.
  make_folder(root, "cpu,cpuacct");
  make_folder(root, "cpu,cpuacct/c");
  write_file(root, "cgroup", "5:cpuset:/a\n4:cpu,cpuacct:/c\n");
  write_file(root, "cpu,cpuacct/c/cpu.cfs_quota_us", "-1\n");
  write_file(root, "cpu,cpuacct/c/cpu.cfs_period_us", "100000\n");
  CHECK(infc_cpu_quota(file, root) == UINT32_MAX);
  write_file(root, "cpu,cpuacct/c/cpu.cfs_quota_us", "300000\n");
  CHECK(infc_cpu_quota(file, root) == 3);
  CHECK(infc_cpu_quota("/nonexistent", root) == UINT32_MAX);
  snprintf(command, sizeof command, "rm -r %s", root);
  CHECK(!system(command));
}

static void test_count(void) {
  uint32_t count = infc_cpu_count();
  CHECK(count >= 1 && count <= (uint32_t)sysconf(_SC_NPROCESSORS_CONF), "%u", count);
  infc_pool *pool = NULL;
  CHECK(!infc_pool_create(NULL, &pool, NULL, 0) && infc_pool_threads(pool) == count);
  infc_pool_destroy(pool);
  infc_pool_options options = {.struct_size = sizeof options, .threads = 1u << 20};
  CHECK(infc_pool_create(&options, &pool, NULL, 0) == INFC_STATUS_INVALID_ARGUMENT);
}

int main(void) {
  test_barriers();
  test_sleep();
  test_destroy();
  test_turns();
  test_quota();
  test_count();
  return test_result();
}
