#include "base/sync/sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/os/thread.h"
#include "base/os/unique_handle.h"
#include "base/sync/mutex.h"
#include "base/sync/pause.h"
#include "base/sync/socket_address.h"

namespace neve::sync {
namespace {

constexpr Nanos kNever = std::numeric_limits<Nanos>::max();
constexpr uint64_t kWakeId = 0, kListenerId = 1;   // of epoll; connections come after
constexpr Nanos kAcceptPause = kSecond;            // when there are no descriptors left
constexpr int kAcceptsAtOnce = 16;

// Descriptors that a forked child must not keep, plus one; 0: none. The handler in the child only reads numbers and closes.
std::array<std::atomic<int>, 8192> kept_from_children;

void CloseInChild() {
  for (std::atomic<int>& slot : kept_from_children) {
    if (const int held = slot.exchange(0, std::memory_order_relaxed); held > 0) ::close(held - 1);
  }
}

void KeepFromChildren(int fd) {
  static const int registered = ::pthread_atfork(nullptr, nullptr, &CloseInChild);
  (void)registered;
  for (std::atomic<int>& slot : kept_from_children) {
    int none = 0;
    if (slot.compare_exchange_strong(none, fd + 1)) return;
  }
}

void CloseSocket(int fd) {
  for (std::atomic<int>& slot : kept_from_children) {
    int there = fd + 1;
    if (slot.compare_exchange_strong(there, 0)) break;
  }
  ::close(fd);
}

struct SocketTraits {
  using Handle = int;
  static int Invalid() { return -1; }
  static void Close(int fd) { CloseSocket(fd); }
};
using Socket = os::UniqueHandle<SocketTraits>;

Socket Take(int fd) {
  if (fd >= 0) KeepFromChildren(fd);
  return Socket(fd);
}

std::string Why(int error_number) { return std::strerror(error_number); }

class RealSockets final : public Sockets {
 public:
  RealSockets(Options options, Events events)
      : options_(std::move(options)), events_(std::move(events)), generation_(os::ForkGeneration()) {}

  ~RealSockets() override {
    if (Forked()) {
      // Nothing of it is here: numbers that were descriptors may be others' by now.
      wake_.release();
      epoll_.release();
      listener_.release();
      for (auto& [id, connection] : connections_) connection.fd.release();
      return;
    }
    Stop(0);
  }

  absl::Status Open() {
    epoll_ = Take(::epoll_create1(EPOLL_CLOEXEC));
    wake_ = Take(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!epoll_.valid() || !wake_.valid()) return ErrnoStatus(errno, "no descriptor for connections");
    Watch(wake_.get(), kWakeId, EPOLLIN);
    return options_.listen.empty() ? absl::OkStatus() : Listen();
  }

  absl::Status Start() override {
    MutexLock lock(stop_mutex_);
    joined_ = !os::StartThread(&RealSockets::Main, this, &thread_);
    return joined_ ? Unavailable("no thread could be started for connections", EAGAIN) : absl::OkStatus();
  }

  const std::string& place() const override { return place_; }

  Id Connect(const std::string& place) override {
    const Id id = next_id_++;
    Connection& connection = connections_[id];
    connection.connecting = true;
    const std::optional<SocketAddress> address = SocketAddress::Parse(place);
    int error_number = EINVAL;
    if (address.has_value()) {
      connection.fd = Take(::socket(address->family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      error_number = errno;
      if (connection.fd.valid()) {
        NoDelay(connection.fd.get());
        if (::connect(connection.fd.get(), address->get(), address->size()) == 0 || errno == EINPROGRESS) {
          Watch(connection.fd.get(), id, EPOLLIN | EPOLLOUT);
          return id;
        }
        error_number = errno;
      }
    }
    // Told later, never from inside of the call.
    Post([this, id, why = place + ": " + Why(error_number)] { Ended(id, why); });
    return id;
  }

  void Send(Id id, std::string_view bytes) override {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    Connection& connection = found->second;
    connection.unsent.append(bytes);
    if (connection.connecting) return;
    Flush(id, &connection);
  }

  void Close(Id id) override { connections_.erase(id); }

  void WakeAt(Nanos time) override { wake_at_ = time; }

  void Wake() override {
    const uint64_t one = 1;
    if (!Forked()) [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));   // full: it is awake
  }

  void Post(Executor::Task task) override {
    if (Forked()) return;
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      tasks_.push_back(std::move(task));
    }
    Wake();
  }

