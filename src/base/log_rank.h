#pragma once

namespace trireme {

/// As set_log_rank said; -1 once the last line has been said. Who speaks for all ranks is 0.
int log_rank();

}  // namespace trireme
