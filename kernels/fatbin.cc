#include "kernels/fatbin.h"

#ifdef NEVE_FATBIN_FILE
// The assembler takes the file as it is.
__asm__(
    ".section .rodata\n"
    ".balign 16\n"
    "neve_fatbin_begin:\n"
    ".incbin \"" NEVE_FATBIN_FILE
    "\"\n"
    "neve_fatbin_end:\n"
    ".byte 0\n"
    ".previous\n");
extern "C" const std::byte neve_fatbin_begin[] __attribute__((visibility("hidden")));
extern "C" const std::byte neve_fatbin_end[] __attribute__((visibility("hidden")));
#endif

namespace neve::kernels {

std::span<const std::byte> Fatbin() {
#ifdef NEVE_FATBIN_FILE
  return {neve_fatbin_begin, neve_fatbin_end};
#else
  return {};
#endif
}

}  // namespace neve::kernels
