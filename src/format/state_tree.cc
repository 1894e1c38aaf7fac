#include "format/state_tree.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/codec/text.h"
#include "format/json_text.h"
#include "format/layout.h"

namespace neve::format {
namespace {

using Json = nlohmann::json;

std::string Join(const std::string& path, std::string_view component) {
  return path.empty() ? std::string(component) : path + "." + std::string(component);
}

const Json* Member(const Json& node, const char* name) {
  const auto found = node.find(name);
  return found == node.end() ? nullptr : &*found;
}

std::string StringOf(const Json& node, const char* name) {
  const Json* member = Member(node, name);
  return member != nullptr && member->is_string() ? member->get<std::string>() : "";
}

class Reader {
 public:
  Reader(std::span<const LogicalTensor> tensors, std::string_view values) : tensors_(tensors), text_(values), values_(values) {}

  absl::StatusOr<TreeNode> Run(const Json& root) {
    TreeNode node;
    NEVE_RETURN_IF_ERROR(Read(root, 0, &node));
    if (next_ < tensors_.size()) return Malformed(absl::StrFormat("it has no place for tensor %s", Quoted(tensors_[next_].name)));
    if (!values_.AtEnd()) return Malformed("it has no place for the last values");
    return node;
  }

 private:
  static absl::Status Malformed(std::string_view why) { return Damaged(absl::StrFormat("%s is malformed: %s", kTreeKey, why)); }

  absl::Status Take(TreeNode* node) {
    if (next_ >= tensors_.size()) return Malformed("it has places for more tensors than the header");
    node->kind = TreeNode::Kind::kTensor;
    node->index = next_++;
    return absl::OkStatus();
  }

  // `node` has its key and path already.
  absl::Status Read(const Json& json, int depth, TreeNode* node) {
    if (depth > kTreeNestingMax) return Malformed("nested too deep");
    if (json.is_string() && json.get_ref<const std::string&>() == "v") {
      const size_t begin = values_.position();
      const absl::StatusOr<Value> value = values_.Next();
      if (!value.ok()) return value.status();
      node->kind = TreeNode::Kind::kValue;
      node->text = std::string(text_.substr(begin, values_.position() - begin));
      return absl::OkStatus();
    }
    if (json.is_number_unsigned() && json.get<uint64_t>() == 1) {
      node->bare = true;
      return Take(node);
    }
    if (!json.is_object()) return Malformed("a node is neither \"v\" nor an object");
    for (const auto& [name, value] : json.items()) {
      static constexpr std::string_view kOwn[] = {"d", "l", "c", "a", "py", "t", "q", "b", "r", "o", "T"};
      if (std::find(std::begin(kOwn), std::end(kOwn), name) == std::end(kOwn)) node->extra[name] = value;
    }
    if (Member(json, "T") != nullptr) return ReadTensor(json, depth, node);
    if (const Json* number = Member(json, "b")) {
      if (!number->is_number_unsigned()) return Malformed("a blob without a number");
      node->kind = TreeNode::Kind::kBlob;
      node->index = number->get<uint64_t>();
      node->type = StringOf(json, "q");
      return absl::OkStatus();
    }
    if (Member(json, "r") != nullptr) {
      node->kind = TreeNode::Kind::kSame;
      node->text = StringOf(json, "r");
      return absl::OkStatus();
    }
    if (const Json* children = Member(json, "d")) return ReadChildren(json, *children, true, depth, node);
    if (const Json* children = Member(json, "l")) return ReadChildren(json, *children, false, depth, node);
    if (Member(json, "o") != nullptr) return ReadComposite(json, depth, node);
    return Unsupported(absl::StrFormat("%s has a node of a kind that this version does not know", kTreeKey));
  }

  absl::Status ReadTensor(const Json& json, int depth, TreeNode* node) {
    if (Member(json, "meta") != nullptr) {
      node->kind = TreeNode::Kind::kMeta;
      return absl::OkStatus();
    }
    NEVE_RETURN_IF_ERROR(Take(node));
    return ReadAttributes(Member(json, "py"), "~py", depth, node);
  }

  absl::Status ReadAttributes(const Json* json, const char* component, int depth, TreeNode* node) {
    if (json == nullptr) return absl::OkStatus();
    node->attributes = std::make_unique<TreeNode>();
    node->attributes->path = Join(node->path, component);
    return Read(*json, depth + 1, node->attributes.get());
  }