  void Stop(double linger) override {
    if (Forked()) return;
    MutexLock stop_lock(stop_mutex_);
    if (joined_) return;
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      end_ = MonotonicNow() + static_cast<Nanos>(linger * static_cast<double>(kSecond));
    }
    Wake();
    ::pthread_join(thread_, nullptr);
    joined_ = true;
  }

 private:
  struct Connection {
    Socket fd;
    std::string unsent;
    bool connecting = false, writes = false;   // EPOLLOUT is watched for
    bool ending = false;                       // our side is shut
  };

  bool Forked() const { return os::ForkGeneration() != generation_; }

  static void NoDelay(int fd) {
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }

  absl::Status Listen() {
    const std::optional<SocketAddress> address = SocketAddress::Parse(options_.listen);
    if (!address.has_value()) return Invalid("\"" + options_.listen + "\" is not ADDRESS:PORT to listen at");
    listener_ = Take(::socket(address->family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!listener_.valid()) return ErrnoStatus(errno, "no socket to listen at " + options_.listen);
    const int on = 1;
    ::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));   // connections of a life before do not hold the port
    if (::bind(listener_.get(), address->get(), address->size()) != 0 || ::listen(listener_.get(), 128) != 0) {
      const int error_number = errno;
      return Unavailable("cannot listen at " + options_.listen + ": " + Why(error_number) +
                             (error_number == EADDRINUSE      ? "; another process has that port"
                              : error_number == EADDRNOTAVAIL ? "; that address is not one of this host's"
                                                              : ""),
                         error_number);
    }
    SocketAddress bound;
    if (!bound.ReadFrom(listener_.get())) return ErrnoStatus(errno, "cannot tell where " + options_.listen + " listens");
    place_ = bound.ToString();
    Watch(listener_.get(), kListenerId, EPOLLIN);
    return absl::OkStatus();
  }

  void Watch(int fd, uint64_t id, uint32_t events) {
    struct ::epoll_event event {};
    event.events = events;
    event.data.u64 = id;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
  }

  static void* Main(void* self) {
    static_cast<RealSockets*>(self)->Loop();
    return nullptr;
  }

