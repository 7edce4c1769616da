// Worker threads. A job is announced by a new generation number; workers spin on it for a while, then sleep on it
// (futex). The caller takes part as thread 0 and waits for the others by counting them.
#include "pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
  MAX_THREADS = 1024,
  DEFAULT_SPIN_US = 50,
  SPINS_A_CLOCK = 64, // pauses between two looks at the clock
  // Pauses in a barrier before it yields the core: some hundred microseconds, or hardly any with more threads than
  // cores.
  SPINS = 4096,
  SPINS_CROWDED = 64,
};

typedef struct worker {
  infc_pool *pool;
  pthread_t handle;
  uint32_t thread;
} worker;

struct infc_pool {
  // Written by the caller for each job, read by the workers.
  _Alignas(INFC_CACHE_LINE) atomic_uint generation;
  infc_job_fn job; // NULL: leave
  void *argument;
  // Written by the workers.
  _Alignas(INFC_CACHE_LINE) atomic_uint finished;
  atomic_uint sleepers;
  // Two threads need one transfer of this line each way, so count and phase share it.
  _Alignas(INFC_CACHE_LINE) atomic_uint barrier_count;
  atomic_uint barrier_phase;

  _Alignas(INFC_CACHE_LINE) pthread_mutex_t turn;
  uint32_t threads;
  uint32_t spin_us; // an idle worker's, before it sleeps
  uint32_t spins;   // in a barrier, before yielding
  uint32_t forks;
  infc_allocator allocator;
  worker workers[]; // threads - 1
};

// Forks between the first process that made a pool and this one.
static atomic_uint forks;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void count_fork(void) {
  atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed);
}

static void watch_forks(void) {
  pthread_atfork(NULL, NULL, count_fork);
}

bool infc_pool_alive(const infc_pool *pool) {
  return pool->forks == atomic_load_explicit(&forks, memory_order_relaxed);
}

static inline void pause_cpu(void) {
  __builtin_ia32_pause();
}

static int64_t now_us(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000LL + time.tv_nsec / 1000;
}

