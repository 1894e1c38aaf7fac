#include "format/pickle_machine.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/codec/text.h"
#include "format/pickle_text.h"

namespace neve::format {
namespace {

constexpr uint64_t kFetchBytes = 256u << 10;
constexpr uint64_t kLineBytesMax = 16u << 20;  // of an argument that ends with its line
constexpr uint64_t kSparseMemoMax = 1u << 20;  // memo places out of order
constexpr int64_t kSmallIntegers = 256;        // shared nodes, as Python shares them

}  // namespace

class PickleMachine {
 public:
  PickleMachine(const ByteSource& source, uint64_t begin, uint64_t end, const PickleLimits& limits)
      : source_(source), begin_(begin), end_(std::min(end, source.size())), limits_(limits) {
    graph_.text_offset_ = begin;
  }

  absl::StatusOr<ReadPickleResult> Run() {
    graph_.nodes_.push_back({PickleKind::kFalse});
    graph_.nodes_.push_back({PickleKind::kTrue});
    for (int64_t i = 0; i < kSmallIntegers; ++i) {
      graph_.nodes_.push_back({PickleKind::kInteger, false, 0, static_cast<uint64_t>(i)});
    }
    empty_tuple_ = Add({PickleKind::kTuple});
    while (!done_) {
      opcode_at_ = at_;
      std::string_view byte;
      if (!Fetch(1, &byte)) break;
      opcode_ = static_cast<unsigned char>(byte[0]);
      if (!Step()) break;
    }
    NEVE_RETURN_IF_ERROR(status_);
    ReadPickleResult result{std::move(graph_), begin_ + at_};
    return result;
  }

 private:
  using Node = PickleGraph::Node;

  bool Fail(const std::string& what) {
    if (status_.ok()) {
      const bool printable = opcode_ > ' ' && opcode_ < 0x7f;
      status_ =
          Damaged(absl::StrFormat("%s: the pickle is malformed at byte %d (opcode %s): %s", source_.name(), begin_ + opcode_at_,
                                  printable ? absl::StrFormat("'%c'", opcode_) : absl::StrFormat("0x%02x", opcode_), what));
    }
    return false;
  }

  // ---- bytes ----

  // Views of earlier bytes die when more are read: nodes hold offsets.
  bool Fetch(uint64_t bytes, std::string_view* view) {
    std::string& text = graph_.text_;
    if (bytes > text.size() - at_) {
      const uint64_t have = text.size(), wanted = at_ + bytes, available = end_ - begin_;
      if (bytes > available || wanted > available) {
        return Fail(absl::StrFormat("truncated: %d bytes wanted at byte %d, its source ends at %d", bytes, begin_ + at_, end_));
      }
      if (wanted > limits_.pickle_bytes_max) {
        return Fail(absl::StrFormat("it has more than %d bytes", limits_.pickle_bytes_max));
      }
      const uint64_t goal = std::min(std::max(wanted, have + kFetchBytes), available);
      text.resize(goal);
      if (absl::Status status = source_.Read(begin_ + have, std::as_writable_bytes(std::span(text)).subspan(have));
          !status.ok()) {
        status_ = status;
        return false;
      }
    }
    *view = std::string_view(text).substr(at_, bytes);
    at_ += bytes;
    return true;
  }
  bool Unsigned(int bytes, uint64_t* value) {
    std::string_view view;
    if (!Fetch(static_cast<uint64_t>(bytes), &view)) return false;
    *value = 0;
    for (int i = bytes; i-- > 0;) *value = *value << 8 | static_cast<unsigned char>(view[static_cast<size_t>(i)]);
    return true;
  }
  // Up to a line break, which is taken and not part of it.
  bool Line(uint64_t* offset, uint64_t* bytes) {
    *offset = at_;
    for (;;) {
      const std::string_view rest = std::string_view(graph_.text_).substr(at_);
      const size_t end = rest.find('\n');
      if (end != std::string_view::npos) {
        at_ += end + 1;
        *bytes = at_ - 1 - *offset;
        return true;
      }
      at_ += rest.size();
      if (at_ - *offset > kLineBytesMax) return Fail("a line without an end");
      std::string_view more;
      if (!Fetch(1, &more)) return false;
      --at_;
    }
  }
  std::string_view At(uint64_t offset, uint64_t bytes) const { return std::string_view(graph_.text_).substr(offset, bytes); }

  // ---- nodes and the stack ----

