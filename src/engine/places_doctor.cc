#include <dlfcn.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/codec/digest.h"
#include "base/codec/hmac.h"
#include "base/os/random.h"
#include "base/os/syscalls.h"
#include "base/sync/crew.h"
#include "base/sync/sockets.h"
#include "device/device.h"
#include "neve/places.h"
#include "ring/ring.h"
#include "slot/slot.h"

namespace neve {
namespace {

std::string Size(uint64_t bytes) {
  if (bytes >= uint64_t{1} << 30) return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / (1u << 30));
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1u << 20));
}

std::string Trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

// The chosen word of a kernel switch such as "always within_size [advise] never".
std::string ChosenWord(const std::string& text) {
  const size_t open = text.find('['), close = text.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return "";
  return text.substr(open + 1, close - open - 1);
}

DoctorCheck CheckUring(const std::string& folder) {
  DoctorCheck check{"io_uring"};
  const char* forced = std::getenv("NEVE_IO");
  if (absl::Status status = ring::ProbeUring(folder); status.ok()) {
    check.ok = true;
    check.found = "works";
  } else {
    check.found = std::string(status.message());
    check.advice = "file I/O falls back to threads, which costs more CPU; allow io_uring (kernel.io_uring_disabled=0, the "
                   "container's seccomp profile) to have it";
  }
  if (forced != nullptr && *forced != '\0') check.found += absl::StrFormat("; NEVE_IO=%s forces that engine", forced);
  return check;
}

DoctorCheck CheckDirect(const std::string& folder) {
  DoctorCheck check{"o_direct"};
  const std::string path = os::JoinPath(folder, ".tmp-" + os::RandomHex(16));
  absl::StatusOr<os::File> file = os::Open(path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT, 0600);
  absl::Status status = file.status();
  if (status.ok()) {
    constexpr size_t kBlock = 4096;
    std::unique_ptr<std::byte, decltype(&std::free)> block(static_cast<std::byte*>(std::aligned_alloc(kBlock, kBlock)),
                                                           &std::free);
    if (block == nullptr) {
      status = Exhausted("no memory for a block");
    } else {
      std::fill_n(block.get(), kBlock, std::byte{0x5a});
      status = os::WriteAt(*file, 0, {block.get(), kBlock});
    }
  }
  os::Unlink(path).IgnoreError();   // a leftover temporary is all that could remain
  check.ok = status.ok();
  if (check.ok) {
    check.found = "works in this folder";
  } else {
    check.found = std::string(status.message());
    check.advice = "files are written through the page cache with a bounded dirty window; for full speed run neve where the "
                   "checkpoint folder lies, on a local file system";
  }
  return check;
}

DoctorCheck CheckMemlock() {
  DoctorCheck check{"memlock"};
  struct ::rlimit limit {};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  check.ok = limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= uint64_t{64} << 20;
  check.found = limit.rlim_cur == RLIM_INFINITY ? "unlimited" : Size(limit.rlim_cur);
  if (!check.ok) {
    check.advice = "io_uring and NICs cannot register large buffers and work without; raise it: ulimit -l unlimited, or "
                   "LimitMEMLOCK=infinity in the service";
  }
  return check;
}

DoctorCheck CheckControl() {
  DoctorCheck check{"control"};
  const absl::Status status = codec::HmacAvailable();
  check.ok = status.ok();
  if (check.ok) {
    check.found = "libcrypto is there; other hosts reach this one at " + sync::PrimaryAddress();
  } else {
    check.found = std::string(status.message());
    check.advice = "ranks on several hosts cannot tell each other what they have saved; install OpenSSL's libraries (libssl3)";
  }
  return check;
}

DoctorCheck CheckHugePages() {
  DoctorCheck check{"huge_pages"};
  const absl::StatusOr<std::string> text = os::ReadFile("/sys/kernel/mm/transparent_hugepage/shmem_enabled", 4096);
  if (!text.ok()) {
    check.found = "this kernel has no huge pages for shared memory";
    check.advice = "captures work with small pages, first touches take longer";
    return check;
  }
  const std::string chosen = ChosenWord(*text);
  check.ok = chosen == "advise" || chosen == "always" || chosen == "within_size" || chosen == "force";
  check.found = absl::StrFormat("shmem_enabled is %s", chosen.empty() ? Trimmed(*text) : chosen);
  if (!check.ok) check.advice = "faster first touch with: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled";
  return check;
}

std::string RamFolderName() {
  if (const char* named = std::getenv("NEVE_RAM_DIR"); named != nullptr && *named != '\0') return named;
  return absl::StrFormat("/dev/shm/neve-%d", ::getuid());
}

