// Manifest: a step manifest, whose bytes its user has as long as it exists. ManifestBytes sums
// them, by user and in all: the journal holds every manifest, and one user must not fill it.
//
// Ownership: a Manifest points at its ManifestBytes, which must outlive it and does not move.
//
// Thread safety: thread-compatible.
#ifndef MEMTIDE_DAEMON_ENGINE_TABLES_MANIFEST_H_
#define MEMTIDE_DAEMON_ENGINE_TABLES_MANIFEST_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/bytes.h"

namespace memtide {

class ManifestBytes {
 public:
  Bytes all() const { return all_; }
  Bytes Of(uint32_t uid) const {
    const auto found = of_user_.find(uid);
    return found == of_user_.end() ? Bytes(0) : found->second;
  }

 private:
  friend class Manifest;
  void Add(uint32_t uid, Bytes size) {
    if (!size.IsZero()) of_user_[uid] += size;
    all_ += size;
  }
  void Subtract(uint32_t uid, Bytes size) {
    all_ -= size;
    if (size.IsZero()) return;
    const auto found = of_user_.find(uid);
    found->second -= size;
    if (found->second.IsZero()) of_user_.erase(found);
  }

  std::map<uint32_t, Bytes> of_user_;  // None is zero.
  Bytes all_;
};

class Manifest {
  struct Return {
    uint32_t uid;  // Without an initializer, with which no Manifest could be empty.
    Bytes size;
    void operator()(ManifestBytes* bytes) const { bytes->Subtract(uid, size); }
  };

 public:
  Manifest() = default;  // Empty.
  Manifest(ManifestBytes* bytes, uint32_t uid, std::string text)
      : counted_(bytes, Return{uid, Bytes(text.size())}), text_(std::move(text)) {
    bytes->Add(uid, Bytes(text_.size()));
  }

  const std::string& text() const { return text_; }

 private:
  std::unique_ptr<ManifestBytes, Return> counted_;
  std::string text_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TABLES_MANIFEST_H_