  bool Room(uint64_t count) {
    used_ += count;
    return used_ <= limits_.nodes_max || Fail(absl::StrFormat("it makes more than %d objects", limits_.nodes_max));
  }
  PickleNode Add(const Node& node) {
    graph_.nodes_.push_back(node);
    return static_cast<PickleNode>(graph_.nodes_.size() - 1);
  }
  bool Push(PickleNode node) {
    if (stack_.size() >= limits_.nodes_max) return Fail("its stack grows without end");
    stack_.push_back(node);
    return true;
  }
  bool PushNew(const Node& node) { return Room(1) && Push(Add(node)); }
  bool PushInteger(int64_t value) {
    if (value >= 0 && value < kSmallIntegers) return Push(static_cast<PickleNode>(3 + value));
    return PushNew({PickleKind::kInteger, false, 0, static_cast<uint64_t>(value)});
  }
  bool PushText(PickleKind kind, uint64_t offset, uint64_t bytes) {
    return PushNew({kind, false, static_cast<uint32_t>(bytes), offset});  // bounded by pickle_bytes_max
  }
  bool PushDecoded(PickleKind kind, std::string text) {
    Node node{kind, true, static_cast<uint32_t>(text.size()), graph_.decoded_.size()};
    graph_.decoded_.push_back(std::move(text));
    return PushNew(node);
  }
  size_t Floor() const { return marks_.empty() ? 0 : marks_.back(); }
  bool Need(size_t count) {
    return stack_.size() - Floor() >= count || Fail(absl::StrFormat("the stack holds fewer than %d objects", count));
  }
  PickleNode Pop() {
    const PickleNode node = stack_.back();
    stack_.pop_back();
    return node;
  }
  // The objects above the last mark, which is taken. They stay on the stack until `Drop`.
  bool Marked(size_t* begin) {
    if (marks_.empty()) return Fail("there is no mark");
    *begin = marks_.back();
    marks_.pop_back();
    return true;
  }
  void Drop(size_t begin) { stack_.resize(begin); }

  bool MakeTuple(size_t begin) {
    const size_t count = stack_.size() - begin;
    PickleNode tuple = empty_tuple_;
    if (count > 0) {
      if (!Room(1 + count)) return false;
      tuple = Add({PickleKind::kTuple, false, static_cast<uint32_t>(count), graph_.tuples_.size()});
      graph_.tuples_.insert(graph_.tuples_.end(), stack_.begin() + static_cast<ptrdiff_t>(begin), stack_.end());
    }
    Drop(begin);
    return Push(tuple);
  }
  bool MakeList(PickleKind kind, size_t begin) {
    const size_t count = stack_.size() - begin;
    if (kind == PickleKind::kDict && count % 2 != 0) return Fail("a key without a value");
    if (!Room(1 + count)) return false;
    const PickleNode list = Add({kind, false, 0, graph_.lists_.size()});
    graph_.lists_.emplace_back(stack_.begin() + static_cast<ptrdiff_t>(begin), stack_.end());
    Drop(begin);
    return Push(list);
  }
  // Puts the objects from `begin` on into the container right below them.
  bool Extend(size_t begin, bool pairs) {
    if (begin <= Floor()) return Fail("there is no container to add to");
    const size_t count = stack_.size() - begin;
    if (pairs && count % 2 != 0) return Fail("a key without a value");
    if (!Room(count)) return false;
    const Node& into = graph_.nodes_[stack_[begin - 1]];
    std::vector<PickleNode>* list = nullptr;
    if (into.kind == PickleKind::kCall) {
      list = pairs ? &graph_.calls_[into.word].pairs : &graph_.calls_[into.word].items;
    } else if (into.kind == PickleKind::kDict ? pairs
                                              : !pairs && (into.kind == PickleKind::kList || into.kind == PickleKind::kSet)) {
      list = &graph_.lists_[into.word];
    } else {
      return Fail("what it adds to is no container of that kind");
    }
    list->insert(list->end(), stack_.begin() + static_cast<ptrdiff_t>(begin), stack_.end());
    Drop(begin);
    return true;
  }
  bool MakeCall(PickleNode callable, PickleNode args, bool constructs) {
    const PickleKind kind = graph_.nodes_[callable].kind;
    if (kind != PickleKind::kGlobal && kind != PickleKind::kCall && kind != PickleKind::kPersistent) {
      return Fail("what it calls cannot be called");
    }
    if (!Room(4)) return false;
    const PickleNode call = Add({PickleKind::kCall, false, 0, graph_.calls_.size()});
    graph_.calls_.push_back({callable, args, 0, constructs, {}, {}});
    return Push(call);
  }
  bool MakeGlobal(PickleNode module, PickleNode name) {
    if (graph_.nodes_[module].kind != PickleKind::kText || graph_.nodes_[name].kind != PickleKind::kText) {
      return Fail("a global's module and name are no texts");
    }
    graph_.globals_.emplace_back(module, name);
    return PushNew({PickleKind::kGlobal, false, 0, graph_.globals_.size() - 1});
  }
  bool GlobalFromLines() {
    uint64_t offset = 0, bytes = 0;
    for (int i = 0; i < 2; ++i) {
      if (!Line(&offset, &bytes) || !PushText(PickleKind::kText, offset, bytes)) return false;
    }
    const PickleNode name = Pop(), module = Pop();
    return MakeGlobal(module, name);
  }