  absl::Status ReadChildren(const Json& json, const Json& children, bool dict, int depth, TreeNode* node) {
    if (!children.is_array()) return Malformed("the children of a container are no list");
    node->kind = dict ? TreeNode::Kind::kDict : TreeNode::Kind::kList;
    node->type = StringOf(json, "t");
    NEVE_RETURN_IF_ERROR(ReadAttributes(Member(json, "a"), "~a", depth, node));
    for (const Json& child : children) {
      if (child.is_number_unsigned()) {
        const uint64_t count = child.get<uint64_t>();
        if (count > tensors_.size() - next_) return Malformed("it has places for more tensors than the header");
        for (uint64_t i = 0; i < count; ++i) {
          TreeNode& tensor = node->children.emplace_back();
          tensor.bare = true;
          NEVE_RETURN_IF_ERROR(Take(&tensor));
          const std::string& name = tensors_[tensor.index].name;
          if (dict) {
            if (!node->path.empty() && (!name.starts_with(node->path) || name.size() <= node->path.size() ||
                                        name[node->path.size()] != '.')) {
              return Malformed(absl::StrFormat("tensor %s does not lie in %s", Quoted(name), Quoted(node->path)));
            }
            tensor.key = node->path.empty() ? name : name.substr(node->path.size() + 1);
          } else {
            tensor.key = std::to_string(node->children.size() - 1);
          }
          tensor.path = Join(node->path, tensor.key);
        }
        continue;
      }
      const bool pair = child.is_array() && child.size() == 2 && child[0].is_string();
      if (dict && !pair) return Malformed("a dict's child is no pair");
      TreeNode& item = node->children.emplace_back();
      item.key = dict ? child[0].get<std::string>() : std::to_string(node->children.size() - 1);
      item.path = Join(node->path, item.key);
      NEVE_RETURN_IF_ERROR(Read(dict ? child[1] : child, depth + 1, &item));
    }
    return absl::OkStatus();
  }

  absl::Status ReadComposite(const Json& json, int depth, TreeNode* node) {
    const std::string kind = StringOf(json, "o");
    node->kind = kind == "opaque" ? TreeNode::Kind::kOpaque : TreeNode::Kind::kComposite;
    node->type = kind == "opaque" ? StringOf(json, "q") : kind;
    if (kind != "opaque" && Member(json, "q") != nullptr) node->text = StringOf(json, "q");
    const Json* children = Member(json, "c");
    if (children == nullptr) return absl::OkStatus();
    if (!children->is_array()) return Malformed("the parts of an object are no list");
    for (const Json& child : *children) {
      TreeNode& part = node->children.emplace_back();
      part.path = node->path;
      NEVE_RETURN_IF_ERROR(Read(child, depth + 1, &part));
    }
    return absl::OkStatus();
  }

  std::span<const LogicalTensor> tensors_;
  std::string_view text_;
  ValuesReader values_;
  size_t next_ = 0;
};

class Writer {
 public:
  TreeText Run(const TreeNode& root) {
    if (root.kind == TreeNode::Kind::kTensor && root.bare) {
      out_.root = "1";
    } else {
      Write(root);
    }
    return std::move(out_);
  }

 private:
  void Text(std::string_view text) { out_.root.append(text); }
  void Name(const char* name) {
    if (out_.root.back() != '{') Text(",");
    AppendJsonString(name, &out_.root);
    Text(":");
  }
  void Extra(const TreeNode& node) {
    if (!node.extra.is_object()) return;
    for (const auto& [name, value] : node.extra.items()) {
      Name(name.c_str());
      Text(value.dump());
    }
  }

  void Write(const TreeNode& node) {
    switch (node.kind) {
      case TreeNode::Kind::kValue:
        Text("\"v\"");
        out_.values.append(node.text);
        return;
      case TreeNode::Kind::kTensor:
      case TreeNode::Kind::kMeta:
        Text("{\"T\":1");
        Extra(node);
        Attributes(node, "py");
        break;
      case TreeNode::Kind::kSame:
        Text("{");
        Name("r");
        AppendJsonString(node.text, &out_.root);
        Extra(node);
        break;
      case TreeNode::Kind::kBlob:
        Text("{");
        Name("b");
        AppendNumber(node.index, &out_.root);
        if (!node.type.empty()) {
          Name("q");
          AppendJsonString(node.type, &out_.root);
        }
        Extra(node);
        break;
      case TreeNode::Kind::kDict:
      case TreeNode::Kind::kList:
        Text("{");
        Attributes(node, "a");
        Children(node);
        if (!node.type.empty()) {
          Name("t");
          AppendJsonString(node.type, &out_.root);
        }
        Extra(node);
        break;
      case TreeNode::Kind::kComposite:
      case TreeNode::Kind::kOpaque: {
        const bool opaque = node.kind == TreeNode::Kind::kOpaque;
        Text("{");
        Name("o");
        AppendJsonString(opaque ? "opaque" : node.type, &out_.root);
        const std::string& qualified = opaque ? node.type : node.text;
        if (!qualified.empty()) {
          Name("q");
          AppendJsonString(qualified, &out_.root);
        }
        Extra(node);
        Name("c");
        Text("[");
        for (const TreeNode& child : node.children) {
          if (&child != node.children.data()) Text(",");
          Write(child);
        }
        Text("]");
        break;
      }
    }
    Text("}");
  }

