#include "daemon/policy/lru.h"

#include "base/check.h"

namespace memtide {

LruPolicy::LruPolicy() : nodes_(1) { nodes_[0] = {0, 0}; }

void LruPolicy::InsertBefore(uint32_t node, uint32_t position) {
  const uint32_t previous = nodes_[position].previous;
  nodes_[node] = {previous, position};
  nodes_[previous].next = node;
  nodes_[position].previous = node;
}

void LruPolicy::Add(uint32_t member, CopyValue value) {
  const uint32_t node = member + 1;
  if (node >= nodes_.size()) nodes_.resize(node + 1);
  MEMTIDE_CHECK(nodes_[node].next == kAbsent) << "member " << member << " is there already";
  InsertBefore(node, value == CopyValue::kDuplicate ? nodes_[0].next : 0);
}

void LruPolicy::Remove(uint32_t member) {
  MEMTIDE_CHECK(Contains(member)) << "member " << member;
  Node& node = nodes_[member + 1];
  nodes_[node.previous].next = node.next;
  nodes_[node.next].previous = node.previous;
  node = Node();
}

bool LruPolicy::Contains(uint32_t member) const {
  return member + 1 < nodes_.size() && nodes_[member + 1].next != kAbsent;
}

absl::optional<uint32_t> LruPolicy::Next() const {
  if (nodes_[0].next == 0) return absl::nullopt;
  return nodes_[0].next - 1;
}

}  // namespace memtide
