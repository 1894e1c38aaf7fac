#include "group/control.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/error/check.h"

namespace neve::group {
namespace {

constexpr char kUp = 'U', kDown = 'D';
constexpr sync::Nanos kNever = std::numeric_limits<sync::Nanos>::max();

void Prune(std::set<uint64_t>* sequences, size_t kept) {
  while (sequences->size() > kept) sequences->erase(sequences->begin());
}

}  // namespace

Control::Control(Options options) : options_(std::move(options)) {
  NEVE_CHECK(options_.columns > 0 && options_.columns <= kColumnsMax && options_.fan_out > 0 && options_.rank < options_.world);
  own_.resize(options_.columns);
  own_lost_.resize(options_.columns);
  complete_.resize(options_.columns);
  lost_.resize(options_.columns);
  told_.resize(options_.columns);
  for (uint64_t child = uint64_t{options_.rank} * options_.fan_out + 1, n = 0; n < options_.fan_out && child < options_.world;
       ++child, ++n) {
    const auto rank = static_cast<uint32_t>(child);
    children_[rank].report.assign(options_.columns, Progress::Unknown(rank));
  }
  Merge();
}

Session::Nonce Control::MakeNonce() {
  Session::Nonce nonce;
  for (size_t i = 0; i < nonce.size(); i += 8) {
    const uint64_t word = options_.random();
    for (size_t j = 0; j < 8; ++j) nonce[i + j] = static_cast<uint8_t>(word >> (8 * j));
  }
  return nonce;
}

void Control::Start(sync::Nanos now) {
  apart_since_ = now;
  Tick(now);
}

void Control::Commit(size_t column, uint64_t sequence, sync::Nanos now, bool and_first) {
  for (const size_t in : {column, and_first ? size_t{0} : column}) {
    own_[in].insert(sequence);
    Prune(&own_[in], kOwnKept);
  }
  Merge();
  Tell(now);
}

void Control::Abandon(size_t column, uint64_t sequence, sync::Nanos now) {
  own_lost_[column].insert(sequence);
  Prune(&own_lost_[column], kOwnKept);
  Merge();
  Tell(now);
}

// ---- Connections ----

void Control::Connect(sync::Nanos now) {
  const Link link = next_link_++;
  Session session = Session::Connecting({.key = options_.key, .context = options_.context, .self = options_.rank,
                                         .frame_bytes_max = kMessageBytesMax},
                                        parent(), MakeNonce());
  peers_.emplace(link, Peer{.session = std::move(session), .outgoing = true, .since = now, .heard = now});
  parent_link_ = link;
  actions_.push_back({Action::Kind::kConnect, link, parent(), ""});
}

Control::Link Control::Accepted(sync::Nanos now) {
  const Link link = next_link_++;
  Session session = Session::Listening({.key = options_.key, .context = options_.context, .self = options_.rank,
                                        .frame_bytes_max = kMessageBytesMax},
                                       MakeNonce());
  peers_.emplace(link, Peer{.session = std::move(session), .open = true, .since = now, .heard = now});
  size_t unproven = 0;
  std::optional<Link> oldest;
  for (const auto& [there, peer] : peers_) {
    if (peer.outgoing || peer.session.ready()) continue;
    ++unproven;
    if (!oldest.has_value()) oldest = there;   // they are numbered as they come
  }
  if (unproven > kUnprovenMax) {
    ++counts_.displaced;
    Drop(*oldest, "too many connections", now);
  }
  return link;
}

void Control::Connected(Link link, sync::Nanos now) {
  const auto found = peers_.find(link);
  if (found == peers_.end() || !found->second.outgoing || found->second.open) return;
  found->second.open = true;
  const std::string hello = found->second.session.Start();
  counts_.sent_bytes += hello.size();
  actions_.push_back({Action::Kind::kSend, link, 0, hello});
  Tell(now);
}

void Control::Drop(Link link, const std::string& why, sync::Nanos now) {
  if (!peers_.contains(link)) return;
  actions_.push_back({Action::Kind::kClose, link, 0, ""});
  LostLink(link, why, now);
}

void Control::LostLink(Link link, const std::string& why, sync::Nanos now) {
  if (parent_link_ == link) {
    if (parent_ready_) apart_since_ = now;
    parent_link_.reset();
    parent_ready_ = false;
    last_error_ = why;
    // Spread out, so that the children of a parent that comes back do not all come at once.
    retry_at_ = now + retry_pause_ / 2 + static_cast<sync::Nanos>(options_.random() % static_cast<uint64_t>(retry_pause_));
    retry_pause_ = std::min(2 * retry_pause_, kRetryMax);
  }
  for (auto& [rank, child] : children_) {
    if (child.link == link) child.link.reset();   // what it said stays true
  }
  peers_.erase(link);
}

void Control::Closed(Link link, const std::string& why, sync::Nanos now) {
  const auto found = peers_.find(link);
  if (found == peers_.end()) return;
  LostLink(link, why, now);
  Tell(now);
}

void Control::Proved(Link link, sync::Nanos now) {
  Peer& peer = peers_.at(link);
  if (peer.outgoing) {
    parent_ready_ = true;
    retry_pause_ = kRetryMin;
    last_error_.clear();
    return;
  }
  const auto child = children_.find(peer.session.peer());
  if (child == children_.end()) {
    ++counts_.refused;
    return Drop(link, "no child of this rank", now);
  }
  const std::optional<Link> old = std::exchange(child->second.link, link);
  if (old.has_value()) Drop(*old, "it has connected anew", now);
}

void Control::Received(Link link, std::string_view bytes, sync::Nanos now) {
  const auto found = peers_.find(link);
  if (found == peers_.end()) return;
  counts_.received_bytes += bytes.size();
  const bool was_ready = found->second.session.ready();
  std::string send;
  std::vector<std::string> messages;
  const absl::Status status = found->second.session.Feed(bytes, &send, &messages);
  if (!send.empty()) {
    counts_.sent_bytes += send.size();
    actions_.push_back({Action::Kind::kSend, link, 0, std::move(send)});
  }
  if (!was_ready && found->second.session.ready()) Proved(link, now);
  if (!messages.empty() && peers_.contains(link)) peers_.at(link).heard = now;
  for (const std::string& message : messages) {
    if (!peers_.contains(link)) break;
    if (const absl::Status taken = Take(link, message, now); !taken.ok()) {
      ++counts_.refused;
      Drop(link, std::string(taken.message()), now);
    }
  }
  if (!status.ok() && peers_.contains(link)) {
    ++counts_.refused;
    Drop(link, std::string(status.message()), now);
  }
  Tell(now);
}

absl::Status Control::Take(Link link, std::string_view message, sync::Nanos now) {
  const Peer& peer = peers_.at(link);
  const char kind = message.empty() ? '\0' : message.front();
  if (kind != (peer.outgoing ? kDown : kUp)) return Invalid("a message of an unknown kind");
  message.remove_prefix(1);
  Report report;
  while (!message.empty() && report.size() < options_.columns) {
    const std::optional<Progress> progress = Progress::DecodeFrom(&message);
    if (!progress.has_value()) break;
    report.push_back(*progress);
  }
  if (!message.empty() || report.size() != options_.columns) {
    return Invalid("a message of another form: it may run another version of neve");
  }
  if (peer.outgoing) {
    Learn(report);
  } else {
    children_.at(peer.session.peer()).report = std::move(report);
  }
  Merge();
  return absl::OkStatus();
}

// ---- What is told ----

Control::Report Control::OwnReport() const {
  Report report;
  for (size_t column = 0; column < options_.columns; ++column) {
    const uint64_t end = told_[column].end;
    report.emplace_back(options_.rank, own_[column], own_lost_[column], end > Progress::kBack ? end - Progress::kBack : 0);
  }
  return report;
}

void Control::Merge() {
  while (true) {
    merged_ = OwnReport();
    for (const auto& [rank, child] : children_) {
      for (size_t column = 0; column < options_.columns; ++column) merged_[column].Merge(child.report[column]);
    }
    if (options_.rank != 0) break;
    // The root tells itself; its own window may move by that, and show more.
    const uint64_t before = told_changes_;
    Learn(merged_);
    if (told_changes_ == before) break;
  }
  RefreshNews();
}

void Control::RefreshNews() {
  for (auto& [rank, child] : children_) {
    bool moved = child.news.empty() || child.news_of != told_changes_;
    for (size_t column = 0; column < options_.columns && !moved; ++column) {
      moved = child.news[column].base() != child.report[column].base();
    }
    if (!moved) continue;
    child.news.clear();
    child.news_of = told_changes_;
    for (size_t column = 0; column < options_.columns; ++column) {
      child.news.push_back(Progress::Told(told_[column].end, told_[column].laggard, complete_[column], lost_[column],
                                          child.report[column].base()));
    }
  }
}

void Control::Learn(const Report& told) {
  bool news = false, changed = false;
  for (size_t column = 0; column < options_.columns; ++column) {
    const Progress& progress = told[column];
    Told& known = told_[column];
    if (progress.end() >= known.end) {   // an older one came late else
      changed |= progress.end() > known.end || progress.laggard() != known.laggard;
      known.end = progress.end();
      known.laggard = progress.laggard();
    }
    const auto learn = [&](uint64_t sequence, std::set<uint64_t>* sequences) {
      news |= sequences->insert(sequence).second;
      Prune(sequences, kCompleteKept);
    };
    if (progress == known.last) continue;
    for (uint64_t sequence = progress.base(); sequence < progress.base() + Progress::kWindow; ++sequence) {
      if (progress.Has(sequence)) learn(sequence, &complete_[column]);
      if (progress.Lost(sequence)) learn(sequence, &lost_[column]);
    }
    known.last = progress;
  }
  if (news) ++told_count_;
  if (news || changed) ++told_changes_;
}

sync::Nanos Control::DueOn(const Peer& peer, const Report& news) const {
  if (!peer.sent.has_value()) return std::numeric_limits<sync::Nanos>::min();
  sync::Nanos due = peer.said + kSign;
  for (size_t column = 0; column < options_.columns; ++column) {
    const Progress& before = (*peer.sent)[column];
    if (!news[column].SaysTheSame(before)) return peer.said + kPace;
    if (news[column].laggard() != before.laggard()) due = std::min(due, peer.said + kLaggardPace);
  }
  return due;
}

void Control::Send(Link link, Peer* peer, char kind, const Report& report, sync::Nanos now) {
  std::string message(1, kind);
  for (const Progress& progress : report) progress.EncodeTo(&message);
  std::string frame = peer->session.Seal(message);
  counts_.sent_bytes += frame.size();
  ++counts_.sent_messages;
  actions_.push_back({Action::Kind::kSend, link, 0, std::move(frame)});
  peer->said = now;
  peer->sent = report;
}

void Control::Finish(sync::Nanos now) { Tell(now, kPace); }

void Control::Tell(sync::Nanos now, sync::Nanos ahead) {
  if (parent_ready_) {
    Peer& peer = peers_.at(*parent_link_);
    if (DueOn(peer, merged_) <= now + ahead) Send(*parent_link_, &peer, kUp, merged_, now);
  }
  for (const auto& [rank, child] : children_) {
    if (!child.link.has_value()) continue;
    Peer& peer = peers_.at(*child.link);
    if (DueOn(peer, child.news) <= now + ahead) Send(*child.link, &peer, kDown, child.news, now);
  }
}

void Control::Tick(sync::Nanos now) {
  std::vector<Link> late;
  for (const auto& [link, peer] : peers_) {
    if (peer.session.ready() ? now - peer.heard >= kSilence : now - peer.since >= kProofTime) late.push_back(link);
  }
  for (const Link link : late) {
    const Peer& peer = peers_.at(link);
    ++counts_.too_slow;
    Drop(link,
         absl::StrFormat("rank %d %s for %d s", peer.session.peer(),
                         peer.session.ready() ? "was silent" : peer.open ? "did not prove itself" : "could not be connected to",
                         (peer.session.ready() ? kSilence : kProofTime) / sync::kSecond),
         now);
  }
  if (options_.rank != 0 && !parent_link_.has_value() && now >= retry_at_) Connect(now);
  Tell(now);
}

sync::Nanos Control::NextTick() const {
  sync::Nanos next = kNever;
  for (const auto& [link, peer] : peers_) {
    next = std::min(next, peer.session.ready() ? peer.heard + kSilence : peer.since + kProofTime);
  }
  if (options_.rank != 0 && !parent_link_.has_value()) next = std::min(next, retry_at_);
  if (parent_ready_) next = std::min(next, DueOn(peers_.at(*parent_link_), merged_));
  for (const auto& [rank, child] : children_) {
    if (child.link.has_value()) next = std::min(next, DueOn(peers_.at(*child.link), child.news));
  }
  return next;
}

size_t Control::children_joined() const {
  return static_cast<size_t>(std::count_if(children_.begin(), children_.end(), [](const auto& c) { return c.second.link.has_value(); }));
}

std::string Control::WaitsFor(size_t column) const {
  if (!joined()) {
    return absl::StrFormat("this rank %d has no control connection to rank %d%s", options_.rank, parent(),
                           last_error_.empty() ? "" : ": " + last_error_);
  }
  return absl::StrFormat("rank %d of %d is the last one heard of", told_[column].laggard, options_.world);
}

}  // namespace neve::group
