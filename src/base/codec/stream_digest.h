// XXH3-128 of bytes of unknown number that come in order and are not kept. Slower than digest.h, which knows its chunk.
#ifndef NEVE_BASE_CODEC_STREAM_DIGEST_H_
#define NEVE_BASE_CODEC_STREAM_DIGEST_H_

#include <cstddef>
#include <memory>
#include <span>

#include "base/codec/digest.h"

namespace neve::codec {

class StreamDigest {
 public:
  StreamDigest();
  void Add(std::span<const std::byte> bytes);
  Digest Finish() const;   // of all that was added so far

 private:
  struct State;
  struct StateDeleter {
    void operator()(State* state) const;
  };
  std::unique_ptr<State, StateDeleter> state_;
};

}  // namespace neve::codec

#endif  // NEVE_BASE_CODEC_STREAM_DIGEST_H_