// The folder, or the nearest one above it that exists: what its file system can hold.
std::string Existing(std::string path) {
  while (path.size() > 1 && !os::Exists(path)) path = os::DirName(path);
  return path;
}

DoctorCheck CheckSharedMemory() {
  DoctorCheck check{"shared_memory"};
  const std::string name = RamFolderName();
  const absl::StatusOr<std::string> folder = slot::RamFolder(/*create=*/false);
  if (!folder.ok() && folder.status().code() != absl::StatusCode::kNotFound) {
    check.found = std::string(folder.status().message());
    check.advice = "set NEVE_RAM_DIR to a folder of your own with mode 0700 in a tmpfs";
    return check;
  }
  const std::string existing = Existing(name);
  const absl::StatusOr<slot::MemoryFacts> facts = slot::ReadMemoryFacts(existing);
  if (!facts.ok()) {
    check.found = std::string(facts.status().message());
    check.advice = "set NEVE_RAM_DIR to a folder of your own in a tmpfs";
    return check;
  }
  check.ok = facts->ram_folder_free >= uint64_t{1} << 30;
  check.found = absl::StrFormat("%s%s, %s free", name, folder.ok() ? "" : " (made by the first save)",
                                Size(facts->ram_folder_free));
  if (!check.ok) {
    check.advice = "little room for slots: mount a larger one (mount -o remount,size=..., docker run --shm-size), or set "
                   "NEVE_RAM_DIR";
  }
  return check;
}

DoctorCheck CheckBudget() {
  DoctorCheck check{"host_memory"};
  const absl::StatusOr<slot::MemoryFacts> facts = slot::ReadMemoryFacts(Existing(RamFolderName()));
  if (!facts.ok()) {
    check.found = std::string(facts.status().message());
    check.advice = "give the RAM tier its budget yourself: ram:?bytes=";
    return check;
  }
  std::string reason;
  const uint64_t budget = slot::Budget(*facts, 0, &reason);
  check.ok = budget > 0;
  check.found = absl::StrFormat("%s for slots of all ranks of this host (%s)", Size(budget), reason);
  check.advice = "a job needs the sum over its ranks here of state size x slots (3 by default)";
  return check;
}

DoctorCheck CheckLibrary(const std::string& name, std::initializer_list<const char*> libraries, const std::string& advice) {
  DoctorCheck check{name};
  std::string tried;
  for (const char* library : libraries) {
    if (void* handle = ::dlopen(library, RTLD_LAZY | RTLD_LOCAL)) {
      ::dlclose(handle);
      check.ok = true;
      check.found = absl::StrFormat("%s can be loaded", library);
      return check;
    }
    tried += (tried.empty() ? "" : ", ") + std::string(library);
  }
  check.found = absl::StrFormat("%s cannot be loaded", tried);
  check.advice = advice;
  return check;
}

DoctorCheck CheckCuda() {
  DoctorCheck check{"cuda"};
  const absl::StatusOr<std::string> described = device::Describe();
  check.ok = described.ok();
  check.found = described.ok() ? *described : std::string(described.status().message());
  if (!check.ok) check.advice = "only needed to save tensors on an NVIDIA GPU: install its driver";
  return check;
}

DoctorCheck CheckCpu() {
  DoctorCheck check{"cpu"};
  check.ok = codec::DigestCode() != "portable";
  check.found = absl::StrFormat("%d usable core%s, digests by %s code", sync::UsableCores(), sync::UsableCores() == 1 ? "" : "s",
                                codec::DigestCode());
  if (!check.ok) check.advice = "this processor lacks AVX2: digests run at about a third of the speed";
  return check;
}

}  // namespace

std::vector<DoctorCheck> Doctor() {
  const std::string here = ".";
  std::vector<DoctorCheck> checks;
  checks.push_back(CheckUring(here));
  checks.push_back(CheckDirect(here));
  checks.push_back(CheckMemlock());
  checks.push_back(CheckHugePages());
  checks.push_back(CheckControl());
  checks.push_back(CheckSharedMemory());
  checks.push_back(CheckBudget());
  checks.push_back(CheckCpu());
  checks.push_back(CheckCuda());
  checks.push_back(CheckLibrary("libfabric", {"libfabric.so.1", "libfabric.so"},
                                "only needed for the peer tier, which is not in this version"));
  checks.push_back(DoctorCheck{"s3", false, "not in this version",
                               "use a file tier, and copy its folders with the store's own client"});
  return checks;
}

}  // namespace neve
