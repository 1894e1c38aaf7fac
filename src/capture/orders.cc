#include "capture/orders.h"

#include <atomic>

namespace neve::capture {
namespace {

std::atomic<Order> omitted{Order::kCount};

}  // namespace

std::string_view Name(Order order) {
  switch (order) {
    case Order::kCallerIsMarked:
      return "caller is marked";
    case Order::kCopiesAwaitCaller:
      return "copies await caller";
    case Order::kPackingAwaitsCaller:
      return "packing awaits caller";
    case Order::kListBeforeGather:
      return "list before gather";
    case Order::kPackingIsMarked:
      return "packing is marked";
    case Order::kCopiesAwaitPacking:
      return "copies await packing";
    case Order::kScratchIsMarked:
      return "scratch is marked";
    case Order::kPackingAwaitsScratch:
      return "packing awaits scratch";
    case Order::kEndAfterCopies:
      return "end after copies";
    case Order::kFenceAwaitsRecord:
      return "fence awaits record";
    case Order::kCallerAwaitsEnd:
      return "caller awaits end";
    case Order::kFirstAwaitedInSave:
      return "first awaited in save";
    case Order::kFirstBeforeRest:
      return "first before rest";
    case Order::kUnfencedSaveFences:
      return "unfenced save fences";
    case Order::kCapturedAfterEnd:
      return "captured after end";
    case Order::kCount:
      break;
  }
  return "none";
}

bool Kept(Order order) { return omitted.load(std::memory_order_relaxed) != order; }

void Omit(Order order) { omitted.store(order, std::memory_order_relaxed); }

}  // namespace neve::capture
