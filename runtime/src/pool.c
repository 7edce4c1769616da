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
  // All that threads tell each other while they run is on one line, where few threads are concerned: what one writes
  // last, the other fetches once.
  _Alignas(INFC_CACHE_LINE) atomic_uint generation;
  atomic_uint finished; // jobs, of all workers together, modulo 2^32
  atomic_uint sleepers;
  infc_job_fn job; // NULL: leave
  void *argument;

  _Alignas(INFC_CACHE_LINE) atomic_uint *arrivals; // [threads]: barriers a thread has come to
  worker *workers;                                 // [threads - 1]
  pthread_mutex_t turn;
  uint32_t expected; // of `finished` once the current job is done
  uint32_t threads;
  uint32_t spin_us; // an idle worker's, before it sleeps
  uint32_t spins;   // in a barrier, before yielding
  uint32_t forks;
  infc_allocator allocator;
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

// One turn of a wait that is short unless there are more threads than cores.
static void wait_a_little(const infc_pool *pool, uint32_t turn) {
  if (turn < pool->spins)
    pause_cpu();
  else
    sched_yield();
}

// Each thread counts its arrivals and waits for the other counts. They share a line, which beats a line each and a
// common counter.
void infc_pool_barrier(infc_pool *pool, uint32_t thread) {
  atomic_uint *arrivals = pool->arrivals;
  uint32_t mine = atomic_load_explicit(&arrivals[thread], memory_order_relaxed) + 1;
  atomic_store_explicit(&arrivals[thread], mine, memory_order_release);
  for (uint32_t t = 0; t < pool->threads; t++)
    for (uint32_t turn = 0; (int32_t)(atomic_load_explicit(&arrivals[t], memory_order_acquire) - mine) < 0; turn++)
      wait_a_little(pool, turn);
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
  pool->expected += pool->threads - 1;
  atomic_fetch_add(&pool->generation, 1);
  if (atomic_load(&pool->sleepers))
    futex(&pool->generation, FUTEX_WAKE, INT32_MAX);
}

void infc_pool_run(infc_pool *pool, infc_job_fn job, void *argument) {
  pthread_mutex_lock(&pool->turn);
  announce(pool, job, argument);
  job(argument, 0);
  for (uint32_t turn = 0; atomic_load_explicit(&pool->finished, memory_order_acquire) != pool->expected; turn++)
    wait_a_little(pool, turn);
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

// The pool and its arrays in one block; NULL while the carve has no memory.
static infc_pool *lay_out(infc_carve *carve, uint32_t threads) {
  infc_pool *pool = infc_carve_take(carve, 1, sizeof *pool);
  atomic_uint *arrivals = infc_carve_take(carve, threads, sizeof *arrivals);
  worker *workers = infc_carve_take(carve, threads - 1, sizeof *workers);
  if (pool) {
    pool->arrivals = arrivals;
    pool->workers = workers;
  }
  return pool;
}

infc_status infc_pool_create(const infc_pool_options *options, infc_pool **out, char *error_text, size_t error_size) {
  infc_error error = {error_text, error_size};
  infc_pool_options ours;
  infc_status status = infc_options_copy(&ours, sizeof ours, options, error);
  if (status)
    return status;
  uint32_t threads = ours.threads ? ours.threads : infc_cpu_count();
  if (!out)
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "out is NULL");
  if (threads > MAX_THREADS)
    return infc_fail(error, INFC_STATUS_INVALID_ARGUMENT, "%u threads are more than %d", threads, MAX_THREADS);
  infc_allocator allocator = infc_allocator_or_default(ours.allocator);
  infc_carve carve = {0};
  lay_out(&carve, threads);
  carve.base = infc_alloc(&allocator, carve.used);
  if (!carve.base)
    return infc_fail(error, INFC_STATUS_OUT_OF_MEMORY, "out of memory for a pool of %u threads", threads);
  memset(carve.base, 0, carve.used);
  carve.used = 0;
  infc_pool *pool = lay_out(&carve, threads);
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
