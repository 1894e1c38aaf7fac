#include "base/codec/stream_digest.h"

#include <xxhash.h>

#include "base/error/check.h"

namespace neve::codec {

struct StreamDigest::State {
  XXH3_state_t* xxh3;
};

void StreamDigest::StateDeleter::operator()(State* state) const {
  XXH3_freeState(state->xxh3);
  delete state;
}

StreamDigest::StreamDigest() : state_(new State{XXH3_createState()}) {
  NEVE_CHECK(state_->xxh3 != nullptr);   // some 600 bytes
  XXH3_128bits_reset(state_->xxh3);
}

void StreamDigest::Add(std::span<const std::byte> bytes) { XXH3_128bits_update(state_->xxh3, bytes.data(), bytes.size()); }

Digest StreamDigest::Finish() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh3);
  return {hash.low64, hash.high64};
}

}  // namespace neve::codec
