// Single files in torch's format: a zip archive, atomic and durable: made window by window and written as a Replacement.
#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "base/sync/crew.h"
#include "base/sync/executor.h"
#include "engine/file_writer.h"
#include "engine/replacement.h"
#include "engine/staging_memory.h"
#include "engine/ticket.h"
#include "engine/torch_archive.h"
#include "neve/engine.h"

namespace neve {
namespace {

constexpr uint64_t kWindowBytes = 64 << 20;
constexpr uint64_t kWakeBytes = 4 << 20;   // less is done sooner than helpers are woken

absl::StatusOr<TorchArchive> ArchiveOf(const TorchObject& object, std::string_view root) {
  if (object.storages.size() != object.storage_bytes.size()) {
    return Invalid(absl::StrFormat("%d storages and %d sizes were given", object.storages.size(), object.storage_bytes.size()));
  }
  std::vector<const std::byte*> storages;
  storages.reserve(object.storages.size());
  for (size_t i = 0; i < object.storages.size(); ++i) {
    if (object.storages[i] == nullptr && object.storage_bytes[i] != 0) return Invalid(absl::StrFormat("storage %d has no address", i));
    storages.push_back(static_cast<const std::byte*>(object.storages[i]));
  }
  NEVE_ASSIGN_OR_RETURN(format::TorchZipLayout layout,
                        format::TorchZipLayout::Build(root, object.alignment, object.pickle, object.storage_bytes));
  return TorchArchive(std::move(layout), std::move(storages));
}

std::unique_ptr<sync::Crew> CrewFor(uint64_t bytes) {
  return sync::Crew::Create(bytes < kWakeBytes ? 0 : std::min(sync::UsableCores() - 1, 8));
}

class StreamImpl : public TorchFileStream {
 public:
  explicit StreamImpl(TorchArchive archive) : archive_(std::move(archive)), crew_(CrewFor(archive_.bytes())) {}
  uint64_t bytes() const override { return archive_.bytes(); }
  uint64_t Read(std::span<std::byte> target) override {
    const uint64_t bytes = std::min<uint64_t>(target.size(), archive_.bytes() - archive_.position());
    archive_.Next(target.first(bytes), *crew_);
    return bytes;
  }

 private:
  TorchArchive archive_;
  const std::unique_ptr<sync::Crew> crew_;
};

// One asynchronous save, from its capture to its end.
struct AsyncSave {
  AsyncSave(std::unique_ptr<Replacement> to, TorchArchive from, StagingMemory memory)
      : file(std::move(to)), archive(std::move(from)), staging(std::move(memory)) {}

  absl::Status Write() {
    const auto crew = CrewFor(0);
    while (archive.position() < archive.bytes()) {
      const uint64_t begin = archive.position();
      const std::span window = staging.bytes().subspan(begin, std::min(kWindowBytes, archive.bytes() - begin));
      archive.Next(window, *crew);
      NEVE_RETURN_IF_ERROR(file->Write(begin, window));
    }
    return file->Finish(archive.bytes());
  }

  std::unique_ptr<Replacement> file;
  TorchArchive archive;
  StagingMemory staging;
};

}  // namespace

absl::Status SaveTorchFile(const std::string& path, const TorchObject& object) {
  NEVE_ASSIGN_OR_RETURN(TorchArchive archive, ArchiveOf(object, format::TorchZipRoot(path)));
  NEVE_ASSIGN_OR_RETURN(const std::unique_ptr<Replacement> file, Replacement::Begin(path, archive.bytes()));
  const auto crew = CrewFor(archive.bytes());
  NEVE_ASSIGN_OR_RETURN(const StagingMemory staging, StagingMemory::Take(std::min(kWindowBytes, archive.bytes())));
  while (archive.position() < archive.bytes()) {
    const uint64_t begin = archive.position();
    const std::span window = staging.bytes().first(std::min<uint64_t>(staging.bytes().size(), archive.bytes() - begin));
    archive.Next(window, *crew);
    NEVE_RETURN_IF_ERROR(file->Write(begin, window));
  }
  return file->Finish(archive.bytes());
}

static absl::StatusOr<std::shared_ptr<Ticket>> BeginTorchFile(const std::string& path, const TorchObject& object) {
  NEVE_ASSIGN_OR_RETURN(TorchArchive archive, ArchiveOf(object, format::TorchZipRoot(path)));
  NEVE_ASSIGN_OR_RETURN(std::unique_ptr<Replacement> file, Replacement::Begin(path, archive.bytes()));
  NEVE_ASSIGN_OR_RETURN(StagingMemory staging, StagingMemory::Take(archive.bytes()));
  archive.Capture(staging.bytes(), *CrewFor(archive.bytes()));
  auto ticket = std::make_shared<TicketImpl>(0, SaveId{}, std::vector<std::string>{"file"});
  ticket->Reached("captured");
  auto save = std::make_shared<AsyncSave>(std::move(file), std::move(archive), std::move(staging));
  sync::ThreadExecutor* const writer = FileWriter();
  if (writer == nullptr) return Exhausted("the system gave no thread to write the file with", EAGAIN);
  writer->Post([save, ticket, path]() mutable {
    const absl::Status status = save->Write();
    save.reset();
    if (status.ok()) {
      ticket->Reached("file", path);
    } else {
      ticket->Failed("file", status);
    }
  });
  return std::static_pointer_cast<Ticket>(ticket);
}

absl::StatusOr<std::shared_ptr<Ticket>> SaveTorchFileAsync(const std::string& path, const TorchObject& object) {
  return TicketOrMisuse(path, BeginTorchFile(path, object));
}

absl::StatusOr<std::unique_ptr<TorchFileStream>> TorchFileStream::Open(const TorchObject& object) {
  NEVE_ASSIGN_OR_RETURN(TorchArchive archive, ArchiveOf(object, "archive"));
  return std::make_unique<StreamImpl>(std::move(archive));
}

}  // namespace neve
