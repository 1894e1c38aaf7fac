#include "cli/inspect_tree.h"

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "cli/inspect_values.h"
#include "cli/text.h"
#include "format/layout.h"
#include "format/tree_walk.h"
#include "format/values.h"

namespace neve::cli {
namespace {

using format::NodeMembers;
using format::TreePlace;

constexpr size_t kTreeBytesMax = 64u << 20;   // shown, a tree takes several times its text

class TreeShower : public format::TreeVisitor {
 public:
  void Enter(const TreePlace& place, Container container, const NodeMembers& node) override {
    Open open{container, node, place.role, place.key == nullptr ? format::Value() : *place.key};
    switch (container) {
      case Container::kDict: Line(place, DictTitle(node.type)); break;
      case Container::kList: Line(place, node.type.empty() ? "list" : Escaped(ListClass(node.type))); break;
      case Container::kComposite:
        Line(place, node.class_name.empty() ? Escaped(node.type)
                                            : Escaped(node.class_name) + " (" + Escaped(Shown(node.type)) + ")");
        break;
      case Container::kTensor:
        open.tensor = TakeLast();
        break;
    }
    open_.push_back(std::move(open));
  }

  void Leave() override {
    Open done = std::move(open_.back());
    open_.pop_back();
    Json json = Closed(&done);
    Add(done.role, std::move(done.key), std::move(json));
  }

  void OnTensor(const TreePlace& place, const NodeMembers& node, const format::LogicalTensor& tensor) override {
    Line(place, absl::StrFormat("%s %s%s", std::string(Name(tensor.dtype)), HumanShape(tensor.shape),
                                tensor.alias ? " = " + Escaped(tensor.stored) : ""));
    Json json{{"$tensor", tensor.name}};
    if (node.parameter) json["param"] = true;
    if (node.gradient) json["grad"] = true;
    if (!node.device.empty()) json["dev"] = node.device;
    if (!node.numpy.empty()) json["np"] = node.numpy;
    if (!node.dtype.empty()) json["dt"] = node.dtype;
    Add(place, std::move(json));
  }

  void OnValue(const TreePlace& place, format::Value value) override {
    Line(place, TextOf(value));
    Add(place, JsonOf(value));
  }

  void OnMeta(const TreePlace& place, const NodeMembers& node) override {
    Line(place, absl::StrFormat("%s on the meta device, without bytes", Escaped(node.dtype)));
    Add(place, Json{{"$meta", node.dtype}, {"shape", node.shape}});
  }

  void OnBlob(const TreePlace& place, const NodeMembers& node, const format::HeaderTensor& blob) override {
    if (node.class_name.empty()) {
      Line(place, absl::StrFormat("a value of up to %s in %s", HumanBytes(blob.bytes), blob.name));
      return Add(place, Json{{"$blob", blob.name}});
    }
    Line(place, absl::StrFormat("object %s, pickled in %s, not opened", Escaped(node.class_name), blob.name));
    tree_.objects.push_back({std::string(place.name), node.class_name, blob.name});
    Add(place, Json{{"$object", node.class_name}, {"blob", blob.name}});
  }

  void OnReference(const TreePlace& place, const std::string& target) override {
    Line(place, "the same object as " + Escaped(target));
    Add(place, Json{{"$tensor", target}, {"same", true}});
  }

  InspectedTree Take() { return std::move(tree_); }

 private:
  // A container whose children are being told.
  struct Open {
    Container container;
    NodeMembers node;
    TreePlace::Role role;         // of the container itself, in the one around it
    format::Value key;
    std::vector<std::pair<format::Value, Json>> pairs;
    Json items = Json::array();
    Json attributes;
    Json tensor;
  };

