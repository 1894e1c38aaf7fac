// One range of shared memory under every registration at once, as a slot is: with the CUDA driver, with io_uring, and with libfabric where
// that is there. Then bytes go from the device through it to a file, and back, under all of them.
//
// Usage: gpu_registration FOLDER. The last line is one JSON object; exit 0: all held; 1: something did not; 3: no GPU.
#include <dlfcn.h>
#include <fcntl.h>
#include <liburing.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "device/cuda_device.h"
#include "device/device.h"
#if __has_include(<rdma/fi_domain.h>)
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>
#define NEVE_HAVE_FABRIC_HEADERS 1
#endif

namespace {

constexpr size_t kBytes = 256u << 20, kPiece = 8u << 20;

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (char c : text) quoted += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c < ' ' ? ' ' : c);
  return quoted + "\"";
}

int End(int code, const std::string& cuda, const std::string& uring, const std::string& fabric, const std::string& data) {
  std::printf("{\"bytes\": %zu, \"cuda\": %s, \"io_uring\": %s, \"libfabric\": %s, \"data\": %s}\n", kBytes, Quoted(cuda).c_str(),
              Quoted(uring).c_str(), Quoted(fabric).c_str(), Quoted(data).c_str());
  return code;
}

// What libfabric said of the range: "ok", or why not. The registration stays until the process ends.
std::string RegisterWithFabric([[maybe_unused]] void* memory) {
#if defined(NEVE_HAVE_FABRIC_HEADERS)
  void* const library = ::dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "not there";
  const auto getinfo = reinterpret_cast<decltype(&fi_getinfo)>(::dlsym(library, "fi_getinfo"));
  const auto dupinfo = reinterpret_cast<decltype(&fi_dupinfo)>(::dlsym(library, "fi_dupinfo"));
  const auto open_fabric = reinterpret_cast<decltype(&fi_fabric)>(::dlsym(library, "fi_fabric"));
  if (getinfo == nullptr || dupinfo == nullptr || open_fabric == nullptr) return "not usable";
  fi_info* const hints = dupinfo(nullptr);
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = FI_MSG | FI_RMA;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  fi_info* info = nullptr;
  if (int result = getinfo(FI_VERSION(1, 14), nullptr, nullptr, 0, hints, &info); result != 0) {
    return "no provider (" + std::to_string(-result) + ")";
  }
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
  fid_mr* registration = nullptr;
  if (int result = open_fabric(info->fabric_attr, &fabric, nullptr); result != 0) return "fi_fabric: " + std::to_string(-result);
  if (int result = fi_domain(fabric, info, &domain, nullptr); result != 0) return "fi_domain: " + std::to_string(-result);
  const uint64_t access = FI_REMOTE_WRITE | FI_REMOTE_READ | FI_READ | FI_WRITE;
  const int result = fi_mr_reg(domain, memory, kBytes, access, 0, 1, 0, &registration, nullptr);
  if (result != 0) return "fi_mr_reg: " + std::to_string(-result);
  return "ok, " + std::string(info->fabric_attr->prov_name);
#else
  return "built without its headers";
#endif
}

