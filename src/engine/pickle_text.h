// Writes the opcodes of a pickle, protocol 2.
#ifndef NEVE_ENGINE_PICKLE_TEXT_H_
#define NEVE_ENGINE_PICKLE_TEXT_H_

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

namespace neve::engine {

class PickleText {
 public:
  PickleText() { text_ = "\x80\x02"; }
  std::string Finish() && { return std::move(text_.append(".")); }

  void None() { text_.push_back('N'); }
  void Bool(bool value) { text_.append(value ? "\x88" : "\x89"); }
  void Integer(int64_t value);
  void Integer(const std::string& digits);   // of any size: decimal, or hexadecimal behind 0x
  void Float(double value);
  void Text(std::string_view utf8);          // lone surrogates stand as they are
  void Bytes(std::string_view bytes);
  void Global(const std::string& module, const std::string& name);
  void Mark() { text_.push_back('('); }
  void Tuple(size_t items);                  // of the items above; more than three need a Mark before them
  void EmptyTuple() { text_.push_back(')'); }
  void EmptyList() { text_.push_back(']'); }
  void EmptyDict() { text_.push_back('}'); }
  void Appends() { text_.push_back('e'); }   // those above the mark
  void SetItems() { text_.push_back('u'); }
  void Reduce() { text_.push_back('R'); }
  void NewObject() { text_.push_back('\x81'); }   // class.__new__(class, *tuple), of the two above
  void Build() { text_.push_back('b'); }
  void PersistentId() { text_.push_back('Q'); }
  // Keeps what is on top under a number, which Get brings again.
  uint32_t Memoize();
  void Get(uint32_t number);

 private:
  template <typename Number>
  void Little(Number value) {
    for (size_t i = 0; i < sizeof(Number); ++i) text_.push_back(static_cast<char>(value >> (8 * i)));
  }

  std::string text_;
  uint32_t memoized_ = 0;
  std::unordered_map<std::string, uint32_t> globals_;
};

}  // namespace neve::engine

#endif  // NEVE_ENGINE_PICKLE_TEXT_H_
