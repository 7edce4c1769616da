// The fake driver itself: what a real one refuses it refuses and remembers, and work comes in order.
#include "gpu_test.h"

static CUcontext primary;

static void expect_problem(const char *words) {
  CHECK(fake_problem() && strstr(fake_problem(), words), "'%s', not '%s'", fake_problem() ? fake_problem() : "", words);
  fake_reset();
}

static void test_order_of_calls(void) {
  int count;
  CUdeviceptr memory;
  CHECK(driver_device_count(&count) == CUDA_ERROR_NOT_INITIALIZED);
  expect_problem("before cuInit");
  CHECK(!driver_init(0) && !driver_device_count(&count) && count == 1);
  CHECK(driver_memory_alloc(&memory, 64) == CUDA_ERROR_INVALID_CONTEXT);
  expect_problem("without a current context");
  CHECK(driver_context_push((CUcontext)(uintptr_t)64) == CUDA_ERROR_INVALID_CONTEXT);
  expect_problem("not retained");
  CHECK(!driver_primary_retain(&primary, 0) && !driver_context_push(primary) && fake_depth() == 1);
}

static void test_memory(void) {
  CUdeviceptr memory;
  CUstream stream;
  uint8_t bytes[64] = {1, 2, 3}, back[64];
  CHECK(!driver_stream_create(&stream, CU_STREAM_NON_BLOCKING) && !driver_memory_alloc(&memory, 64));
  CHECK(!driver_copy_in(memory, bytes, 64, stream) && !driver_copy_out(back, memory, 64, stream) &&
        !driver_stream_synchronize(stream) && !memcmp(bytes, back, 64));
  CHECK(driver_copy_in(memory + 1, bytes, 64, stream) == CUDA_ERROR_INVALID_VALUE);
  expect_problem("not all in one allocation");
  CHECK(driver_copy_in((uintptr_t)bytes, bytes, 64, stream) == CUDA_ERROR_INVALID_VALUE);
  expect_problem("not all in one allocation");
  memset((uint8_t *)fake_memory(memory, 64), 7, 64);
  CHECK(driver_copy_out(back, memory, 64, stream) == 0 && !driver_stream_synchronize(stream) && back[63] == 7);
  CHECK(fake_live() == 3, "%s", fake_live_text());
  CHECK(!driver_memory_free(memory) && driver_memory_free(memory) == CUDA_ERROR_INVALID_VALUE);
  expect_problem("not all in one allocation");
  CHECK(driver_host_free(bytes) == CUDA_ERROR_INVALID_VALUE);
  expect_problem("was not allocated");
  CHECK(driver_memory_alloc(&memory, (size_t)2 << 30) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(!driver_stream_destroy(stream) && driver_stream_synchronize(stream) == CUDA_ERROR_INVALID_HANDLE);
  expect_problem("after it was destroyed");
}

static void test_capture(void) {
  CUdeviceptr memory, other;
  CUstream stream;
  CUgraph graph;
  CUgraphExec executable;
  uint8_t bytes[4] = {1, 2, 3, 4}, back[4] = {0};
  CHECK(!driver_stream_create(&stream, CU_STREAM_NON_BLOCKING) && !driver_memory_alloc(&memory, 4));
  CHECK(!driver_capture_begin(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CHECK(!driver_copy_in(memory, bytes, 4, stream) && !driver_copy_out(back, memory, 4, stream));
  CHECK(!driver_capture_end(stream, &graph) && back[0] == 0, "what is captured does not run");
  CHECK(!driver_graph_instantiate(&executable, graph, 0) && !driver_graph_destroy(graph));
  for (uint8_t i = 0; i < 3; i++) {
    bytes[0] = i;
    CHECK(!driver_graph_launch(executable, stream) && !driver_stream_synchronize(stream) && back[0] == i);
  }
  // Waiting or allocating spoils a capture.
  CHECK(!driver_capture_begin(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CHECK(driver_memory_alloc(&other, 4) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(driver_copy_in(memory, bytes, 4, stream) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(driver_capture_end(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED && !graph);
  expect_problem("cuMemAlloc_v2 while capturing");
  // Memory that is gone when the graph runs fails there, and all that follows.
  CHECK(!driver_memory_free(memory) && !driver_graph_launch(executable, stream));
  CHECK(driver_stream_synchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS &&
        driver_graph_launch(executable, stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
  expect_problem("not all in one allocation");
  CHECK(!driver_graph_exec_destroy(executable) && driver_graph_launch(executable, stream) == CUDA_ERROR_INVALID_HANDLE);
  expect_problem("after it was destroyed");
  CHECK(!driver_stream_destroy(stream));
}

// Work is done later, in order, and an event or a stream tells when.
static void test_later(void) {
  CUdeviceptr memory;
  CUstream stream;
  CUevent event;
  uint32_t values[20], back[20] = {0};
  fake_configure("async=1,delay=2000");
  CHECK(!driver_stream_create(&stream, CU_STREAM_NON_BLOCKING) && !driver_event_create(&event, 2) &&
        !driver_memory_alloc(&memory, 4));
  for (uint32_t i = 0; i < 20; i++) {
    values[i] = i;
    CHECK(!driver_copy_in(memory, &values[i], 4, stream) && !driver_copy_out(&back[i], memory, 4, stream));
  }
  CHECK(!driver_event_record(event, stream) && !driver_event_synchronize(event) && !memcmp(values, back, sizeof back));
  CHECK(!driver_event_destroy(event) && !driver_stream_destroy(stream) && !driver_memory_free(memory));
  fake_configure("");
}

static void test_told_to_fail(void) {
  CUevent event;
  fake_reset();
  fake_fail("cuEventCreate", 2, CUDA_ERROR_UNKNOWN);
  CHECK(!driver_event_create(&event, 0) && !fake_failed());
  CHECK(!driver_event_destroy(event) && driver_event_create(&event, 0) == CUDA_ERROR_UNKNOWN && fake_failed());
  CHECK(fake_count("cuEventCreate") == 2 && fake_count("cuEventRecord") == 0);
  fake_reset();
}

int main(void) {
  test_order_of_calls();
  test_memory();
  test_capture();
  test_later();
  test_told_to_fail();
  CUcontext popped;
  CHECK(!driver_context_pop(&popped) && popped == primary && !driver_primary_release(0));
  CHECK(driver_primary_release(0) == CUDA_ERROR_INVALID_CONTEXT);
  expect_problem("not retained");
  gpu_check_clean("the end");
  return test_result();
}
