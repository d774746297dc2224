// In NVML's place for tests: one GPU, whose energy a test adds to. The signatures are NVML's.

namespace {
unsigned long long millijoules = 1000;
int gpu = 0;
bool ready = false;
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

int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* energy) {
  constexpr int kInvalidArgument = 2;
  if (device != &gpu) return kInvalidArgument;
  *energy = millijoules;
  return 0;
}

void stand_in_add_millijoules(unsigned long long more) { millijoules += more; }
}