  // ---- the memo ----

  // Places come in order nearly always; those that do not are kept apart until the others reach them.
  bool Put(uint64_t index) {
    if (!Need(1)) return false;
    if (index < memo_.size()) {
      memo_[index] = stack_.back();
    } else if (index == memo_.size()) {
      if (memo_.size() >= limits_.nodes_max) return Fail("its memo grows without end");
      memo_.push_back(stack_.back());
      if (!sparse_memo_.empty()) sparse_memo_.erase(index);
    } else {
      if (sparse_memo_.size() >= kSparseMemoMax) return Fail("its memo is in no order");
      sparse_memo_[index] = stack_.back();
    }
    return true;
  }
  bool Get(uint64_t index) {
    if (index < memo_.size()) return Push(memo_[index]);
    const auto found = sparse_memo_.find(index);
    if (found == sparse_memo_.end()) return Fail(absl::StrFormat("the memo has no place %d", index));
    return Push(found->second);
  }

  bool Step();
  bool StepNumber();
  bool StepText();
  bool StepContainer();
  bool StepObject();

  const ByteSource& source_;
  uint64_t begin_, end_;
  const PickleLimits& limits_;
  PickleGraph graph_;
  uint64_t at_ = 0, opcode_at_ = 0;  // in graph_.text_
  unsigned char opcode_ = 0;
  bool done_ = false;
  uint64_t used_ = 0;
  PickleNode empty_tuple_ = 0;
  std::vector<PickleNode> stack_;
  std::vector<size_t> marks_;
  std::vector<PickleNode> memo_;
  std::unordered_map<uint64_t, PickleNode> sparse_memo_;
  absl::Status status_;
};

bool PickleMachine::Step() {
  uint64_t value = 0;
  switch (opcode_) {
    case 0x80:  // PROTO
      if (!Unsigned(1, &value)) return false;
      return value <= 5 || Fail(absl::StrFormat("protocol %d is not known", value));
    case 0x95:  // FRAME: only a hint of how much to read
      if (!Unsigned(8, &value)) return false;
      return value <= end_ - begin_ - at_ || Fail(absl::StrFormat("truncated: a frame of %d bytes reaches past the end", value));
    case '.':
      if (!Need(1)) return false;
      graph_.root_ = stack_.back();
      done_ = true;
      return true;
    case '(':
      if (marks_.size() >= limits_.nodes_max) return Fail("its marks grow without end");
      marks_.push_back(stack_.size());
      return true;
    case '0':  // POP, also of a mark
      if (!marks_.empty() && marks_.back() == stack_.size()) {
        marks_.pop_back();
        return true;
      }
      if (!Need(1)) return false;
      stack_.pop_back();
      return true;
    case '1': {
      size_t begin = 0;
      if (!Marked(&begin)) return false;
      Drop(begin);
      return true;
    }
    case '2':
      return Need(1) && Push(stack_.back());
    case 'N':
      return Push(0);
    case 0x89:
      return Push(1);
    case 0x88:
      return Push(2);
    case 'q':
      return Unsigned(1, &value) && Put(value);
    case 'r':
      return Unsigned(4, &value) && Put(value);
    case 0x94:
      return Put(memo_.size() + sparse_memo_.size());  // MEMOIZE
    case 'h':
      return Unsigned(1, &value) && Get(value);
    case 'j':
      return Unsigned(4, &value) && Get(value);
    case 'p':
    case 'g': {
      const bool put = opcode_ == 'p';
      uint64_t offset = 0, bytes = 0;
      if (!Line(&offset, &bytes)) return false;
      const std::string_view digits = At(offset, bytes);
      const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
      if (error != std::errc() || stop != digits.data() + digits.size()) return Fail("no number of a memo place");
      return put ? Put(value) : Get(value);
    }
    case 'I':
    case 'J':
    case 'K':
    case 'M':
    case 'L':
    case 'F':
    case 'G':
    case 0x8a:
    case 0x8b:
      return StepNumber();
    case 'S':
    case 'T':
    case 'U':
    case 'V':
    case 'X':
    case 'B':
    case 'C':
    case 0x8c:
    case 0x8d:
    case 0x8e:
    case 0x96:
      return StepText();
    case 't':
    case ')':
    case 0x85:
    case 0x86:
    case 0x87:
    case 'l':
    case ']':
    case 'a':
    case 'e':
    case 'd':
    case '}':
    case 's':
    case 'u':
    case 0x8f:
    case 0x90:
    case 0x91:
      return StepContainer();
    case 'c':
    case 0x93:
    case 'R':
    case 'b':
    case 'i':
    case 'o':
    case 0x81:
    case 0x92:
    case 'P':
    case 'Q':
      return StepObject();
    case 0x82:
    case 0x83:
    case 0x84:
      status_ =
          Unsupported(absl::StrFormat("%s: the pickle uses the extension registry (byte %d), which only the program that wrote "
                                      "it knows",
                                      source_.name(), begin_ + opcode_at_));
      return false;
    case 0x97:
    case 0x98:
      status_ = Unsupported(
          absl::StrFormat("%s: the pickle names a buffer outside of it (byte %d)", source_.name(), begin_ + opcode_at_));
      return false;
    default:
      return Fail("no such opcode");
  }
}

bool PickleMachine::StepNumber() {
  uint64_t value = 0, offset = 0, bytes = 0;
  switch (opcode_) {
    case 'K':
      return Unsigned(1, &value) && PushInteger(static_cast<int64_t>(value));
    case 'M':
      return Unsigned(2, &value) && PushInteger(static_cast<int64_t>(value));
    case 'J':
      return Unsigned(4, &value) && PushInteger(static_cast<int32_t>(value));
    case 'G': {  // big endian
      if (!Unsigned(8, &value)) return false;
      return PushNew({PickleKind::kFloat, false, 0, __builtin_bswap64(value)});
    }
    case 0x8a:
    case 0x8b: {
      if (!Unsigned(opcode_ == 0x8a ? 1 : 4, &bytes)) return false;
      if (opcode_ == 0x8b && bytes > INT32_MAX) return Fail("a number of negative length");
      std::string_view digits;
      offset = at_;
      if (!Fetch(bytes, &digits)) return false;
      if (bytes > 8) return PushText(PickleKind::kLong, offset, bytes);
      uint64_t number = 0;
      for (size_t i = bytes; i-- > 0;) number = number << 8 | static_cast<unsigned char>(digits[i]);
      if (bytes > 0 && bytes < 8 && digits[bytes - 1] & 0x80) number |= ~uint64_t{0} << 8 * bytes;
      return PushInteger(static_cast<int64_t>(number));
    }
    default:
      break;
  }
  if (!Line(&offset, &bytes)) return false;
  std::string text(At(offset, bytes));
  if (opcode_ == 'F') {
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    if (text.empty() || end != text.c_str() + text.size()) return Fail("no float");
    return PushNew({PickleKind::kFloat, false, 0, std::bit_cast<uint64_t>(number)});
  }
  if (opcode_ == 'I' && text == "00") return Push(1);
  if (opcode_ == 'I' && text == "01") return Push(2);
  if (text.ends_with('L')) text.pop_back();
  int64_t number = 0;
  const char* const last = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), last, number);
  if (error == std::errc() && stop == last) return PushInteger(number);
  std::string twos;
  if (!DecimalToTwosComplement(text, &twos)) return Fail("no integer, or one of too many digits");
  return PushDecoded(PickleKind::kLong, std::move(twos));
}

