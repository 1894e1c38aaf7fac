#include "group/static_store.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/codec/hmac.h"
#include "base/os/random.h"
#include "base/os/syscalls.h"
#include "base/sync/mutex.h"
#include "base/sync/pause.h"
#include "base/sync/sockets.h"
#include "group/fields.h"
#include "group/session.h"

namespace neve::group {
namespace {

constexpr char kSet = 'S', kGet = 'G', kDone = 'D', kValue = 'V', kNothing = 'N', kTooLarge = 'L';
constexpr size_t kFrameBytes = kStaticValueBytes + (64u << 10);   // with its name
constexpr std::string_view kAnswer = "/all";                     // what a gather of exchange.h ends with

Session::Nonce FreshNonce() {
  Session::Nonce nonce{};
  os::FillRandom(nonce);
  return nonce;
}

double SecondsOf(sync::Nanos time) { return static_cast<double>(time) / static_cast<double>(sync::kSecond); }

// Rank 0: the values, and those who ask for them. Not to be destroyed in a forked child.
class Holder : public Store {
 public:
  Holder(std::string place, std::string key, std::string context, uint32_t world)
      : place_(std::move(place)), terms_{.key = std::move(key), .context = std::move(context), .self = 0, .frame_bytes_max = kFrameBytes},
        world_(world) {}

  ~Holder() override {
    if (sockets_ == nullptr) return;
    {
      sync::MutexLock lock(mutex_);
      const auto all_have_read = [this]() NEVE_REQUIRES(mutex_) {
        return last_answer_.empty() || std::all_of(peers_.begin(), peers_.end(), [this](const auto& peer) NEVE_REQUIRES(mutex_) {
                 return !peer.second.session.ready() || peer.second.read == last_answer_;
               });
      };
      changed_.WaitFor(mutex_, SecondsOf(kStaticLingerTime), all_have_read);
    }
    sockets_->Stop(1);
  }

  absl::Status Listen() {
    sync::Sockets::Options options;
    options.name = "neve-group";
    options.listen = place_;
    options.background = false;
    options.unsent_max = kFrameBytes + Session::kFrameOverhead;
    options.connections_max = kStaticUnprovenMax + 2 * static_cast<size_t>(world_);
    sync::Sockets::Events events;
    events.accepted = [this](sync::Sockets::Id id) { Accepted(id); };
    events.connected = [](sync::Sockets::Id) {};
    events.received = [this](sync::Sockets::Id id, std::string_view bytes) { Received(id, bytes); };
    events.closed = [this](sync::Sockets::Id id, const std::string&) { Forget(id); };
    events.woken = [this] { DropLate(); };
    NEVE_ASSIGN_OR_RETURN(sockets_, sync::Sockets::Create(options, events));
    return sockets_->Start();
  }

  std::string place() const override { return "static:" + place_; }

