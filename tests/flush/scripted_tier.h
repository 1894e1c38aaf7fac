// A tier whose every answer the test decides: calls are written down and wait until the test answers them.
#ifndef NEVE_TESTS_FLUSH_SCRIPTED_TIER_H_
#define NEVE_TESTS_FLUSH_SCRIPTED_TIER_H_

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "storage/tier.h"

namespace neve::testing {

class ScriptedTier : public storage::Tier {
 public:
  struct Call {
    std::string what;  // "begin", "write", "commit", "retire"
    ImageKey key;
    uint64_t offset = 0, bytes = 0;
    storage::Done done;  // begin: OK makes a writer
  };

  const storage::TierInfo& info() const override { return info_; }
  void List(storage::DoneWith<storage::Listing> done) override { done(Unsupported("not scripted")); }
  void OpenImage(const ImageKey&, storage::DoneWith<std::shared_ptr<storage::ImageReader>> done) override {
    done(Unsupported("not scripted"));
  }
  void BeginImage(const ImageKey& key, uint64_t bytes,
                  storage::DoneWith<std::shared_ptr<storage::ImageWriter>> done) override {
    Add({"begin", key, 0, bytes, [this, key, done = std::move(done)](absl::Status status) {
           if (!status.ok()) return done(std::move(status));
           done(std::shared_ptr<storage::ImageWriter>(std::make_shared<Writer>(this, key)));
         }});
  }
  void Heal(const ImageKey&, uint64_t, std::span<const std::byte>, storage::Done done) override {
    done(Unsupported("not scripted"));
  }
  void Retire(const ImageKey& key, storage::Done done) override { Add({"retire", key, 0, 0, std::move(done)}); }
  void SetPinned(const ImageKey&, bool, storage::Done done) override { done(Unsupported("not scripted")); }
  void ReadNote(const std::string&, storage::DoneWith<std::string> done) override { done(Unsupported("not scripted")); }
  void WriteNote(const std::string&, const std::string&, bool, storage::Done done) override {
    done(Unsupported("not scripted"));
  }
  void RemoveNote(const std::string&, storage::Done done) override { done(Unsupported("not scripted")); }

  // Answers the waiting call of this index; the call is gone before its answer is given.
  void Answer(size_t index, absl::Status status) {
    Call call = std::move(waiting[index]);
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(index));
    call.done(std::move(status));
  }
  size_t Count(std::string_view what) const {
    return static_cast<size_t>(
        std::count_if(log.begin(), log.end(), [&](const Call& call) { return call.what == what; }));
  }

  std::deque<Call> waiting;
  std::vector<Call> log;  // every call ever made, without its `done`
  std::string written;    // the bytes of all writes, by offset
  // When set, answers each call at once, inside the call.
  std::function<absl::Status(const Call&)> answer_at_once;
  int writers = 0;  // alive

 private:
  class Writer : public storage::ImageWriter {
   public:
    Writer(ScriptedTier* tier, const ImageKey& key) : tier_(tier), key_(key) { ++tier_->writers; }
    ~Writer() override { --tier_->writers; }
    void Write(uint64_t offset, std::span<const std::byte> source, storage::Done done) override {
      if (tier_->written.size() < offset + source.size()) tier_->written.resize(offset + source.size());
      std::copy_n(reinterpret_cast<const char*>(source.data()), source.size(),
                  tier_->written.begin() + static_cast<std::ptrdiff_t>(offset));
      tier_->Add({"write", key_, offset, source.size(), std::move(done)});
    }
    void Commit(const format::CommitRecord& record, storage::Done done) override {
      tier_->Add({"commit", record.key, 0, record.image_bytes, std::move(done)});
    }

   private:
    ScriptedTier* const tier_;
    const ImageKey key_;
  };

  void Add(Call call) {
    log.push_back({call.what, call.key, call.offset, call.bytes, nullptr});
    if (answer_at_once) {
      call.done(answer_at_once(log.back()));
    } else {
      waiting.push_back(std::move(call));
    }
  }

  storage::TierInfo info_{
      .kind = TierKind::kFile, .place = "file:/ckpt", .durable = true, .alignment = 1, .queue_depth = 4};
};

}  // namespace neve::testing

#endif  // NEVE_TESTS_FLUSH_SCRIPTED_TIER_H_
