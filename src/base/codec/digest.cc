#include "base/codec/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/codec/digest_kernel.h"
#include "base/error/check.h"

namespace neve::codec {
namespace {

using internal::Kernel;
using internal::kSecretBytes;
using internal::kShortBytesMax;
using internal::kStripeBytes;

constexpr uint64_t kMergeOffset = XXH_SECRET_MERGEACCS_START;
constexpr uint64_t kLastStripeKey = kSecretBytes - kStripeBytes - XXH_SECRET_LASTACC_START;

std::atomic<bool> portable_forced{false};

// Both kernels keep the same accumulators, so the choice may even change in the middle of a chunk.
const Kernel& CurrentKernel() {
  const Kernel* const avx2 = internal::Avx2Kernel();
  return avx2 == nullptr || portable_forced.load(std::memory_order_relaxed) ? internal::PortableKernel() : *avx2;
}

Digest FromLibrary(const XXH128_hash_t& hash) { return {hash.low64, hash.high64}; }

std::array<uint64_t, 8> StartValues() {
  return {XXH_PRIME32_3, XXH_PRIME64_1, XXH_PRIME64_2, XXH_PRIME64_3, XXH_PRIME64_4, XXH_PRIME32_2, XXH_PRIME64_5,
          XXH_PRIME32_1};
}

// Stripes that are folded in order. The last 64 bytes of the chunk come once more, or only, as the last stripe.
uint64_t StripesOf(uint64_t chunk_bytes) { return chunk_bytes > kShortBytesMax ? (chunk_bytes - 1) / kStripeBytes : 0; }

Digest MergeWithLastStripe(std::array<uint64_t, 8>& accumulators, const std::byte* last_stripe, uint64_t chunk_bytes) {
  const uint8_t* const secret = internal::Secret();
  XXH3_accumulate_512(accumulators.data(), last_stripe, secret + kLastStripeKey);
  Digest digest;
  digest.low = XXH3_mergeAccs(accumulators.data(), secret + kMergeOffset, chunk_bytes * XXH_PRIME64_1);
  digest.high = XXH3_mergeAccs(accumulators.data(), secret + kSecretBytes - kStripeBytes - kMergeOffset,
                               ~(chunk_bytes * XXH_PRIME64_2));
  return digest;
}

}  // namespace

std::string Digest::ToHex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text(32, '0');
  for (int i = 0; i < 16; ++i) {
    text[i] = kDigits[high >> (60 - 4 * i) & 15];
    text[16 + i] = kDigits[low >> (60 - 4 * i) & 15];
  }
  return text;
}

bool Digest::FromHex(std::string_view hex, Digest* digest) {
  if (hex.size() != 32) return false;
  uint64_t words[2] = {0, 0};
  for (int i = 0; i < 32; ++i) {
    const char c = hex[i];
    uint64_t value;
    if (c >= '0' && c <= '9') {
      value = c - '0';
    } else if (c >= 'a' && c <= 'f') {
      value = c - 'a' + 10;
    } else {
      return false;
    }
    words[i / 16] = words[i / 16] << 4 | value;
  }
  *digest = {.low = words[1], .high = words[0]};
  return true;
}

Digest DigestOf(std::span<const std::byte> bytes) {
  if (bytes.size() <= kShortBytesMax) return FromLibrary(XXH3_128bits(bytes.data(), bytes.size()));
  alignas(64) std::array<uint64_t, 8> accumulators = StartValues();
  CurrentKernel().fold(accumulators.data(), bytes.data(), nullptr, 0, StripesOf(bytes.size()), Store::kCached);
  return MergeWithLastStripe(accumulators, bytes.data() + bytes.size() - kStripeBytes, bytes.size());
}

CaptureHasher::CaptureHasher(std::byte* target, uint64_t chunk_bytes, Store store)
    : target_(target), chunk_bytes_(chunk_bytes), store_(store), accumulators_(StartValues()) {}

void CaptureHasher::AccumulateFromTarget(uint64_t end) {
  const uint64_t whole = std::min(end / kStripeBytes, StripesOf(chunk_bytes_));
  if (whole <= hashed_stripes_) return;
  CurrentKernel().fold(accumulators_.data(), target_ + hashed_stripes_ * kStripeBytes, nullptr, hashed_stripes_,
                       whole - hashed_stripes_, Store::kCached);
  hashed_stripes_ = whole;
}

