# One static library per folder, linked downwards only: a file that reaches upwards does not link.
# Sources are globbed, so a new file in a folder needs no line here.

add_library(trireme_options INTERFACE)
target_compile_options(trireme_options INTERFACE
  # GCC 12 sees uninitialised reads inside std::variant that are not there; sanitizers and tests look for real ones.
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor $<$<BOOL:${TRIREME_WERROR}>:-Werror>
  $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
  # A contraction chosen by the compiler would give the same formula different bits in two files.
  -ffp-contract=off)
target_include_directories(trireme_options INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
if(TRIREME_SANITIZE)
  target_compile_options(trireme_options INTERFACE -fsanitize=${TRIREME_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all -g1)
  target_link_options(trireme_options INTERFACE -fsanitize=${TRIREME_SANITIZE})
endif()

# trireme_library(<folder> [libraries of lower levels and third-party targets ...])
function(trireme_library name)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cc
       ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*/*.cc)
  list(FILTER sources EXCLUDE REGEX "${TRIREME_GPU_SOURCES}")
  if(NOT sources)
    file(TOUCH ${CMAKE_BINARY_DIR}/empty.cc)
    set(sources ${CMAKE_BINARY_DIR}/empty.cc)
  endif()
  add_library(trireme_${name} STATIC ${sources})
  target_link_libraries(trireme_${name} PUBLIC trireme_options ${ARGN})
  set_target_properties(trireme_${name} PROPERTIES LINKER_LANGUAGE CXX)
  trireme_precompile(trireme_${name} <algorithm> <filesystem> <functional> <map> <optional> <span> <string> <vector>
                     <fmt/core.h>)
endfunction()

# trireme_precompile(<target> <header> ...): such headers are half of what a source costs to compile, so a target of several
# sources reads them once. Not under a launcher: ccache does not store what is compiled that way.
function(trireme_precompile target)
  get_target_property(sources ${target} SOURCES)
  list(LENGTH sources count)
  if(count LESS 3 OR CMAKE_CXX_COMPILER_LAUNCHER)
    return()
  endif()
  target_precompile_headers(${target} PRIVATE ${ARGN})
  # Of strings that it has read precompiled GCC 12 says that bounds are left which are kept; builds under a launcher look.
  target_compile_options(${target} PRIVATE "$<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread;-Wno-restrict>")
endfunction()

# trireme_quick([TESTS test ...] [TARGETS target ...]): part of what scripts/test.sh builds and runs without --all.
function(trireme_quick)
  cmake_parse_arguments(arg "" "" "TESTS;TARGETS" ${ARGN})
  set_property(TEST ${arg_TESTS} APPEND PROPERTY LABELS quick)
  set_property(GLOBAL APPEND PROPERTY TRIREME_QUICK_TARGETS ${arg_TARGETS})
endfunction()

# trireme_tests(<folder> [RANKS n ...] [libraries ...]): tests/<folder>/*_test.cc become <folder>_tests,
# and *_mpi_test.cc become <folder>_mpi_tests, run once for each number of ranks.
function(trireme_tests name)
  cmake_parse_arguments(arg "" "TIMEOUT" "RANKS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600) # of a machine that has other work
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*_test.cc)
  set(mpi_sources ${sources})
  list(FILTER sources EXCLUDE REGEX "_mpi_test\\.cc$")
  list(FILTER mpi_sources INCLUDE REGEX "_mpi_test\\.cc$")
  if(sources)
    add_executable(${name}_tests ${sources})
    target_link_libraries(${name}_tests PRIVATE ${arg_UNPARSED_ARGUMENTS} trireme_test_support GTest::gtest_main)
    trireme_precompile(${name}_tests <gtest/gtest.h>)
    trireme_link_gpu(${name}_tests)
    add_test(NAME ${name} COMMAND ${name}_tests)
    set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS unit)
  endif()
  if(mpi_sources)
    add_executable(${name}_mpi_tests ${mpi_sources})
    target_link_libraries(${name}_mpi_tests PRIVATE ${arg_UNPARSED_ARGUMENTS} trireme_test_support trireme_mpi_main)
    trireme_precompile(${name}_mpi_tests <gtest/gtest.h>)
    trireme_link_gpu(${name}_mpi_tests)
    foreach(ranks ${arg_RANKS})
      add_test(NAME ${name}_mpi_${ranks}
               COMMAND ${CMAKE_SOURCE_DIR}/tests/support/mpirun.sh ${ranks} $<TARGET_FILE:${name}_mpi_tests>)
      set_tests_properties(${name}_mpi_${ranks} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS mpi PROCESSORS ${ranks})
    endforeach()
  endif()
endfunction()
