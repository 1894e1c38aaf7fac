// Real connections on the loopback. Everything is waited for, nothing is timed.
#include "base/sync/sockets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>

#include "base/sync/pause.h"
#include "base/sync/socket_address.h"

namespace neve::sync {
namespace {

using ::testing::HasSubstr;

// What happened to one owner's sockets, and a place to wait for it.
class Seen {
 public:
  Sockets::Events Events() {
    return {.accepted = [this](Sockets::Id id) { Note("accepted", id); },
            .connected = [this](Sockets::Id id) { Note("connected", id); },
            .received = [this](Sockets::Id id, std::string_view bytes) { Note("received:" + std::string(bytes), id); },
            .closed = [this](Sockets::Id id, const std::string& why) { Note("closed:" + why, id); },
            .woken = [this] { Note("woken", 0); }};
  }
  // The first connection that this happened to; waits for it. Bytes may come in pieces: the text is what all begin with, joined.
  Sockets::Id Await(const std::string& what) {
    std::unique_lock lock(mutex_);
    Sockets::Id id = 0;
    const bool came = changed_.wait_for(lock, std::chrono::seconds(60), [&] {
      for (const auto& [text, of] : events_) {
        id = of;
        if (text.starts_with(what)) return true;
      }
      return false;
    });
    EXPECT_TRUE(came) << what << " did not happen";
    return id;
  }
  std::string AwaitBytes(Sockets::Id of, size_t size) {
    std::unique_lock lock(mutex_);
    std::string bytes;
    changed_.wait_for(lock, std::chrono::seconds(60), [&] {
      bytes.clear();
      for (const auto& [text, id] : events_) {
        if (id == of && text.starts_with("received:")) bytes += text.substr(9);
      }
      return bytes.size() >= size;
    });
    return bytes;
  }

