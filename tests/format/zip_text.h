// Small zip archives as text, with what tests want to be wrong in them.
#ifndef NEVE_TESTS_FORMAT_ZIP_TEXT_H_
#define NEVE_TESTS_FORMAT_ZIP_TEXT_H_

#include <zlib.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/codec/crc32.h"

namespace neve::format {

inline void Put(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> 8 * i));
}

struct ZipFile {
  std::string name, content;
  bool deflate = false;
  bool descriptor = false;      // sizes after the data, as torch writes them
  int crc_off = 0;              // added to the checksum
  std::string local_name = "";  // "": as `name`
  int64_t claimed = -1;         // size in the directory; < 0: the true one
  int64_t header_offset = -1;   // in the directory; < 0: the true one
};

inline std::string Deflated(std::string_view text) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::string ZipText(const std::vector<ZipFile>& files, std::string_view comment = "", bool zip64 = false) {
  std::string text, directory;
  for (const ZipFile& file : files) {
    const uint64_t at = text.size();
    const std::string stored = file.deflate ? Deflated(file.content) : file.content;
    const uint32_t crc = codec::Crc32(0, std::as_bytes(std::span(file.content))) + static_cast<uint32_t>(file.crc_off);
    const std::string& local = file.local_name.empty() ? file.name : file.local_name;
    const uint16_t flags = file.descriptor ? 0x808 : 0, method = file.deflate ? 8 : 0;
    text += "PK\3\4";
    Put(20, 2, &text), Put(flags, 2, &text), Put(method, 2, &text), Put(0, 4, &text);
    Put(file.descriptor ? 0 : crc, 4, &text), Put(file.descriptor ? 0 : stored.size(), 4, &text);
    Put(file.descriptor ? 0 : file.content.size(), 4, &text);
    Put(local.size(), 2, &text), Put(0, 2, &text);
    text += local + stored;
    if (file.descriptor) {
      text += "PK\7\x8";
      Put(crc, 4, &text), Put(stored.size(), 4, &text), Put(file.content.size(), 4, &text);
    }
    const uint64_t claimed = file.claimed < 0 ? file.content.size() : static_cast<uint64_t>(file.claimed);
    directory += "PK\1\2";
    Put(20, 2, &directory), Put(20, 2, &directory), Put(flags, 2, &directory), Put(method, 2, &directory);
    Put(0, 4, &directory), Put(crc, 4, &directory);
    Put(file.deflate || file.claimed < 0 ? stored.size() : claimed, 4, &directory), Put(claimed, 4, &directory);
    Put(file.name.size(), 2, &directory), Put(0, 2, &directory), Put(0, 2, &directory);
    Put(0, 8, &directory);
    Put(file.header_offset < 0 ? at : static_cast<uint64_t>(file.header_offset), 4, &directory);
    directory += file.name;
  }
  const uint64_t offset = text.size();
  text += directory;
  if (zip64) {
    const uint64_t at = text.size();
    text += "PK\6\6";
    Put(44, 8, &text), Put(45, 2, &text), Put(45, 2, &text), Put(0, 4, &text), Put(0, 4, &text);
    Put(files.size(), 8, &text), Put(files.size(), 8, &text), Put(directory.size(), 8, &text), Put(offset, 8, &text);
    text += "PK\6\7";
    Put(0, 4, &text), Put(at, 8, &text), Put(1, 4, &text);
  }
  text += "PK\5\6";
  Put(0, 4, &text);
  Put(zip64 ? 0xffff : files.size(), 2, &text), Put(zip64 ? 0xffff : files.size(), 2, &text);
  Put(directory.size(), 4, &text), Put(zip64 ? 0xffffffff : offset, 4, &text);
  Put(comment.size(), 2, &text);
  return text + std::string(comment);
}

}  // namespace neve::format

#endif  // NEVE_TESTS_FORMAT_ZIP_TEXT_H_
