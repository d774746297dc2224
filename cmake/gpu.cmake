# A program is linked with one GPU backend, an object library: its runtime and the ops' tables.
#   none          no GPU code
#   cuda          the kernels compiled by nvcc (TRIREME_CUDA)
#   simt          the same sources compiled for the host and run by kernels/simt_host: tests only
#   simt_checked  likewise, every load and store of a kernel checked
#   simt_cublaslt, simt_checked_cublaslt  likewise, with the tables of cuBLASLt and what stands for it
#   ptx           the PTX that nvcc makes of them, interpreted by kernels/ptx_host: tests only
#   ptx_fmad      likewise, as it is shipped: products and sums contracted
# trireme_link_gpu(<target> [backend]): without a name it is cuda where that is built, else none.

# These stand in no library of a folder.
set(TRIREME_GPU_SOURCES "(gpu_cuda|gpu_none|gpu_channel_[a-z]+|gpu_kernels_cuda|gpu_kernels_none|launch_cuda|_cublaslt|_cudnn)\\.cc$")

function(trireme_link_gpu target)
  set(backend ${ARGN})
  if(NOT backend)
    set(backend none)
    if(TRIREME_CUDA_IS_DEFAULT)
      set(backend cuda)
    endif()
  endif()
  target_link_libraries(${target} PRIVATE trireme_gpu_${backend})
  if(backend MATCHES "^simt")  # what stands for NCCL is opened by name, and uses the streams of the program
    add_dependencies(${target} trireme_nccl_stand_in)
    set_target_properties(${target} PROPERTIES ENABLE_EXPORTS ON)
    set_property(TARGET ${target} APPEND PROPERTY BUILD_RPATH ${CMAKE_BINARY_DIR}/nccl_stand_in)
  endif()
  if(backend MATCHES "^simt.*_cublaslt$")
    add_dependencies(${target} trireme_cublaslt_stand_in)
    set_property(TARGET ${target} APPEND PROPERTY BUILD_RPATH ${CMAKE_BINARY_DIR}/cublaslt_stand_in)
  endif()
  if(backend STREQUAL "cuda")  # NCCL and cuBLASLt are opened by name: also those of the toolkit built with
    set_property(TARGET ${target} APPEND PROPERTY BUILD_RPATH ${TRIREME_CUDA_LIBRARY_FOLDERS})
  endif()
endfunction()

file(GLOB TRIREME_CUBLASLT_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/gemm/*_cublaslt.cc)
file(GLOB TRIREME_CU_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/*/*.cu)
set(src ${PROJECT_SOURCE_DIR}/src)
set(common ${PROJECT_SOURCE_DIR}/kernels/common)

add_library(trireme_gpu_none OBJECT ${src}/device/gpu_none.cc ${src}/comm/gpu_channel_none.cc
            ${common}/gpu_kernels_none.cc)
target_link_libraries(trireme_gpu_none PRIVATE trireme_options fmt::fmt)

set(gpu_sources ${src}/device/gpu_cuda.cc ${common}/gpu_kernels_cuda.cc ${common}/launch_cuda.cc)

