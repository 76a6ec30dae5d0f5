#include "nanotron/data/tokens/token_head.hpp"

#include <cstring>
#include <type_traits>

#include "nanotron/base/error.hpp"

namespace nanotron::data {
namespace {

class Packer {
 public:
  template <class T>
  void field(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void field(const std::string& text) {
    field(text.size());
    bytes += text;
  }

  std::string bytes;
};

class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : rest_(bytes) {}

  template <class T>
  void field(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
  }
  void field(std::string& text) {
    std::size_t size = 0;
    field(size);
    text = take(size);
  }
  void require_end() const { require(rest_.empty()); }

 private:
  std::string_view take(std::size_t bytes) {
    require(bytes <= rest_.size());
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }
  static void require(bool holds) {
    if (!holds) fail(ExitCode::system_error, {.what = "the description of a token file from another rank is damaged"});
  }

  std::string_view rest_;
};

// The order of the bytes; Head is const to pack.
template <class Archive, class Head>
void fields(Archive& archive, Head& h) {
  archive.field(h.path);
  archive.field(h.status);
  for (auto* place : {&h.tokens, &h.documents, &h.loss_mask, &h.token_hashes, &h.document_hashes, &h.loss_mask_hashes})
    archive.field(*place);
  archive.field(h.hashes);
  archive.field(h.metadata);
  archive.field(h.vocab_size);
  archive.field(h.eos_token_id);
  archive.field(h.bos_token_id);
  archive.field(h.unigram_entropy);
  archive.field(h.tokenizer.name);
  archive.field(h.tokenizer.sha256);
  archive.field(h.tokenizer.vocabulary);
}

}  // namespace

std::string packed(const TokenHead& head) {
  Packer packer;
  fields(packer, head);
  return std::move(packer.bytes);
}

TokenHead unpacked(std::string_view bytes) {
  TokenHead head;
  Unpacker unpacker(bytes);
  fields(unpacker, head);
  unpacker.require_end();
  return head;
}

}  // namespace nanotron::data
