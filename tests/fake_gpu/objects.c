// Handles, and memory of the device and pinned memory of the host. Both hold their owner to what was handed out.
#include "fake_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 256, GUARD_BYTE = 0xA5, FRESH_BYTE = 0xC3 };

#define HANDLE_TAG (0xFA00ull << 48)
// Makes addresses that fault when the host reads them.
#define DEVICE_TAG (0x4000ull << 48)

typedef struct object {
  fake_kind kind; // 0: gone
  int device;
  void *data;
} object;

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static object *objects;
static size_t object_count, object_room;
static fake_memory_block *blocks;
static size_t block_count, block_room;
static int64_t reserved[FAKE_MAX_DEVICES];

static const char *const kind_names[FAKE_KINDS] = {
    "", "stream", "event", "graph", "graph executable", "TensorRT runtime", "TensorRT engine", "TensorRT context",
};

static void *grown(void *array, size_t count, size_t *room, size_t size) {
  if (count < *room)
    return array;
  *room = *room ? 2 * *room : 64;
  array = realloc(array, *room * size);
  if (!array)
    abort();
  return array;
}

// ---- Handles

uint64_t fake_object_add(fake_kind kind, void *data) {
  pthread_rwlock_wrlock(&lock);
  objects = grown(objects, object_count, &object_room, sizeof *objects);
  objects[object_count] = (object){kind, fake_device(), data};
  uint64_t handle = HANDLE_TAG | ++object_count << 8 | kind;
  pthread_rwlock_unlock(&lock);
  return handle;
}

// With the lock held.
static object *find(uint64_t handle, fake_kind kind) {
  uint64_t index = (handle & ~HANDLE_TAG) >> 8;
  if ((handle & HANDLE_TAG) != HANDLE_TAG || index == 0 || index > object_count) {
    fake_misuse("%#llx is no handle", (unsigned long long)handle);
    return NULL;
  }
  object *found = &objects[index - 1];
  if (found->kind == kind && (handle & 0xFF) == kind)
    return found;
  fake_misuse("a %s is used as a %s, or after it was destroyed", kind_names[(handle & 0xFF) % FAKE_KINDS],
              kind_names[kind]);
  return NULL;
}

void *fake_object_get(uint64_t handle, fake_kind kind, bool anywhere) {
  pthread_rwlock_rdlock(&lock);
  object *found = find(handle, kind);
  if (found && !anywhere && found->device != fake_device()) {
    fake_misuse("a %s of device %d is used on device %d", kind_names[kind], found->device, fake_device());
    found = NULL;
  }
  void *data = found ? found->data : NULL;
  pthread_rwlock_unlock(&lock);
  return data;
}

void *fake_object_remove(uint64_t handle, fake_kind kind) {
  pthread_rwlock_wrlock(&lock);
  object *found = find(handle, kind);
  void *data = found ? found->data : NULL;
  if (found)
    found->kind = 0;
  pthread_rwlock_unlock(&lock);
  return data;
}

// ---- Memory

CUdeviceptr fake_device_address(const void *base) {
  return (uintptr_t)base | DEVICE_TAG;
}

// With the lock held.
static int64_t used(int device) {
  int64_t bytes = reserved[device];
  for (size_t i = 0; i < block_count; i++)
    bytes += blocks[i].device == device ? (int64_t)blocks[i].size : 0;
  return bytes;
}

int64_t fake_memory_used(int device) {
  pthread_rwlock_rdlock(&lock);
  int64_t bytes = used(device);
  pthread_rwlock_unlock(&lock);
  return bytes;
}

bool fake_reserve(int device, int64_t bytes) {
  pthread_rwlock_wrlock(&lock);
  bool fits = bytes < 0 || bytes <= fake_set.memory - used(device);
  reserved[device] += fits ? bytes : 0;
  pthread_rwlock_unlock(&lock);
  return fits;
}

