#pragma once

#include <filesystem>
#include <memory>

#include "support/mpi_test.h"
#include "support/temporary_directory.h"

namespace trireme {

/// One folder for all ranks, removed by rank 0.
class SharedDirectory {
 public:
  SharedDirectory() {
    if (test_world().rank() == 0) own_ = std::make_unique<TemporaryDirectory>();
    path_ = test_world().broadcast_text(own_ ? own_->path().string() : "", 0);
  }
  ~SharedDirectory() { test_world().barrier(); }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::unique_ptr<TemporaryDirectory> own_;
  std::filesystem::path path_;
};

}  // namespace trireme
