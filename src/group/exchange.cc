#include "group/exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "group/fields.h"

namespace neve::group {
namespace {

constexpr std::string_view kVersion = "neve-group-2";
constexpr const char* kSession = "session";
constexpr const char* kAnswer = "all";
constexpr size_t kRanksNamed = 16;

// How much longer than rank 0 the others wait, so that they get its answer rather than make their own.
sync::Nanos Grace(sync::Nanos span) { return std::max(sync::kSecond, span / 10); }

double Seconds(sync::Nanos span) { return static_cast<double>(span) / static_cast<double>(sync::kSecond); }

std::string Named(const std::vector<uint32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size() && i < kRanksNamed; ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  if (ranks.size() > kRanksNamed) text += absl::StrFormat(", ... (%d in all)", ranks.size());
  return text;
}

struct Session {
  std::string session, who;
  uint64_t world = 0;
  std::string before;   // "": none
};

// It becomes part of names.
bool IsPlain(const std::string& session) {
  return session.size() <= 64 && session.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string EncodeSession(const Session& session) {
  std::string text;
  PutField(&text, kVersion);
  PutField(&text, session.session);
  PutField(&text, session.who);
  PutField(&text, std::to_string(session.world));
  PutField(&text, session.before);
  return text;
}

std::optional<Session> DecodeSession(std::string_view text) {
  FieldReader fields(text);
  if (fields.Next() != kVersion) return std::nullopt;
  const std::optional<std::string> session = fields.Next(), who = fields.Next();
  const std::optional<uint64_t> world = fields.NextNumber();
  const std::optional<std::string> before = fields.Next();
  if (!session.has_value() || session->empty() || !IsPlain(*session) || !who.has_value() || !world.has_value()) return std::nullopt;
  if (!before.has_value() || !IsPlain(*before)) return std::nullopt;
  return Session{*session, *who, *world, *before};
}

}  // namespace

Exchange::Exchange(Store& store, Self self, std::string session) : store_(store), self_(std::move(self)) {
  if (self_.rank == 0) {
    session_ = std::move(session);
    first_who_ = self_.who;
  }
}

std::string Exchange::Encode(const Message& message) {
  std::string text;
  PutField(&text, kVersion);
  PutField(&text, message.token);
  PutField(&text, std::to_string(message.world));
  PutField(&text, message.who);
  PutField(&text, message.what);
  PutField(&text, message.data);
  PutField(&text, message.left);
  return text;
}

std::optional<Exchange::Message> Exchange::Decode(std::string_view text) {
  FieldReader fields(text);
  if (fields.Next() != kVersion) return std::nullopt;
  Message message;
  std::optional<std::string> field;
  if (!(field = fields.Next())) return std::nullopt;
  message.token = *std::move(field);
  const std::optional<uint64_t> world = fields.NextNumber();
  if (!world.has_value()) return std::nullopt;
  message.world = *world;
  for (std::string* into : {&message.who, &message.what, &message.data, &message.left}) {
    if (!(field = fields.Next())) return std::nullopt;
    *into = *std::move(field);
  }
  return message;
}

std::string Exchange::NameOf(const std::string& leaf) const { return absl::StrFormat("%s/%d/%s", session_, round_, leaf); }

std::optional<std::string> Exchange::Read(const std::string& name) {
  absl::StatusOr<std::optional<std::string>> value = store_.Get(name);
  if (value.ok()) return *std::move(value);
  last_error_ = value.status();
  return std::nullopt;
}

void Exchange::BeginRound(std::string what, std::string mine) {
  ++round_;
  posted_ = false;
  others_answer_.clear();
  superseded_at_ = -1;
  last_error_ = absl::OkStatus();
  mine_ = Message{self_.token, self_.who, std::move(what), std::move(mine), "", self_.world};
  come_.assign(self_.rank == 0 ? self_.world : 0, std::nullopt);
  if (self_.rank == 0) come_[0] = mine_;
}

void Exchange::Begin(std::string what, std::string mine, sync::Nanos now, sync::Nanos deadline) {
  BeginRound(std::move(what), std::move(mine));
  begin_ = now;
  deadline_ = deadline;
}

void Exchange::Leave(std::string what, std::string why) {
  BeginRound(std::move(what), "");
  mine_.left = std::move(why);
  if (self_.rank == 0) {
    if (announced_) {
      WriteAnswer(Unavailable(absl::StrFormat("rank 0 (%s) left \"%s\": %s", self_.who, mine_.what, mine_.left)));
    }
  } else if (bound_) {
    Post();
  }
}

std::optional<absl::StatusOr<std::vector<std::string>>> Exchange::Poll(sync::Nanos now) {
  return self_.rank == 0 ? PollFirst(now) : PollOther(now);
}

// ---- Rank 0 ----

bool Exchange::Announce() {
  if (announced_) return true;
  std::string before;
  if (const std::optional<std::string> old = Read(kSession)) {
    if (const std::optional<Session> session = DecodeSession(*old); session.has_value() && session->session != session_) {
      before = session->session;
      if (!session->before.empty()) store_.Forget(session->before);
    }
  }
  const absl::Status written = store_.Set(kSession, EncodeSession({session_, self_.who, self_.world, before}));
  if (!written.ok()) last_error_ = written;
  announced_ = written.ok();
  return announced_;
}

absl::Status Exchange::Collect() {
  for (uint32_t rank = 1; rank < self_.world; ++rank) {
    if (come_[rank].has_value()) continue;
    const std::optional<std::string> text = Read(NameOf(std::to_string(rank)));
    if (!text.has_value()) continue;
    come_[rank] = Decode(*text);
    if (!come_[rank].has_value()) {
      return Invalid(absl::StrFormat("what rank %d sent through %s cannot be read: it may run another version of neve", rank,
                                     store_.place()));
    }
    if (!come_[rank]->left.empty()) {
      return Unavailable(
          absl::StrFormat("rank %d (%s) left \"%s\": %s", rank, come_[rank]->who, come_[rank]->what, come_[rank]->left));
    }
  }
  return absl::OkStatus();
}

// Everyone is there.
absl::Status Exchange::Check() const {
  for (uint32_t rank = 1; rank < self_.world; ++rank) {
    const Message& other = *come_[rank];
    if (other.world != self_.world) {
      return Invalid(absl::StrFormat("rank 0 (%s) counts a world of %d ranks, rank %d (%s) one of %d", self_.who, self_.world, rank,
                                     other.who, other.world));
    }
    if (other.what != mine_.what) {
      return Invalid(absl::StrFormat("the ranks do different things: rank 0 (%s) is at \"%s\", rank %d (%s) at \"%s\"; every rank "
                                     "opens and restores in the same order",
                                     self_.who, mine_.what, rank, other.who, other.what));
    }
  }
  return absl::OkStatus();
}

bool Exchange::WriteAnswer(const absl::Status& status) {
  std::string text;
  PutField(&text, kVersion);
  PutField(&text, std::to_string(static_cast<int>(status.code())));
  PutField(&text, std::string(status.message()));
  PutField(&text, std::to_string(self_.world));
  for (const std::optional<Message>& message : come_) {
    PutField(&text, message.has_value() ? message->token : "");
    PutField(&text, message.has_value() && status.ok() ? message->data : "");
  }
  const absl::Status written = store_.Set(NameOf(kAnswer), text);
  if (!written.ok()) last_error_ = written;
  return written.ok();
}

Exchange::Outcome Exchange::PollFirst(sync::Nanos now) {
  const bool late = now >= deadline_;
  if (!Announce()) {
    if (!late) return std::nullopt;
    return TimedOut(now);
  }
  absl::Status status = Collect();
  if (status.ok()) {
    const std::optional<std::string> text = Read(kSession);
    const std::optional<Session> session = text.has_value() ? DecodeSession(*text) : std::nullopt;
    if (session.has_value() && session->session != session_) {
      status = Unavailable(absl::StrFormat("%s has taken the ranks' place %s over from rank 0 (%s): another life of the job began, or "
                                           "two processes are rank 0",
                                           session->who, store_.place(), self_.who));
    }
  }
  const bool all = std::all_of(come_.begin(), come_.end(), [](const auto& message) { return message.has_value(); });
  if (status.ok() && all) status = Check();
  if (status.ok() && !all) {
    if (!late) return std::nullopt;
    status = TimedOut(now);
  }
  if (!WriteAnswer(status) && !late) return std::nullopt;
  if (!status.ok()) return status;
  if (round_ > 1) store_.Forget(absl::StrFormat("%s/%d", session_, round_ - 1));
  std::vector<std::string> messages;
  messages.reserve(come_.size());
  for (std::optional<Message>& message : come_) messages.push_back(std::move(message->data));
  return messages;
}

// ---- The others ----

bool Exchange::Post() {
  if (posted_) return true;
  const absl::Status written = store_.Set(NameOf(std::to_string(self_.rank)), Encode(mine_));
  if (!written.ok()) last_error_ = written;
  posted_ = written.ok();
  return posted_;
}

Exchange::Outcome Exchange::ReadAnswer() {
  const std::optional<std::string> text = Read(NameOf(kAnswer));
  if (!text.has_value()) return std::nullopt;
  FieldReader fields(*text);
  const absl::Status unreadable =
      Invalid(absl::StrFormat("the answer of rank 0 (%s) through %s cannot be read: it may run another version of neve", first_who_,
                              store_.place()));
  if (fields.Next() != kVersion) return unreadable;
  const std::optional<uint64_t> code = fields.NextNumber();
  const std::optional<std::string> message = fields.Next();
  const std::optional<uint64_t> world = fields.NextNumber();
  if (!code.has_value() || !message.has_value() || !world.has_value()) return unreadable;
  const absl::Status status(static_cast<absl::StatusCode>(*code), *message);
  std::vector<std::string> messages;
  bool for_us = bound_;
  for (uint64_t rank = 0; rank < *world; ++rank) {
    const std::optional<std::string> token = fields.Next(), data = fields.Next();
    if (!token.has_value() || !data.has_value()) return unreadable;
    if (rank == self_.rank) {
      for_us |= *token == self_.token;
      // Everyone came, and it was another process that came as this rank.
      if (status.ok() && *token != self_.token && bound_) {
        return Invalid(absl::StrFormat("another process than this one (%s) spoke as rank %d through %s: two processes are one rank",
                                       self_.who, self_.rank, store_.place()));
      }
    }
    messages.push_back(*data);
  }
  if (!for_us) {
    // Of an earlier life, or a round that ended before this rank came: the deadline tells.
    others_answer_ = status.ok() ? "it has answered, with another process as this rank" : std::string(status.message());
    return std::nullopt;
  }
  bound_ = true;
  if (!status.ok()) return status;
  if (messages.size() != self_.world) {
    return Invalid(absl::StrFormat("rank 0 (%s) counts a world of %d ranks, rank %d (%s) one of %d", first_who_, messages.size(),
                                   self_.rank, self_.who, self_.world));
  }
  return messages;
}

Exchange::Outcome Exchange::PollOther(sync::Nanos now) {
  const std::optional<std::string> text = Read(kSession);
  if (const std::optional<Session> seen = text.has_value() ? DecodeSession(*text) : std::nullopt;
      seen.has_value() && seen->session != session_) {
    if (bound_) {
      // Rank 0 may have ended this round and begun another life since.
      if (Post()) {
        if (Outcome outcome = ReadAnswer(); outcome.has_value()) return outcome;
      }
      if (superseded_at_ < 0) superseded_at_ = now;
      if (now < std::min(deadline_, superseded_at_ + Grace(deadline_ - begin_))) return std::nullopt;
      return Unavailable(absl::StrFormat("%s has begun another life of the job through %s; this process (rank %d, %s) has no part in it",
                                         seen->who, store_.place(), self_.rank, self_.who));
    }
    session_ = seen->session;
    first_who_ = seen->who;
    posted_ = false;
    others_answer_.clear();
  }
  if (!session_.empty() && Post()) {
    if (Outcome outcome = ReadAnswer(); outcome.has_value()) return outcome;
    if (const std::optional<std::string> own = Read(NameOf(std::to_string(self_.rank)))) {
      const std::optional<Message> message = Decode(*own);
      if (message.has_value() && message->token != self_.token) {
        return Invalid(absl::StrFormat("two processes are rank %d of the job: %s and %s", self_.rank, self_.who, message->who));
      }
    }
  }
  if (now < deadline_ + Grace(deadline_ - begin_)) return std::nullopt;
  return TimedOut(now);
}

absl::Status Exchange::TimedOut(sync::Nanos now) {
  std::string who;
  if (self_.rank == 0) {
    std::vector<uint32_t> missing;
    for (uint32_t rank = 1; rank < self_.world; ++rank) {
      if (!come_[rank].has_value()) missing.push_back(rank);
    }
    who = announced_ ? Named(missing) : "a place to write to";
  } else if (session_.empty()) {
    who = "rank 0";
  } else {
    std::vector<uint32_t> missing;
    constexpr uint32_t kAsked = 4096;
    constexpr int kFailuresMax = 3;   // each may have waited for a place that has gone
    int failures = 0;
    for (uint32_t rank = 1; rank < std::min(self_.world, kAsked) && failures < kFailuresMax; ++rank) {
      if (rank == self_.rank) continue;
      const absl::StatusOr<std::optional<std::string>> there = store_.Get(NameOf(std::to_string(rank)));
      if (!there.ok()) {
        last_error_ = there.status();
        ++failures;
      } else if (!there->has_value()) {
        missing.push_back(rank);
      }
    }
    who = absl::StrFormat("the answer of rank 0 (%s)", first_who_);
    if (!others_answer_.empty()) who += absl::StrFormat(", of which there is: %s", others_answer_);
    if (!missing.empty()) who += absl::StrFormat("; %s of %d did not come either", Named(missing), self_.world);
  }
  std::string message = absl::StrFormat("\"%s\" of rank %d of %d waited %.3g s through %s for %s", mine_.what, self_.rank, self_.world,
                                        Seconds(now - begin_), store_.place(), who);
  if (!last_error_.ok()) message += absl::StrFormat("; last error: %s", std::string(last_error_.message()));
  return Timeout(std::move(message));
}

}  // namespace neve::group
