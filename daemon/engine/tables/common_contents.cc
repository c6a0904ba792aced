#include "daemon/engine/tables/common_contents.h"

#include <utility>

#include "base/check.h"

namespace memtide {

CommonContent* CommonContents::Find(const Digest& digest) {
  const auto found = contents_.find(digest);
  return found == contents_.end() ? nullptr : found->second.get();
}

CommonContent& CommonContents::Add(const Digest& digest, Slot slot) {
  MEMTIDE_CHECK(slot);
  std::unique_ptr<CommonContent>& content = contents_[digest];
  MEMTIDE_CHECK(content == nullptr) << "two contents have digest " << digest;
  content = std::make_unique<CommonContent>();
  content->of = this;
  content->digest = digest;
  content->slot = std::move(slot);
  return *content;
}

CommonContent& CommonContents::AddWhole(Slot slot) {
  CommonContent& content = Add({0, ++added_whole_}, std::move(slot));
  content.whole = true;
  return content;
}

void CommonContents::Remove(const CommonContent& content) {
  MEMTIDE_CHECK(content.readers.value() == 0);
  MEMTIDE_CHECK(contents_.erase(Digest(content.digest)) == 1);
}

std::set<SlotNumber> CommonContents::slots() const {
  std::set<SlotNumber> slots;
  for (const auto& [digest, content] : contents_) slots.insert(content->slot.number());
  return slots;
}

uint32_t CommonContents::readers() const {
  uint32_t readers = 0;
  for (const auto& [digest, content] : contents_) readers += content->readers.value();
  return readers;
}

void CommonContents::Withdraw(const Digest& digest, SessionId session, ChunkId chunk) {
  const auto offered = offered_.find(digest);
  MEMTIDE_CHECK(offered != offered_.end());
  const auto by_session = offered->second.find(session);
  MEMTIDE_CHECK(by_session != offered->second.end());
  MEMTIDE_CHECK(by_session->second.erase(chunk) == 1);
  if (by_session->second.empty()) offered->second.erase(by_session);
  if (offered->second.empty()) offered_.erase(offered);
}

bool CommonContents::IsOfferedByOthers(const Digest& digest, SessionId session) const {
  const auto offered = offered_.find(digest);
  if (offered == offered_.end()) return false;
  return offered->second.size() > offered->second.count(session);
}

const CommonContents::Offers* CommonContents::OffersOf(const Digest& digest) const {
  const auto offered = offered_.find(digest);
  return offered == offered_.end() ? nullptr : &offered->second;
}

void CommonContents::CheckInvariants() const {
  for (const auto& [digest, content] : contents_) {
    MEMTIDE_CHECK(content->of == this && content->digest == digest && content->slot);
    MEMTIDE_CHECK(content->readers.value() > 0) << "a content is kept for nobody";
  }
  MEMTIDE_CHECK(job != nullptr || contents_.empty());
}

}  // namespace memtide
