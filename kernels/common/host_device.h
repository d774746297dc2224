#pragma once
// Plain arithmetic that hosts and devices share.

#ifdef __CUDACC__
#define TRIREME_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define TRIREME_HOST_DEVICE inline
#endif
