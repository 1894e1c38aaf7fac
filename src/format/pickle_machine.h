// Reads a pickle (protocols 0 to 5) into a PickleGraph. A machine in the sense of Python's own: a stack, marks and a memo; but
// what Python would call is only noted.
//
// Bounds: the pickle has at most pickle_bytes_max bytes, makes at most nodes_max nodes and as many places of lists, and needs
// about 60 bytes a node. Every step takes constant or amortized constant time; nothing recurses. Errors: Damaged with the byte
// and the opcode; Unsupported: extension registry and out-of-band buffers, whose content is not in the pickle.
#ifndef NEVE_FORMAT_PICKLE_MACHINE_H_
#define NEVE_FORMAT_PICKLE_MACHINE_H_

#include <cstdint>

#include "base/error/status.h"
#include "format/byte_source.h"
#include "format/pickle_graph.h"

namespace neve::format {

struct PickleLimits {
  uint64_t pickle_bytes_max = 512u << 20;
  uint64_t nodes_max = 16u << 20;
};

struct ReadPickleResult {
  PickleGraph graph;
  uint64_t end = 0;  // in the source: one past its last byte
};

// The pickle that begins at `begin` and ends before `end`. What follows it in the source is not looked at.
absl::StatusOr<ReadPickleResult> ReadPickle(const ByteSource& source, uint64_t begin, uint64_t end,
                                            const PickleLimits& limits = {});
absl::StatusOr<ReadPickleResult> ReadPickle(std::string pickle, const std::string& name, const PickleLimits& limits = {});

}  // namespace neve::format

#endif  // NEVE_FORMAT_PICKLE_MACHINE_H_
