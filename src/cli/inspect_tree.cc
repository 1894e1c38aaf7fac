#include "cli/inspect_tree.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/codec/text.h"
#include "cli/inspect_values.h"
#include "cli/text.h"
#include "format/layout.h"
#include "format/values.h"

namespace neve::cli {
namespace {

using Node = nlohmann::json;

constexpr size_t kTreeBytesMax = 64u << 20;   // a parsed tree takes several times its text
constexpr int kDepthMax = 300;

std::string Join(const std::string& prefix, std::string_view component) {
  return prefix.empty() ? std::string(component) : prefix + "." + std::string(component);
}

const Node* Member(const Node& node, const char* name) {
  const auto found = node.find(name);
  return found == node.end() ? nullptr : &*found;
}

std::string StringOf(const Node& node, const char* name) {
  const Node* member = Member(node, name);
  return member != nullptr && member->is_string() ? member->get<std::string>() : "";
}

// The key that an escaped component of a name stands for (docs/format.md, "names").
format::Value KeyOf(std::string_view component) {
  if (component.empty() || component[0] != '~') return TextValue(std::string(component));
  const char kind = component.size() > 1 ? component[1] : '\0';
  const std::string_view rest = component.substr(component.size() > 1 ? 2 : 1);
  std::optional<std::string> decoded;
  switch (kind) {
    case '~': return TextValue(std::string(component.substr(1)));
    case 'e': return TextValue("");
    case 'j':
      decoded = codec::Base64UrlDecode(rest);
      if (decoded.has_value()) {
        const Node key = Node::parse(*decoded, nullptr, /*allow_exceptions=*/false);
        if (key.is_string()) return TextValue(key.get<std::string>());
      }
      break;
    case 'p':
      decoded = codec::Base64UrlDecode(rest);
      break;
    case 'i':
    case 'd': decoded = std::string(1, kind) + std::string(rest) + ";"; break;
    case 'y': decoded = "y" + std::string(rest) + ";"; break;
    case 't':
    case 'f':
    case 'n': decoded = std::string(1, kind); break;
    default: break;
  }
  if (decoded.has_value() && kind != 'j') {
    format::ValuesReader reader(*decoded);
    if (absl::StatusOr<format::Value> key = reader.Next(); key.ok() && reader.AtEnd()) return *std::move(key);
  }
  return TextValue(std::string(component));   // shown as it stands; reading it back is not our business here
}

class TreeReader {
 public:
  TreeReader(const InspectedFile& file, std::string_view values) : file_(file), values_(values) {}

  absl::StatusOr<InspectedTree> Run(const Node& root) {
    NEVE_ASSIGN_OR_RETURN(tree_.json, Visit(root, "", "", 0));
    if (next_tensor_ < file_.tensors.size()) {
      return Malformed(absl::StrFormat("it has no place for tensor %s", Escaped(file_.tensors[next_tensor_].name)));
    }
    return std::move(tree_);
  }

 private:
  absl::Status Malformed(std::string_view why) const {
    return Damaged(absl::StrFormat("%s: neve.tree is malformed: %s", file_.path, why));
  }

  void Line(int depth, const std::string& label, const std::string& text) {
    tree_.lines.push_back(std::string(static_cast<size_t>(depth) * 2, ' ') + label + (label.empty() ? "" : ": ") + text);
  }

  absl::StatusOr<const format::LogicalTensor*> NextTensor() {
    if (next_tensor_ >= file_.tensors.size()) return Malformed("it has places for more tensors than the header");
    return &file_.tensors[next_tensor_++];
  }

  Json TensorNode(const format::LogicalTensor& tensor, const std::string& label, int depth) {
    Line(depth, label, absl::StrFormat("%s %s%s", Name(tensor.dtype), HumanShape(tensor.shape),
                                       tensor.alias ? " = " + Escaped(tensor.stored) : ""));
    return Json{{"$tensor", tensor.name}};
  }

