# The CUDA toolkit: an installed one, NVIDIA's HPC SDK, or the pip packages of scripts/setup.sh --cuda.
# Gives TRIREME_NVCC, the target trireme_cuda_headers and TRIREME_CUDA_LIBRARIES (a folder list), where found.
set(TRIREME_CUDA_ROOT "" CACHE PATH "Folder of the CUDA toolkit (with bin/nvcc and include/cuda_runtime.h)")
set(roots ${TRIREME_CUDA_ROOT} $ENV{CUDA_HOME} $ENV{CUDA_PATH})
file(GLOB pip_roots ${PROJECT_SOURCE_DIR}/build/cuda/lib/python3*/site-packages/nvidia/cu1*)
file(GLOB sdk_roots /opt/nvidia/hpc_sdk/Linux_x86_64/*/cuda)
find_program(TRIREME_NVCC nvcc HINTS ${roots} ${pip_roots} /usr/local/cuda ${sdk_roots} PATH_SUFFIXES bin)
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
  file(GLOB TRIREME_CUDA_LIBRARY_FOLDERS ${cuda_root}/lib64 ${cuda_root}/lib ${cuda_root}/../../math_libs/lib64
       ${cuda_root}/../../comm_libs/nccl/lib)
endif()
