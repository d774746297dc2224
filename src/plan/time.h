#pragma once

#include <cmath>

namespace trireme {

/// The interval between checkpoints that loses least: sqrt(2 x mean time between failures x time of
/// a save), both in seconds (Young 1974; Daly 2006 refines it for saves that take long).
inline double young_daly_seconds(double mtbf_seconds, double save_seconds) {
  return std::sqrt(2 * mtbf_seconds * save_seconds);
}

}  // namespace trireme