  // `name`: as tensors are named; `label`: the key for the eye.
  absl::StatusOr<Json> Visit(const Node& node, const std::string& name, const std::string& label, int depth) {
    if (depth > kDepthMax) return Malformed("nested too deep");
    if (node.is_string() && node.get_ref<const std::string&>() == "v") {
      const absl::StatusOr<format::Value> value = values_.Next();
      if (!value.ok()) return Annotate(value.status(), file_.path);
      Line(depth, label, TextOf(*value));
      return JsonOf(*value);
    }
    if (!node.is_object()) return Malformed("a node is neither \"v\" nor an object");
    if (Member(node, "T") != nullptr) return VisitTensor(node, name, label, depth);
    if (const Node* blob = Member(node, "b")) return VisitBlob(node, *blob, name, label, depth);
    if (Member(node, "r") != nullptr) {
      const std::string target = StringOf(node, "r");
      Line(depth, label, "the same object as " + Escaped(target));
      return Json{{"$tensor", target}, {"same", true}};
    }
    if (const Node* children = Member(node, "d")) return VisitDict(node, *children, name, label, depth);
    if (const Node* children = Member(node, "l")) return VisitList(node, *children, name, label, depth);
    if (const Node* children = Member(node, "c")) return VisitComposite(node, *children, name, label, depth);
    return Malformed("a node of an unknown kind");
  }

  absl::StatusOr<Json> VisitTensor(const Node& node, const std::string& name, const std::string& label, int depth) {
    if (Member(node, "meta") != nullptr) {
      const std::string dtype = StringOf(node, "dt");
      Line(depth, label, absl::StrFormat("%s on the meta device, without bytes", Escaped(dtype)));
      Json json{{"$meta", dtype}};
      if (const Node* shape = Member(node, "sh")) json["shape"] = *shape;
      return json;
    }
    NEVE_ASSIGN_OR_RETURN(const format::LogicalTensor* const tensor, NextTensor());
    Json json = TensorNode(*tensor, label, depth);
    for (const auto& [key, value] : node.items()) {
      if (key == "param" || key == "grad") json[key] = true;
      if ((key == "dev" || key == "np" || key == "dt") && value.is_string()) json[key] = value.get<std::string>();
    }
    if (const Node* attributes = Member(node, "py")) {
      NEVE_ASSIGN_OR_RETURN(json["attributes"], Visit(*attributes, Join(name, "~py"), "attributes", depth + 1));
    }
    return json;
  }

  absl::StatusOr<Json> VisitBlob(const Node& node, const Node& number, const std::string& name, const std::string& label,
                                 int depth) {
    if (!number.is_number_unsigned()) return Malformed("a blob without a number");
    const std::string blob = absl::StrFormat("neve.blob.%d", number.get<uint64_t>());
    const format::HeaderTensor* stored = file_.header.Find(blob);
    if (stored == nullptr) return Malformed(absl::StrFormat("the header has no %s", blob));
    const std::string type = StringOf(node, "q");
    if (type.empty()) {
      Line(depth, label, absl::StrFormat("a value of up to %s in %s", HumanBytes(stored->bytes), blob));
      return Json{{"$blob", blob}};
    }
    Line(depth, label, absl::StrFormat("object %s, pickled in %s, not opened", Escaped(type), blob));
    tree_.objects.push_back({name, type, blob});
    return Json{{"$object", type}, {"blob", blob}};
  }

  absl::StatusOr<Json> VisitDict(const Node& node, const Node& children, const std::string& name, const std::string& label,
                                 int depth) {
    if (!children.is_array()) return Malformed("the children of a dict are no list");
    const std::string type = StringOf(node, "t");
    Line(depth, label, type.empty() ? "dict" : type == "O" ? "OrderedDict" : type.rfind("D:", 0) == 0
                                                                ? absl::StrFormat("defaultdict(%s)", Escaped(type.substr(2)))
                                                                : Escaped(type));
    std::vector<std::pair<format::Value, Json>> pairs;
    Json attributes;
    if (const Node* node_of = Member(node, "a")) {
      NEVE_ASSIGN_OR_RETURN(attributes, Visit(*node_of, Join(name, "~a"), "attributes", depth + 1));
    }
    for (const Node& child : children) {
      if (child.is_number_unsigned()) {
        for (uint64_t left = child.get<uint64_t>(); left > 0; --left) {
          NEVE_ASSIGN_OR_RETURN(const format::LogicalTensor* const tensor, NextTensor());
          NEVE_ASSIGN_OR_RETURN(const std::string_view component, ComponentOf(tensor->name, name));
          format::Value key = KeyOf(component);
          Json json = TensorNode(*tensor, KeyLabel(key), depth + 1);
          pairs.emplace_back(std::move(key), std::move(json));
        }
        continue;
      }
      if (!child.is_array() || child.size() != 2 || !child[0].is_string()) return Malformed("a dict's child is no pair");
      const std::string& component = child[0].get_ref<const std::string&>();
      format::Value key = KeyOf(component);
      NEVE_ASSIGN_OR_RETURN(Json value, Visit(child[1], Join(name, component), KeyLabel(key), depth + 1));
      pairs.emplace_back(std::move(key), std::move(value));
    }
    return DictJson(std::move(pairs), std::move(attributes));
  }

