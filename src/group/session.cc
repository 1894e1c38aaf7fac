#include "group/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/codec/hmac.h"

namespace neve::group {
namespace {

constexpr std::string_view kMagic = "neve.c1\n";
constexpr size_t kMarkBytes = 16;

void PutU32(std::string* text, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) *text += static_cast<char>(value >> shift);
}

uint32_t TakeU32(std::string_view text) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= static_cast<uint32_t>(static_cast<uint8_t>(text[i])) << (8 * i);
  return value;
}

}  // namespace

Session::Session(Terms terms, bool connects, uint32_t peer, const Nonce& nonce)
    : terms_(std::move(terms)), connects_(connects), peer_(peer), step_(connects ? Step::kChallenge : Step::kHello),
      own_nonce_(reinterpret_cast<const char*>(nonce.data()), nonce.size()) {}

Session Session::Connecting(Terms terms, uint32_t peer, const Nonce& nonce) { return Session(std::move(terms), true, peer, nonce); }

Session Session::Listening(Terms terms, const Nonce& nonce) { return Session(std::move(terms), false, 0, nonce); }

std::string Session::Start() const {
  if (!connects_) return "";
  std::string hello(kMagic);
  PutU32(&hello, terms_.self);
  PutU32(&hello, peer_);
  return hello + own_nonce_;
}

absl::Status Session::Fail(std::string why) {
  step_ = Step::kFailed;
  pending_.clear();
  return Invalid(std::move(why));
}

std::string Session::Prove(std::string_view who) const {
  std::string text(who);
  text += '\0';
  text += connects_ ? own_nonce_ + other_nonce_ : other_nonce_ + own_nonce_;
  PutU32(&text, connects_ ? terms_.self : peer_);
  PutU32(&text, connects_ ? peer_ : terms_.self);
  text += terms_.context;
  return codec::HmacSha256(terms_.key, text);
}

std::string Session::Mark(bool own, uint64_t count, std::string_view payload) const {
  std::string text(own == connects_ ? ">" : "<");
  PutU32(&text, static_cast<uint32_t>(count));
  PutU32(&text, static_cast<uint32_t>(count >> 32));
  text += payload;
  return codec::HmacSha256(session_key_, text).substr(0, kMarkBytes);
}

void Session::Begin() {
  session_key_ = Prove("neve session");
  step_ = Step::kReady;
}

absl::Status Session::TakeHello(std::string* send) {
  const std::string_view magic = std::string_view(pending_).substr(0, kMagic.size());
  if (magic != kMagic.substr(0, magic.size())) return Fail("what connected does not speak as neve does, or as another version of it");
  if (pending_.size() < kHelloBytes) return absl::OkStatus();
  peer_ = TakeU32(std::string_view(pending_).substr(kMagic.size()));
  const uint32_t wanted = TakeU32(std::string_view(pending_).substr(kMagic.size() + 4));
  other_nonce_ = pending_.substr(kMagic.size() + 8, kNonceBytes);
  pending_.erase(0, kHelloBytes);
  if (wanted != terms_.self) return Fail(absl::StrFormat("rank %d was looked for where rank %d is", wanted, terms_.self));
  if (!pending_.empty()) return Fail("what connected spoke before it was asked");
  const std::string proof = Prove("neve listens");
  if (proof.size() != codec::kHmacBytes) return Fail("libcrypto makes no HMAC with this key");
  *send += own_nonce_ + proof;
  step_ = Step::kProof;
  return absl::OkStatus();
}

absl::Status Session::TakeChallenge(std::string* send) {
  if (pending_.size() < kNonceBytes + codec::kHmacBytes) return absl::OkStatus();
  other_nonce_ = pending_.substr(0, kNonceBytes);
  const std::string proof = pending_.substr(kNonceBytes, codec::kHmacBytes);
  pending_.erase(0, kNonceBytes + codec::kHmacBytes);
  if (!codec::EqualInConstantTime(proof, Prove("neve listens"))) {
    return Fail(absl::StrFormat("what listens in the place of rank %d has another key, or is of another job or life", peer_));
  }
  *send += Prove("neve connects");
  Begin();
  return absl::OkStatus();
}

absl::Status Session::TakeProof() {
  if (pending_.size() < codec::kHmacBytes) return absl::OkStatus();
  const std::string proof = pending_.substr(0, codec::kHmacBytes);
  pending_.erase(0, codec::kHmacBytes);
  if (!codec::EqualInConstantTime(proof, Prove("neve connects"))) {
    return Fail(absl::StrFormat("what connected as rank %d has another key, or is of another job or life", peer_));
  }
  Begin();
  return absl::OkStatus();
}

absl::Status Session::TakeFrame(std::vector<std::string>* frames, bool* more) {
  *more = false;
  if (pending_.size() < 4) return absl::OkStatus();
  const uint64_t bytes = TakeU32(pending_);
  if (bytes > terms_.frame_bytes_max) {
    return Fail(absl::StrFormat("rank %d sends a frame of %d bytes; at most %d are taken", peer_, bytes, terms_.frame_bytes_max));
  }
  if (pending_.size() < kFrameOverhead + bytes) return absl::OkStatus();
  std::string payload = pending_.substr(4, bytes);
  const std::string mark = pending_.substr(4 + bytes, kMarkBytes);
  pending_.erase(0, kFrameOverhead + bytes);
  if (!codec::EqualInConstantTime(mark, Mark(false, received_, payload))) {
    return Fail(absl::StrFormat("a frame in the name of rank %d was not written by it", peer_));
  }
  ++received_;
  frames->push_back(std::move(payload));
  *more = true;
  return absl::OkStatus();
}

absl::Status Session::Feed(std::string_view bytes, std::string* send, std::vector<std::string>* frames) {
  while (true) {
    if (step_ == Step::kFailed) return Invalid("the connection has failed");
    // No more is kept than what is waited for: the rest is taken when that has been looked at.
    const size_t room = step_ == Step::kReady ? kFrameOverhead + terms_.frame_bytes_max : kHandshakeBytes;
    const size_t taken = std::min(bytes.size(), room > pending_.size() ? room - pending_.size() : 0);
    pending_ += bytes.substr(0, taken);
    bytes.remove_prefix(taken);
    const Step before = step_;
    bool more = false;
    switch (step_) {
      case Step::kHello: NEVE_RETURN_IF_ERROR(TakeHello(send)); break;
      case Step::kChallenge: NEVE_RETURN_IF_ERROR(TakeChallenge(send)); break;
      case Step::kProof: NEVE_RETURN_IF_ERROR(TakeProof()); break;
      case Step::kReady: NEVE_RETURN_IF_ERROR(TakeFrame(frames, &more)); break;
      case Step::kFailed: break;
    }
    if (bytes.empty() && step_ == before && !more) return absl::OkStatus();
  }
}

std::string Session::Seal(std::string_view payload) {
  std::string frame;
  frame.reserve(kFrameOverhead + payload.size());
  PutU32(&frame, static_cast<uint32_t>(payload.size()));
  frame += payload;
  frame += Mark(true, sent_++, payload);
  return frame;
}

}  // namespace neve::group
