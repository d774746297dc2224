// In NVML's place for tests: one GPU, whose energy a test adds to and whose clocks it lowers. The
// signatures are NVML's.

#include <cstdio>

namespace {
unsigned long long millijoules = 1000, lowered_by = 0;
int gpu = 0;
bool ready = false;

constexpr int kInvalidArgument = 2;

/// Fills in what NVML would.
template <class T>
int tell(const void* device, T* where, T value) {
  if (device != &gpu) return kInvalidArgument;
  *where = value;
  return 0;
}
}  // namespace

extern "C" {

int nvmlInit_v2() {
  ready = true;
  return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  constexpr int kUninitialised = 1, kNotFound = 6;
  if (!ready) return kUninitialised;
  if (bus_id[5] != '3') return kNotFound;
  *device = &gpu;
  return 0;
}

int nvmlSystemGetDriverVersion(char* version, unsigned length) {
  std::snprintf(version, length, "550.54.15");
  return 0;
}

int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* energy) {
  return tell(device, energy, millijoules);
}

int nvmlDeviceGetEccMode(void* device, int* current, int* pending) {
  return tell(device, current, 1) + tell(device, pending, 1);
}

int nvmlDeviceGetTotalEccErrors(void* device, int type, int counter, unsigned long long* errors) {
  constexpr int kUncorrected = 1, kVolatile = 0;
  return type == kUncorrected && counter == kVolatile ? tell(device, errors, 2ULL)
                                                      : kInvalidArgument;
}

int nvmlDeviceGetMaxClockInfo(void* device, int clock, unsigned* megahertz) {
  constexpr int kSm = 1;
  return clock == kSm ? tell(device, megahertz, 1980U) : kInvalidArgument;
}

int nvmlDeviceGetEnforcedPowerLimit(void* device, unsigned* milliwatts) {
  return tell(device, milliwatts, 700'000U);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  return tell(device, reasons, lowered_by);
}

void stand_in_lower_clocks(unsigned long long reasons) { lowered_by = reasons; }
void stand_in_add_millijoules(unsigned long long more) { millijoules += more; }
}
