// Real connections on the loopback between nodes of one process.
#include "group/control_node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>

#include "base/sync/socket_address.h"

namespace neve::group {
namespace {

using ::testing::HasSubstr;

class ControlNodeTest : public ::testing::Test {
 protected:
  void Join(uint32_t world, uint32_t fan_out = 2) {
    for (uint32_t rank = 0; rank < world; ++rank) {
      auto node = ControlNode::Listen("127.0.0.1:0");
      ASSERT_TRUE(node.ok()) << node.status();
      nodes_.push_back(*std::move(node));
    }
    for (uint32_t rank = 0; rank < world; ++rank) {
      nodes_[rank]->Join({.rank = rank, .world = world, .key = "k", .context = "c", .columns = 2, .fan_out = fan_out},
                         rank == 0 ? "" : nodes_[(rank - 1) / fan_out]->place(), [this] {
                           const std::lock_guard lock(mutex_);
                           changed_.notify_all();
                         });
    }
  }
  bool Await(const std::function<bool()>& what) {
    std::unique_lock lock(mutex_);
    for (int i = 0; i < 6000; ++i) {   // what is looked at may change without a call
      if (what()) return true;
      changed_.wait_for(lock, std::chrono::milliseconds(10));
    }
    return false;
  }
  bool AllTold(uint64_t sequence) {
    return std::all_of(nodes_.begin(), nodes_.end(), [&](const auto& node) { return node == nullptr || node->Complete(0, sequence); });
  }
  int ConnectTo(const std::string& place) {
    const auto address = sync::SocketAddress::Parse(place);
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::connect(fd, address->get(), address->size()), 0);
    return fd;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<ControlNode>> nodes_;
};

TEST_F(ControlNodeTest, WhatAllHaveIsToldToAll) {
  Join(9);
  for (uint64_t sequence = 0; sequence < 5; ++sequence) {
    for (auto& node : nodes_) node->Commit(0, sequence);
  }
  EXPECT_TRUE(Await([&] { return AllTold(4); }));
  for (auto& node : nodes_) {
    EXPECT_EQ(node->Complete(0).size(), 5u);
    EXPECT_EQ(node->Newest(0), 4u);
    EXPECT_EQ(node->Newest(1), std::nullopt);
    EXPECT_TRUE(node->health().joined);
  }
  EXPECT_EQ(nodes_[0]->health().children_joined, 2u);
  nodes_[7]->Abandon(1, 3);
  EXPECT_TRUE(Await([&] { return nodes_[8]->Lost(1, 3); }));
}

TEST_F(ControlNodeTest, ALateLeafBringsTheRest) {
  Join(4);
  for (uint32_t rank = 0; rank < 3; ++rank) nodes_[rank]->Commit(0, 0);
  ASSERT_TRUE(Await([&] { return nodes_[0]->health().children_joined == 2 && nodes_[3]->health().joined; }));
  EXPECT_FALSE(nodes_[0]->Complete(0, 0));
  nodes_[3]->Commit(0, 0);
  EXPECT_TRUE(Await([&] { return AllTold(0); }));
}

TEST_F(ControlNodeTest, WhoLeavesHasSaidItsLastWord) {
  Join(3);
  ASSERT_TRUE(Await([&] { return nodes_[1]->health().joined && nodes_[2]->health().joined; }));
  for (uint32_t rank = 1; rank < 3; ++rank) {
    nodes_[rank]->Commit(0, 0);
    nodes_[rank]->Leave(10);
    nodes_[rank].reset();
  }
  nodes_[0]->Commit(0, 0);
  EXPECT_TRUE(Await([&] { return AllTold(0); }));
}

TEST_F(ControlNodeTest, GarbageSilenceAndManyConnectionsOnThePortHarmNothing) {
  Join(2);
  ASSERT_TRUE(Await([&] { return nodes_[1]->health().joined; }));
  std::vector<int> open;
  for (int i = 0; i < 200; ++i) open.push_back(ConnectTo(nodes_[0]->place()));   // silent
  const int garbage = ConnectTo(nodes_[0]->place());
  ASSERT_EQ(::send(garbage, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
  char byte;
  EXPECT_LE(::recv(garbage, &byte, 1, 0), 0);   // closed on it
  EXPECT_TRUE(Await([&] { return nodes_[0]->health().counts.displaced >= 100 && nodes_[0]->health().counts.refused == 1; }));
  for (auto& node : nodes_) node->Commit(0, 0);
  EXPECT_TRUE(Await([&] { return AllTold(0); }));
  for (const int fd : open) ::close(fd);
  ::close(garbage);
}

TEST_F(ControlNodeTest, WithoutItsParentARankSaysWhomItMisses) {
  Join(2);
  ASSERT_TRUE(Await([&] { return nodes_[1]->health().joined; }));
  nodes_[0].reset();
  EXPECT_TRUE(Await([&] { return !nodes_[1]->health().joined && !nodes_[1]->health().error.empty(); }));
  EXPECT_THAT(nodes_[1]->WaitsFor(0), HasSubstr("no control connection to rank 0"));
}

TEST_F(ControlNodeTest, BeforeTheyJoinNothingIsTold) {
  auto node = ControlNode::Listen("127.0.0.1:0");
  ASSERT_TRUE(node.ok());
  char byte;
  const int early = ConnectTo((*node)->place());
  EXPECT_LE(::recv(early, &byte, 1, 0), 0);
  ::close(early);
  EXPECT_FALSE((*node)->Complete(0, 0));
  EXPECT_TRUE((*node)->Complete(0).empty());
  EXPECT_FALSE((*node)->health().joined);
  EXPECT_TRUE(absl::IsUnavailable(ControlNode::Listen((*node)->place()).status()));   // taken
}

}  // namespace
}  // namespace neve::group
