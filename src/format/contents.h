// What a checkpoint of any kind holds. Every reader (torch's zip, its older streams, safetensors, sharded folders, DCP,
// npz, a step of neve) presents its file or folder in one form: as the image that neve would have written of it.
//
// The virtual image is a valid image of docs/format.md: a header (names, dtypes, shapes, `neve.tree`, `neve.values`) and data
// without hole or overlap. Only its bytes lie elsewhere: Locate says in which file, Read fetches them. So what can be done
// with an image (inspect, restore, diff, stats, conversion) is written once, against this interface.
//
// Invariants
//   - Opening reads headers, directories and pickles only, never tensor data; nothing of the file is imported or called.
//   - ParseImageHeader(header_text(), image_bytes()) and LogicalTensors of it succeed.
//   - A tensor that covers its storage and is contiguous is stored under its own name; any other is an alias of the storage,
//     which then is a hidden base `neve.base.<n>`.
//   - What weights-only loading would refuse is an opaque node of the tree ("o":"opaque", "q": the callable), listed in
//     opaque(); it never hides the tensors below it.
//   - Memory: the header text, the tables below and at most 64 MiB besides, whatever the file's size or claims; and, while it
//     is opened, what its directory and pickle need (limits in zip_directory.h and pickle_machine.h).
// Threads: const calls from several threads at once. Errors: Unsupported (a kind or feature that is not read, says which),
// Damaged (malformed or truncated: file, place, reason), DataLoss (a checksum of the file differs), Unavailable.
#ifndef NEVE_FORMAT_CONTENTS_H_
#define NEVE_FORMAT_CONTENTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error/status.h"
#include "format/image_header.h"

namespace neve::format {

enum class ContentsKind : uint8_t { kSafetensors, kTorchZip, kTorchLegacy, kTorchTar, kHuggingFace, kDcp, kNpz, kNpy };
std::string_view Name(ContentsKind kind);   // "safetensors", "torch zip", ...: what `inspect --json` says as "kind"

// Contiguous bytes of the virtual image in a real file.
struct Extent {
  uint64_t image_offset;
  uint64_t bytes;
  uint32_t file;          // into files()
  uint64_t file_offset;
};

// A leaf that only running its pickle could bring back.
struct OpaqueObject {
  std::string path;       // dotted, as in tensor names
  std::string callable;   // "module.Class"; never looked up
};

// What Check found. `tensor` is "" where none is concerned.
struct ContentsProblem {
  bool structural;        // malformed, not merely different from its checksum
  uint32_t file;
  uint64_t offset;
  std::string tensor, message;
};

struct ContentsOptions {
  bool lenient = false;   // reads past what is merely untidy (trailing bytes), with a note
};

class Contents {
 public:
  virtual ~Contents() = default;
  virtual ContentsKind kind() const = 0;
  virtual std::span<const std::string> files() const = 0;      // the first is the one that was opened
  virtual std::string_view header_text() const = 0;            // 8 bytes of length and the JSON, padded
  virtual const ImageHeader& header() const = 0;               // of header_text
  virtual uint64_t image_bytes() const = 0;
  virtual std::span<const LogicalTensor> tensors() const = 0;  // of header()
  virtual std::span<const OpaqueObject> opaque() const = 0;
  virtual std::span<const std::string> notes() const = 0;

  // Where image bytes [offset, offset + bytes) lie, in order; empty when they lie nowhere as they are (compressed, of another
  // byte order, assembled from pieces).
  virtual std::vector<Extent> Locate(uint64_t offset, uint64_t bytes) const = 0;
  // Image bytes [offset, offset + target.size()), the header's included. DataLoss: a checksum of the file, or a digest, differs.
  // A checksum of the file covers all of what it is of; the read that completes that compares it.
  virtual absl::Status Read(uint64_t offset, std::span<std::byte> target) const = 0;
  // Every rule and every checksum that the file's own format has, reading all of it: `problems` lists what is wrong. The
  // status is about reaching the bytes. progress(bytes done): may be empty.
  virtual absl::Status Check(const std::function<void(uint64_t)>& progress, std::vector<ContentsProblem>* problems) const = 0;
  // Compares the checksums of what was read in part so far, for which it reads the rest of that. After it returns OK, whatever was
  // delivered has been checked as far as the file has checksums.
  virtual absl::Status CheckRead() const { return absl::OkStatus(); }
};

// A file, or a folder of the kinds above (a step of neve is opened shard by shard). Decides by content, not by name.
absl::StatusOr<std::unique_ptr<Contents>> OpenContents(const std::string& path, const ContentsOptions& options = {});

// Elements of a box of one logical tensor, row-major, into target (product of extents x item bytes). Reads only what the box
// needs, in pieces of at most 8 MiB.
absl::Status ReadBox(const Contents& contents, const LogicalTensor& tensor, std::span<const int64_t> offset,
                     std::span<const int64_t> extents, std::span<std::byte> target);

}  // namespace neve::format

#endif  // NEVE_FORMAT_CONTENTS_H_
