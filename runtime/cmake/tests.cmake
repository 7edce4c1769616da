# Every tests/c/**/test_*.c is a program of its own that returns non-zero on failure. They link the static library, whose hidden
# symbols they may use.
enable_testing()
set(root ${PROJECT_SOURCE_DIR}/..)

function(infc_program source)
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source} ${ARGN})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${root}/tests/c)
  target_link_libraries(${name} PRIVATE infc_static m Threads::Threads)
endfunction()

# A driver and a TensorRT for machines without a GPU: see tests/fake_gpu/fake.h. Programs that link them have them loaded before the
# executor asks for libraries of their names; others find them through LD_LIBRARY_PATH, as all find the executor. There the fakes come
# first: where TENSORRT_ROOT is set the real adapter lies beside the executor.
set(fake_gpu ${PROJECT_BINARY_DIR}/fake_gpu)
foreach(fake cuda trt)
  add_library(fake_${fake} SHARED)
  target_include_directories(fake_${fake} PUBLIC ${root}/tests/fake_gpu PRIVATE ${PROJECT_SOURCE_DIR}/src)
  set_target_properties(fake_${fake} PROPERTIES PREFIX "" NO_SONAME ON LIBRARY_OUTPUT_DIRECTORY ${fake_gpu})
endforeach()
target_sources(fake_cuda PRIVATE ${root}/tests/fake_gpu/calls.c ${root}/tests/fake_gpu/fake_cuda.c ${root}/tests/fake_gpu/objects.c
                                 ${root}/tests/fake_gpu/streams.c)
target_link_libraries(fake_cuda PRIVATE Threads::Threads)
target_link_options(fake_cuda PRIVATE -Wl,-soname,libcuda.so.1)
set_target_properties(fake_cuda PROPERTIES OUTPUT_NAME libcuda.so SUFFIX .1)
target_sources(fake_trt PRIVATE ${root}/tests/fake_gpu/fake_trt.c)
target_link_libraries(fake_trt PRIVATE fake_cuda infc_static m Threads::Threads)
target_link_options(fake_trt PRIVATE -Wl,-soname,libinfc_tensorrt_adapter.so -Wl,--exclude-libs,ALL)
set_target_properties(fake_trt PROPERTIES OUTPUT_NAME libinfc_tensorrt_adapter)

function(infc_link_fake_gpu target)
  target_include_directories(${target} PRIVATE ${root}/tests/fake_gpu)
  target_link_libraries(${target} PRIVATE -Wl,--push-state,--no-as-needed fake_cuda fake_trt -Wl,--pop-state)
  add_dependencies(${target} infc_tensorrt)
endfunction()

file(GLOB core_tests CONFIGURE_DEPENDS ${root}/tests/c/test_*.c)
file(GLOB kernel_tests CONFIGURE_DEPENDS ${root}/tests/c/kernels/test_*.c)
if(INFC_FAMILIES)
  list(TRANSFORM families REPLACE "(.+)" "/test_\\1[.]c$" OUTPUT_VARIABLE wanted)
  list(JOIN wanted "|" wanted)
  list(FILTER kernel_tests INCLUDE REGEX "${wanted}")
endif()
foreach(source IN LISTS core_tests kernel_tests)
  infc_program(${source})
  get_filename_component(name ${source} NAME_WE)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 120)
endforeach()

# The executor on the fakes. The one about what is missing looks for libraries as users' programs do.
file(GLOB gpu_tests CONFIGURE_DEPENDS ${root}/tests/c/tensorrt/test_*.c)
foreach(source IN LISTS gpu_tests)
  infc_program(${source})
  get_filename_component(name ${source} NAME_WE)
  if(name STREQUAL test_gpu_preflight)
    target_include_directories(${name} PRIVATE ${root}/tests/fake_gpu)
    add_dependencies(${name} fake_cuda fake_trt infc_tensorrt)
    target_compile_definitions(${name} PRIVATE FAKE_CUDA_PATH="$<TARGET_FILE:fake_cuda>" FAKE_TRT_PATH="$<TARGET_FILE:fake_trt>"
                                               EXECUTOR_PATH="$<TARGET_FILE:infc_tensorrt>")
  else()
    infc_link_fake_gpu(${name})
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 ENVIRONMENT LD_LIBRARY_PATH=${fake_gpu}:${PROJECT_BINARY_DIR})
endforeach()

# Vector math at each of the 2^32 floats, minutes a function: ctest -C slow -L slow
if(TARGET test_math)
  foreach(function exp log tanh erf sigmoid silu quick_gelu gelu_erf gelu_tanh softplus elu sin cos rsqrt)
    add_test(NAME test_math_${function} CONFIGURATIONS slow COMMAND test_math 1 ${function})
    set_tests_properties(test_math_${function} PROPERTIES LABELS slow TIMEOUT 3600)
  endforeach()
endif()

file(GLOB others CONFIGURE_DEPENDS ${root}/tests/c/fuzz/*.c ${root}/bench/c/*.c)
foreach(source IN LISTS others)
  infc_program(${source})
endforeach()
infc_link_fake_gpu(mutate)
infc_link_fake_gpu(gpu_overhead)
if(NOT INFC_SANITIZE STREQUAL "thread") # programs whose steps are in another order may race
  add_test(NAME mutate COMMAND mutate 2000 1)
  set_tests_properties(mutate PROPERTIES TIMEOUT 300 ENVIRONMENT LD_LIBRARY_PATH=${fake_gpu}:${PROJECT_BINARY_DIR})
endif()