  absl::Status Set(const std::string& name, std::string_view value) override {
    sync::MutexLock lock(mutex_);
    if (value.size() > kStaticValueBytes) return TooLarge(value.size());
    values_[name] = std::string(value);
    if (name.ends_with(kAnswer)) last_answer_ = name;
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<std::string>> Get(const std::string& name) override {
    sync::MutexLock lock(mutex_);
    const auto found = values_.find(name);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }

  void Forget(const std::string& prefix) override {
    sync::MutexLock lock(mutex_);
    for (auto it = values_.lower_bound(prefix + "/"); it != values_.end() && it->first.starts_with(prefix + "/");) it = values_.erase(it);
  }

  static absl::Status TooLarge(size_t bytes) {
    return Exhausted(absl::StrFormat("a message of %d bytes; a group of a static list takes at most %d", bytes, kStaticValueBytes));
  }

 private:
  struct Peer {
    Session session;
    sync::Nanos since;
    std::string read;        // the answer that it has read last
  };

  void Accepted(sync::Sockets::Id id) {
    std::optional<sync::Sockets::Id> displaced;
    {
      sync::MutexLock lock(mutex_);
      peers_.emplace(id, Peer{Session::Listening(terms_, FreshNonce()), sync::MonotonicNow(), ""});
      size_t unproven = 0;
      for (const auto& [there, peer] : peers_) {
        if (peer.session.ready()) continue;
        ++unproven;
        if (!displaced.has_value()) displaced = there;   // the oldest
      }
      if (unproven <= kStaticUnprovenMax) displaced.reset();
    }
    if (displaced.has_value()) Drop(*displaced);
    sockets_->WakeAt(sync::MonotonicNow() + kStaticProofTime);
  }

  void Forget(sync::Sockets::Id id) {
    sync::MutexLock lock(mutex_);
    peers_.erase(id);
    changed_.NotifyAll();
  }

  void Drop(sync::Sockets::Id id) {
    sockets_->Close(id);
    Forget(id);
  }

  void DropLate() {
    std::vector<sync::Sockets::Id> late;
    bool more = false;
    {
      sync::MutexLock lock(mutex_);
      for (const auto& [id, peer] : peers_) {
        if (peer.session.ready()) continue;
        if (sync::MonotonicNow() - peer.since >= kStaticProofTime) late.push_back(id);
        more = true;
      }
    }
    for (const sync::Sockets::Id id : late) Drop(id);
    if (more) sockets_->WakeAt(sync::MonotonicNow() + sync::kSecond);
  }

  void Received(sync::Sockets::Id id, std::string_view bytes) {
    std::string send;
    bool wrong = false;
    {
      sync::MutexLock lock(mutex_);
      const auto found = peers_.find(id);
      if (found == peers_.end()) return;
      std::vector<std::string> frames;
      wrong = !found->second.session.Feed(bytes, &send, &frames).ok();
      wrong |= found->second.session.ready() && (found->second.session.peer() == 0 || found->second.session.peer() >= world_);
      for (size_t i = 0; i < frames.size() && !wrong; ++i) {
        const std::optional<std::string> answer = Answer(found->second, frames[i]);
        wrong = !answer.has_value();
        if (!wrong) send += found->second.session.Seal(*answer);
      }
    }
    if (wrong) return Drop(id);
    if (!send.empty()) sockets_->Send(id, send);
  }

  std::optional<std::string> Answer(Peer& peer, std::string_view frame) NEVE_REQUIRES(mutex_) {
    if (frame.empty()) return std::nullopt;
    const char kind = frame.front();
    FieldReader fields(frame.substr(1));
    std::optional<std::string> name = fields.Next();
    if (!name.has_value()) return std::nullopt;
    if (kind == kSet) {
      std::optional<std::string> value = fields.Next();
      if (!value.has_value() || value->size() > kStaticValueBytes) return std::nullopt;
      values_[*name] = *std::move(value);
      return std::string(1, kDone);
    }
    if (kind != kGet) return std::nullopt;
    const auto found = values_.find(*name);
    if (found == values_.end()) return std::string(1, kNothing);
    if (name->ends_with(kAnswer)) {
      peer.read = *name;
      changed_.NotifyAll();
    }
    return std::string(1, kValue) + found->second;
  }

  const std::string place_;
  const Session::Terms terms_;
  const uint32_t world_;
  sync::Mutex mutex_;
  sync::Condition changed_;
  std::map<std::string, std::string> values_ NEVE_GUARDED_BY(mutex_);
  std::string last_answer_ NEVE_GUARDED_BY(mutex_);
  std::map<sync::Sockets::Id, Peer> peers_ NEVE_GUARDED_BY(mutex_);
  std::unique_ptr<sync::Sockets> sockets_;   // last: its thread uses the above
};

// The others: one connection, one question at a time.
class Asker : public Store {
 public:
  Asker(std::string place, uint32_t rank, std::string key, std::string context)
      : place_(std::move(place)),
        terms_{.key = std::move(key), .context = std::move(context), .self = rank, .frame_bytes_max = kFrameBytes} {}
  ~Asker() override {
    if (sockets_ != nullptr) sockets_->Stop(0);
  }