 private:
  void Note(std::string what, Sockets::Id id) {
    const std::lock_guard lock(mutex_);
    events_.emplace_back(std::move(what), id);
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<std::string, Sockets::Id>> events_;
};

std::unique_ptr<Sockets> Open(Seen& seen, Sockets::Options options = {.listen = "127.0.0.1:0"}) {
  auto sockets = Sockets::Create(std::move(options), seen.Events());
  EXPECT_TRUE(sockets.ok()) << sockets.status();
  EXPECT_EQ((*sockets)->Start(), absl::OkStatus());
  return *std::move(sockets);
}

TEST(Sockets, CarryBytesBothWaysAndSayWhenTheyEnd) {
  Seen here, there;
  const auto server = Open(here), client = Open(there, {.listen = ""});
  client->Post([&] { client->Send(client->Connect(server->place()), "hello"); });   // before it is connected
  const Sockets::Id accepted = here.Await("accepted");
  EXPECT_EQ(here.AwaitBytes(accepted, 5), "hello");
  const std::string large(700'000, 'x');
  server->Post([&] { server->Send(accepted, large); });
  const Sockets::Id connected = there.Await("connected");
  EXPECT_EQ(there.AwaitBytes(connected, large.size()), large);
  client->Post([&] { client->Close(connected); });
  EXPECT_EQ(here.Await("closed:"), accepted);
}

TEST(Sockets, NobodyThereIsAnEnd) {
  Seen seen, other;
  std::string place = Open(other)->place();   // was there
  const auto client = Open(seen, {.listen = ""});
  client->Post([&] { client->Connect(place); });
  seen.Await("closed:Connection refused");
  client->Post([&] { client->Connect("no.such.host:1"); });
  seen.Await("closed:no.such.host:1: Invalid argument");
}

TEST(Sockets, APortThatIsTakenIsNamed) {
  Seen seen, other;
  const auto first = Open(seen);
  const auto second = Sockets::Create({.listen = first->place()}, other.Events());
  EXPECT_TRUE(absl::IsUnavailable(second.status()));
  const auto message = [](const auto& result) { return std::string(result.status().message()); };
  EXPECT_THAT(message(second), ::testing::AllOf(HasSubstr(first->place()), HasSubstr("another process has that port")));
  EXPECT_THAT(message(Sockets::Create({.listen = "192.0.2.7:0"}, other.Events())), HasSubstr("not one of this host's"));
  EXPECT_TRUE(absl::IsInvalidArgument(Sockets::Create({.listen = "nowhere"}, other.Events()).status()));
}

TEST(Sockets, WhoDoesNotReadIsClosed) {
  Seen here, there;
  const auto server = Open(here, {.listen = "127.0.0.1:0", .unsent_max = 1000});
  const auto address = SocketAddress::Parse(server->place());
  const int silent = ::socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(::connect(silent, address->get(), address->size()), 0);
  const Sockets::Id id = here.Await("accepted");
  server->Post([&] { server->Send(id, std::string(24 << 20, 'x')); });
  EXPECT_EQ(here.Await("closed:the other side does not read"), id);
  ::close(silent);
}

TEST(Sockets, ConnectionsBeyondTheBoundAreClosed) {
  Seen here, there;
  const auto server = Open(here, {.listen = "127.0.0.1:0", .connections_max = 1});
  const auto client = Open(there, {.listen = ""});
  client->Post([&] {
    client->Connect(server->place());
    client->Connect(server->place());
  });
  there.Await("closed:");
}

TEST(Sockets, StopDeliversWhatWasSent) {
  Seen here, there;
  auto server = Open(here), client = Open(there, {.listen = ""});
  client->Post([&] { client->Connect(server->place()); });
  const Sockets::Id id = here.Await("accepted");
  const Sockets::Id connected = there.Await("connected");
  server->Post([&] { server->Send(id, std::string(500'000, 'y')); });
  server->Stop(60);
  EXPECT_EQ(there.AwaitBytes(connected, 500'000).size(), 500'000u);
  server->Post([] { FAIL() << "after the end"; });
}

TEST(Sockets, WakesAtItsTime) {
  Seen seen;
  const auto sockets = Open(seen, {.listen = ""});
  sockets->Post([&] { sockets->WakeAt(MonotonicNow() + kMillisecond); });
  seen.Await("woken");
}

TEST(Sockets, AForkedChildHoldsNeitherPortNorPeer) {
  Seen here, there;
  auto server = Open(here), client = Open(there, {.listen = ""});
  client->Post([&] { client->Connect(server->place()); });
  here.Await("accepted");
  int hold[2];
  ASSERT_EQ(::pipe(hold), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char byte;
    ::close(hold[1]);
    [[maybe_unused]] const ssize_t got = ::read(hold[0], &byte, 1);   // lives until the parent has looked
    server.reset();
    ::_exit(0);
  }
  ::close(hold[0]);
  const std::string place = server->place();
  server.reset();
  there.Await("closed:");                                  // though the child lives
  EXPECT_TRUE(Sockets::Create({.listen = place}, there.Events()).ok());
  ::close(hold[1]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(SocketAddress, PlacesAreReadAndWritten) {
  for (const char* place : {"127.0.0.1:80", "[::1]:0", "0.0.0.0:65535"}) EXPECT_EQ(SocketAddress::Parse(place).value().ToString(), place);
  for (const char* place : {"", ":80", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1", "::1:80", "host:80"}) {
    EXPECT_FALSE(SocketAddress::Parse(place).has_value()) << place;
  }
  EXPECT_EQ(ResolvePlace("127.0.0.1:7").value(), "127.0.0.1:7");
  EXPECT_EQ(ResolvePlace("[::1]:7").value(), "[::1]:7");
  EXPECT_TRUE(absl::IsInvalidArgument(ResolvePlace("a:b").status()));
  EXPECT_TRUE(absl::IsUnavailable(ResolvePlace("no-such-host.invalid:7").status()));
  EXPECT_TRUE(IsLoopback("127.3.2.1:9") && IsLoopback("::1") && IsLoopback("[::1]:2"));
  EXPECT_FALSE(IsLoopback("10.0.0.1:9") || IsLoopback("name"));
  EXPECT_EQ(AddressTowards("127.0.0.1"), "127.0.0.1");
  EXPECT_TRUE(SocketAddress::Of(PrimaryAddress(), 1).has_value());
}

}  // namespace
}  // namespace neve::sync