static void futex(atomic_uint *word, int operation, uint32_t value) {
  syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

// Until *word is no longer `value`; for waits that are short unless there are more threads than cores.
static void wait_while(const infc_pool *pool, atomic_uint *word, uint32_t value) {
  for (uint32_t spins = 0; atomic_load_explicit(word, memory_order_acquire) == value; spins++) {
    if (spins < pool->spins)
      pause_cpu();
    else
      sched_yield();
  }
}

void infc_pool_barrier(infc_pool *pool) {
  uint32_t phase = atomic_load_explicit(&pool->barrier_phase, memory_order_relaxed);
  if (atomic_fetch_add_explicit(&pool->barrier_count, 1, memory_order_acq_rel) + 1 < pool->threads) {
    wait_while(pool, &pool->barrier_phase, phase);
    return;
  }
  atomic_store_explicit(&pool->barrier_count, 0, memory_order_relaxed);
  atomic_store_explicit(&pool->barrier_phase, phase + 1, memory_order_release);
}

// The generation after `last`. Spins first, then sleeps: a job either sees the sleeper counted or is seen by the
// sleeper's load.
static uint32_t wait_for_job(infc_pool *pool, uint32_t last) {
  uint32_t generation;
  int64_t deadline = now_us() + pool->spin_us;
  do {
    for (int spins = 0; spins < SPINS_A_CLOCK; spins++) {
      if ((generation = atomic_load_explicit(&pool->generation, memory_order_acquire)) != last)
        return generation;
      pause_cpu();
    }
  } while (now_us() < deadline);
  atomic_fetch_add(&pool->sleepers, 1);
  while ((generation = atomic_load(&pool->generation)) == last)
    futex(&pool->generation, FUTEX_WAIT, last);
  atomic_fetch_sub(&pool->sleepers, 1);
  return generation;
}

static void *work(void *argument) {
  worker *self = argument;
  infc_pool *pool = self->pool;
  for (uint32_t generation = 0;;) {
    generation = wait_for_job(pool, generation);
    if (!pool->job)
      return NULL;
    pool->job(pool->argument, self->thread);
    atomic_fetch_add_explicit(&pool->finished, 1, memory_order_release);
  }
}

static void announce(infc_pool *pool, infc_job_fn job, void *argument) {
  pool->job = job;
  pool->argument = argument;
  atomic_store_explicit(&pool->finished, 0, memory_order_relaxed);
  atomic_fetch_add(&pool->generation, 1);
  if (atomic_load(&pool->sleepers))
    futex(&pool->generation, FUTEX_WAKE, INT32_MAX);
}

void infc_pool_run(infc_pool *pool, infc_job_fn job, void *argument) {
  pthread_mutex_lock(&pool->turn);
  announce(pool, job, argument);
  job(argument, 0);
  for (uint32_t finished; (finished = atomic_load_explicit(&pool->finished, memory_order_acquire)) < pool->threads - 1;)
    wait_while(pool, &pool->finished, finished);
  pthread_mutex_unlock(&pool->turn);
}

// Ends the first `count` workers.
static void stop_workers(infc_pool *pool, uint32_t count) {
  announce(pool, NULL, NULL);
  for (uint32_t i = 0; i < count; i++)
    pthread_join(pool->workers[i].handle, NULL);
}

// Workers take no signals: handlers belong to the program's own threads.
static infc_status start_workers(infc_pool *pool, infc_error error) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  uint32_t started = 0;
  int failure = 0;
  while (!failure && started < pool->threads - 1) {
    worker *self = &pool->workers[started];
    *self = (worker){.pool = pool, .thread = started + 1};
    failure = pthread_create(&self->handle, NULL, work, self);
    started += !failure;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (!failure)
    return INFC_STATUS_OK;
  stop_workers(pool, started);
  return infc_fail(error, INFC_STATUS_OUT_OF_MEMORY, "thread %u cannot be created: %s", started + 1, strerror(failure));
}

infc_status infc_pool_create(const infc_pool_options *options, infc_pool **out, char *error_text, size_t error_size) {
  infc_error error = {error_text, error_size};
  infc_pool_options ours;
  infc_status status = infc_options_copy(&ours, sizeof ours, options, error);
  if (status)
    return status;
  uint32_t threads = ours.threads ? ours.threads : infc_cpu_count();
  if (!out || threads > MAX_THREADS)
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "out is NULL or %u threads are more than %d", threads,
                     MAX_THREADS);
  infc_allocator allocator = infc_allocator_or_default(ours.allocator);
  size_t size = sizeof(infc_pool) + (threads - 1) * sizeof(worker);
  infc_pool *pool = infc_alloc(&allocator, size);
  if (!pool)
    return infc_fail(error, INFC_STATUS_OUT_OF_MEMORY, "out of memory for a pool of %u threads", threads);
  memset(pool, 0, size);
  pthread_once(&fork_once, watch_forks);
  pthread_mutex_init(&pool->turn, NULL);
  pool->threads = threads;
  pool->spin_us = ours.spin_us ? ours.spin_us : DEFAULT_SPIN_US;
  pool->spins = threads > infc_cpu_count() ? SPINS_CROWDED : SPINS;
  pool->forks = atomic_load_explicit(&forks, memory_order_relaxed);
  pool->allocator = allocator;
  status = start_workers(pool, error);
  if (status) {
    pthread_mutex_destroy(&pool->turn);
    infc_free(&allocator, pool);
    return status;
  }
  *out = pool;
  return INFC_STATUS_OK;
}

void infc_pool_destroy(infc_pool *pool) {
  if (!pool)
    return;
  if (infc_pool_alive(pool)) {
    stop_workers(pool, pool->threads - 1);
    pthread_mutex_destroy(&pool->turn);
  }
  infc_allocator allocator = pool->allocator;
  infc_free(&allocator, pool);
}

uint32_t infc_pool_threads(const infc_pool *pool) {
  return pool->threads;
}
