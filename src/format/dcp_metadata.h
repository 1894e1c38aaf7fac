// The `.metadata` of a torch.distributed.checkpoint folder: which tensors there are, the pieces that make them up, and which
// bytes of which file hold each. A pickle of dataclasses, of which only fields are read.
#ifndef NEVE_FORMAT_DCP_METADATA_H_
#define NEVE_FORMAT_DCP_METADATA_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "format/pickle_graph.h"
#include "neve/dtype.h"
#include "tensor/view.h"

namespace neve::format {

struct DcpPlace {
  std::string file;  // relative to the folder, and inside of it
  uint64_t offset = 0, bytes = 0;
};

struct DcpPiece {
  tensor::Dims offset, sizes;
  DcpPlace place;
};

struct DcpPathPart {
  std::string key;     // of a dictionary, escaped
  int64_t index = -1;  // of a list, where it is not negative
};

struct DcpEntry {
  std::string name;               // as the checkpoint has it, dotted
  std::vector<DcpPathPart> path;  // where it stood in the state; one part when that is not known
  bool is_tensor = false;
  DType dtype = DType::kU8;
  bool gradient = false;
  tensor::Dims shape;
  std::vector<DcpPiece> pieces;  // of a tensor; they cover it, none overlaps another
  DcpPlace place;                // of anything else
};

// Damaged: fields missing or of other types, pieces that overlap, leave holes or reach out, paths that leave the folder.
// Unsupported: transformed (compressed) pieces, dtypes that neve lacks.
absl::StatusOr<std::vector<DcpEntry>> ReadDcpMetadata(const PickleGraph& graph);

}  // namespace neve::format

#endif  // NEVE_FORMAT_DCP_METADATA_H_