  void Attributes(const TreeNode& node, const char* name) {
    if (node.attributes == nullptr) return;
    Name(name);
    Write(*node.attributes);
  }

  void Children(const TreeNode& node) {
    const bool dict = node.kind == TreeNode::Kind::kDict;
    Name(dict ? "d" : "l");
    Text("[");
    for (size_t i = 0; i < node.children.size();) {
      if (out_.root.back() != '[') Text(",");
      size_t run = 0;
      while (i + run < node.children.size() && node.children[i + run].bare) ++run;
      if (run > 0) {
        AppendNumber(uint64_t{run}, &out_.root);
        i += run;
        continue;
      }
      const TreeNode& child = node.children[i++];
      if (dict) {
        Text("[");
        AppendJsonString(child.key, &out_.root);
        Text(",");
      }
      Write(child);
      if (dict) Text("]");
    }
    Text("]");
  }

  TreeText out_;
};

}  // namespace

absl::StatusOr<Value> KeyOf(std::string_view component) {
  const auto text = [](std::string_view key) {
    Value value;
    value.kind = Value::Kind::kText;
    value.text = std::string(key);
    return value;
  };
  if (component.empty() || component[0] != '~') return text(component);
  const auto refused = [&] { return Damaged(absl::StrFormat("%s is no key of a state", Quoted(component))); };
  if (component.size() < 2) return refused();
  const std::string_view rest = component.substr(2);
  std::optional<std::string> encoded;
  switch (component[1]) {
    case '~': return text(component.substr(1));
    case 'e': return text("");
    case 'j': {
      encoded = codec::Base64UrlDecode(rest);
      const Json key = encoded.has_value() ? Json::parse(*encoded, nullptr, /*allow_exceptions=*/false) : Json();
      if (!key.is_string()) return refused();
      return text(key.get<std::string>());
    }
    case 'p': encoded = codec::Base64UrlDecode(rest); break;
    case 'i':
    case 'd': encoded = std::string(1, component[1]) + std::string(rest) + ";"; break;
    case 'y': encoded = "y" + std::string(rest) + ";"; break;
    case 't':
    case 'f':
    case 'n': encoded = std::string(1, component[1]); break;
    default: break;
  }
  if (!encoded.has_value()) return refused();
  ValuesReader reader(*encoded);
  absl::StatusOr<Value> key = reader.Next();
  if (!key.ok() || !reader.AtEnd()) return refused();
  return key;
}

absl::StatusOr<StateTree> ReadStateTree(const ImageHeader& header, std::span<const LogicalTensor> tensors) {
  StateTree tree;
  const std::string* text = header.FindMetadata(kFormatKey) == nullptr ? nullptr : header.FindMetadata(kTreeKey);
  Json parsed;
  if (text != nullptr) {
    if (text->size() > kTreeBytesMax) {
      return Unsupported(absl::StrFormat("%s has %d bytes, at most %d are read", kTreeKey, text->size(), kTreeBytesMax));
    }
    parsed = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_object()) return Damaged(absl::StrFormat("%s is not a JSON object", kTreeKey));
  }
  const Json* root = text == nullptr ? nullptr : Member(parsed, "root");
  if (root == nullptr) {
    tree.flat = true;
    tree.root.kind = TreeNode::Kind::kDict;
    for (size_t i = 0; i < tensors.size(); ++i) {
      TreeNode& node = tree.root.children.emplace_back();
      node.kind = TreeNode::Kind::kTensor;
      node.bare = true;
      node.index = i;
      node.key = node.path = tensors[i].name;
    }
    return tree;
  }
  const std::string* values = header.FindMetadata(kValuesKey);
  NEVE_ASSIGN_OR_RETURN(tree.root, Reader(tensors, values == nullptr ? std::string_view() : std::string_view(*values)).Run(*root));
  return tree;
}

TreeText WriteStateTree(const TreeNode& root) { return Writer().Run(root); }

}  // namespace neve::format