// One transfer of registered buffer 0; its result as io_uring gives it.
int Transfer(io_uring* ring, bool write, int file, void* memory, size_t bytes, uint64_t offset) {
  io_uring_sqe* const entry = io_uring_get_sqe(ring);
  if (write) {
    io_uring_prep_write_fixed(entry, file, memory, static_cast<unsigned>(bytes), offset, 0);
  } else {
    io_uring_prep_read_fixed(entry, file, memory, static_cast<unsigned>(bytes), offset, 0);
  }
  io_uring_cqe* done = nullptr;
  if (int result = io_uring_submit_and_wait(ring, 1); result < 0) return result;
  if (int result = io_uring_wait_cqe(ring, &done); result < 0) return result;
  const int result = done->res;
  io_uring_cqe_seen(ring, done);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: gpu_registration FOLDER\n"), 2;
  using namespace neve::device;   // NOLINT: a program of one function
  const auto driver = cuda::LoadDriver("libcuda.so.1");
  if (!driver.ok()) return End(3, std::string(driver.status().message()), "", "", "");
  auto found = MakeCudaDevice(*driver, 0);
  if (!found.ok()) return End(3, std::string(found.status().message()), "", "", "");
  const std::shared_ptr<Device> device = *found;

  const int shared = ::memfd_create("neve-registration", MFD_CLOEXEC);
  if (shared < 0 || ::ftruncate(shared, kBytes) != 0) return End(1, "", "", "", "no shared memory");
  void* const mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, shared, 0);
  if (mapped == MAP_FAILED) return End(1, "", "", "", "no mapping");
  auto* const memory = static_cast<std::byte*>(mapped);

  const absl::Status registered = device->RegisterHost({memory, kBytes});
  const std::string cuda = registered.ok() ? "ok" : std::string(registered.message());

  io_uring ring;
  std::string uring = "ok";
  bool has_ring = false;
  if (int result = io_uring_queue_init(8, &ring, 0); result != 0) {
    uring = std::string("io_uring_queue_init: ") + std::strerror(-result);
  } else {
    has_ring = true;
    const iovec range{memory, kBytes};
    if (result = io_uring_register_buffers(&ring, &range, 1); result != 0) {
      uring = std::string("io_uring_register_buffers: ") + std::strerror(-result) + " (raise memlock?)";
    }
  }
  const std::string fabric = RegisterWithFabric(memory);

  // Device -> range -> file -> range -> device -> range, piece by piece.
  std::string data = "ok";
  const std::string path = std::string(argv[1]) + "/registration";
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  auto stream = OwnedStream::Create(device);
  auto event = OwnedEvent::Create(device);
  auto there = OwnedMemory::Create(device, MemoryKind::kDevice, kPiece);
  if (file < 0 || !stream.ok() || !event.ok() || !there.ok()) data = "no file, stream, event or device memory";
  const auto copy = [&](void* target, const void* source) {
    absl::Status status = device->Copy(stream->get(), {target, source, kPiece});
    if (status.ok()) status = device->Record(event->get(), stream->get());
    if (status.ok()) status = device->Synchronize(event->get());
    if (!status.ok() && data == "ok") data = std::string(status.message());
  };
  for (size_t at = 0; at + 2 * kPiece <= kBytes && data == "ok" && has_ring && uring == "ok"; at += 2 * kPiece) {
    std::byte *const first = memory + at, *const second = first + kPiece;
    for (size_t i = 0; i < kPiece; ++i) first[i] = static_cast<std::byte>(i * 31 + at / kPiece);
    copy(there->get(), first);
    copy(second, there->get());
    if (data != "ok") break;
    if (std::memcmp(first, second, kPiece) != 0) data = "bytes differ after the device at " + std::to_string(at);
    const int written = Transfer(&ring, true, file, second, kPiece, at);
    std::memset(first, 0, kPiece);
    const int read = Transfer(&ring, false, file, first, kPiece, at);
    if (written != static_cast<int>(kPiece) || read != static_cast<int>(kPiece)) {
      data = "io_uring moved " + std::to_string(written) + " and " + std::to_string(read) + " bytes at " + std::to_string(at);
    } else if (std::memcmp(first, second, kPiece) != 0) {
      data = "bytes differ after the file at " + std::to_string(at);
    }
  }
  if (file >= 0) ::close(file);
  ::unlink(path.c_str());
  const bool fabric_held = fabric.rfind("ok", 0) == 0 || fabric == "not there" || fabric == "built without its headers";
  const bool held = cuda == "ok" && uring == "ok" && data == "ok" && fabric_held;
  if (registered.ok()) device->UnregisterHost(memory).IgnoreError();
  return End(held ? 0 : 1, cuda, uring, fabric, data);
}
