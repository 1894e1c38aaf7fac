// A numeric IPv4 or IPv6 address with a port, in the form that the system calls take.
#ifndef NEVE_BASE_SYNC_SOCKET_ADDRESS_H_
#define NEVE_BASE_SYNC_SOCKET_ADDRESS_H_

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace neve::sync {

class SocketAddress {
 public:
  // "127.0.0.1:80", "[::1]:80", "[fe80::1%eth0]:80". Nothing: not numeric, or not of that form.
  static std::optional<SocketAddress> Parse(std::string_view place);
  static std::optional<SocketAddress> Of(const std::string& address, uint16_t port);
  static std::optional<SocketAddress> Of(const struct ::sockaddr& address);   // IPv4 or IPv6

  bool ReadFrom(int socket);                 // its own end
  const struct ::sockaddr* get() const { return reinterpret_cast<const struct ::sockaddr*>(&storage_); }
  ::socklen_t size() const { return size_; }
  int family() const { return storage_.ss_family; }
  std::string Address() const;               // "127.0.0.1", "::1", "fe80::1%eth0"
  uint16_t port() const;
  std::string ToString() const;              // as Parse takes it
  bool IsLoopback() const;
  bool IsLinkLocal() const;

 private:
  struct ::sockaddr_storage storage_ {};
  ::socklen_t size_ = 0;
};

// Splits "HOST:PORT" or "[HOST]:PORT"; the port is a number in 0..65535.
bool SplitPlace(std::string_view place, std::string* host, uint16_t* port);

}  // namespace neve::sync

#endif  // NEVE_BASE_SYNC_SOCKET_ADDRESS_H_
