#pragma once
// What `train plan --search` adds: the best layouts of a number of ranks, with what bounds each;
// what changes of the config's own would bring; the config of the best.

#include <string>
#include <vector>

#include "plan/search.h"
#include "plan/search_answers.h"

namespace trireme {

struct PlannedSearch {
  LayoutTask task;
  std::int64_t steps = 0;  ///< of the run
  SearchResult found;
  std::optional<TimedLayout> own;     ///< of the config as it stands, where `train` takes it
  std::string own_refused;            ///< why it does not
  std::vector<Trial> trials;          ///< of changes of its own
  std::optional<TimedLayout> micro;   ///< own, with the largest micro-batch that fits
  std::optional<TimedLayout> fewest;  ///< of the fewest ranks that hold the model
};

/// Of a config without faults beyond its layout. Faults, that nothing fits among them, go to
/// `problems`.
PlannedSearch plan_search(LayoutTask task, std::vector<Problem>& problems);

/// [{parallel, batch, precision, recompute, step_seconds, memory_bytes_max, cost, ...}], best first
Json layouts_json(const PlannedSearch& planned);
/// {own, front, changes, micro_most, ranks_fewest, bounded, ...}
Json search_json(const PlannedSearch& planned);
std::string search_text(const PlannedSearch& planned);

/// Refuses a file that stands there (ConfigError), before any work.
void check_written_config(const std::string& path);
/// The config as it was given, with the keys of the best layout.
void write_best_config(const PlannedSearch& planned, Json given, const std::string& path);

}  // namespace trireme
