#include "format/value_nodes.h"

#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "format/json_text.h"
#include "format/key_escapes.h"

namespace neve::format {
namespace {

// The children of a container whose text begins behind its opening bracket.
absl::Status ReadChildren(std::string_view inner, char close, const std::string& path, TreeNode* node) {
  ValuesReader reader(inner);
  while (reader.position() >= inner.size() || inner[reader.position()] != close) {
    TreeNode child;
    size_t begin = reader.position();
    if (close == '}') {
      NEVE_ASSIGN_OR_RETURN(const Value key, reader.NextKey());
      child.key = ComponentOfKey(key, inner.substr(begin, reader.position() - begin));
      begin = reader.position();
    } else {
      child.key = std::to_string(node->children.size());
    }
    NEVE_RETURN_IF_ERROR(reader.Skip());
    child.path = path.empty() ? child.key : path + "." + child.key;
    child.text = inner.substr(begin, reader.position() - begin);
    node->children.push_back(std::move(child));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> OpenValue(TreeNode* node) {
  const std::string text = node->text;
  std::string_view inner = text, class_name;
  if (inner.starts_with("@'")) {
    const size_t end = inner.find('\'', 2);
    if (end == std::string_view::npos) return Damaged(absl::StrFormat("%s: a class without an end of its name", Quoted(node->path)));
    class_name = inner.substr(2, end - 2);
    inner.remove_prefix(end + 1);
  }
  TreeNode made;
  made.path = node->path;
  const bool ordered = inner.starts_with("E{"), dict = ordered || inner.starts_with('{');
  const bool list = inner.starts_with('['), tuple = inner.starts_with('(');
  if (!dict && !tuple && !(list && class_name.empty())) return false;
  made.kind = dict ? TreeNode::Kind::kDict : TreeNode::Kind::kList;
  if (ordered) made.type = "O";
  if (tuple) made.type = class_name.empty() ? "tuple" : "n:" + std::string(class_name);
  inner.remove_prefix(ordered ? 2 : 1);
  NEVE_RETURN_IF_ERROR(ReadChildren(inner, dict ? '}' : list ? ']' : ')', node->path, &made));
  if (dict && !class_name.empty()) {
    TreeNode fields = std::move(made);
    made = TreeNode();
    made.kind = TreeNode::Kind::kComposite;
    made.type = "dataclass";
    made.text = class_name;
    made.path = node->path;
    made.children.push_back(std::move(fields));
  }
  made.key = std::move(node->key);
  *node = std::move(made);
  return true;
}

bool IsDictionaryText(std::string_view text) { return text.starts_with('{') || text.starts_with("E{"); }

}  // namespace neve::format
