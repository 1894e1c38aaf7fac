#include "capture/capture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "capture/random_state.h"

namespace neve::capture {
namespace {

constexpr uint64_t kChunk = 64 << 10;

// Room for an image, full of what an earlier one might have left.
class Room {
 public:
  explicit Room(uint64_t bytes)
      : bytes_(bytes), data_(static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4096) / 4096 * 4096)), &std::free) {
    std::fill_n(data_.get(), bytes, std::byte{0xee});
  }
  std::span<std::byte> span() const { return {data_.get(), bytes_}; }

 private:
  uint64_t bytes_;
  std::unique_ptr<std::byte, void (*)(void*)> data_;
};

struct Captured {
  explicit Captured(const CapturePlan& plan) : image(plan.layout().image_bytes()), digests(plan.chunk_count()) {}
  Room image;
  std::vector<codec::Digest> digests;
};

void ExpectImage(const State& state, const CapturePlan& plan, const Captured& captured) {
  const std::vector<std::byte> naive = state.NaiveImage();
  const std::span<const std::byte> image = captured.image.span();
  ASSERT_EQ(naive.size(), image.size());
  const auto [wrong, other] = std::mismatch(image.begin(), image.end(), naive.begin());
  ASSERT_EQ(wrong, image.end()) << "byte " << wrong - image.begin() << " of " << image.size() << ", header "
                                << plan.layout().header_bytes();
  for (uint64_t chunk = 0; chunk < plan.chunk_count(); ++chunk) {
    const uint64_t begin = chunk * plan.chunk_bytes();
    const uint64_t bytes = std::min<uint64_t>(plan.chunk_bytes(), image.size() - begin);
    ASSERT_EQ(captured.digests[chunk], codec::DigestOf(image.subspan(begin, bytes))) << "chunk " << chunk;
  }
}

class CaptureTest : public ::testing::Test {
 protected:
  // Captures the state whole: its image and its digests are as they should be.
  void CaptureAndCheck(const State& state, uint64_t chunk_bytes = kChunk) {
    const CapturePlan plan(state.layout(), chunk_bytes);
    Captured captured(plan);
    ASSERT_EQ(plan.Run(state.input(), captured.image.span(), captured.digests, *crew_), absl::OkStatus());
    ExpectImage(state, plan, captured);
  }

  std::unique_ptr<sync::Crew> crew_ = sync::Crew::Create(1);
};

TEST_F(CaptureTest, ImageAndDigestsEqualANaiveConstruction) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const std::unique_ptr<State> state = RandomState(random);
    ASSERT_FALSE(HasFatalFailure());
    CaptureAndCheck(*state);
    if (HasFailure()) return;
  }
}