void *fake_block_add(size_t size, int device) {
  pthread_rwlock_wrlock(&lock);
  uint8_t *memory = NULL;
  size_t rounded = (size + GUARD - 1) / GUARD * GUARD + 2 * GUARD;
  if (size < (1ull << 40) && (device < 0 || (int64_t)size <= fake_set.memory - used(device)))
    memory = aligned_alloc(GUARD, rounded);
  if (memory) {
    memset(memory, GUARD_BYTE, rounded);
    memset(memory + GUARD, FRESH_BYTE, size);
    memory += GUARD;
    blocks = grown(blocks, block_count, &block_room, sizeof *blocks);
    blocks[block_count++] = (fake_memory_block){memory, size, device};
  }
  pthread_rwlock_unlock(&lock);
  return memory;
}

static bool guards_intact(const fake_memory_block *block) {
  bool intact = true;
  for (size_t i = 0; i < GUARD; i++)
    intact &= block->base[(ptrdiff_t)i - GUARD] == GUARD_BYTE && block->base[block->size + i] == GUARD_BYTE;
  return intact;
}

bool fake_block_remove(void *base, bool pinned) {
  pthread_rwlock_wrlock(&lock);
  size_t i = 0;
  while (i < block_count && (blocks[i].base != base || (blocks[i].device < 0) != pinned))
    i++;
  bool found = i < block_count;
  if (found) {
    if (!guards_intact(&blocks[i]))
      fake_misuse("written outside of %zu bytes of %s memory", blocks[i].size, pinned ? "pinned" : "device");
    blocks[i] = blocks[--block_count];
    free((uint8_t *)base - GUARD);
  } else
    fake_misuse("%s memory is freed that was not allocated", pinned ? "pinned" : "device");
  pthread_rwlock_unlock(&lock);
  return found;
}

void *fake_memory(CUdeviceptr memory, size_t size) {
  uint8_t *host = (uint8_t *)(uintptr_t)(memory & ~DEVICE_TAG);
  bool inside = false;
  pthread_rwlock_rdlock(&lock);
  for (size_t i = 0; i < block_count && memory & DEVICE_TAG; i++)
    inside |= blocks[i].device >= 0 && host >= blocks[i].base && host < blocks[i].base + blocks[i].size &&
              size <= (size_t)(blocks[i].base + blocks[i].size - host);
  pthread_rwlock_unlock(&lock);
  if (!inside)
    fake_misuse("%zu bytes at %#llx are not all in one allocation of the device", size, (unsigned long long)memory);
  return inside ? host : NULL;
}

// ---- What is left

uint32_t fake_live_on(int device) {
  uint32_t live = 0;
  pthread_rwlock_rdlock(&lock);
  for (size_t i = 0; i < object_count; i++)
    live += objects[i].kind && (device < 0 || objects[i].device == device);
  for (size_t i = 0; i < block_count; i++)
    live += device < 0 || blocks[i].device == device;
  pthread_rwlock_unlock(&lock);
  return live;
}

static void print(char *text, size_t size, const char *name, uint32_t count) {
  size_t length = strlen(text);
  if (count)
    snprintf(text + length, size - length, "%s%u %s", length ? ", " : "", count, name);
}

const char *fake_live_text(void) {
  static char text[256];
  uint32_t counts[FAKE_KINDS] = {0}, device = 0;
  *text = 0;
  pthread_rwlock_rdlock(&lock);
  for (size_t i = 0; i < object_count; i++)
    counts[objects[i].kind]++;
  for (size_t i = 0; i < block_count; i++)
    device += blocks[i].device >= 0;
  for (int kind = 1; kind < FAKE_KINDS; kind++)
    print(text, sizeof text, kind_names[kind], counts[kind]);
  print(text, sizeof text, "device memory", device);
  print(text, sizeof text, "pinned memory", (uint32_t)block_count - device);
  pthread_rwlock_unlock(&lock);
  return *text ? text : "a primary context";
}
