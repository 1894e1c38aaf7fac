// Which slot is filled next when none is free.
#ifndef NEVE_NODE_SLOT_CHOICE_H_
#define NEVE_NODE_SLOT_CHOICE_H_

#include <cstddef>
#include <span>

#include "neve/types.h"

namespace neve::node {

struct SlotFacts {
  bool full = false;
  int holds = 0;   // flushes and readers
  SaveId save;     // when full
  bool kept = false;   // by the watermark: reused only where nothing else can be
};

// The oldest full slot that nobody holds (one that the watermark keeps: last), if after its reuse `kept` full ones are left and, where
// any is kept, the newest is among them; -1 when there is none. Allocates nothing.
inline int SlotToReuse(std::span<const SlotFacts> slots, size_t kept) {
  size_t full = 0;
  int newest = -1, oldest = -1;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (!slots[i].full) continue;
    ++full;
    if (newest < 0 || slots[i].save > slots[static_cast<size_t>(newest)].save) newest = static_cast<int>(i);
  }
  if (full < kept + 1) return -1;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (!slots[i].full || slots[i].holds != 0 || (kept > 0 && static_cast<int>(i) == newest)) continue;
    const SlotFacts* best = oldest < 0 ? nullptr : &slots[static_cast<size_t>(oldest)];
    if (best == nullptr || (slots[i].kept != best->kept ? best->kept : slots[i].save < best->save)) oldest = static_cast<int>(i);
  }
  return oldest;
}

}  // namespace neve::node

#endif  // NEVE_NODE_SLOT_CHOICE_H_
