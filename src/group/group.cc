#include "group/group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/sync/pause.h"
#include "group/fields.h"

namespace neve::group {
namespace {

class Solo : public Group {
 public:
  uint32_t rank() const override { return 0; }
  uint32_t world() const override { return 1; }
  absl::StatusOr<Messages> Gather(std::string_view, std::string_view mine, double) override { return Messages{std::string(mine)}; }
};

class StoredGroup : public Group {
 public:
  StoredGroup(std::unique_ptr<Store> store, Self self, std::string session, const std::atomic<bool>* stop)
      : store_(std::move(store)), exchange_(*store_, std::move(self), std::move(session)), stop_(stop) {}

  uint32_t rank() const override { return exchange_.self().rank; }
  uint32_t world() const override { return exchange_.self().world; }

  absl::StatusOr<Messages> Gather(std::string_view what, std::string_view mine, double timeout_s) override {
    constexpr sync::Nanos kFirst = sync::kMillisecond, kLongest = 50 * sync::kMillisecond;
    const sync::Nanos begin = sync::MonotonicNow();
    exchange_.Begin(std::string(what), std::string(mine), begin,
                    begin + static_cast<sync::Nanos>(timeout_s * static_cast<double>(sync::kSecond)));
    for (sync::Nanos pause = kFirst;; pause = std::min(pause * 2, kLongest)) {
      if (auto outcome = exchange_.Poll(sync::MonotonicNow()); outcome.has_value()) return *std::move(outcome);
      if (stop_ != nullptr && *stop_) return Closed(absl::StrFormat("closed while \"%s\" waited for the other ranks", what));
      sync::Pause(pause);
    }
  }

  void Leave(std::string_view what, std::string_view why) override { exchange_.Leave(std::string(what), std::string(why)); }

 private:
  const std::unique_ptr<Store> store_;
  Exchange exchange_;
  const std::atomic<bool>* const stop_;
};

class CalledGroup : public Group {
 public:
  CalledGroup(AllGather all_gather, Self self) : all_gather_(std::move(all_gather)), self_(std::move(self)) {}

  uint32_t rank() const override { return self_.rank; }
  uint32_t world() const override { return self_.world; }

  absl::StatusOr<Messages> Gather(std::string_view what, std::string_view mine, double timeout_s) override {
    std::string sent;
    PutField(&sent, std::to_string(self_.rank));
    PutField(&sent, std::to_string(self_.world));
    PutField(&sent, what);
    PutField(&sent, mine);
    NEVE_ASSIGN_OR_RETURN(const Messages got, all_gather_(sent, timeout_s));
    if (got.size() != self_.world) {
      return Invalid(absl::StrFormat("the group's callback gave %d messages at \"%s\"; the world is of %d ranks", got.size(), what,
                                     self_.world));
    }
    Messages messages;
    for (uint32_t rank = 0; rank < self_.world; ++rank) {
      FieldReader fields(got[rank]);
      const std::optional<uint64_t> from = fields.NextNumber(), world = fields.NextNumber();
      std::optional<std::string> there = fields.Next(), data = fields.Next();
      if (!from.has_value() || !world.has_value() || !there.has_value() || !data.has_value()) {
        return Invalid(absl::StrFormat("the group's callback gave bytes for rank %d that no rank sent", rank));
      }
      if (*from != rank || *world != self_.world) {
        return Invalid(absl::StrFormat("the group's callback gave the message of rank %d of %d in the place of rank %d of %d", *from,
                                       *world, rank, self_.world));
      }
      if (*there != what) {
        return Invalid(absl::StrFormat("the ranks do different things: rank %d is at \"%s\", rank %d at \"%s\"; every rank opens and "
                                       "restores in the same order",
                                       self_.rank, what, rank, *there));
      }
      messages.push_back(*std::move(data));
    }
    return messages;
  }

 private:
  const AllGather all_gather_;
  const Self self_;
};

}  // namespace

std::unique_ptr<Group> SoloGroup() { return std::make_unique<Solo>(); }

std::unique_ptr<Group> StoreGroup(std::unique_ptr<Store> store, Self self, std::string session, const std::atomic<bool>* stop) {
  return std::make_unique<StoredGroup>(std::move(store), std::move(self), std::move(session), stop);
}

std::unique_ptr<Group> CallbackGroup(AllGather all_gather, Self self) {
  return std::make_unique<CalledGroup>(std::move(all_gather), std::move(self));
}

}  // namespace neve::group
