// Every wait, record and order that keeps a capture from a device right, by name. A test takes them away one by one and must see
// a wrong image, or a wait that does not end; docs/architecture.md lists which test sees which. In a program all are kept.
#ifndef NEVE_CAPTURE_ORDERS_H_
#define NEVE_CAPTURE_ORDERS_H_

#include <cstdint>
#include <string_view>

namespace neve::capture {

enum class Order : uint8_t {
  kCallerIsMarked,        // the caller's stream records where the save was asked for
  kCopiesAwaitCaller,     // the copies' stream waits for that mark
  kPackingAwaitsCaller,   // the packing stream too
  kListBeforeGather,      // a window's list is on the device before the kernel reads it
  kPackingIsMarked,       // the packing stream records that a window is packed
  kCopiesAwaitPacking,    // the copies' stream waits for that
  kScratchIsMarked,       // the copies' stream records that a window has left the scratch
  kPackingAwaitsScratch,  // the packing stream waits for that before it packs into the same scratch
  kEndAfterCopies,        // the end is recorded after all copies were handed over
  kFenceAwaitsRecord,     // a fence waits on the host until the end is recorded
  kCallerAwaitsEnd,       // and then has the caller's stream wait for the end
  kFirstAwaitedInSave,    // a fenced save has the caller's stream wait for what the fence does not protect
  kFirstBeforeRest,       // which is copied before the rest
  kUnfencedSaveFences,    // a save without a fence does all of that before it returns
  kCapturedAfterEnd,      // `captured` is said, and digests are made, after the host has waited for the end
  kCount,
};

std::string_view Name(Order order);

// False only while a test has taken this order away.
bool Kept(Order order);
// For tests. kCount: all are kept.
void Omit(Order order);

}  // namespace neve::capture

#endif  // NEVE_CAPTURE_ORDERS_H_
