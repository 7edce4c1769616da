// Worker threads that run one job together.
#ifndef INFC_POOL_H
#define INFC_POOL_H

#include "internal.h"

// Called once a thread; thread 0 is the caller.
typedef void (*infc_job_fn)(void *argument, uint32_t thread);

// Runs the job on all threads of the pool and returns when all are done. Jobs of several callers take turns.
void infc_pool_run(infc_pool *pool, infc_job_fn job, void *argument);

// Within a job: returns when all threads have called it.
void infc_pool_barrier(infc_pool *pool, uint32_t thread);

// False in a child of the process that created the pool: its threads are not here.
bool infc_pool_alive(const infc_pool *pool);

// How many threads this process may keep busy: its affinity mask and its CPU quota, at least 1 (cpu_count.c).
uint32_t infc_cpu_count(void);
// Whole CPUs that the cgroups of a /proc/PID/cgroup file allow, at least 1; UINT32_MAX without a limit. `mount` is
// where cgroup file systems are mounted: /sys/fs/cgroup.
uint32_t infc_cpu_quota(const char *cgroup_file, const char *mount);

#endif // INFC_POOL_H