bool PickleMachine::StepText() {
  uint64_t bytes = 0, offset = 0;
  if (opcode_ == 'S' || opcode_ == 'V') {
    if (!Line(&offset, &bytes)) return false;
    std::string text;
    if (!(opcode_ == 'S' ? DecodeQuoted(At(offset, bytes), &text) : DecodeRawUnicode(At(offset, bytes), &text))) {
      return Fail("no text of that kind");
    }
    return PushDecoded(opcode_ == 'V' || codec::IsValidUtf8(text) ? PickleKind::kText : PickleKind::kBytes, std::move(text));
  }
  const bool one = opcode_ == 'U' || opcode_ == 'C' || opcode_ == 0x8c;
  const bool eight = opcode_ == 0x8d || opcode_ == 0x8e || opcode_ == 0x96;
  if (!Unsigned(one ? 1 : eight ? 8 : 4, &bytes)) return false;
  if (opcode_ == 'T' && bytes > INT32_MAX) return Fail("a text of negative length");
  std::string_view text;
  offset = at_;
  if (!Fetch(bytes, &text)) return false;
  switch (opcode_) {
    case 'B':
    case 'C':
    case 0x8e:
      return PushText(PickleKind::kBytes, offset, bytes);
    case 0x96:
      return PushText(PickleKind::kByteArray, offset, bytes);
    case 'T':
    case 'U':  // Python 2's, which are either
      return PushText(codec::IsValidUtf8(text) ? PickleKind::kText : PickleKind::kBytes, offset, bytes);
    default:
      break;
  }
  if (!IsUtf8WithSurrogates(text)) return Fail("a text that is no UTF-8");
  return PushText(PickleKind::kText, offset, bytes);
}