  absl::StatusOr<Json> VisitList(const Node& node, const Node& children, const std::string& name, const std::string& label,
                                 int depth) {
    if (!children.is_array()) return Malformed("the items of a list are no list");
    const std::string type = StringOf(node, "t");
    Line(depth, label, type.empty() ? "list" : type.rfind("n:", 0) == 0 ? Escaped(type.substr(2)) : Escaped(type));
    Json items = Json::array();
    for (const Node& child : children) {
      if (child.is_number_unsigned()) {
        for (uint64_t left = child.get<uint64_t>(); left > 0; --left) {
          NEVE_ASSIGN_OR_RETURN(const format::LogicalTensor* const tensor, NextTensor());
          items.push_back(TensorNode(*tensor, absl::StrFormat("[%d]", items.size()), depth + 1));
        }
        continue;
      }
      const std::string index = std::to_string(items.size());
      NEVE_ASSIGN_OR_RETURN(Json item, Visit(child, Join(name, index), "[" + index + "]", depth + 1));
      items.push_back(std::move(item));
    }
    if (type.empty()) return items;
    if (type == "tuple") return Json{{"$tuple", std::move(items)}};
    return Json{{"$call", type.rfind("n:", 0) == 0 ? type.substr(2) : type}, {"of", std::move(items)}};
  }

  absl::StatusOr<Json> VisitComposite(const Node& node, const Node& children, const std::string& name, const std::string& label,
                                      int depth) {
    if (!children.is_array()) return Malformed("the parts of an object are no list");
    const std::string kind = StringOf(node, "o"), type = StringOf(node, "q");
    Line(depth, label, Escaped(type.empty() ? kind : type) + (type.empty() ? "" : " (" + Escaped(kind) + ")"));
    Json parts = Json::array();
    for (const Node& child : children) {
      NEVE_ASSIGN_OR_RETURN(Json part, Visit(child, name, "", depth + 1));
      parts.push_back(std::move(part));
    }
    Json json{{"$call", kind}};
    if (!type.empty()) json["class"] = type;
    json["of"] = std::move(parts);
    return json;
  }

  absl::StatusOr<std::string_view> ComponentOf(std::string_view tensor, const std::string& name) const {
    if (name.empty()) return tensor;
    if (tensor.size() <= name.size() || tensor.substr(0, name.size()) != name || tensor[name.size()] != '.') {
      return Malformed(absl::StrFormat("tensor %s does not lie in %s", Escaped(tensor), Escaped(name)));
    }
    return tensor.substr(name.size() + 1);
  }

  static std::string KeyLabel(const format::Value& key) {
    return key.kind == format::Value::Kind::kText ? Escaped(key.text) : TextOf(key);
  }

  const InspectedFile& file_;
  format::ValuesReader values_;
  size_t next_tensor_ = 0;
  InspectedTree tree_;
};

}  // namespace

absl::StatusOr<InspectedTree> ReadTree(const InspectedFile& file) {
  const std::string* text = file.header.FindMetadata(format::kTreeKey);
  if (text == nullptr) return InspectedTree{};
  if (text->size() > kTreeBytesMax) {
    InspectedTree tree;
    tree.lines.push_back(absl::StrFormat("(the tree has %s, too much to show)", HumanBytes(text->size())));
    return tree;
  }
  const Node parsed = Node::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return Damaged(file.path + ": neve.tree is not a JSON object");
  const Node* root = Member(parsed, "root");
  if (root == nullptr) return InspectedTree{};
  const std::string* values = file.header.FindMetadata(format::kValuesKey);
  return TreeReader(file, values == nullptr ? std::string_view() : std::string_view(*values)).Run(*root);
}

}  // namespace neve::cli
