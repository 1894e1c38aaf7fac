// Bytes that a reader looks at: a file, a part of one, or memory. What readers of foreign files are written against, so that
// fuzzers and nested archives need no files.
//
// Threads: any. Errors: Damaged for what lies past the end (wanted and found), else those of os::ReadAt.
#ifndef NEVE_FORMAT_BYTE_SOURCE_H_
#define NEVE_FORMAT_BYTE_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/error/status.h"
#include "base/os/syscalls.h"

namespace neve::format {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  virtual const std::string& name() const = 0;  // of the file, for messages
  virtual absl::Status Read(uint64_t offset, std::span<std::byte> target) const = 0;

  absl::Status ReadText(uint64_t offset, uint64_t bytes, std::string* text) const;  // replaces `text`
};

// A file as it was when it was opened: growth is not seen. Unsupported: not a regular file.
absl::StatusOr<std::unique_ptr<ByteSource>> OpenFileSource(const std::string& path);
absl::StatusOr<std::unique_ptr<ByteSource>> MakeFileSource(os::File file);
std::unique_ptr<ByteSource> MakeMemorySource(std::string bytes, std::string name);

}  // namespace neve::format

#endif  // NEVE_FORMAT_BYTE_SOURCE_H_
