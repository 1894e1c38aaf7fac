#include <utility>

#include "absl/strings/str_format.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "neve/places.h"

namespace neve::cli {

int RunDoctor(Console& console) {
  Json list = Json::array();
  std::string text;
  for (const DoctorCheck& check : Doctor()) {
    text += absl::StrFormat("%s %-14s %s\n", check.ok ? console.Styled("ok", Style::kGood) : console.Styled("--", Style::kWarn),
                            check.name, EscapedMessage(check.found));
    if (!check.advice.empty()) text += console.Styled("                  " + EscapedMessage(check.advice), Style::kDim) + "\n";
    list.push_back({{"name", check.name}, {"ok", check.ok}, {"found", check.found}, {"advice", check.advice}});
  }
  console.Out(text);
  if (console.json) console.Document({{"checks", std::move(list)}});
  return 0;
}

}  // namespace neve::cli
