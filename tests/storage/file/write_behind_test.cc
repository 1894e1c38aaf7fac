#include "storage/file/write_behind.h"

#include <fcntl.h>
#include <unistd.h>

#include "file_tier_fixture.h"

namespace neve::testing {
namespace {

class WriteBehindTest : public FileTierTest {
 protected:
  std::shared_ptr<storage::ImageFile> File(const std::string& name) {
    auto file = std::make_shared<storage::ImageFile>();
    file->file = *os::Open(root_.path() + "/" + name, O_RDWR | O_CREAT);
    return file;
  }
};

TEST_F(WriteBehindTest, DUR_08_PagesUnderWayStayWithinTheWindow) {
  storage::WriteBehind behind(1u << 20);
  const auto a = File("a"), b = File("b");
  const std::vector<std::byte> piece(256u << 10, std::byte{7});
  for (uint64_t i = 0; i < 32; ++i) {
    const auto& file = i % 2 == 0 ? a : b;
    ASSERT_EQ(os::WriteAt(file->file, i / 2 * piece.size(), piece), absl::OkStatus());
    behind.Wrote(file, i / 2 * piece.size(), piece.size());
    EXPECT_LE(behind.bytes_under_way(), 1u << 20);
  }
  EXPECT_EQ(behind.bytes_under_way(), 1u << 20);
  behind.Forget(a);
  EXPECT_EQ(behind.bytes_under_way(), 512u << 10);
  behind.Forget(b);
  EXPECT_EQ(behind.bytes_under_way(), 0u);
  EXPECT_EQ(a->writeback, absl::OkStatus());
}

TEST_F(WriteBehindTest, FailedWritebackStaysWithItsFile) {
  storage::WriteBehind behind(4096);
  const auto file = File("a"), other = File("b");
  file->file.fd.reset();  // every call on it fails with EBADF
  behind.Wrote(file, 0, 4096);
  EXPECT_EQ(ErrnoOf(file->writeback), EBADF);
  behind.Wrote(other, 0, 4096);
  EXPECT_EQ(ErrnoOf(file->writeback), EBADF);
  EXPECT_EQ(other->writeback, absl::OkStatus());
}

}  // namespace
}  // namespace neve::testing