// Chunks of a size that divides nothing: they cut elements, lengths of blobs, and the header.
TEST_F(CaptureTest, ChunksMayCutElements) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (const uint64_t chunk : {uint64_t{13}, uint64_t{4099}, uint64_t{70'001}}) {
    State state(40'000);
    state.FillArena(random);
    state.Add(DType::kF64, {30, 20}, {1, 50}, 0);
    state.Add(DType::kC128, {7, 9}, {9 + 3, 1}, 16'000);
    state.Add(DType::kBF16, {11, 13}, {1, 17}, 30'000);
    state.AddBlob("névé");
    state.Build();
    ASSERT_FALSE(HasFatalFailure());
    CaptureAndCheck(state, chunk);
  }
}

TEST_F(CaptureTest, RunRangeEqualsRunHoweverTheImageIsCut) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20; ++round) {
    const std::unique_ptr<State> state = RandomState(random);
    const CapturePlan plan(state->layout(), kChunk);
    Captured pieces(plan);
    uint64_t chunk = 0;
    while (chunk < plan.chunk_count()) {
      const uint64_t chunks = 1 + random() % (plan.chunk_count() - chunk);
      const uint64_t begin = chunk * kChunk, end = std::min((chunk + chunks) * kChunk, plan.layout().image_bytes());
      ASSERT_EQ(plan.RunRange(state->input(), begin, end, pieces.image.span().subspan(begin, end - begin),
                              std::span(pieces.digests).subspan(chunk, chunks), *crew_),
                absl::OkStatus());
      chunk += chunks;
    }
    ExpectImage(*state, plan, pieces);
    if (HasFailure()) return;
  }
}

TEST_F(CaptureTest, AHeaderOfManyChunksIsCapturedWholeAndInRanges) {
  std::mt19937_64 random(1);
  State state(1 << 20);
  state.FillArena(random);
  for (int i = 0; i < 3000; ++i) state.AddContiguous(DType::kF32, {1 + i % 7});
  state.Build();
  ASSERT_FALSE(HasFatalFailure());
  const CapturePlan plan(state.layout(), kChunk);
  ASSERT_GT(plan.layout().header_bytes(), 2 * kChunk);
  Captured whole(plan), pieces(plan);
  ASSERT_EQ(plan.Run(state.input(), whole.image.span(), whole.digests, *crew_), absl::OkStatus());
  ExpectImage(state, plan, whole);
  for (uint64_t chunk = 0; chunk < plan.chunk_count(); ++chunk) {
    const uint64_t begin = chunk * kChunk, end = std::min(begin + kChunk, plan.layout().image_bytes());
    ASSERT_EQ(plan.RunRange(state.input(), begin, end, pieces.image.span().subspan(begin, end - begin),
                            std::span(pieces.digests).subspan(chunk, 1), *crew_),
              absl::OkStatus());
  }
  ExpectImage(state, plan, pieces);
}

TEST_F(CaptureTest, AStateOfNothingIsAHeader) {
  State state(0);
  state.Build();
  ASSERT_FALSE(HasFatalFailure());
  CaptureAndCheck(state);
}

TEST_F(CaptureTest, BlobsOfAnyLengthFillTheirCapacityWithZeros) {
  State state(0);
  state.AddBlob("");
  state.AddBlob("x");
  state.AddBlob(std::string(100'000, 'y'));
  state.Build();
  ASSERT_FALSE(HasFatalFailure());
  CaptureAndCheck(state);
}

TEST_F(CaptureTest, ASY_01_ChangesAfterRunAreNotSeen) {
  std::mt19937_64 random(2);
  State state(5 << 20);
  state.FillArena(random);
  state.AddContiguous(DType::kF32, {1 << 20});
  state.Add(DType::kF32, {100, 50}, {1, 120}, 4 << 20);
  state.AddBlob(std::string(5000, 'a'));
  state.Build();
  ASSERT_FALSE(HasFatalFailure());
  const CapturePlan plan(state.layout(), kChunk);
  Captured captured(plan);
  const std::vector<std::byte> before = state.NaiveImage();
  ASSERT_EQ(plan.Run(state.input(), captured.image.span(), captured.digests, *crew_), absl::OkStatus());
  for (std::byte& byte : state.arena()) byte = ~byte;
  state.values() = "[2]";
  EXPECT_TRUE(std::ranges::equal(captured.image.span(), before));
  for (uint64_t chunk = 0; chunk < plan.chunk_count(); ++chunk) {
    const uint64_t begin = chunk * kChunk;
    EXPECT_EQ(captured.digests[chunk],
              codec::DigestOf(std::span(before).subspan(begin, std::min(kChunk, before.size() - begin))));
  }
}

TEST_F(CaptureTest, ASY_02_OnePlanCapturesTensorsThatMoved) {
  std::mt19937_64 random(3);
  State state(3 << 20);
  state.FillArena(random);
  state.AddContiguous(DType::kF32, {100'000});
  state.Build();
  ASSERT_FALSE(HasFatalFailure());
  const CapturePlan plan(state.layout(), kChunk);
  std::vector<codec::Digest> last;
  for (const uint64_t offset : {uint64_t{0}, uint64_t{1} << 20, uint64_t{2} << 20}) {
    state.addresses()[0] = state.arena().data() + offset;
    Captured captured(plan);
    ASSERT_EQ(plan.Run(state.input(), captured.image.span(), captured.digests, *crew_), absl::OkStatus());
    ExpectImage(state, plan, captured);
    EXPECT_NE(captured.digests, last);
    last = captured.digests;
  }
}

TEST_F(CaptureTest, UnchangedBytesKeepTheirDigestsWhenValuesChange) {
  std::mt19937_64 random(4);
  State state(1 << 20);
  state.FillArena(random);
  state.AddContiguous(DType::kU8, {500'000});
  state.Build();
  ASSERT_FALSE(HasFatalFailure());
  const CapturePlan plan(state.layout(), kChunk);
  Captured first(plan), second(plan);
  ASSERT_EQ(plan.Run(state.input(), first.image.span(), first.digests, *crew_), absl::OkStatus());
  state.values() = "[other]";
  ASSERT_EQ(plan.Run(state.input(), second.image.span(), second.digests, *crew_), absl::OkStatus());
  EXPECT_NE(first.digests[0], second.digests[0]);
  EXPECT_TRUE(std::equal(first.digests.begin() + 1, first.digests.end(), second.digests.begin() + 1));
}

class CaptureRefusalTest : public CaptureTest {
 protected:
  CaptureRefusalTest() : state_(200'000) {
    state_.AddContiguous(DType::kF32, {40'000});
    state_.AddContiguous(DType::kF32, {0});
    state_.AddBlob("payload");
    state_.Build();
    plan_ = std::make_unique<CapturePlan>(state_.layout(), kChunk);
    captured_ = std::make_unique<Captured>(*plan_);
  }
  // Invalid, and no byte was written.
  void ExpectRefused(const absl::Status& status) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_TRUE(std::ranges::all_of(captured_->image.span(), [](std::byte byte) { return byte == std::byte{0xee}; }));
  }
  absl::Status Run() { return plan_->Run(state_.input(), captured_->image.span(), captured_->digests, *crew_); }

  State state_;
  std::unique_ptr<CapturePlan> plan_;
  std::unique_ptr<Captured> captured_;
};

TEST_F(CaptureRefusalTest, ValuesThatDoNotFit) {
  state_.values() = std::string(state_.layout()->capacities().values_bytes + 1, '1');
  ExpectRefused(Run());
}

TEST_F(CaptureRefusalTest, ValuesThatJsonWouldEscape) {
  state_.values() = "[\"]";
  ExpectRefused(Run());
}

TEST_F(CaptureRefusalTest, ABlobThatDoesNotFit) {
  const std::string payload(state_.layout()->capacities().blob_bytes[0] + 1, 'x');
  state_.views()[0] = payload;
  ExpectRefused(Run());
}

TEST_F(CaptureRefusalTest, BlobsOrAddressesOfAnotherNumber) {
  state_.views().push_back("more");
  ExpectRefused(Run());
  state_.views().resize(1);
  state_.addresses().push_back(nullptr);
  ExpectRefused(Run());
}

TEST_F(CaptureRefusalTest, ElementsWithoutAnAddress) {
  ASSERT_EQ(state_.addresses()[1], nullptr);   // the empty one needs none
  state_.addresses()[0] = nullptr;
  ExpectRefused(Run());
}

TEST_F(CaptureRefusalTest, TooLittleRoom) {
  ExpectRefused(plan_->Run(state_.input(), captured_->image.span().first(captured_->image.span().size() - 1),
                           captured_->digests, *crew_));
  ExpectRefused(plan_->Run(state_.input(), captured_->image.span(),
                           std::span(captured_->digests).first(captured_->digests.size() - 1), *crew_));
}

TEST_F(CaptureRefusalTest, RangesThatAreNotMadeOfChunks) {
  const uint64_t end = state_.layout()->image_bytes();
  const std::pair<uint64_t, uint64_t> ranges[] = {{1, kChunk}, {0, 1}, {kChunk, 0}, {0, end + 1}, {0, end + kChunk}};
  for (const auto& [from, to] : ranges) {
    ExpectRefused(plan_->RunRange(state_.input(), from, to, captured_->image.span(), captured_->digests, *crew_));
  }
  EXPECT_EQ(plan_->RunRange(state_.input(), kChunk, kChunk, {}, {}, *crew_), absl::OkStatus());
}

}  // namespace
}  // namespace neve::capture
