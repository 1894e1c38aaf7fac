// What an image does not keep of a pickle: that a list, a dictionary or a set stands in several places as one object.
#ifndef NEVE_FORMAT_PICKLE_SHARING_H_
#define NEVE_FORMAT_PICKLE_SHARING_H_

#include <cstdint>

#include "format/pickle_graph.h"

namespace neve::format {

struct PickleSharing {
  bool shares = false;      // something that can be changed stands in two places at least
  uint64_t written_out = 0; // nodes of containers, each counted in every place where it stands; saturating
};

// Looks at what is shown as containers (dict, list, tuple, set, OrderedDict, defaultdict) and at nothing inside of other objects.
// Each node once.
PickleSharing FindSharing(const PickleGraph& graph);

}  // namespace neve::format

#endif  // NEVE_FORMAT_PICKLE_SHARING_H_
