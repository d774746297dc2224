// Faults: how one ends a launch, and the words for it.

#include <dlfcn.h>

#include <cstdio>
#include <map>

#include "kernels/simt_host/state.h"

namespace trireme::simt {

const char* name_of(FaultKind k) {
  switch (k) {
    case FaultKind::kDivergentBarrier:
      return "divergent barrier";
    case FaultKind::kDeadlock:
      return "deadlock";
    case FaultKind::kBadCollective:
      return "bad warp collective";
    case FaultKind::kUninitialised:
      return "read of uninitialised memory";
    case FaultKind::kOutOfBounds:
      return "out-of-bounds access";
    case FaultKind::kMisaligned:
      return "misaligned access";
    case FaultKind::kRace:
      return "race";
    case FaultKind::kAsyncCopy:
      return "asynchronous result used before it was waited for";
    case FaultKind::kHostMemory:
      return "access to host memory";
    case FaultKind::kLaunchConfig:
      return "launch refused";
    case FaultKind::kStackOverflow:
      return "stack overflow";
    case FaultKind::kMbarrier:
      return "mbarrier misuse";
    case FaultKind::kTma:
      return "TMA refused";
    case FaultKind::kWgmma:
      return "wgmma misuse";
    case FaultKind::kProxyFence:
      return "missing fence.proxy.async";
    case FaultKind::kStream:
      return "streams misused";
  }
  return "?";
}

std::string where(const Loc& l) {
  std::string f = l.file_name();
  return f.substr(f.rfind('/') + 1) + ":" + std::to_string(l.line());
}

std::string thread_name(const Worker& w, int t) {
  auto& i = w.threads[t].index;
  char s[64];
  if (w.shape->block.y * w.shape->block.z > 1)
    std::snprintf(s, sizeof s, "thread (%u,%u,%u)", i.x, i.y, i.z);
  else
    std::snprintf(s, sizeof s, "thread %u", i.x);
  return s;
}

void report_deadlock(Worker& w) {
  std::map<std::string, std::vector<int>> groups;
  for (auto& t : w.threads)
    if (t.linear < w.count)
      groups[t.state == State::kDone
                 ? std::string("has left the kernel")
                 : std::string("waits in ") + t.wait_what + " at " + where(t.wait_loc)]
          .push_back(t.linear);
  std::string s = "no thread can run:";
  for (auto& [k, v] : groups)
    s += "\n    " + std::to_string(v.size()) + (v.size() == 1 ? " thread " : " threads ") +
         "(first: " + std::to_string(v[0]) + ") " + k;
  for (auto& b : w.mbarriers)
    if (b.live)
      s += "\n    mbarrier #" + std::to_string(&b - w.mbarriers.data()) + " at shared byte " +
           std::to_string(b.offset) + ": phase " + std::to_string(b.phase) + " lacks " +
           std::to_string(b.pending) + " of " + std::to_string(b.count) + " arrivals and " +
           std::to_string(b.tx) + " bytes";
  fault(FaultKind::kDeadlock, s);
}

std::string symbol(const void* pc) {
  Dl_info info;
  if (!pc || !dladdr(pc, &info)) return "?";
  char command[4200], line[1024] = "";
  std::snprintf(
      command, sizeof command, "addr2line -Cfpi -e %s 0x%lx 2>/dev/null", info.dli_fname,
      (unsigned long)(static_cast<const char*>(pc) - static_cast<const char*>(info.dli_fbase) - 1));
  std::string out;
  if (FILE* f = popen(command, "r")) {
    while (std::fgets(line, sizeof line, f)) {
      std::string s = line;
      while (!s.empty() && s.back() == '\n') s.pop_back();
      // keep "file.cu:12" of each inlined frame
      auto at = s.rfind(" at ");
      if (at == std::string::npos) continue;
      s = s.substr(at + 4);
      s = s.substr(s.rfind('/') + 1);
      if (s.rfind("simt.h", 0) == 0) continue;
      if (auto d = s.find(" (disc"); d != std::string::npos) s = s.substr(0, d);
      out += (out.empty() ? "" : " < ") + s;
    }
    pclose(f);
  }
  return out.empty() ? "?" : out;
}

std::string describe(const Worker& w, const void* p, const Allocation* a) {
  auto q = static_cast<const unsigned char*>(p);
  if (a)
    return "byte " + std::to_string(q - a->base) + " of '" + a->name + "' (" +
           std::to_string(a->size) + " bytes)";
  return "byte " + std::to_string(q - w.smem) + " of shared memory (" +
         std::to_string(w.smem_bytes) + " bytes)";
}

std::string describe(const Worker& w, const Access& x) {
  if (x.thread >= w.count)
    return "a TMA load that completes on mbarrier #" + std::to_string(x.thread - w.count);
  std::string s = thread_name(w, x.thread);
  if (x.block != w.block) s += " of block " + std::to_string(x.block);
  return s;
}

void fault(FaultKind kind, const std::string& text) {
  Worker* w = t_worker;
  if (!w) throw Fault(kind, text);
  if (!w->faulted) {
    w->faulted = true;
    w->fault_kind = kind;
    dim3 b = blockIdx;
    char at[96];
    std::snprintf(at, sizeof at, "block (%u,%u,%u) ", b.x, b.y, b.z);
    w->fault_text = at + thread_name(*w, w->current->linear) + ": " + text;
    w->fault_pc = t_pc;
    w->fault_at = t_loc ? where(*t_loc) : "";
    t_loc = nullptr;
  }
  // The other fibers are abandoned: a kernel owns nothing that needs a destructor.
  leave_for_launch(*w);
  __builtin_unreachable();
}

void shuffle_source_fault(int lane) {
  fault(FaultKind::kBadCollective,
        "shuffle reads lane " + std::to_string(lane) + ", which is not in the mask");
}

}  // namespace trireme::simt