  absl::Status Begin() {
    sync::Sockets::Options options;
    options.name = "neve-group";
    options.background = false;
    options.unsent_max = kFrameBytes + Session::kFrameOverhead;
    sync::Sockets::Events events;
    events.accepted = [](sync::Sockets::Id) {};
    events.connected = [this](sync::Sockets::Id id) {
      std::string hello;
      {
        sync::MutexLock lock(mutex_);
        if (connection_ != id) return;
        hello = session_->Start();
      }
      sockets_->Send(id, hello);
    };
    events.received = [this](sync::Sockets::Id id, std::string_view bytes) { Received(id, bytes); };
    events.closed = [this](sync::Sockets::Id id, const std::string& why) { Lost(id, why); };
    events.woken = [] {};
    NEVE_ASSIGN_OR_RETURN(sockets_, sync::Sockets::Create(options, events));
    return sockets_->Start();
  }

  std::string place() const override { return "static:" + place_; }

  absl::Status Set(const std::string& name, std::string_view value) override {
    if (value.size() > kStaticValueBytes) return Holder::TooLarge(value.size());
    std::string question(1, kSet);
    PutField(&question, name);
    PutField(&question, value);
    NEVE_ASSIGN_OR_RETURN(const std::string answer, Ask(question));
    return answer.front() == kDone ? absl::OkStatus() : Unavailable("rank 0 at " + place_ + " did not take a message");
  }

  absl::StatusOr<std::optional<std::string>> Get(const std::string& name) override {
    std::string question(1, kGet);
    PutField(&question, name);
    NEVE_ASSIGN_OR_RETURN(std::string answer, Ask(question));
    if (answer.front() == kNothing) return std::optional<std::string>();
    if (answer.front() != kValue) return Unavailable("rank 0 at " + place_ + " gave an answer of another kind");
    return std::optional(answer.substr(1));
  }

 private:
  absl::StatusOr<std::string> Ask(const std::string& question) {
    sync::MutexLock lock(mutex_);
    answer_.reset();
    if (!session_.has_value()) {
      error_.clear();
      session_ = Session::Connecting(terms_, 0, FreshNonce());
      sockets_->Post([this] {
        sync::MutexLock inner(mutex_);
        if (session_.has_value() && !connection_.has_value()) connection_ = sockets_->Connect(place_);
      });
    }
    const auto proved = [this]() NEVE_REQUIRES(mutex_) { return !session_.has_value() || session_->ready(); };
    const bool met = changed_.WaitFor(mutex_, SecondsOf(kStaticAnswerTime), proved);
    if (!met || !session_.has_value()) return Fail(met ? error_ : "no answer");
    sockets_->Post([this, id = *connection_, frame = session_->Seal(question)] { sockets_->Send(id, frame); });
    const auto answered = [this]() NEVE_REQUIRES(mutex_) { return answer_.has_value() || !session_.has_value(); };
    const bool came = changed_.WaitFor(mutex_, SecondsOf(kStaticAnswerTime), answered);
    if (!came || !answer_.has_value() || answer_->empty()) return Fail(came ? error_ : "no answer");
    return *std::exchange(answer_, std::nullopt);
  }

  absl::Status Fail(const std::string& why) NEVE_REQUIRES(mutex_) {
    session_.reset();
    if (const std::optional<sync::Sockets::Id> id = std::exchange(connection_, std::nullopt)) {
      sockets_->Post([this, id = *id] { sockets_->Close(id); });
    }
    // Why it was not met is what helps, even if it has gone since.
    const bool other = !refused_.empty() && refused_ != why;
    return Unavailable(absl::StrFormat("rank 0 at %s: %s%s", place_, why, other ? "; before that: " + refused_ : ""));
  }

  void Received(sync::Sockets::Id id, std::string_view bytes) {
    std::string send;
    absl::Status status;
    {
      sync::MutexLock lock(mutex_);
      if (connection_ != id || !session_.has_value()) return;
      std::vector<std::string> frames;
      status = session_->Feed(bytes, &send, &frames);
      if (!status.ok()) refused_ = std::string(status.message());
      if (!frames.empty()) answer_ = std::move(frames.back());
      changed_.NotifyAll();
    }
    if (!send.empty()) sockets_->Send(id, send);
    if (status.ok()) return;
    sockets_->Close(id);
    Lost(id, std::string(status.message()));
  }

  void Lost(sync::Sockets::Id id, const std::string& why) {
    sync::MutexLock lock(mutex_);
    if (connection_ != id) return;
    connection_.reset();
    session_.reset();
    error_ = why;
    changed_.NotifyAll();
  }

