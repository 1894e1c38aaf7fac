#include "group/progress.h"

#include <algorithm>

namespace neve::group {
namespace {

template <typename Bits>
void Shift(Bits* bits, uint64_t by) {
  if (by >= bits->size() * 64) {
    bits->fill(0);
    return;
  }
  const size_t words = by / 64, rest = by % 64;
  for (size_t i = 0; i < bits->size(); ++i) {
    const uint64_t low = i + words < bits->size() ? (*bits)[i + words] : 0;
    const uint64_t high = i + words + 1 < bits->size() ? (*bits)[i + words + 1] : 0;
    (*bits)[i] = rest == 0 ? low : low >> rest | high << (64 - rest);
  }
}

template <typename Bits>
void PutBits(std::string* text, const Bits& bits) {
  size_t bytes = bits.size() * 8;
  const auto at = [&](size_t i) { return static_cast<char>(bits[i / 8] >> (8 * (i % 8))); };
  while (bytes > 0 && at(bytes - 1) == 0) --bytes;
  *text += static_cast<char>(bytes);
  for (size_t i = 0; i < bytes; ++i) *text += at(i);
}

template <typename Bits>
bool TakeBits(std::string_view* text, Bits* bits) {
  if (text->empty()) return false;
  const auto bytes = static_cast<uint8_t>(text->front());
  text->remove_prefix(1);
  if (bytes > bits->size() * 8 || bytes > text->size()) return false;
  for (size_t i = 0; i < bytes; ++i) (*bits)[i / 8] |= static_cast<uint64_t>(static_cast<uint8_t>((*text)[i])) << (8 * (i % 8));
  text->remove_prefix(bytes);
  return true;
}

}  // namespace

void PutVarint(std::string* text, uint64_t number) {
  for (; number >= 128; number >>= 7) *text += static_cast<char>(number | 128);
  *text += static_cast<char>(number);
}

std::optional<uint64_t> TakeVarint(std::string_view* text) {
  uint64_t number = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (text->empty()) return std::nullopt;
    const auto byte = static_cast<uint8_t>(text->front());
    text->remove_prefix(1);
    if (shift == 63 && byte > 1) return std::nullopt;
    number |= static_cast<uint64_t>(byte & 127) << shift;
    if (byte < 128) return number;
  }
  return std::nullopt;
}

Progress::Progress(uint32_t rank, const std::set<uint64_t>& committed, const std::set<uint64_t>& abandoned, uint64_t base)
    : base_(base), laggard_(rank) {
  if (!committed.empty()) end_ = std::min(*committed.rbegin() + 1, base + kWindow);
  Fill(committed, &have_);
  Fill(abandoned, &lost_);
}

void Progress::Fill(const std::set<uint64_t>& from, Bits* bits) const {
  for (auto it = from.lower_bound(base_); it != from.end() && *it - base_ < kWindow; ++it) {
    (*bits)[(*it - base_) / 64] |= uint64_t{1} << ((*it - base_) % 64);
  }
}

Progress Progress::Told(uint64_t end, uint32_t laggard, const std::set<uint64_t>& complete, const std::set<uint64_t>& lost,
                        uint64_t base) {
  Progress progress(laggard, complete, lost, base);
  progress.end_ = std::min(end, base + kWindow);
  return progress;
}

Progress Progress::Unknown(uint32_t rank) {
  Progress progress;
  progress.laggard_ = rank;
  return progress;
}

void Progress::MoveTo(uint64_t base) {
  if (base <= base_) return;
  Shift(&have_, base - base_);
  Shift(&lost_, base - base_);
  base_ = base;
}

void Progress::Merge(const Progress& other) {
  if (other.base_ != base_) {   // seldom
    Progress there = other;
    const uint64_t base = std::max(base_, there.base_);
    MoveTo(base);
    there.MoveTo(base);
    return Merge(there);
  }
  if (other.end_ < end_ || (other.end_ == end_ && other.laggard_ < laggard_)) laggard_ = other.laggard_;
  end_ = std::min(end_, other.end_);
  for (size_t i = 0; i < have_.size(); ++i) {
    have_[i] &= other.have_[i];
    lost_[i] |= other.lost_[i];
  }
}

bool Progress::SaysTheSame(const Progress& other) const {
  if (base_ == other.base_) return end_ == other.end_ && have_ == other.have_ && lost_ == other.lost_;
  Progress here = *this, there = other;
  const uint64_t base = std::max(base_, there.base_);
  here.MoveTo(base);
  there.MoveTo(base);
  return here.end_ == there.end_ && here.have_ == there.have_ && here.lost_ == there.lost_;
}

void Progress::EncodeTo(std::string* text) const {
  PutVarint(text, end_);
  PutVarint(text, laggard_);
  PutVarint(text, base_);
  PutBits(text, have_);
  PutBits(text, lost_);
}

std::optional<Progress> Progress::DecodeFrom(std::string_view* text) {
  Progress progress;
  const std::optional<uint64_t> end = TakeVarint(text), laggard = TakeVarint(text), base = TakeVarint(text);
  if (!end || !laggard || !base || *laggard > ~uint32_t{0} || *base > ~uint64_t{0} - kWindow) return std::nullopt;
  progress.end_ = *end;
  progress.laggard_ = static_cast<uint32_t>(*laggard);
  progress.base_ = *base;
  if (!TakeBits(text, &progress.have_) || !TakeBits(text, &progress.lost_)) return std::nullopt;
  return progress;
}

}  // namespace neve::group
