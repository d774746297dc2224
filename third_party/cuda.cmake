# The CUDA toolkit: an installed one, NVIDIA's HPC SDK, or the pip packages of scripts/setup.sh --cuda.
# Gives TRIREME_NVCC, the targets trireme_cuda_headers and trireme_cudnn_headers, and TRIREME_CUDA_LIBRARY_FOLDERS (a
# list), where found.
set(TRIREME_CUDA_ROOT "" CACHE PATH "Folder of the CUDA toolkit (with bin/nvcc and include/cuda_runtime.h)")
set(roots ${TRIREME_CUDA_ROOT} $ENV{CUDA_HOME} $ENV{CUDA_PATH})
file(GLOB pip_roots ${PROJECT_SOURCE_DIR}/build/cuda/lib/python3*/site-packages/nvidia/cu1*)
file(GLOB sdk_roots /opt/nvidia/hpc_sdk/Linux_x86_64/*/cuda)
find_program(TRIREME_NVCC nvcc HINTS ${roots} ${pip_roots} /usr/local/cuda ${sdk_roots} PATH_SUFFIXES bin)
# One whose toolkit is gone is none.
if(TRIREME_NVCC)
  execute_process(COMMAND ${TRIREME_NVCC} --version OUTPUT_QUIET ERROR_QUIET RESULT_VARIABLE nvcc_fails)
  if(nvcc_fails)
    set_property(CACHE TRIREME_NVCC PROPERTY VALUE NOTFOUND)
    find_program(TRIREME_NVCC nvcc PATHS ${pip_roots} ${sdk_roots} PATH_SUFFIXES bin NO_DEFAULT_PATH)
  endif()
endif()
if(TRIREME_NVCC)
  file(REAL_PATH ${TRIREME_NVCC} nvcc_path)
  get_filename_component(nvcc_folder ${nvcc_path} DIRECTORY)
  get_filename_component(nvcc_root ${nvcc_folder} DIRECTORY)
endif()
find_path(TRIREME_CUDA_INCLUDE cuda_runtime_api.h HINTS ${nvcc_root} ${roots} ${pip_roots} /usr/local/cuda ${sdk_roots}
          PATH_SUFFIXES include targets/x86_64-linux/include)
if(TRIREME_CUDA_INCLUDE)
  add_library(trireme_cuda_headers INTERFACE)
  target_include_directories(trireme_cuda_headers SYSTEM INTERFACE ${TRIREME_CUDA_INCLUDE})
  get_filename_component(cuda_root ${TRIREME_CUDA_INCLUDE} DIRECTORY)
  find_library(TRIREME_CUDART_STATIC cudart_static HINTS ${cuda_root} ${cuda_root}/targets/x86_64-linux
               PATH_SUFFIXES lib64 lib)
  file(GLOB TRIREME_CUDA_LIBRARY_FOLDERS ${cuda_root}/lib64 ${cuda_root}/lib ${cuda_root}/../../math_libs/lib64
       ${cuda_root}/../../comm_libs/nccl/lib)
endif()
if(TRIREME_NVCC AND NOT (TRIREME_CUDA_INCLUDE AND TRIREME_CUDART_STATIC))
  message(STATUS "CUDA: ${TRIREME_NVCC} is left aside: its headers or libcudart_static are not found (set TRIREME_CUDA_ROOT)")
  set(TRIREME_NVCC "")
endif()

# cuDNN: beside the toolkit, of the system, or a pip package, which has a folder of its own.
file(GLOB cudnn_pip_roots ${PROJECT_SOURCE_DIR}/build/cuda/lib/python3*/site-packages/nvidia/cudnn)
find_path(TRIREME_CUDNN_INCLUDE cudnn.h HINTS $ENV{CUDNN_ROOT} $ENV{CUDNN_HOME} ${nvcc_root} ${roots} ${cudnn_pip_roots}
          ${pip_roots} ${sdk_roots} PATH_SUFFIXES include targets/x86_64-linux/include include/x86_64-linux-gnu)
if(TRIREME_CUDA_INCLUDE AND TRIREME_CUDNN_INCLUDE)
  add_library(trireme_cudnn_headers INTERFACE)
  target_include_directories(trireme_cudnn_headers SYSTEM INTERFACE ${TRIREME_CUDNN_INCLUDE})
  get_filename_component(cudnn_root ${TRIREME_CUDNN_INCLUDE} DIRECTORY)
  file(GLOB cudnn_folders ${cudnn_root}/lib ${cudnn_root}/lib64)
  list(APPEND TRIREME_CUDA_LIBRARY_FOLDERS ${cudnn_folders})
  list(REMOVE_DUPLICATES TRIREME_CUDA_LIBRARY_FOLDERS)
endif()
