#include <utility>

#include "absl/strings/str_format.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "neve/places.h"

namespace neve::cli {

int RunDoctor(Console& console) {
  constexpr size_t kIndent = 3;
  Json list = Json::array();
  std::string text;
  for (const DoctorCheck& check : Doctor()) {
    // The first line begins with the verdict in place of its indentation.
    text += check.ok ? console.Styled("ok", Style::kGood) : console.Styled("--", Style::kWarn);
    text += Wrapped(absl::StrFormat("%-14s %s", check.name, EscapedMessage(check.found)), kIndent, console.columns()).substr(2);
    if (!check.advice.empty()) {
      text += console.Styled(Wrapped(EscapedMessage(check.advice), kIndent + 15, console.columns()), Style::kDim);
    }
    list.push_back({{"name", check.name}, {"ok", check.ok}, {"found", check.found}, {"advice", check.advice}});
  }
  console.Out(text);
  if (console.json) console.Document({{"checks", std::move(list)}});
  return 0;
}

}  // namespace neve::cli
