#include <cerrno>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "base/error/check.h"
#include "base/error/status.h"

namespace neve {
namespace {

absl::Status PassOn(const absl::Status& status) {
  NEVE_RETURN_IF_ERROR(status);
  return Internal("reached the end");
}

absl::StatusOr<std::unique_ptr<int>> TakeAndDouble(absl::StatusOr<std::unique_ptr<int>> input) {
  NEVE_ASSIGN_OR_RETURN(std::unique_ptr<int> number, std::move(input));
  *number *= 2;
  return number;
}

TEST(Status, EachBuilderHasItsCode) {
  EXPECT_EQ(Invalid("m").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(NotFound("m").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(DataLoss("m").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Damaged("m").code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Unsupported("m").code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(Timeout("m").code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Exhausted("m").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Unavailable("m").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Closed("m").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Internal("m").code(), absl::StatusCode::kInternal);
  EXPECT_EQ(std::string(Timeout("the message").message()), "the message");
}

TEST(Status, ErrnoChoosesTheCode) {
  EXPECT_EQ(ErrnoStatus(ENOENT, "w").code(), absl::StatusCode::kNotFound);
  for (const int number : {ENOSPC, EDQUOT, EFBIG, ENOMEM, EMFILE, ENFILE}) {
    EXPECT_EQ(ErrnoStatus(number, "w").code(), absl::StatusCode::kResourceExhausted) << number;
  }
  for (const int number : {EIO, EACCES, EEXIST, ESTALE, ENOTEMPTY}) {
    EXPECT_EQ(ErrnoStatus(number, "w").code(), absl::StatusCode::kUnavailable) << number;
  }
}

TEST(Status, ErrnoMessageSaysWhatAndWhy) {
  EXPECT_EQ(std::string(ErrnoStatus(EACCES, "open x").message()), "open x: Permission denied");
  EXPECT_EQ(std::string(ErrnoStatus(99999, "open x").message()), "open x: error 99999");
}

TEST(Status, ErrnoTravels) {
  EXPECT_EQ(ErrnoOf(ErrnoStatus(ENOSPC, "w")), ENOSPC);
  EXPECT_EQ(ErrnoOf(Exhausted("m", EDQUOT)), EDQUOT);
  EXPECT_EQ(ErrnoOf(Unavailable("m", EIO)), EIO);
}

TEST(Status, NoErrnoIsZero) {
  EXPECT_EQ(ErrnoOf(Unavailable("m")), 0);
  EXPECT_EQ(ErrnoOf(absl::OkStatus()), 0);
}

TEST(Status, AnnotateKeepsCodeAndErrno) {
  const absl::Status status = Annotate(ErrnoStatus(ENOSPC, "write"), "rank 3");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoOf(status), ENOSPC);
  EXPECT_EQ(std::string(status.message()), "rank 3: write: No space left on device");
}

TEST(Status, AnnotateLeavesSuccessAlone) { EXPECT_TRUE(Annotate(absl::OkStatus(), "rank 3").ok()); }

TEST(Status, OnlyDamagedIsDamaged) {
  EXPECT_TRUE(IsDamaged(Damaged("m")));
  EXPECT_FALSE(IsDamaged(DataLoss("m")));
  EXPECT_FALSE(IsDamaged(absl::OkStatus()));
}

TEST(Status, ReturnIfErrorReturnsTheError) {
  EXPECT_EQ(PassOn(Timeout("late")), Timeout("late"));
  EXPECT_EQ(PassOn(absl::OkStatus()), Internal("reached the end"));
}

TEST(Status, AssignOrReturnMovesTheValue) {
  const auto doubled = TakeAndDouble(std::make_unique<int>(21));
  ASSERT_TRUE(doubled.ok());
  EXPECT_EQ(**doubled, 42);
  EXPECT_EQ(TakeAndDouble(Closed("shut")).status(), Closed("shut"));
}

TEST(CheckDeathTest, SaysWhereAndWhat) {
  const int one = 1;
  NEVE_CHECK(one == 1);
  EXPECT_DEATH(NEVE_CHECK(one == 2), "check failed at .*error_test.cc:[0-9]+: one == 2");
}

}  // namespace
}  // namespace neve