bool PickleMachine::StepContainer() {
  size_t begin = 0;
  switch (opcode_) {
    case ')':
      return Push(empty_tuple_);
    case 0x85:
    case 0x86:
    case 0x87: {
      const size_t count = opcode_ - 0x84u;
      return Need(count) && MakeTuple(stack_.size() - count);
    }
    case ']':
      return MakeList(PickleKind::kList, stack_.size());
    case '}':
      return MakeList(PickleKind::kDict, stack_.size());
    case 0x8f:
      return MakeList(PickleKind::kSet, stack_.size());
    case 'a':
      return Need(2) && Extend(stack_.size() - 1, false);
    case 's':
      return Need(3) && Extend(stack_.size() - 2, true);
    default:
      break;
  }
  if (!Marked(&begin)) return false;
  switch (opcode_) {
    case 't':
      return MakeTuple(begin);
    case 'l':
      return MakeList(PickleKind::kList, begin);
    case 'd':
      return MakeList(PickleKind::kDict, begin);
    case 0x91:
      return MakeList(PickleKind::kFrozenSet, begin);
    case 'u':
      return Extend(begin, true);
    default:
      return Extend(begin, false);  // APPENDS, ADDITEMS
  }
}

bool PickleMachine::StepObject() {
  size_t begin = 0;
  switch (opcode_) {
    case 'c':
      return GlobalFromLines();
    case 0x93: {
      if (!Need(2)) return false;
      const PickleNode name = Pop(), module = Pop();
      return MakeGlobal(module, name);
    }
    case 'Q':
      return Need(1) && PushNew({PickleKind::kPersistent, false, 0, Pop()});
    case 'P': {
      uint64_t offset = 0, bytes = 0;
      if (!Line(&offset, &bytes) || !PushText(PickleKind::kText, offset, bytes)) return false;
      return PushNew({PickleKind::kPersistent, false, 0, Pop()});
    }
    case 'R':
    case 0x81: {
      if (!Need(2)) return false;
      const PickleNode args = Pop(), callable = Pop();
      return MakeCall(callable, args, opcode_ == 0x81);
    }
    case 0x92: {  // class, args, keyword arguments: those are kept as a pair of both
      if (!Need(3)) return false;
      if (!MakeTuple(stack_.size() - 2)) return false;
      const PickleNode args = Pop(), callable = Pop();
      return MakeCall(callable, args, true);
    }
    case 'i':
      if (!Marked(&begin) || !MakeTuple(begin) || !GlobalFromLines()) return false;
      begin = stack_.size() - 1;
      std::swap(stack_[begin], stack_[begin - 1]);
      break;
    case 'o': {
      if (!Marked(&begin)) return false;
      if (begin == stack_.size()) return Fail("there is no class above the mark");
      if (!MakeTuple(begin + 1)) return false;
      break;
    }
    default: {  // BUILD
      if (!Need(2)) return false;
      const PickleNode state = Pop();
      const Node& object = graph_.nodes_[stack_.back()];
      if (object.kind != PickleKind::kCall) return Fail("it gives a state to what is no object");
      PickleCall& call = graph_.calls_[object.word];
      if (call.state != 0) return Fail("it gives an object a second state");
      call.state = state;
      return true;
    }
  }
  const PickleNode args = Pop(), callable = Pop();
  return MakeCall(callable, args, true);
}

absl::StatusOr<ReadPickleResult> ReadPickle(const ByteSource& source, uint64_t begin, uint64_t end, const PickleLimits& limits) {
  return PickleMachine(source, begin, end, limits).Run();
}

absl::StatusOr<ReadPickleResult> ReadPickle(std::string pickle, const std::string& name, const PickleLimits& limits) {
  const std::unique_ptr<ByteSource> source = MakeMemorySource(std::move(pickle), name);
  return ReadPickle(*source, 0, source->size(), limits);
}

}  // namespace neve::format
