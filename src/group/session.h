// Session: one connection between two ranks, as bytes in and bytes out: who the other one is, proved by a key that both have, then
// frames that nobody else can have written.
//
//   the one that connected                                     the one that listens
//   magic, own rank, wanted rank, nonce (32 bytes)       ->
//                                                        <-    nonce, HMAC over both nonces, ranks and context (48 bytes)
//   HMAC over the same (32 bytes)                        ->
//   from here on each sends frames: length, payload, the first half of an HMAC over (direction, count, payload) by a key of this
//   session; the listener may send from its second message on, the other one reads it after having checked the first
//
// Invariants
//   - The key is never sent. What was recorded of one session proves nothing in another: each side has a nonce of its own in it.
//     What one side says does not serve the other side: the three HMACs of the handshake have different prefixes.
//   - Before the other one has proved itself at most kHandshakeBytes of it are kept; after that at most one frame of the bound.
//   - The first wrong byte ends it. A session that has failed stays so.
//   - The context (job, life, world) is in every proof: a rank of another life does not get in.
//   - Integrity, not secrecy: payloads are readable on the wire.
//
// Errors of Feed: Invalid (not a neve connection, another version, a wrong proof, a frame out of bounds); nothing is sent then.
#ifndef NEVE_GROUP_SESSION_H_
#define NEVE_GROUP_SESSION_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error/status.h"

namespace neve::group {

class Session {
 public:
  static constexpr size_t kNonceBytes = 16, kHelloBytes = 8 + 4 + 4 + kNonceBytes, kHandshakeBytes = 64;
  static constexpr size_t kFrameOverhead = 4 + 16;
  using Nonce = std::array<uint8_t, kNonceBytes>;
  struct Terms {
    std::string key;
    std::string context;                 // the same on both sides
    uint32_t self = 0;                   // rank
    size_t frame_bytes_max = 4096;       // of a payload
  };

  // `nonce`: random, for this session only. `peer`: whom this side connects to.
  static Session Connecting(Terms terms, uint32_t peer, const Nonce& nonce);
  static Session Listening(Terms terms, const Nonce& nonce);

  // What this side says first: empty for the one that listens.
  std::string Start() const;
  // Takes what came. Appends to `send` what must be sent, and to `frames` the payloads that are whole.
  absl::Status Feed(std::string_view bytes, std::string* send, std::vector<std::string>* frames);
  // The other one has proved itself; frames may be sent.
  bool ready() const { return step_ == Step::kReady; }
  uint32_t peer() const { return peer_; }          // once it has said so; proved when ready
  // A frame with that payload. When ready only, and within the bound.
  std::string Seal(std::string_view payload);

 private:
  enum class Step { kHello, kChallenge, kProof, kReady, kFailed };   // what is waited for
  Session(Terms terms, bool connects, uint32_t peer, const Nonce& nonce);
  absl::Status Fail(std::string why);
  absl::Status TakeHello(std::string* send);
  absl::Status TakeChallenge(std::string* send);
  absl::Status TakeProof();
  absl::Status TakeFrame(std::vector<std::string>* frames, bool* more);
  std::string Prove(std::string_view who) const;
  std::string Mark(bool own, uint64_t count, std::string_view payload) const;
  void Begin();

  Terms terms_;
  bool connects_;
  uint32_t peer_;
  Step step_;
  std::string own_nonce_, other_nonce_, session_key_;
  std::string pending_;                             // what came and is not whole
  uint64_t sent_ = 0, received_ = 0;                // frames
};

}  // namespace neve::group

#endif  // NEVE_GROUP_SESSION_H_
