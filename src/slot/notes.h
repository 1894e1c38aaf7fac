// Tags and provenance as the text that a slot keeps between its digest table and its image.
//
// {"tags":{name:value,..},"provenance":{name:text,..}}; a number that JSON cannot write is {"number":"nan"|"inf"|"-inf"}.
#ifndef NEVE_SLOT_NOTES_H_
#define NEVE_SLOT_NOTES_H_

#include <map>
#include <string>
#include <string_view>

#include "base/error/status.h"
#include "neve/types.h"

namespace neve::slot {

struct Notes {
  Tags tags;
  std::map<std::string, std::string> provenance;
};

// Invalid: a text that is not UTF-8, or more than kNotesBytesMax bytes in all.
absl::StatusOr<std::string> EncodeNotes(const Tags& tags, const std::map<std::string, std::string>& provenance);
absl::StatusOr<Notes> DecodeNotes(std::string_view text);   // Damaged

}  // namespace neve::slot

#endif  // NEVE_SLOT_NOTES_H_
