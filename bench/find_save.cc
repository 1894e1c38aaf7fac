// How long one rank of very many waits for the newest complete save, and what it holds in memory for that, where listing a folder is
// slow. The file tier and the catalog are the real ones; the folder holds real names, files of no size; each listing of a folder is held
// up below the tier. Usage: neve_find_save FOLDER RANKS SAVES MILLISECONDS; FOLDER is empty or not there. Prints one line of JSON.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/os/io_hooks.h"
#include "base/sync/notification.h"
#include "catalog/catalog.h"
#include "format/names.h"
#include "storage/file/file_tier.h"

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

class SlowListings : public neve::os::IoHooks {
 public:
  explicit SlowListings(std::chrono::milliseconds delay) : delay_(delay) {}
  neve::os::CallVerdict Before(const neve::os::CallInfo& info) override {
    if (info.call == neve::os::Call::kStat) ++sizes;
    if (info.call != neve::os::Call::kList) return {};
    ++listings;
    std::this_thread::sleep_for(delay_);
    return {};
  }
  std::atomic<int> listings{0}, sizes{0};

 private:
  const std::chrono::milliseconds delay_;
};

void Touch(const std::string& path) {
  const int fd = ::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) {
    std::perror(path.c_str());
    std::exit(1);
  }
  ::close(fd);
}

double MiBOf(const char* field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) return std::atof(line.c_str() + std::string(field).size()) / 1024;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s FOLDER RANKS SAVES MILLISECONDS\n", argv[0]);
    return 2;
  }
  const std::string job = std::string(argv[1]) + "/job";
  const auto ranks = static_cast<uint32_t>(std::atoi(argv[2])), saves = static_cast<uint32_t>(std::atoi(argv[3]));
  for (uint32_t i = 1; i <= saves; ++i) {
    const std::string folder = job + "/" + neve::format::FormatSaveName({.step = i * 100, .save = {1, i}});
    fs::create_directories(folder);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      if (i == saves && rank == ranks / 2) continue;   // the newest is not complete
      Touch(folder + "/" + neve::format::FormatImageName(rank, ranks));
      Touch(folder + "/" + neve::format::FormatRecordName(rank, ranks));
    }
  }
  auto tier = neve::storage::OpenFileTier({.job_folder = job, .root = argv[1]});
  if (!tier.ok()) {
    std::fprintf(stderr, "%s\n", std::string(tier.status().message()).c_str());
    return 1;
  }

  const double before = MiBOf("VmRSS:");
  SlowListings slow(std::chrono::milliseconds(std::atoi(argv[4])));
  neve::os::SetIoHooks(&slow);
  const auto begin = Clock::now();
  neve::sync::Result<std::vector<neve::catalog::Save>> result;
  (*tier)->List([&](absl::StatusOr<neve::storage::Listing> listing) {
    if (!listing.ok()) std::abort();
    const std::vector<neve::catalog::TierListing> tiers = {{neve::TierKind::kFile, job, absl::OkStatus(), *std::move(listing)}};
    result.Set(neve::catalog::GroupSaves(tiers));
  });
  const std::vector<neve::catalog::Save> found = result.Take();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  neve::os::SetIoHooks(nullptr);
  const double held = MiBOf("VmHWM:") - before;   // at most

  uint64_t newest = 0;
  for (const neve::catalog::Save& save : found) {
    if (save.complete) {
      newest = save.step;
      break;
    }
  }
  if (found.size() != saves || newest != (saves - 1) * 100) {
    std::fprintf(stderr, "found %zu saves, step %llu\n", found.size(), static_cast<unsigned long long>(newest));
    return 1;
  }
  std::printf("{\"seconds\": %.3f, \"listings\": %d, \"sizes\": %d, \"mib\": %.1f}\n", seconds, slow.listings.load(),
              slow.sizes.load(), held);
  return 0;
}
