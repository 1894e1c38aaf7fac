#include "base/sync/socket_address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <charconv>
#include <cstring>
#include <memory>

#include "base/os/unique_handle.h"
#include "base/sync/sockets.h"

namespace neve::sync {
namespace {

struct FreeAddresses {
  void operator()(struct ::addrinfo* list) const { ::freeaddrinfo(list); }
  void operator()(struct ::ifaddrs* list) const { ::freeifaddrs(list); }
};
using AddressList = std::unique_ptr<struct ::addrinfo, FreeAddresses>;

int Resolve(const std::string& host, int flags, AddressList* found) {
  struct ::addrinfo hints {};
  hints.ai_flags = flags;
  hints.ai_socktype = SOCK_STREAM;
  struct ::addrinfo* list = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
  found->reset(list);
  return failed;
}

}  // namespace

bool SplitPlace(std::string_view place, std::string* host, uint16_t* port) {
  const size_t colon = place.rfind(':');
  if (colon == std::string_view::npos) return false;
  std::string_view name = place.substr(0, colon), number = place.substr(colon + 1);
  if (name.starts_with('[') && name.ends_with(']')) {
    name = name.substr(1, name.size() - 2);
  } else if (name.find(':') != std::string_view::npos) {
    return false;
  }
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), *port);
  *host = std::string(name);
  return !name.empty() && error == std::errc() && end == number.data() + number.size();
}

std::optional<SocketAddress> SocketAddress::Of(const struct ::sockaddr& address) {
  SocketAddress made;
  if (address.sa_family == AF_INET) made.size_ = sizeof(struct ::sockaddr_in);
  if (address.sa_family == AF_INET6) made.size_ = sizeof(struct ::sockaddr_in6);
  if (made.size_ == 0) return std::nullopt;
  std::memcpy(&made.storage_, &address, made.size_);
  return made;
}

std::optional<SocketAddress> SocketAddress::Of(const std::string& address, uint16_t port) {
  AddressList found;
  if (Resolve(address, AI_NUMERICHOST, &found) != 0) return std::nullopt;
  std::optional<SocketAddress> made = Of(*found->ai_addr);
  if (!made.has_value()) return std::nullopt;
  if (made->family() == AF_INET) reinterpret_cast<struct ::sockaddr_in*>(&made->storage_)->sin_port = htons(port);
  if (made->family() == AF_INET6) reinterpret_cast<struct ::sockaddr_in6*>(&made->storage_)->sin6_port = htons(port);
  return made;
}

std::optional<SocketAddress> SocketAddress::Parse(std::string_view place) {
  std::string host;
  uint16_t port = 0;
  if (!SplitPlace(place, &host, &port)) return std::nullopt;
  return Of(host, port);
}

bool SocketAddress::ReadFrom(int socket) {
  size_ = sizeof(storage_);
  return ::getsockname(socket, reinterpret_cast<struct ::sockaddr*>(&storage_), &size_) == 0;
}

std::string SocketAddress::Address() const {
  char host[NI_MAXHOST];
  if (::getnameinfo(get(), size_, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return host;
}

uint16_t SocketAddress::port() const {
  return ntohs(family() == AF_INET ? reinterpret_cast<const struct ::sockaddr_in*>(&storage_)->sin_port
                                   : reinterpret_cast<const struct ::sockaddr_in6*>(&storage_)->sin6_port);
}

std::string SocketAddress::ToString() const { return PlaceOf(Address(), port()); }

bool SocketAddress::IsLoopback() const {
  if (family() == AF_INET) return ntohl(reinterpret_cast<const struct ::sockaddr_in*>(&storage_)->sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const struct ::sockaddr_in6*>(&storage_)->sin6_addr) != 0;
}

bool SocketAddress::IsLinkLocal() const {
  if (family() == AF_INET) return ntohl(reinterpret_cast<const struct ::sockaddr_in*>(&storage_)->sin_addr.s_addr) >> 16 == 0xA9FE;
  return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const struct ::sockaddr_in6*>(&storage_)->sin6_addr) != 0;
}

std::string PlaceOf(const std::string& address, uint16_t port) {
  const bool colons = address.find(':') != std::string::npos;
  return (colons ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

absl::StatusOr<std::string> ResolvePlace(const std::string& place) {
  std::string host;
  uint16_t port = 0;
  if (!SplitPlace(place, &host, &port)) return Invalid("\"" + place + "\" is not HOST:PORT");
  AddressList found;
  if (const int failed = Resolve(host, 0, &found); failed != 0) {
    return Unavailable("host \"" + host + "\" of \"" + place + "\" cannot be resolved: " + ::gai_strerror(failed));
  }
  // IPv4 first: what one rank listens at must be what the others connect to.
  for (const int family : {AF_INET, AF_INET6}) {
    for (const struct ::addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
      if (at->ai_family != family) continue;
      if (const std::optional<SocketAddress> address = SocketAddress::Of(*at->ai_addr)) return PlaceOf(address->Address(), port);
    }
  }
  return Unavailable("host \"" + host + "\" of \"" + place + "\" has no IPv4 or IPv6 address");
}

bool IsLoopback(const std::string& numeric_place) {
  std::optional<SocketAddress> address = SocketAddress::Parse(numeric_place);
  if (!address.has_value()) address = SocketAddress::Of(numeric_place, 0);
  return address.has_value() && address->IsLoopback();
}

std::string AddressTowards(const std::string& address) {
  const std::optional<SocketAddress> there = SocketAddress::Of(address, 9);   // any port: nothing is sent
  if (!there.has_value()) return "";
  const os::UniqueFd fd(::socket(there->family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  SocketAddress own;
  if (!fd.valid() || ::connect(fd.get(), there->get(), there->size()) != 0 || !own.ReadFrom(fd.get())) return "";
  return own.Address();
}

std::string PrimaryAddress() {
  for (const char* documentation : {"192.0.2.1", "2001:db8::1"}) {   // addresses that are nobody's
    if (std::string own = AddressTowards(documentation); !own.empty() && !IsLoopback(own)) return own;
  }
  struct ::ifaddrs* list = nullptr;
  if (::getifaddrs(&list) == 0) {
    const std::unique_ptr<struct ::ifaddrs, FreeAddresses> owner(list);
    for (const struct ::ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
      if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0) continue;
      const std::optional<SocketAddress> address = SocketAddress::Of(*at->ifa_addr);
      if (address.has_value() && !address->IsLinkLocal()) return address->Address();
    }
  }
  return "127.0.0.1";
}

}  // namespace neve::sync