  const std::string place_;
  const Session::Terms terms_;
  sync::Mutex mutex_;
  sync::Condition changed_;
  std::optional<Session> session_ NEVE_GUARDED_BY(mutex_);
  std::optional<sync::Sockets::Id> connection_ NEVE_GUARDED_BY(mutex_);
  std::optional<std::string> answer_ NEVE_GUARDED_BY(mutex_);
  std::string error_, refused_ NEVE_GUARDED_BY(mutex_);   // why the connection ended; what a proof failed for
  std::unique_ptr<sync::Sockets> sockets_;   // last: its thread uses the above
};

absl::Status CheckKey(const std::string& key, const std::string& from) {
  if (key.size() >= kKeyBytesMin) return absl::OkStatus();
  return Invalid(absl::StrFormat("the key of %s has %d bytes; want at least %d random ones, such as `openssl rand -hex 32` gives", from,
                                 key.size(), kKeyBytesMin));
}

}  // namespace

absl::StatusOr<StaticList> ParseStaticList(const std::string& list, uint32_t world) {
  std::vector<std::string> entries;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    entries.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  if (entries.size() != world) {
    return Invalid(absl::StrFormat("group \"static:%s\" lists %d places, and the world has %d ranks: give one HOST:PORT for each, in the "
                                   "order of the ranks",
                                   list, entries.size(), world));
  }
  StaticList parsed;
  parsed.loopback = true;
  for (const std::string& entry : entries) {
    NEVE_ASSIGN_OR_RETURN(const std::string place, sync::ResolvePlace(entry));
    if (place.ends_with(":0")) return Invalid(absl::StrFormat("\"%s\" of group \"static:%s\" has no port", entry, list));
    const auto twice = std::find(parsed.places.begin(), parsed.places.end(), place);
    if (twice != parsed.places.end()) {
      return Invalid(absl::StrFormat("group \"static:%s\" gives rank %d and rank %d the same place %s", list, twice - parsed.places.begin(),
                                     parsed.places.size(), place));
    }
    parsed.places.push_back(place);
    parsed.loopback &= sync::IsLoopback(place);
  }
  return parsed;
}

absl::StatusOr<std::string> StaticKey(const StaticList& list) {
  if (const char* path = std::getenv("NEVE_KEY_FILE"); path != nullptr && *path != '\0') {
    NEVE_ASSIGN_OR_RETURN(const struct ::stat facts, os::Stat(path));
    if ((facts.st_mode & 0077) != 0) {
      return Invalid(absl::StrFormat("NEVE_KEY_FILE=%s can be read or written by others than its owner: chmod 600 it", path));
    }
    constexpr uint64_t kKeyBytesMax = 64u << 10;
    NEVE_ASSIGN_OR_RETURN(std::string key, os::ReadFile(path, kKeyBytesMax));
    while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
    NEVE_RETURN_IF_ERROR(CheckKey(key, std::string("NEVE_KEY_FILE=") + path));
    return key;
  }
  if (const char* key = std::getenv("NEVE_KEY"); key != nullptr && *key != '\0') {
    NEVE_RETURN_IF_ERROR(CheckKey(key, "NEVE_KEY"));
    return std::string(key);
  }
  if (list.loopback) return std::string("no key on the loopback");
  return Invalid("group \"static:\" beyond the loopback needs a key that all ranks share: set NEVE_KEY_FILE (a file of mode 600) or "
                 "NEVE_KEY");
}

absl::StatusOr<std::unique_ptr<Store>> StaticStore(const StaticList& list, uint32_t rank, const std::string& key,
                                                   const std::string& context) {
  NEVE_RETURN_IF_ERROR(codec::HmacAvailable());
  const auto world = static_cast<uint32_t>(list.places.size());
  if (rank == 0) {
    auto holder = std::make_unique<Holder>(list.places[0], key, context, world);
    NEVE_RETURN_IF_ERROR(holder->Listen());
    return std::unique_ptr<Store>(std::move(holder));
  }
  auto asker = std::make_unique<Asker>(list.places[0], rank, key, context);
  NEVE_RETURN_IF_ERROR(asker->Begin());
  return std::unique_ptr<Store>(std::move(asker));
}

}  // namespace neve::group
