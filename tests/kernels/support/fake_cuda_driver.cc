// libcuda.so.1 for a machine without one: what cuDNN asks of a driver while it makes plans. Kernels
// are taken and forgotten; nothing can be launched.

namespace {

constexpr int kSuccess = 0, kNotSupported = 801;

}  // namespace

extern "C" {

int cuDriverGetVersion(int* version) { return *version = 13000, kSuccess; }
int cuDeviceGetCount(int* count) { return *count = 1, kSuccess; }
int cuDeviceGet(int* device, int) { return *device = 0, kSuccess; }
int cuGetErrorName(int, const char** text) { return *text = "a stand-in's error", kSuccess; }
int cuGetErrorString(int, const char** text) { return *text = "a stand-in's error", kSuccess; }

int cuLibraryLoadData(void** library, const void* code, void*, void*, unsigned, void*, void*,
                      unsigned) {
  return *library = const_cast<void*>(code), kSuccess;
}
int cuLibraryGetKernel(void** kernel, void* library, const char*) {
  return *kernel = library, kSuccess;
}
int cuLibraryUnload(void*) { return kSuccess; }
int cuKernelSetAttribute(int, int, void*, int) { return kSuccess; }
int cuKernelGetAttribute(int* value, int, void*, int) { return *value = 0, kSuccess; }

// Asked for by name when it starts, never called.
#define TRIREME_NOT_HERE(name) \
  int name() { return kNotSupported; }
TRIREME_NOT_HERE(cuCtxGetCurrent)
TRIREME_NOT_HERE(cuCtxGetLimit)
TRIREME_NOT_HERE(cuCtxPopCurrent)
TRIREME_NOT_HERE(cuCtxPushCurrent)
TRIREME_NOT_HERE(cuStreamGetCtx)
TRIREME_NOT_HERE(cuLinkCreate)
TRIREME_NOT_HERE(cuLinkAddData)
TRIREME_NOT_HERE(cuLinkComplete)
TRIREME_NOT_HERE(cuLinkDestroy)
TRIREME_NOT_HERE(cuLaunchKernel)
TRIREME_NOT_HERE(cuLaunchCooperativeKernel)
TRIREME_NOT_HERE(cuLaunchKernelEx)
TRIREME_NOT_HERE(cuLibraryLoadFromFile)
TRIREME_NOT_HERE(cuOccupancyMaxPotentialClusterSize)
#undef TRIREME_NOT_HERE

}  // extern "C"
