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
