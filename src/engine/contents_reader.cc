#include "engine/contents_reader.h"

#include <utility>

namespace neve {
namespace {

class ContentsReader final : public storage::ImageReader {
 public:
  explicit ContentsReader(std::shared_ptr<const format::Contents> contents) : contents_(std::move(contents)) {}

  const format::CommitRecord& record() const override { return record_; }
  void Read(uint64_t offset, std::span<std::byte> target, storage::Done done) override { done(contents_->Read(offset, target)); }

 private:
  const std::shared_ptr<const format::Contents> contents_;
  const format::CommitRecord record_;
};

}  // namespace

std::shared_ptr<storage::ImageReader> ReaderOf(std::shared_ptr<const format::Contents> contents) {
  return std::make_shared<ContentsReader>(std::move(contents));
}

}  // namespace neve
