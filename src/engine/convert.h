// The parts of a conversion: what is left of the source after --drop, what a target refuses of it, and its output as a stream.
#ifndef NEVE_ENGINE_CONVERT_H_
#define NEVE_ENGINE_CONVERT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/codec/digest.h"
#include "base/error/status.h"
#include "base/sync/crew.h"
#include "engine/files_source.h"
#include "format/state_tree.h"
#include "neve/files.h"

namespace neve::engine {

// ---- Output ----

// Bytes [begin, begin + target.size()) of one piece of the output. Several threads at once.
using Fill = std::function<absl::Status(uint64_t begin, std::span<std::byte> target)>;

// One output file as a sequence of pieces, made window by window: the crew fills a window while the one before it is written.
// Memory: three windows of 32 MiB.
class OutputStream {
 public:
  static constexpr int64_t kNoRecord = -1;

  void Add(uint64_t bytes, Fill fill, int64_t record = kNoRecord);   // record: whose CRC-32 the bytes are part of
  void AddText(std::string text, int64_t record = kNoRecord);
  // Text that depends on the CRCs of all pieces before it; it must have that many bytes.
  void AddLate(uint64_t bytes, std::function<std::string()> text);

  uint64_t bytes() const { return bytes_; }
  int64_t records() const { return static_cast<int64_t>(crcs_.size()); }   // the number that the next one gets
  uint32_t crc(int64_t record) const { return crcs_.at(static_cast<size_t>(record)); }

  using Sink = std::function<absl::Status(uint64_t offset, std::span<const std::byte> bytes)>;
  // digests: when given, receives those of each kDefaultChunkBytes.
  absl::Status Write(sync::Crew& crew, const Sink& sink, const std::function<void(uint64_t)>& advance,
                     std::vector<codec::Digest>* digests = nullptr);

 private:
  struct Piece {
    uint64_t begin, bytes;
    Fill fill;
    std::function<std::string()> late;
    std::string text;          // of a late piece, once it is known
    int64_t record;
  };
  struct Part {                // of a piece, in one window
    size_t piece;
    uint64_t begin;            // in the piece
    std::span<std::byte> target;
    uint32_t crc = 0;
    absl::Status status;
  };
  absl::Status FillWindow(sync::Crew& crew, uint64_t begin, std::span<std::byte> window);

  std::vector<Piece> pieces_;
  std::vector<uint32_t> crcs_;   // one a record
  uint64_t bytes_ = 0;
  size_t first_piece_ = 0;       // of the next window
};

// A folder that gets its name when all in it is durable. Destroyed before that, it is removed.
class OutputFolder {
 public:
  // Invalid: there is something of that name already, other than an empty folder.
  static absl::StatusOr<std::unique_ptr<OutputFolder>> Begin(const std::string& path);
  ~OutputFolder();
  // Where a file or folder is to be made, and is removed again after a failure. In the order of making.
  std::string Add(const std::string& name);
  absl::Status Finish();

 private:
  std::string target_, temporary_;
  std::vector<std::string> made_;
  bool done_ = false;
};

// ---- What is converted ----

// What a source holds and its state, without what was dropped.
struct Conversion {
  const Source* source = nullptr;
  const format::Contents* contents = nullptr;
  format::StateTree tree;
  std::vector<const SourceTensor*> tensors;       // those left, in tree order, each object once
  std::vector<const SourceTensor*> names;         // those, and after them each place that takes one again
  ConvertReport* report = nullptr;
  const ConvertOptions* options = nullptr;
};

// Names of what a target refuses, each with its reason.
class Refusals {
 public:
  void Add(const std::string& path, const std::string& why);
  void AddUnlessTree(const std::string& path, const std::string& why);   // what --tree would write
  // Unsupported, listing the first ones; OK when there are none.
  absl::Status ToStatus(const std::string& target) const;

 private:
  std::vector<std::string> lines_;
  size_t unless_tree_ = 0;   // of them
};

// Types and keys that readers which do not know neve.tree misread: refused unless --tree. `keys_only`: the types are checked by
// the target itself.
void RefuseMisread(const Conversion& conversion, bool keys_only, Refusals* refusals);
// Values and objects, which a target of tensors cannot hold.
void RefuseObjects(const format::TreeNode& node, Refusals* refusals);
// Objects that only running their pickle could bring back.
void RefuseOpaque(const format::TreeNode& node, Refusals* refusals);

// The content of `neve.blob.<number>`, of at most 64 MiB.
absl::StatusOr<std::string> ReadBlob(const format::Contents& contents, uint64_t number);

// The logical bytes of a tensor, row-major.
Fill LogicalBytes(const format::Contents& contents, const format::LogicalTensor& tensor);

// Each writes the whole output. `out` is the path; `check` completes the checksums of what was read of the source, before the
// output gets its name.
struct Target {
  std::string out;
  sync::Crew* crew;
  std::function<void(uint64_t)> advance;   // by bytes written; may be empty
  std::function<absl::Status()> check;
};
// Bytes that stand in the file in place of those of the stream, known once all of that was written.
struct LateBytes {
  uint64_t offset = 0;
  std::string text;
};
// The stream as the file target.out: atomic and durable. digests: of each kDefaultChunkBytes of the stream. late: made of those.
absl::Status WriteFileFrom(const Target& target, OutputStream* stream, std::vector<codec::Digest>* digests = nullptr,
                           const std::function<LateBytes(std::span<const codec::Digest>)>& late = {});
absl::Status ConvertToImage(const Conversion& conversion, const Target& target);
absl::Status ConvertToStep(const Conversion& conversion, const Target& target);
absl::Status ConvertToTorch(const Conversion& conversion, const Target& target);
absl::Status ConvertToHuggingFace(const Conversion& conversion, const Target& target);
absl::Status ConvertToNpz(const Conversion& conversion, const Target& target);
absl::Status ConvertToDcp(const Conversion& conversion, const Target& target);

}  // namespace neve::engine

#endif  // NEVE_ENGINE_CONVERT_H_
