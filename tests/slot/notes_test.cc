#include "slot/notes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "slot/slot_header.h"

namespace neve::slot {
namespace {

TEST(NotesTest, EveryKindOfTagComesBackAsItWas) {
  const Tags tags = {{"yes", true},
                     {"no", false},
                     {"one", int64_t{1}},
                     {"one.0", 1.0},
                     {"least", std::numeric_limits<int64_t>::min()},
                     {"most", std::numeric_limits<int64_t>::max()},
                     {"tiny", std::numeric_limits<double>::denorm_min()},
                     {"third", 1.0 / 3},
                     {"-0", -0.0},
                     {"inf", std::numeric_limits<double>::infinity()},
                     {"-inf", -std::numeric_limits<double>::infinity()},
                     {"empty", std::string()},
                     {"", std::string("névé \"quoted\"\n")}};
  const std::map<std::string, std::string> provenance = {{"host", "h"}, {"", ""}};
  absl::StatusOr<std::string> text = EncodeNotes(tags, provenance);
  ASSERT_TRUE(text.ok()) << text.status();
  absl::StatusOr<Notes> notes = DecodeNotes(*text);
  ASSERT_TRUE(notes.ok()) << notes.status();
  EXPECT_EQ(notes->tags, tags);
  EXPECT_TRUE(std::signbit(std::get<double>(notes->tags["-0"])));
  EXPECT_EQ(notes->provenance, provenance);
}

TEST(NotesTest, NotANumberStaysOne) {
  absl::StatusOr<std::string> text = EncodeNotes({{"loss", std::nan("")}}, {});
  ASSERT_TRUE(text.ok());
  EXPECT_TRUE(std::isnan(std::get<double>(DecodeNotes(*text)->tags["loss"])));
}

TEST(NotesTest, TextThatIsNotUtf8IsInvalid) {
  EXPECT_TRUE(absl::IsInvalidArgument(EncodeNotes({{"a", std::string("\xff")}}, {}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(EncodeNotes({{"\xff", true}}, {}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(EncodeNotes({}, {{"a", "\xc0\x80"}}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(EncodeNotes({}, {{"\xc0", ""}}).status()));
}

TEST(NotesTest, TheLimitCountsTagsAndProvenanceTogether) {
  const std::string half(kNotesBytesMax / 2, 'x');
  EXPECT_TRUE(EncodeNotes({{"a", half}}, {}).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(EncodeNotes({{"a", half}}, {{"b", half}}).status()));
}

TEST(NotesTest, MalformedTextIsDamaged) {
  const std::string deep(kNotesBytesMax, '[');
  for (const std::string& text :
       {std::string(), std::string("x"), std::string("[]"), std::string("{}"), std::string(R"({"tags":{}})"),
        std::string(R"({"tags":[],"provenance":{}})"), std::string(R"({"tags":{"a":null},"provenance":{}})"),
        std::string(R"({"tags":{"a":[1]},"provenance":{}})"), std::string(R"({"tags":{"a":{"x":1}},"provenance":{}})"),
        std::string(R"({"tags":{"a":{"number":"x"}},"provenance":{}})"),
        std::string(R"({"tags":{"a":18446744073709551615},"provenance":{}})"),
        std::string(R"({"tags":{},"provenance":{"a":1}})"), deep}) {
    EXPECT_TRUE(IsDamaged(DecodeNotes(text).status())) << text.substr(0, 60);
  }
}

}  // namespace
}  // namespace neve::slot
