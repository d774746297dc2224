#pragma once

namespace trireme {

/// Before anything opens a file: standard streams that whoever started this process has closed get
/// descriptors that fail when they are used. Else a file of a run would have their number, and what
/// is printed would be written into it.
void hold_standard_streams();

}  // namespace trireme
