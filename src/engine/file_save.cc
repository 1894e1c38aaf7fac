// Single files: one .safetensors file, atomic and durable: written window by window as a Replacement.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "base/sync/crew.h"
#include "base/sync/executor.h"
#include "engine/file_writer.h"
#include "engine/replacement.h"
#include "engine/state.h"
#include "engine/ticket.h"
#include "format/own_digests.h"

namespace neve {
namespace {

constexpr uint64_t kWindowBytes = 16 * kDefaultChunkBytes;   // 64 MiB staged at most

struct FreeDeleter {
  void operator()(void* pointer) const { std::free(pointer); }
};
using Window = std::unique_ptr<std::byte[], FreeDeleter>;

Window AllocateWindow(uint64_t bytes) {
  return Window(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, (bytes + kPageBytes - 1) / kPageBytes * kPageBytes)));
}

absl::StatusOr<std::shared_ptr<const capture::CapturePlan>> PlanOf(const std::shared_ptr<State>& state,
                                                                   std::span<const void* const> addresses,
                                                                   std::string_view values,
                                                                   std::span<const std::string_view> blobs) {
  if (state == nullptr) return Invalid("a save needs a state");
  NEVE_RETURN_IF_ERROR(state->Check(addresses, values, blobs));
  if (!state->devices().empty()) {
    return Unsupported("a single file is saved from host memory: copy the tensors that lie on a device first");
  }
  std::vector<uint64_t> blob_bytes;
  for (std::string_view blob : blobs) blob_bytes.push_back(blob.size());
  return state->FilePlanFor(addresses, values.size(), blob_bytes);
}

// The digests of the file, as its header has them, and where.
struct DigestsText {
  uint64_t offset = 0;
  std::string text;
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(text)); }
};
// header: of the file, with a placeholder. Internal: it has none.
absl::StatusOr<DigestsText> DigestsTextFor(const format::Layout& layout, std::span<const codec::Digest> digests) {
  std::vector<std::byte> header(layout.header_bytes());
  NEVE_RETURN_IF_ERROR(layout.WriteHeader("", header));
  uint64_t bytes = 0;
  const std::optional<uint64_t> offset =
      format::FindOwnDigests(std::string_view(reinterpret_cast<const char*>(header.data()), header.size()), &bytes);
  if (!offset.has_value()) return Internal("the header of a single file has no room for digests");
  return DigestsText{*offset, format::OwnDigestsText(layout.header_bytes(), layout.image_bytes(), digests, bytes)};
}

}  // namespace

absl::Status SaveFile(const std::string& path, const std::shared_ptr<State>& state, std::span<const void* const> addresses,
                      std::string_view values, std::span<const std::string_view> blobs) {
  NEVE_ASSIGN_OR_RETURN(const auto plan, PlanOf(state, addresses, values, blobs));
  const uint64_t bytes = plan->layout().image_bytes();
  NEVE_ASSIGN_OR_RETURN(const std::unique_ptr<Replacement> file, Replacement::Begin(path, bytes));
  const uint64_t window_bytes = std::min(bytes, kWindowBytes);
  const Window window = AllocateWindow(window_bytes);
  if (window == nullptr) return Exhausted(absl::StrFormat("no memory for a window of %d bytes", window_bytes), ENOMEM);
  const auto crew = sync::Crew::Create(bytes < kDefaultChunkBytes ? 0 : std::min(sync::UsableCores() - 1, 8));
  std::vector<codec::Digest> digests(plan->chunk_count());
  const capture::CaptureInput input{addresses, values, blobs};
  for (uint64_t begin = 0; begin < bytes; begin += kWindowBytes) {
    const uint64_t end = std::min(begin + kWindowBytes, bytes);
    const uint64_t chunks = (end - begin + kDefaultChunkBytes - 1) / kDefaultChunkBytes;
    const std::span<codec::Digest> made = std::span(digests).subspan(begin / kDefaultChunkBytes, chunks);
    NEVE_RETURN_IF_ERROR(plan->RunRange(input, begin, end, {window.get(), end - begin}, made, *crew));
    NEVE_RETURN_IF_ERROR(file->Write(begin, {window.get(), end - begin}));
  }
  // The header went out with nothing in their place, of which the first digest was made.
  NEVE_ASSIGN_OR_RETURN(const DigestsText own, DigestsTextFor(plan->layout(), digests));
  NEVE_RETURN_IF_ERROR(file->Write(own.offset, own.bytes()));
  return file->Finish(bytes);
}

static absl::StatusOr<std::shared_ptr<Ticket>> BeginFile(const std::string& path, const std::shared_ptr<State>& state,
                                                         std::span<const void* const> addresses, std::string_view values,
                                                         std::span<const std::string_view> blobs) {
  NEVE_ASSIGN_OR_RETURN(const auto plan, PlanOf(state, addresses, values, blobs));
  const uint64_t bytes = plan->layout().image_bytes();
  NEVE_ASSIGN_OR_RETURN(std::unique_ptr<Replacement> file, Replacement::Begin(path, bytes));
  auto image = std::make_shared<Window>(AllocateWindow(bytes));
  if (*image == nullptr) return Exhausted(absl::StrFormat("no memory to stage an image of %d bytes", bytes), ENOMEM);
  const auto crew = sync::Crew::Create(bytes < kDefaultChunkBytes ? 0 : std::min(sync::UsableCores() - 1, 8));
  std::vector<codec::Digest> digests(plan->chunk_count());
  NEVE_RETURN_IF_ERROR(plan->Run({addresses, values, blobs}, {image->get(), bytes}, digests, *crew));
  NEVE_ASSIGN_OR_RETURN(const DigestsText own, DigestsTextFor(plan->layout(), digests));
  std::copy_n(own.bytes().begin(), own.text.size(), image->get() + own.offset);
  auto ticket = std::make_shared<TicketImpl>(0, SaveId{}, std::vector<std::string>{"file"});
  ticket->Reached("captured");
  sync::ThreadExecutor* const writer = FileWriter();
  if (writer == nullptr) return Exhausted("the system gave no thread to write the file with", EAGAIN);
  auto shared_file = std::shared_ptr<Replacement>(std::move(file));
  writer->Post([shared_file, image, bytes, ticket, path]() mutable {
    absl::Status status;
    for (uint64_t begin = 0; begin < bytes && status.ok(); begin += kWindowBytes) {
      const uint64_t end = std::min(begin + kWindowBytes, bytes);
      status = shared_file->Write(begin, {image->get() + begin, end - begin});
    }
    if (status.ok()) status = shared_file->Finish(bytes);
    shared_file.reset();
    image.reset();
    if (status.ok()) {
      ticket->Reached("file", path);
    } else {
      ticket->Failed("file", std::move(status));
    }
  });
  return std::static_pointer_cast<Ticket>(ticket);
}

absl::StatusOr<std::shared_ptr<Ticket>> SaveFileAsync(const std::string& path, const std::shared_ptr<State>& state,
                                                      std::span<const void* const> addresses, std::string_view values,
                                                      std::span<const std::string_view> blobs) {
  return TicketOrMisuse(path, BeginFile(path, state, addresses, values, blobs));
}

}  // namespace neve