  void Loop() {
    os::NameThisThread(options_.name);
    if (options_.background) os::MakeThisThreadBackground();
    std::array<struct ::epoll_event, 64> events{};
    while (true) {
      const Nanos end = RunTasks();
      if (end != kNever && Drained(end)) break;
      const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), TimeoutMs(end));
      bool woken = false;
      for (int i = 0; i < count; ++i) {
        const uint64_t id = events[static_cast<size_t>(i)].data.u64;
        if (id == kWakeId) {
          uint64_t times;
          [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &times, sizeof(times));
          woken = true;
        } else if (id == kListenerId) {
          if (end == kNever) Accept();
        } else {
          Handle(id, events[static_cast<size_t>(i)].events);
        }
      }
      const Nanos now = MonotonicNow();
      if (accept_at_ <= now) {
        accept_at_ = kNever;
        Watch(listener_.get(), kListenerId, EPOLLIN);
      }
      if (wake_at_ <= now) {
        wake_at_ = kNever;
        woken = true;
      }
      if (woken && end == kNever) events_.woken();
    }
    connections_.clear();
    listener_.reset();
  }

  int TimeoutMs(Nanos end) const {
    const Nanos next = std::min({end, wake_at_, accept_at_});
    if (next == kNever) return -1;
    const Nanos left = next - MonotonicNow();
    constexpr Nanos kLongest = 3600 * kSecond;
    return left <= 0 ? 0 : static_cast<int>((std::min(left, kLongest) + kMillisecond - 1) / kMillisecond);
  }

  Nanos RunTasks() {
    std::vector<Executor::Task> tasks;
    Nanos end;
    {
      MutexLock lock(mutex_);
      tasks.swap(tasks_);
      end = stopping_ ? end_ : kNever;
    }
    for (Executor::Task& task : tasks) task();
    return end;
  }

  // Our side of each connection ends when all is sent; the others close when they have read it.
  bool Drained(Nanos end) {
    if (MonotonicNow() >= end) return true;
    listener_.reset();
    for (auto it = connections_.begin(); it != connections_.end();) {
      Connection& connection = it->second;
      if (connection.connecting) {
        it = connections_.erase(it);
        continue;
      }
      if (connection.unsent.empty() && !std::exchange(connection.ending, true)) ::shutdown(connection.fd.get(), SHUT_WR);
      ++it;
    }
    return connections_.empty();
  }

  void Accept() {
    for (int i = 0; i < kAcceptsAtOnce; ++i) {
      Socket fd = Take(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd.valid()) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          Watch(listener_.get(), kListenerId, 0);
          accept_at_ = MonotonicNow() + kAcceptPause;
        }
        return;
      }
      if (connections_.size() >= options_.connections_max) continue;   // closed
      NoDelay(fd.get());
      const Id id = next_id_++;
      Watch(fd.get(), id, EPOLLIN);
      connections_[id].fd = std::move(fd);
      events_.accepted(id);
    }
  }

  void Handle(Id id, uint32_t happened) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    Connection& connection = found->second;
    if (connection.connecting) {
      int error_number = 0;
      ::socklen_t size = sizeof(error_number);
      ::getsockopt(connection.fd.get(), SOL_SOCKET, SO_ERROR, &error_number, &size);
      if (error_number != 0) return Ended(id, Why(error_number));
      connection.connecting = false;
      connection.writes = true;
      events_.connected(id);
      const auto still = connections_.find(id);
      if (still == connections_.end() || !Flush(id, &still->second)) return;
    } else if ((happened & EPOLLOUT) != 0 && !Flush(id, &connection)) {
      return;
    }
    if ((happened & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) Read(id);
  }

  void Read(Id id) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    const ssize_t got = ::recv(found->second.fd.get(), buffer_.data(), buffer_.size(), 0);
    if (got > 0) {
      if (!found->second.ending) events_.received(id, {buffer_.data(), static_cast<size_t>(got)});
    } else if (got == 0) {
      Ended(id, "closed by the other side");
    } else if (errno != EAGAIN && errno != EINTR) {
      Ended(id, Why(errno));
    }
  }

  // False: the connection is no more.
  bool Flush(Id id, Connection* connection) {
    std::string_view rest = connection->unsent;
    int error_number = 0;
    while (!rest.empty() && error_number == 0) {
      const ssize_t sent = ::send(connection->fd.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent >= 0) {
        rest.remove_prefix(static_cast<size_t>(sent));
      } else if (errno != EINTR) {
        error_number = errno;
      }
    }
    connection->unsent.erase(0, connection->unsent.size() - rest.size());
    if (error_number != 0 && error_number != EAGAIN) {
      // Whoever sends is told later, never from inside of the call.
      Post([this, id, why = Why(error_number)] { Ended(id, why); });
      connection->unsent.clear();
      return true;
    }
    if (connection->unsent.size() > options_.unsent_max) {
      Post([this, id] { Ended(id, "the other side does not read"); });
      connection->unsent.clear();
      return true;
    }
    if (connection->writes == connection->unsent.empty()) {
      connection->writes = !connection->unsent.empty();
      Watch(connection->fd.get(), id, EPOLLIN | (connection->writes ? EPOLLOUT : 0u));
    }
    return true;
  }

  void Ended(Id id, const std::string& why) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    const bool told = !found->second.ending;
    connections_.erase(found);
    if (told) events_.closed(id, why);
  }

  const Options options_;
  const Events events_;
  const uint64_t generation_;
  std::string place_;
  Socket epoll_, wake_, listener_;
  std::map<Id, Connection> connections_;           // from here on the thread's own
  Id next_id_ = kListenerId + 1;
  Nanos wake_at_ = kNever, accept_at_ = kNever;
  std::array<char, 64 << 10> buffer_;

  Mutex mutex_;
  std::vector<Executor::Task> tasks_ NEVE_GUARDED_BY(mutex_);
  bool stopping_ NEVE_GUARDED_BY(mutex_) = false;
  Nanos end_ NEVE_GUARDED_BY(mutex_) = 0;

  Mutex stop_mutex_;
  bool joined_ NEVE_GUARDED_BY(stop_mutex_) = true;
  pthread_t thread_{};
};

}  // namespace

absl::StatusOr<std::unique_ptr<Sockets>> Sockets::Create(Options options, Events events) {
  auto sockets = std::make_unique<RealSockets>(std::move(options), std::move(events));
  NEVE_RETURN_IF_ERROR(sockets->Open());
  return std::unique_ptr<Sockets>(std::move(sockets));
}

}  // namespace neve::sync
