#include "group/control_node.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "base/codec/hmac.h"
#include "base/obs/log.h"
#include "base/os/random.h"
#include "base/sync/pause.h"

namespace neve::group {
namespace {

constexpr sync::Nanos kApartTold = 30 * sync::kSecond;   // a parent that is slow to come is no news

uint64_t RandomWord() {
  std::array<uint8_t, 8> bytes{};
  os::FillRandom(bytes);
  uint64_t word = 0;
  for (const uint8_t byte : bytes) word = word << 8 | byte;
  return word;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlNode>> ControlNode::Listen(const std::string& place) {
  NEVE_RETURN_IF_ERROR(codec::HmacAvailable());
  std::unique_ptr<ControlNode> node(new ControlNode);
  sync::Sockets::Options options;
  options.name = "neve-control";
  options.listen = place;
  options.unsent_max = 16 * Control::kMessageBytesMax;
  options.connections_max = Control::kUnprovenMax + 256;
  NEVE_ASSIGN_OR_RETURN(node->sockets_, sync::Sockets::Create(options, node->Events()));
  NEVE_RETURN_IF_ERROR(node->sockets_->Start());
  return node;
}

ControlNode::~ControlNode() {
  if (sockets_ != nullptr) sockets_->Stop(0);
}

sync::Sockets::Events ControlNode::Events() {
  sync::Sockets::Events events;
  events.accepted = [this](sync::Sockets::Id id) {
    bool there = false;
    On([&](Control& control, sync::Nanos now) {
      const Control::Link link = control.Accepted(now);
      links_[id] = link;
      sockets_by_link_[link] = id;
      there = true;
    });
    if (!there) sockets_->Close(id);   // before Join: it will come again
  };
  events.connected = [this](sync::Sockets::Id id) {
    if (const auto found = links_.find(id); found != links_.end()) {
      On([link = found->second](Control& control, sync::Nanos now) { control.Connected(link, now); });
    }
  };
  events.received = [this](sync::Sockets::Id id, std::string_view bytes) {
    if (const auto found = links_.find(id); found != links_.end()) {
      On([link = found->second, bytes](Control& control, sync::Nanos now) { control.Received(link, bytes, now); });
    }
  };
  events.closed = [this](sync::Sockets::Id id, const std::string& why) {
    const auto found = links_.find(id);
    if (found == links_.end()) return;
    const Control::Link link = found->second;
    links_.erase(found);
    sockets_by_link_.erase(link);
    On([link, &why](Control& control, sync::Nanos now) { control.Closed(link, why, now); });
  };
  events.woken = [this] { On([](Control& control, sync::Nanos now) { control.Tick(now); }); };
  return events;
}

template <typename Event>
void ControlNode::On(const Event& event) {
  bool news = false;
  sync::Nanos next;
  std::vector<Control::Action> actions;
  {
    sync::MutexLock lock(mutex_);
    if (control_ == nullptr) return;
    const sync::Nanos now = sync::MonotonicNow();
    event(*control_, now);
    actions = control_->TakeActions();
    next = control_->NextTick();
    news = std::exchange(told_before_, control_->told()) != control_->told();
    WatchParent(now);
  }
  for (Control::Action& action : actions) {
    const auto found = sockets_by_link_.find(action.link);
    switch (action.kind) {
      case Control::Action::Kind::kConnect: {
        const sync::Sockets::Id id = sockets_->Connect(parent_);
        links_[id] = action.link;
        sockets_by_link_[action.link] = id;
        break;
      }
      case Control::Action::Kind::kSend:
        if (found != sockets_by_link_.end()) sockets_->Send(found->second, action.bytes);
        break;
      case Control::Action::Kind::kClose:
        if (found == sockets_by_link_.end()) break;
        sockets_->Close(found->second);
        links_.erase(found->second);
        sockets_by_link_.erase(found);
        break;
    }
  }
  sockets_->WakeAt(next);
  if (news) told_();
}

void ControlNode::WatchParent(sync::Nanos now) {
  if (control_->joined()) {
    if (std::exchange(told_apart_, false)) obs::Log(obs::Level::kInfo, absl::StrFormat("event=control_back parent=%d", control_->parent()));
  } else if (!told_apart_ && now - control_->apart_since() > kApartTold) {
    told_apart_ = true;
    obs::Log(obs::Level::kWarning,
             absl::StrFormat("event=control_lost parent=%d place=\"%s\" error=\"%s\" reason=\"what all ranks have is not told any more: "
                             "keep= and wait for complete go by listings alone\"",
                             control_->parent(), parent_, control_->last_error()));
  }
}

void ControlNode::Join(Control::Options options, const std::string& parent, std::function<void()> told) {
  options.random = RandomWord;
  sockets_->Post([this, options = std::move(options), parent, told = std::move(told)] {
    parent_ = parent;
    told_ = told;
    {
      sync::MutexLock lock(mutex_);
      control_ = std::make_unique<Control>(options);
    }
    On([](Control& control, sync::Nanos now) { control.Start(now); });
  });
}

void ControlNode::Leave(double linger) {
  sockets_->Post([this] { On([](Control& control, sync::Nanos now) { control.Finish(now); }); });
  sockets_->Stop(linger);
}

void ControlNode::Commit(size_t column, uint64_t sequence) {
  sockets_->Post([this, column, sequence] {
    On([&](Control& control, sync::Nanos now) { control.Commit(column, sequence, now, true); });
  });
}

void ControlNode::Abandon(size_t column, uint64_t sequence) {
  sockets_->Post([this, column, sequence] {
    On([&](Control& control, sync::Nanos now) { control.Abandon(column, sequence, now); });
  });
}

bool ControlNode::Complete(size_t column, uint64_t sequence) const {
  sync::MutexLock lock(mutex_);
  return control_ != nullptr && control_->Complete(column, sequence);
}

std::set<uint64_t> ControlNode::Complete(size_t column) const {
  sync::MutexLock lock(mutex_);
  return control_ == nullptr ? std::set<uint64_t>() : control_->Complete(column);
}

std::optional<uint64_t> ControlNode::Newest(size_t column) const {
  sync::MutexLock lock(mutex_);
  if (control_ == nullptr || control_->Complete(column).empty()) return std::nullopt;
  return *control_->Complete(column).rbegin();
}

bool ControlNode::Lost(size_t column, uint64_t sequence) const {
  sync::MutexLock lock(mutex_);
  return control_ != nullptr && control_->Lost(column, sequence);
}

std::string ControlNode::WaitsFor(size_t column) const {
  sync::MutexLock lock(mutex_);
  return control_ == nullptr ? "the ranks have not met yet" : control_->WaitsFor(column);
}

ControlNode::Health ControlNode::health() const {
  sync::MutexLock lock(mutex_);
  Health health;
  if (control_ == nullptr) return health;
  health.joined = control_->joined();
  health.children = control_->children();
  health.children_joined = control_->children_joined();
  health.error = control_->last_error();
  health.counts = control_->counts();
  return health;
}

}  // namespace neve::group
