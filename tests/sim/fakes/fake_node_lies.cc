// The fake node's disk that lies: it says that all went well, and has other bytes.
#include <iterator>

#include "absl/strings/str_cat.h"
#include "tests/sim/fakes/fake_node.h"
#include "tests/sim/trace.h"

namespace memtide::sim {

Stamp FakeNode::StoredStamp(const Work& work, Stamp stamp) {
  const Key key = KeyOf(work.transfer.store);
  meant_[key] = stamp;
  if (!Lies()) return stamp;
  switch (lies_->Below(4)) {
    case 0:
      probes_.Hit(Probe::kDiskFlipped);
      return stamp ^ (Stamp{1} << lies_->Below(62));
    case 1:
      probes_.Hit(Probe::kDiskTore);
      return NewPoison();
    case 2: {
      // The content that was written there before stays, and the bytes are in the place of another
      // content.
      const auto other =
          std::next(disk_.begin(), lies_->Below(static_cast<uint32_t>(disk_.size())));
      if (other->first != key) {
        probes_.Hit(Probe::kDiskMisdirected);
        other->second = stamp;
      }
      return work.before;
    }
    default:
      probes_.Hit(Probe::kDiskForgot);
      return work.before;
  }
}

Stamp FakeNode::LoadedStamp(const StartTransfer& transfer, Stamp stamp, TransferDone* done) {
  const Key key = SlotOf(transfer);
  const auto meant = meant_.find(key);
  const bool is_right = meant != meant_.end() && meant->second == stamp;
  if (Lies()) stamp ^= Stamp{1} << lies_->Below(62);
  if (transfer.sums.empty()) return stamp;
  for (const uint64_t sum : transfer.sums) {
    if (sum == stamp) continue;
    // The engine compares with the sums of what was written there, and of nothing else.
    if (is_right && sum != meant->second) {
      verdict_.Broken(absl::StrCat(ToText(transfer), ": the sums are of another content"));
    }
    done->status = absl::DataLossError("planted: the disk has other bytes");
    done->wrong_bytes = true;
    probes_.Hit(transfer.kind == StartTransfer::Kind::kVerifySsd ? Probe::kScrubFoundWrongBytes
                                                                 : Probe::kReadFoundWrongBytes);
    return NewPoison();
  }
  return stamp;
}

}  // namespace memtide::sim