void CaptureHasher::Copy(const std::byte* source, uint64_t bytes) {
  NEVE_CHECK(bytes <= chunk_bytes_ - position_);
  const uint64_t end = position_ + bytes;
  // Up to the next stripe: lines that two pieces share are stored plainly and hashed once they are whole.
  const uint64_t head = std::min(bytes, -position_ % kStripeBytes);
  if (head > 0) {
    std::memcpy(target_ + position_, source, head);
    source += head;
    position_ += head;
    AccumulateFromTarget(position_);
  }
  const uint64_t whole_end = std::min(end / kStripeBytes, StripesOf(chunk_bytes_));
  if (whole_end > hashed_stripes_) {
    const uint64_t stripes = whole_end - hashed_stripes_;
    CurrentKernel().fold(accumulators_.data(), source, target_ + position_, hashed_stripes_, stripes, store_);
    hashed_stripes_ = whole_end;
    source += stripes * kStripeBytes;
    position_ += stripes * kStripeBytes;
  }
  if (end > position_) std::memcpy(target_ + position_, source, end - position_);
  position_ = end;
}

void CaptureHasher::Wrote(uint64_t bytes) {
  NEVE_CHECK(bytes <= chunk_bytes_ - position_);
  position_ += bytes;
  AccumulateFromTarget(position_);
}

Digest CaptureHasher::Finish() {
  NEVE_CHECK(position_ == chunk_bytes_);
  CurrentKernel().fence();
  if (chunk_bytes_ <= kShortBytesMax) return FromLibrary(XXH3_128bits(target_, chunk_bytes_));
  return MergeWithLastStripe(accumulators_, target_ + chunk_bytes_ - kStripeBytes, chunk_bytes_);
}

RestoreHasher::RestoreHasher(const std::byte* source, uint64_t chunk_bytes, Store store)
    : source_(source), chunk_bytes_(chunk_bytes), store_(store), accumulators_(StartValues()) {
  // The end of the chunk, or all of a short one, is read once, here: it is copied and hashed from the same bytes.
  const uint64_t kept = chunk_bytes <= kShortBytesMax ? chunk_bytes : kStripeBytes;
  if (kept > 0) std::memcpy(last_.data(), source + chunk_bytes - kept, kept);
}

void RestoreHasher::Advance(std::byte* target, uint64_t bytes) {
  NEVE_CHECK(bytes <= chunk_bytes_ - position_);
  const uint64_t end = position_ + bytes;
  const uint64_t ordered = StripesOf(chunk_bytes_);
  while (position_ < end) {
    const uint64_t stripe = position_ / kStripeBytes, within = position_ % kStripeBytes;
    uint64_t step;
    if (stripe >= ordered) {
      // Behind the ordered stripes: bytes that only the kept end holds.
      step = end - position_;
      const uint64_t kept_begin = chunk_bytes_ <= kShortBytesMax ? 0 : chunk_bytes_ - kStripeBytes;
      if (target != nullptr) std::memcpy(target, last_.data() + (position_ - kept_begin), step);
    } else if (within == 0 && end - position_ >= kStripeBytes) {
      const uint64_t stripes = std::min(end / kStripeBytes, ordered) - stripe;
      CurrentKernel().fold(accumulators_.data(), source_ + position_, target, stripe, stripes, store_);
      hashed_stripes_ = stripe + stripes;
      step = stripes * kStripeBytes;
    } else {
      // A stripe that two pieces share is read once, at the first of them.
      if (stripe >= hashed_stripes_) {
        std::memcpy(shared_.data(), source_ + stripe * kStripeBytes, kStripeBytes);
        CurrentKernel().fold(accumulators_.data(), shared_.data(), nullptr, stripe, 1, Store::kCached);
        hashed_stripes_ = stripe + 1;
      }
      step = std::min(end - position_, kStripeBytes - within);
      if (target != nullptr) std::memcpy(target, shared_.data() + within, step);
    }
    position_ += step;
    if (target != nullptr) target += step;
  }
}

void RestoreHasher::CopyTo(std::byte* target, uint64_t bytes) { Advance(target, bytes); }

void RestoreHasher::Skip(uint64_t bytes) { Advance(nullptr, bytes); }

Digest RestoreHasher::Finish() {
  Skip(chunk_bytes_ - position_);
  CurrentKernel().fence();
  if (chunk_bytes_ <= kShortBytesMax) return FromLibrary(XXH3_128bits(last_.data(), chunk_bytes_));
  return MergeWithLastStripe(accumulators_, last_.data(), chunk_bytes_);
}

void StreamCopy(std::byte* target, const std::byte* source, uint64_t bytes) {
  if (bytes == 0) return;
  CurrentKernel().stream_copy(target, source, bytes);
  CurrentKernel().fence();
}

std::string_view DigestCode() { return CurrentKernel().name; }

void ForcePortableDigest(bool force) { portable_forced.store(force, std::memory_order_relaxed); }

}  // namespace neve::codec