  static std::string DictTitle(const std::string& type) {
    if (type.empty()) return "dict";
    return type == "O" ? "OrderedDict" : absl::StrFormat("defaultdict(%s)", Escaped(type.substr(2)));
  }
  static std::string Shown(const std::string& composite) {
    return composite == "opaque" ? "object, not rebuilt" : composite;
  }
  static std::string ListClass(const std::string& type) { return type.starts_with("n:") ? type.substr(2) : type; }

  static std::string Label(const TreePlace& place) {
    switch (place.role) {
      case TreePlace::Role::kKey:
        return place.key->kind == format::Value::Kind::kText ? Escaped(place.key->text) : TextOf(*place.key);
      case TreePlace::Role::kIndex: return absl::StrFormat("[%d]", place.index);
      case TreePlace::Role::kAttributes: return "attributes";
      case TreePlace::Role::kRoot:
      case TreePlace::Role::kPart: break;
    }
    return "";
  }

  void Line(const TreePlace& place, const std::string& text) {
    const std::string label = Label(place);
    tree_.lines.push_back(std::string(static_cast<size_t>(place.depth) * 2, ' ') + label + (label.empty() ? "" : ": ") + text);
  }

  void Add(const TreePlace& place, Json json) {
    Add(place.role, place.key == nullptr ? format::Value() : *place.key, std::move(json));
  }

  void Add(TreePlace::Role role, format::Value key, Json json) {
    switch (role) {
      case TreePlace::Role::kRoot: tree_.json = std::move(json); break;
      case TreePlace::Role::kKey: open_.back().pairs.emplace_back(std::move(key), std::move(json)); break;
      case TreePlace::Role::kIndex:
      case TreePlace::Role::kPart: open_.back().items.push_back(std::move(json)); break;
      case TreePlace::Role::kAttributes: open_.back().attributes = std::move(json); break;
    }
    last_ = role;
  }

  // What was added last, to be added again with its attributes.
  Json TakeLast() {
    if (last_ == TreePlace::Role::kRoot) return std::move(tree_.json);
    Json json;
    if (last_ == TreePlace::Role::kKey) {
      json = std::move(open_.back().pairs.back().second);
      open_.back().pairs.pop_back();
    } else if (last_ == TreePlace::Role::kAttributes) {
      json = std::move(open_.back().attributes);
    } else {
      json = std::move(open_.back().items.back());
      open_.back().items.erase(open_.back().items.size() - 1);
    }
    return json;
  }

  static Json Closed(Open* open) {
    const NodeMembers& node = open->node;
    switch (open->container) {
      case Container::kDict: return DictJson(std::move(open->pairs), std::move(open->attributes));
      case Container::kList:
        if (node.type.empty()) return std::move(open->items);
        if (node.type == "tuple") return Json{{"$tuple", std::move(open->items)}};
        return Json{{"$call", ListClass(node.type)}, {"of", std::move(open->items)}};
      case Container::kComposite: {
        Json json{{"$call", node.type}};
        if (!node.class_name.empty()) json["class"] = node.class_name;
        json["of"] = std::move(open->items);
        return json;
      }
      case Container::kTensor: open->tensor["attributes"] = std::move(open->attributes); break;
    }
    return std::move(open->tensor);
  }

  InspectedTree tree_;
  std::vector<Open> open_;
  TreePlace::Role last_ = TreePlace::Role::kRoot;
};

}  // namespace

absl::StatusOr<InspectedTree> ReadTree(const InspectedFile& file) {
  const std::string* text = file.header().FindMetadata(format::kTreeKey);
  if (text == nullptr) return InspectedTree{};
  const bool shown = text->size() <= kTreeBytesMax;
  TreeShower shower;
  if (absl::Status status = WalkTree(file.header(), file.tensors(), shown ? &shower : nullptr); !status.ok()) {
    return Annotate(status, file.path);
  }
  InspectedTree tree = shower.Take();
  if (!shown) tree.lines.push_back(absl::StrFormat("(the tree has %s, too much to show)", HumanBytes(text->size())));
  return tree;
}

}  // namespace neve::cli
