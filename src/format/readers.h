// The readers of foreign kinds, each of which makes Contents of what it opens. OpenContents decides which.
#ifndef NEVE_FORMAT_READERS_H_
#define NEVE_FORMAT_READERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error/status.h"
#include "format/byte_source.h"
#include "format/contents.h"
#include "format/zip_directory.h"

namespace neve::format {

using OpenedContents = absl::StatusOr<std::unique_ptr<Contents>>;

// A zip archive that holds data.pkl: torch's, TorchScript's too. Whether a directory is one, and its Contents.
bool IsTorchZip(const ZipDirectory& directory);
OpenedContents OpenTorchZip(std::shared_ptr<const ByteSource> source, ZipDirectory directory, std::vector<std::string> notes,
                            const ContentsOptions& options);

// Torch's stream of before its archives. `head`: its first bytes.
bool IsTorchStream(std::string_view head);
OpenedContents OpenTorchStream(std::shared_ptr<const ByteSource> source, const ContentsOptions& options);

// Torch's tar of before that stream. IsTar: any tar archive.
bool IsTar(std::string_view head);
OpenedContents OpenTorchTar(std::shared_ptr<const ByteSource> source, const ContentsOptions& options);

// Origin::Check of a file without checksums: whether its bytes can be read.
absl::Status CheckReadable(const ByteSource& source, const std::function<void(uint64_t)>& progress,
                           std::vector<ContentsProblem>* problems);

// One array of NumPy, and archives of them.
bool IsNpy(std::string_view head);
OpenedContents OpenNpy(std::shared_ptr<const ByteSource> source, const ContentsOptions& options);
bool IsNpz(const ZipDirectory& directory);
OpenedContents OpenNpz(std::shared_ptr<const ByteSource> source, ZipDirectory directory, std::vector<std::string> notes,
                       const ContentsOptions& options);

// Folders: HuggingFace's with an index, or of .safetensors files alone; torch.distributed.checkpoint's. Unsupported: neither.
OpenedContents OpenFolder(const std::string& path, const ContentsOptions& options);
OpenedContents OpenHuggingFace(const std::string& path, const std::string& index_name, const ContentsOptions& options);
OpenedContents OpenDcp(const std::string& path, const ContentsOptions& options);

}  // namespace neve::format

#endif  // NEVE_FORMAT_READERS_H_
