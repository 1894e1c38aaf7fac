// TCP connections of one owner on one thread: what is accepted, made, received and ended is reported there.
//
// Threads: events come on the sockets' own thread, one at a time; Connect, Send, Close and WakeAt are called there only. Post,
// Wake and place() may be called by any; Stop by any but that one.
//
// Invariants
//   - No call waits for the network but Stop, within its bound. Nothing raises a signal.
//   - At most connections_max connections are held, those beyond are closed as they come; at most unsent_max bytes wait for one
//     that does not read, then it is closed.
//   - Each connection's end is reported once, unless Close asked for it. Its number is never used again.
//   - A forked child has none of it: descriptors are closed there at once, so what a child keeps open holds neither port nor peers.
#ifndef NEVE_BASE_SYNC_SOCKETS_H_
#define NEVE_BASE_SYNC_SOCKETS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/error/status.h"
#include "base/sync/executor.h"

namespace neve::sync {

class Sockets {
 public:
  using Id = uint64_t;
  struct Options {
    std::string name = "neve-sockets";       // of the thread
    std::string listen;                      // "ADDRESS:PORT", numeric; port 0: any that is free; "": no listener
    bool background = true;                  // priority of the thread
    size_t unsent_max = 1u << 20;
    size_t connections_max = 1024;
  };
  struct Events {
    std::function<void(Id)> accepted;
    std::function<void(Id)> connected;
    std::function<void(Id, std::string_view)> received;
    std::function<void(Id, const std::string& why)> closed;
    std::function<void()> woken;             // at the time of WakeAt, and after Wake
  };
  // Takes the port. Unavailable: the address cannot be listened at (taken, not of this host), or no descriptor.
  static absl::StatusOr<std::unique_ptr<Sockets>> Create(Options options, Events events);
  virtual ~Sockets() = default;              // Stop(0)
  // Once: events come from here on, when the owner has this object at hand. Unavailable: no thread.
  virtual absl::Status Start() = 0;

  virtual const std::string& place() const = 0;               // where it listens, "127.0.0.1:4242" or "[::1]:4242"
  virtual Id Connect(const std::string& place) = 0;           // then `connected` or `closed`
  virtual void Send(Id id, std::string_view bytes) = 0;       // of an unknown one: dropped
  virtual void Close(Id id) = 0;                              // what was sent is still delivered where that goes at once
  virtual void WakeAt(Nanos time) = 0;                        // replaces an earlier one; of MonotonicNow's clock
  virtual void Wake() = 0;
  virtual void Post(Executor::Task task) = 0;                 // after Stop: dropped
  // Ends: what was posted runs, what was sent is delivered, and the others may close first, for at most `linger` seconds. Later
  // events are dropped.
  virtual void Stop(double linger) = 0;
};

// "HOST:PORT" with the host's name made numeric; "[HOST]:PORT" for a host that has colons. Waits for the resolver.
// Invalid: not of that form. Unavailable: no such host.
absl::StatusOr<std::string> ResolvePlace(const std::string& place);
bool IsLoopback(const std::string& numeric_place);             // of ADDRESS:PORT or ADDRESS
std::string PlaceOf(const std::string& address, uint16_t port);
// The address of this host by which `address` is reached, as the routes are now; nothing is sent. Empty: it is not.
std::string AddressTowards(const std::string& address);
// The address by which others are likely to reach this host: that of the default route, else of the first interface that is up and
// no loopback, else the loopback's.
std::string PrimaryAddress();

}  // namespace neve::sync

#endif  // NEVE_BASE_SYNC_SOCKETS_H_