# ---- host execution ----
# The checked variant stands on how GCC instruments; clang 14 lacks std::source_location.
if(TRIREME_TESTS AND TARGET trireme_cuda_headers AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  file(GLOB simt_runtime CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/simt_host/*.cc)
  add_library(trireme_simt_runtime OBJECT ${simt_runtime})
  target_link_libraries(trireme_simt_runtime PRIVATE trireme_options trireme_cuda_headers)
  target_compile_options(trireme_simt_runtime PRIVATE -O3 -g1 -fno-sanitize=all)
  file(GLOB nccl_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/simt_host/nccl/*.cc)
  add_library(trireme_nccl_stand_in SHARED ${nccl_sources})
  target_link_libraries(trireme_nccl_stand_in PRIVATE trireme_options trireme_cuda_headers rt)
  target_compile_options(trireme_nccl_stand_in PRIVATE -fno-sanitize=all)
  set_target_properties(trireme_nccl_stand_in PROPERTIES OUTPUT_NAME nccl VERSION 2 SOVERSION 2
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/nccl_stand_in)
  foreach(variant simt simt_checked)
    # Kernels as C++; g++ takes a .cu file only when told its language.
    add_library(trireme_${variant}_kernels OBJECT ${TRIREME_CU_SOURCES})
    set_source_files_properties(${TRIREME_CU_SOURCES} PROPERTIES LANGUAGE CXX)
    target_link_libraries(trireme_${variant}_kernels PRIVATE trireme_options trireme_cuda_headers)
    # Lambdas of kernels capture more than each use needs, and nvcc's pragmas are its own.
    # Vectorising the unrolled loops of one attention kernel takes GCC 12 four minutes, and gains nothing here.
    target_compile_options(trireme_${variant}_kernels PRIVATE -x c++ -g1 -fno-tree-vectorize -Wno-unknown-pragmas
                           -Wno-psabi -fno-sanitize=all)
    add_library(trireme_gpu_${variant} OBJECT ${gpu_sources} ${src}/comm/gpu_channel_nccl.cc)
    target_compile_definitions(trireme_gpu_${variant} PRIVATE TRIREME_GPU_BACKEND="cuda-host" TRIREME_GPU_SM90
                               TRIREME_GPU_ARCHITECTURES="80 90a 80-ptx"
                               TRIREME_GPU_CUDNN)
    target_link_libraries(trireme_gpu_${variant} PRIVATE trireme_options trireme_cuda_headers fmt::fmt
                          INTERFACE ${CMAKE_DL_LIBS} Threads::Threads)
    target_sources(trireme_gpu_${variant} INTERFACE $<TARGET_OBJECTS:trireme_${variant}_kernels>
                   $<TARGET_OBJECTS:trireme_simt_runtime>)
  endforeach()
  # The callbacks that this flag calls are those of kernels/simt_host; libtsan is not linked.
  target_compile_options(trireme_simt_checked_kernels PRIVATE -fsanitize=thread --param tsan-instrument-func-entry-exit=0)

  # A library of cuBLASLt's name that tests open (kernels/simt_host/cublaslt), and programs that do.
  if(EXISTS ${TRIREME_CUDA_INCLUDE}/cublasLt.h)
    file(STRINGS ${TRIREME_CUDA_INCLUDE}/cublas_api.h major REGEX "#define CUBLAS_VER_MAJOR ")
    string(REGEX REPLACE ".*MAJOR ([0-9]+).*" "\\1" TRIREME_CUBLASLT_MAJOR "${major}")
    add_library(trireme_cublaslt_stand_in SHARED ${PROJECT_SOURCE_DIR}/kernels/simt_host/cublaslt/cublaslt.cc)
    target_link_libraries(trireme_cublaslt_stand_in PRIVATE trireme_options trireme_cuda_headers)
    target_compile_options(trireme_cublaslt_stand_in PRIVATE -O3 -fno-sanitize=all)
    set_target_properties(trireme_cublaslt_stand_in PROPERTIES OUTPUT_NAME cublasLt VERSION ${TRIREME_CUBLASLT_MAJOR}
                          SOVERSION ${TRIREME_CUBLASLT_MAJOR}
                          LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/cublaslt_stand_in)
    foreach(variant simt simt_checked)
      add_library(trireme_gpu_${variant}_cublaslt OBJECT ${gpu_sources} ${src}/comm/gpu_channel_nccl.cc
                  ${TRIREME_CUBLASLT_SOURCES})
      target_compile_definitions(trireme_gpu_${variant}_cublaslt PRIVATE TRIREME_GPU_CUBLASLT
                                 $<TARGET_PROPERTY:trireme_gpu_${variant},COMPILE_DEFINITIONS>)
      target_link_libraries(trireme_gpu_${variant}_cublaslt PRIVATE trireme_options trireme_cuda_headers fmt::fmt
                            INTERFACE ${CMAKE_DL_LIBS} Threads::Threads)
      target_sources(trireme_gpu_${variant}_cublaslt INTERFACE $<TARGET_OBJECTS:trireme_${variant}_kernels>
                     $<TARGET_OBJECTS:trireme_simt_runtime>)
    endforeach()
  endif()
endif()

# ---- the interpreter of PTX ----
if(TRIREME_TESTS AND TARGET trireme_cuda_headers AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  file(GLOB ptx_runtime CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/ptx_host/*.cc)
  add_library(trireme_ptx_runtime OBJECT ${ptx_runtime})
  target_link_libraries(trireme_ptx_runtime PRIVATE trireme_options trireme_cuda_headers)
  # An fma must be the machine's; a product and a sum must stay two.
  target_compile_options(trireme_ptx_runtime PRIVATE -O3 -g1 -mavx2 -mfma -mf16c -ffp-contract=off -fno-sanitize=all)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/kernels/ptx_host/float_modes.cc PROPERTIES COMPILE_OPTIONS -frounding-math)
endif()

# ---- nvcc ----
if(TRIREME_CUDA STREQUAL "ON" AND NOT TRIREME_NVCC)
  message(FATAL_ERROR "TRIREME_CUDA=ON, but there is no nvcc. Set TRIREME_CUDA_ROOT to the toolkit's folder, or run "
                      "scripts/setup.sh --cuda, which installs one into build/cuda.")
endif()
if(NOT TRIREME_NVCC)
  return()
endif()
# AUTO: train gets the CUDA backend where a GPU is visible or architectures are given. Otherwise, and with OFF, it is
# compiled by the test cuda_compile only.
set(TRIREME_CUDA_IS_DEFAULT ON)
if(TRIREME_CUDA STREQUAL "OFF")
  set(TRIREME_CUDA_IS_DEFAULT OFF)
endif()
set(architectures ${TRIREME_CUDA_ARCHITECTURES})
if(NOT architectures)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE architectures
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE no_gpu)
  if(no_gpu EQUAL 0 AND architectures)
    string(REGEX REPLACE "[.]" "" architectures "${architectures}")
    string(REPLACE "\n" ";" architectures "${architectures}")
    list(REMOVE_DUPLICATES architectures)
    list(TRANSFORM architectures REPLACE "^90$" "90a")
  else()
    set(architectures 80 90a)
    if(TRIREME_CUDA STREQUAL "AUTO")
      set(TRIREME_CUDA_IS_DEFAULT OFF)
    endif()
  endif()
endif()
set(strict)
if(TRIREME_WERROR)
  set(strict --strict)
endif()
if(TRIREME_CUDA_IS_DEFAULT)
  message(STATUS "CUDA: ${TRIREME_NVCC}, architectures ${architectures}")
  set(exclude)
else()
  # Only the test compiles these.
  set(strict --strict)
  if(TRIREME_CUDA STREQUAL "AUTO")
    message(STATUS "CUDA: ${TRIREME_NVCC}, but no GPU here: train has the CPU backend only "
                   "(-DTRIREME_CUDA=ON or -DTRIREME_CUDA_ARCHITECTURES=... changes that)")
  endif()
  set(exclude EXCLUDE_FROM_ALL)
endif()

# The oldest architecture whose code is no other's alone is there as PTX too: what a newer GPU's driver compiles.
set(built ${architectures})
set(ptx ${architectures})
list(FILTER ptx EXCLUDE REGEX "a$")
if(ptx)
  list(SORT ptx COMPARE NATURAL)
  list(GET ptx 0 ptx)
  list(APPEND built ${ptx}-ptx)
endif()
list(JOIN built " " built)

# Appends nvcc's objects of sources, in that folder, to the list of that name.
function(trireme_nvcc_objects variable folder)
  cmake_parse_arguments(arg "" "" "SOURCES;OPTIONS" ${ARGN})
  set(made)
  foreach(source ${arg_SOURCES})
    get_filename_component(name ${source} NAME)
    set(object ${CMAKE_BINARY_DIR}/${folder}/${name}.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${PROJECT_SOURCE_DIR}/scripts/nvcc.sh ${strict} ${TRIREME_NVCC} ${object} ${source} -ccbin ${CMAKE_CXX_COMPILER}
              -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR} ${arg_OPTIONS}
      DEPENDS ${source} ${PROJECT_SOURCE_DIR}/scripts/nvcc.sh DEPFILE ${object}.d
      COMMENT "nvcc ${folder}/${name}" VERBATIM)
    list(APPEND made ${object})
  endforeach()
  set(${variable} ${${variable}} ${made} PARENT_SCOPE)
endfunction()

set(objects)
foreach(source ${TRIREME_CU_SOURCES})
  get_filename_component(name ${source} NAME)
  set(codes)
  foreach(arch ${architectures})
    # Not -arch: sm_90a would be compiled for compute_90 too, which has no wgmma.
    if(NOT name MATCHES "_sm90\\.cu$" OR arch STREQUAL "90a")
      list(APPEND codes -gencode arch=compute_${arch},code=sm_${arch})
      if(arch STREQUAL "${ptx}")
        list(APPEND codes -gencode arch=compute_${arch},code=compute_${arch})
      endif()
    endif()
  endforeach()
  if(NOT codes)
    continue()
  endif()
  trireme_nvcc_objects(objects cuda SOURCES ${source} OPTIONS ${codes})
endforeach()
add_library(trireme_gpu_cuda OBJECT ${exclude} ${gpu_sources} ${src}/comm/gpu_channel_nccl.cc
            ${TRIREME_CUBLASLT_SOURCES})
target_compile_definitions(trireme_gpu_cuda PRIVATE TRIREME_GPU_BACKEND="cuda" TRIREME_GPU_CUBLASLT
                           TRIREME_GPU_ARCHITECTURES="${built}")
if(TARGET trireme_cudnn_headers)
  target_sources(trireme_gpu_cuda PRIVATE ${PROJECT_SOURCE_DIR}/kernels/attention/attention_cudnn.cc)
  target_compile_definitions(trireme_gpu_cuda PRIVATE TRIREME_GPU_CUDNN)
  target_link_libraries(trireme_gpu_cuda PRIVATE trireme_cudnn_headers)
else()
  message(STATUS "CUDA: cudnn.h is not found (set CUDNN_ROOT, or run scripts/setup.sh --cuda): "
                 "attention will run by this program's own kernels")
endif()
if("90a" IN_LIST architectures)  # the tables of *_sm90.cu are there
  target_compile_definitions(trireme_gpu_cuda PRIVATE TRIREME_GPU_SM90)
endif()
target_link_libraries(trireme_gpu_cuda PRIVATE trireme_options trireme_cuda_headers fmt::fmt
                      INTERFACE ${TRIREME_CUDART_STATIC} ${CMAKE_DL_LIBS} Threads::Threads rt)
add_custom_target(trireme_cuda_objects DEPENDS ${objects})
add_dependencies(trireme_gpu_cuda trireme_cuda_objects)
target_link_libraries(trireme_gpu_cuda INTERFACE ${objects})

# ---- our kernels as PTX, interpreted ----
if(TARGET trireme_ptx_runtime)
  foreach(variant ptx ptx_fmad)
    set(options -gencode arch=compute_90a,code=compute_90a --no-compress)
    if(variant STREQUAL "ptx")
      list(APPEND options -fmad=false)
    endif()
    set(${variant}_objects)
    trireme_nvcc_objects(${variant}_objects ${variant} SOURCES ${TRIREME_CU_SOURCES} OPTIONS ${options})
    add_custom_target(trireme_${variant}_kernels DEPENDS ${${variant}_objects})
    add_library(trireme_gpu_${variant} OBJECT EXCLUDE_FROM_ALL ${gpu_sources} ${src}/comm/gpu_channel_nccl.cc)
    add_dependencies(trireme_gpu_${variant} trireme_${variant}_kernels)
    target_compile_definitions(trireme_gpu_${variant} PRIVATE TRIREME_GPU_BACKEND="cuda-host" TRIREME_GPU_SM90
                               TRIREME_GPU_ARCHITECTURES="90a")
    target_link_libraries(trireme_gpu_${variant} PRIVATE trireme_options trireme_cuda_headers fmt::fmt
                          INTERFACE ${${variant}_objects} ${CMAKE_DL_LIBS} Threads::Threads)
    target_sources(trireme_gpu_${variant} INTERFACE $<TARGET_OBJECTS:trireme_ptx_runtime>)
  endforeach()
endif()
