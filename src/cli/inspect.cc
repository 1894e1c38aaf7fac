#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "cli/inspect_file.h"
#include "cli/inspect_tree.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "format/layout.h"
#include "format/own_digests.h"
#include "neve/places.h"

namespace neve::cli {
namespace {

using format::HeaderTensor;
using format::LogicalTensor;

// What is asked of each tensor, joined from the header and the tree.
struct Shown {
  const LogicalTensor* logical;
  const HeaderTensor* stored;
  uint64_t bytes;       // as stored; an alias has none of its own
  uint64_t offset;      // in the file
  uint32_t file;        // of those of the contents
  bool lies_somewhere;  // as it is; else it is assembled, inflated or turned around when it is read
  const WholeSave::Entry* whole = nullptr;   // of a save of many ranks
};

std::vector<Shown> Join(const InspectedFile& file) {
  std::vector<Shown> shown;
  std::vector<const LogicalTensor*> all;
  for (const LogicalTensor& logical : file.tensors()) all.push_back(&logical);
  for (const LogicalTensor& logical : file.again) all.push_back(&logical);
  for (const LogicalTensor* const one_of_all : all) {
    const LogicalTensor& logical = *one_of_all;
    const HeaderTensor& stored = file.header().tensors[logical.stored_index];
    const uint64_t offset = stored.offset + (logical.alias ? logical.byte_offset : 0);
    Shown one{&logical, &stored, logical.alias ? 0 : stored.bytes, offset, 0, file.is_safetensors()};
    if (file.is_whole_save()) {
      one.whole = &file.entries[logical.stored_index];
      one.lies_somewhere = one.whole->file >= 0;
      one.file = static_cast<uint32_t>(std::max<int64_t>(one.whole->file, 0));
      one.offset = static_cast<uint64_t>(std::max<int64_t>(one.whole->offset, 0)) + (logical.alias ? logical.byte_offset : 0);
    } else if (!file.is_safetensors() && stored.bytes > 0) {
      if (const std::vector<format::Extent> extents = file.contents->Locate(offset, 1); !extents.empty()) {
        one.offset = extents[0].file_offset;
        one.file = extents[0].file;
        one.lies_somewhere = true;
      }
    }
    shown.push_back(one);
  }
  return shown;
}

bool IsOurs(const InspectedFile& file) {
  return file.is_safetensors() && file.header().FindMetadata(format::kFormatKey) != nullptr;
}

std::string KindOf(const InspectedFile& file) {
  return IsOurs(file) ? "neve-image" : std::string(format::Name(file.contents->kind()));
}

Json TensorJson(const InspectedFile& file, const Shown& shown) {
  Json json;
  json["name"] = shown.logical->name;
  json["dtype"] = std::string(Name(shown.logical->dtype));
  json["shape"] = shown.logical->shape;
  json["strides"] = shown.logical->strides;
  json["bytes"] = shown.bytes;
  const bool known_file = !file.is_whole_save() || shown.lies_somewhere;
  json["file"] = known_file ? Json(file.files()[shown.file]) : Json(nullptr);
  json["offset"] = shown.lies_somewhere ? Json(shown.offset) : Json(nullptr);
  json["alias_of"] = shown.logical->alias ? Json(shown.logical->stored) : Json(nullptr);
  json["piece"] = nullptr;
  if (const format::Piece* piece = shown.logical->piece.get(); piece != nullptr) {
    json["piece"] = {{"name", shown.logical->logical_name()}, {"global_shape", piece->global_shape}, {"offset", piece->offset}};
  }
  if (shown.whole != nullptr) {
    json["pieces"] = shown.whole->pieces;
    json["ranks"] = shown.whole->ranks;
  }
  return json;
}

Json MetadataJson(const InspectedFile& file) {
  Json json = Json::object();
  for (const auto& [key, value] : file.header().metadata) {
    if (!file.is_safetensors() && key.starts_with("neve.")) continue;  // ours, not the file's
    if (key == format::kDigestsKey) continue;                          // verify's
    const size_t end = value.find_last_not_of(' ');                    // values stand padded to their capacity
    json[key] = key == format::kValuesKey ? value.substr(0, end == std::string::npos ? 0 : end + 1) : value;
  }
  return json;
}

std::string Heading(const InspectedFile& file, const Console& console) {
  std::string text = console.Styled(Escaped(file.path), Style::kBold) + "\n";
  if (file.save.has_value()) {
    const SaveInfo& save = *file.save;
    const std::string who = file.is_whole_save() ? absl::StrFormat("all %d ranks", save.world)
                                                 : absl::StrFormat("rank %d of %d", file.rank, save.world);
    text += absl::StrFormat("  job %s, step %d, save %s, %s, %s ago", Escaped(save.job), save.step, save.save.ToString(), who,
                            HumanAge(console.WallSeconds() - save.time));
    for (const auto& [name, value] : save.tags) text += absl::StrFormat(", %s=%s", Escaped(name), HumanTag(value));
    text += "\n";
  }
  const bool data_only = file.is_whole_save() || !file.is_safetensors();
  text += absl::StrFormat("  %s, %s; %s", file.is_whole_save() ? "images of neve as one" : IsOurs(file) ? "image of neve" : KindOf(file),
                          Counted(file.tensors().size() + file.again.size(), "tensor"),
                          HumanBytes(file.header().file_bytes - (data_only ? file.header().header_bytes : 0)));
  if (!data_only) text += absl::StrFormat(", header of %s", HumanBytes(file.header().header_bytes));
  if (file.files().size() > 1) text += absl::StrFormat(" in %s", Counted(file.files().size(), "file"));
  text += "\n";
  return text;
}

std::string ShapeText(const LogicalTensor& tensor) {
  if (tensor.piece == nullptr) return HumanShape(tensor.shape);
  return absl::StrFormat("%s at %s of %s", HumanShape(tensor.shape), HumanShape(tensor.piece->offset),
                         HumanShape(tensor.piece->global_shape));
}

// "0-3, 7": whose images hold it.
std::string RanksText(std::span<const uint32_t> ranks) {
  constexpr size_t kRunsMax = 4;
  std::string text;
  size_t runs = 0;
  for (size_t i = 0; i < ranks.size(); ++runs) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (runs == kRunsMax) return text + ", ..";
    text += (text.empty() ? "" : ", ") + std::to_string(ranks[i]);
    if (last > i) text += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

std::vector<std::string> WhereItIs(const Shown& shown) {
  if (shown.whole != nullptr) {
    const std::string ranks = RanksText(shown.whole->ranks);
    return {std::to_string(shown.whole->pieces), shown.logical->alias ? ranks + " = " + Escaped(shown.logical->stored) : ranks};
  }
  if (shown.logical->alias) return {"= " + Escaped(shown.logical->stored)};
  return {shown.lies_somewhere ? std::to_string(shown.offset) : "-"};
}

std::string TensorTable(const std::vector<Shown>& tensors, const Console& console) {
  const size_t name_width = std::max<size_t>(24, console.columns() > 48 ? console.columns() - 48 : 0);
  std::vector<std::vector<std::string>> rows;
  const bool whole = !tensors.empty() && tensors.front().whole != nullptr;
  if (whole) {
    rows.push_back({"NAME", "DTYPE", "SHAPE", "BYTES", "PIECES", "RANKS"});
  } else if (!tensors.empty()) {
    rows.push_back({"NAME", "DTYPE", "SHAPE", "BYTES", "OFFSET"});
  }
  for (const Shown& shown : tensors) {
    const LogicalTensor& logical = *shown.logical;
    const std::string name = Escaped(logical.name);
    std::vector<std::string> row = {console.out_is_terminal() ? Shortened(name, name_width) : name, std::string(Name(logical.dtype)),
                                    ShapeText(logical), logical.alias ? "alias" : HumanBytes(shown.bytes)};
    for (std::string& cell : WhereItIs(shown)) row.push_back(std::move(cell));
    rows.push_back(std::move(row));
  }
  return Table(rows, whole ? std::vector<size_t>{3, 4} : std::vector<size_t>{3});
}

std::string MetadataText(const InspectedFile& file, const Console& console) {
  std::string text;
  for (const auto& [key, value] : file.header().metadata) {
    if (key.rfind("neve.", 0) == 0) continue;  // shown by the tree
    const std::string shown = Escaped(value);
    text += absl::StrFormat("  %s: %s\n", Escaped(key), console.out_is_terminal() ? Shortened(shown, 200) : shown);
  }
  return text.empty() ? text : "metadata\n" + text;
}

// Everything asked of all places, gathered for the one JSON document.
struct Gathered {
  std::string kind;
  Json files = Json::array(), tensors = Json::array(), objects = Json::array(), trees = Json::array();
  Json metadata = Json::object(), notes = Json::array();
  uint64_t total_bytes = 0;
};

absl::Status InspectOne(Console& console, const InspectedFile& file, bool show_tree, Gathered* all) {
  NEVE_ASSIGN_OR_RETURN(const InspectedTree tree, ReadTree(file));
  const std::vector<Shown> tensors = Join(file);
  std::set<std::string_view> counted;
  for (const Shown& shown : tensors) {
    if (counted.insert(shown.stored->name).second) all->total_bytes += shown.stored->bytes;
  }
  for (const std::string& note : file.notes) {
    console.Note(note);
    all->notes.push_back(note);
  }
  if (console.json) {
    for (const std::string& name : file.files()) all->files.push_back(name);
    for (const Shown& shown : tensors) all->tensors.push_back(TensorJson(file, shown));
    for (const OpaqueLeaf& object : tree.objects) {
      all->objects.push_back({{"path", object.path}, {"type", object.type}, {"callable", nullptr}});
    }
    for (const format::OpaqueObject& object : file.opaque()) {
      all->objects.push_back({{"path", object.path}, {"type", object.callable}, {"callable", object.callable}});
    }
    all->trees.push_back(tree.json);
    if (all->metadata.empty()) all->metadata = MetadataJson(file);
    if (all->kind.empty()) all->kind = KindOf(file);
  }
  if (console.quiet) return absl::OkStatus();
  console.Out(Heading(file, console));
  if (show_tree && !tree.json.is_null()) {
    for (const std::string& line : tree.lines) console.Out(line + "\n");
  } else {
    console.Out(TensorTable(tensors, console));
    if (!tree.json.is_null()) console.Out("(--tree shows the nesting with its values)\n");
  }
  for (const OpaqueLeaf& object : tree.objects) {
    console.Out(absl::StrFormat("object %s: a pickled %s, not opened\n", Escaped(object.path), Escaped(object.type)));
  }
  for (const format::OpaqueObject& object : file.opaque()) {
    console.Out(absl::StrFormat("object %s: would need %s, not called\n",
                                object.path.empty() ? "(all of it)" : Escaped(object.path), Escaped(object.callable)));
  }
  console.Out(MetadataText(file, console));
  return absl::OkStatus();
}

}  // namespace

int RunInspect(Console& console, const std::vector<std::string>& places, const SourceOptions& options, bool show_tree) {
  int code = 0;
  Gathered all;
  const auto failed = [&](const absl::Status& status) {
    console.Error(status);
    code = std::max(code, ExitCodeOf(status));
  };
  for (const std::string& place : places) {
    const absl::StatusOr<PlaceContent> content = LookInto(place, options);
    if (!content.ok()) {
      failed(content.status());
      continue;
    }
    for (const std::string& note : content->notes) {
      console.Note(note);
      all.notes.push_back(note);
    }
    if (content->save) all.kind = "neve-step";
    const absl::StatusOr<InspectedFile> file =
        content->whole.has_value() ? InspectWhole(*content) : InspectFile(content->files.front(), options.lenient);
    const absl::Status status = file.ok() ? InspectOne(console, *file, show_tree, &all) : file.status();
    if (!status.ok()) failed(status);
  }
  if (console.json) {
    Json document;
    document["kind"] = all.kind.empty() ? Json(nullptr) : Json(all.kind);
    document["files"] = std::move(all.files);
    document["tensors"] = std::move(all.tensors);
    document["objects"] = std::move(all.objects);
    // A place has one tree; of several places they stand in a list.
    document["tree"] = all.trees.empty() ? Json(nullptr) : all.trees.size() == 1 ? all.trees[0] : std::move(all.trees);
    document["metadata"] = std::move(all.metadata);
    document["total_bytes"] = all.total_bytes;
    document["notes"] = std::move(all.notes);
    console.Document(document);
  }
  return code;
}

}  // namespace neve::cli
